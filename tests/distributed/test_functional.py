"""Functional collectives on mps tensors, also in compiled functions."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from . import transformer

RANKS = 2


def numbers(rank=None):
    return torch.arange(4.0, device="mps") + (dist.get_rank() if rank is None else rank)


def everyone(function):
    return [function(numbers(rank)) for rank in range(RANKS)]


def eager():
    world = dist.group.WORLD
    x, both = numbers(), everyone(lambda y: y)
    kept = x.clone()
    expected = {
        "all_reduce": sum(both),
        "all_gather": torch.cat(both),
        "reduce_scatter": sum(both).chunk(2)[dist.get_rank()],
        "broadcast": both[1],
        "all_to_all": torch.cat([y.chunk(2)[dist.get_rank()] for y in both]),
    }
    actual = {
        "all_reduce": functional.all_reduce(x, "sum", world),
        "all_gather": functional.all_gather_tensor(x, 0, world),
        "reduce_scatter": functional.reduce_scatter_tensor(x, "sum", 0, world),
        "broadcast": functional.broadcast(x, 1, world),
        "all_to_all": functional.all_to_all_single(x, None, None, world),
    }
    for name, result in actual.items():
        torch.testing.assert_close(result * 1, expected[name], msg=lambda text: f"{name}: {text}")  # noqa: B023
    coalesced = functional.all_reduce_coalesced([x, 2 * x], "sum", world)
    assert torch.equal(coalesced[1] * 1, 2 * sum(both)) and torch.equal(x, kept)


def differentiable():
    x = numbers().requires_grad_()
    y = functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
    (y * torch.arange(8.0, device="mps")).sum().backward()
    start = 4 * dist.get_rank()
    assert x.grad.tolist() == [2.0 * i for i in range(start, start + 4)]


def compiled():
    @torch.compile(fullgraph=True)
    def gathered_sums(x):
        total = functional.all_reduce(x.sin(), "sum", dist.group.WORLD)
        return functional.all_gather_tensor(total.cos(), 0, dist.group.WORLD) + 1

    @torch.compile(fullgraph=True)
    def in_place(x):
        y = x + 1
        dist.all_reduce(y)
        return y * 2

    expected = sum(everyone(torch.sin)).cos().repeat(2) + 1
    torch.testing.assert_close(gathered_sums(numbers()), expected)
    torch.testing.assert_close(in_place(numbers()), 2 * sum(everyone(lambda y: y + 1)))


def compiled_ddp():
    model, reference = transformer.make(), transformer.make()
    wrapped = torch.compile(DistributedDataParallel(model), backend="aot_eager")
    transformer.loss(wrapped, transformer.batch(0)[dist.get_rank() :: 2]).backward()
    transformer.loss(reference, transformer.batch(0)).backward()
    for x, y in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-5)


def assert_trains_as_one_process(model, steps=2):
    """Parameters after steps of SGD, the second of which runs what the first has compiled."""
    reference = transformer.make()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.3) for m in (model, reference)]
    for step in range(steps):
        words = transformer.batch(step)
        transformer.loss(model, words[dist.get_rank() :: RANKS]).backward()
        transformer.loss(reference, words).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for x, y in zip(model.parameters(), reference.parameters()):
        assert isinstance(x, DTensor)
        torch.testing.assert_close(x.full_tensor(), y, rtol=1e-3, atol=2e-5)


def compiled_blocks_of_fully_shard():
    """Each block is compiled as a whole, with gathering and scattering around it."""
    model, mesh = transformer.make(), init_device_mesh("mps", (RANKS,))
    for block in model.blocks:
        block.compile(fullgraph=True)
        fully_shard(block, mesh=mesh)
    assert_trains_as_one_process(fully_shard(model, mesh=mesh))


def compiled_fully_shard():
    """All of it is compiled, with graph breaks where it gathers and scatters."""
    model, mesh = transformer.make(), init_device_mesh("mps", (RANKS,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh).compile(backend="aot_eager")
    assert_trains_as_one_process(model)


@pytest.mark.parametrize("case", [eager, differentiable], ids=lambda case: case.__name__)
def test_eager(pair, case):
    pair.run(case)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "case",
    [compiled, compiled_ddp, compiled_fully_shard, compiled_blocks_of_fully_shard],
    ids=lambda case: case.__name__,
)
def test_compiled(pair, case):
    pair.run(case, timeout=180)
