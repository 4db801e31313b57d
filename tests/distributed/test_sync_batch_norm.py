"""nn.SyncBatchNorm of mps tensors has the statistics and gradients of one process with the whole batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def _make():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU()).to("mps")


def _compare(begin, end, total):
    torch.manual_seed(2)
    images = torch.randn(total, 3, 5, 6).to("mps")  # the same in all ranks
    reference, model = _make(), nn.SyncBatchNorm.convert_sync_batchnorm(_make())
    mine = images[begin:end]
    for _ in range(2):
        expected = reference(images)
        result = model(mine)
        torch.testing.assert_close(result, expected[begin:end], rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    result.square().sum().backward()
    for x, y in zip(model.parameters(), reference.parameters()):
        gradient = torch.zeros_like(y) if x.grad is None else x.grad
        dist.all_reduce(gradient)
        torch.testing.assert_close(gradient, y.grad, rtol=1e-3, atol=1e-4)
    for x, y in zip(model.buffers(), reference.buffers()):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
    model.eval(), reference.eval()
    torch.testing.assert_close(model(images), reference(images), rtol=1e-4, atol=1e-5)


def parts_of_a_batch():
    _compare(*((0, 2, 7), (2, 7, 7))[dist.get_rank()])


def a_rank_without_samples():
    _compare(*((0, 0, 4), (0, 4, 4))[dist.get_rank()])


def trains_with_ddp():
    torch.manual_seed(2)
    images = torch.randn(4, 3, 5, 6).to("mps")
    model = nn.SyncBatchNorm.convert_sync_batchnorm(_make())
    wrapped = DistributedDataParallel(model)
    wrapped(images[dist.get_rank() :: 2]).square().mean().backward()
    reference = _make()
    reference(images).square().mean().backward()
    for x, y in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-5)


def a_group_of_one():
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    model = nn.SyncBatchNorm(3, process_group=alone).to("mps")
    x = torch.randn(4, 3, 5, device="mps")
    torch.testing.assert_close(model(x), nn.BatchNorm1d(3).to("mps")(x))


def test_statistics_of_all_samples(pair):
    pair.run(parts_of_a_batch)


def test_a_rank_without_samples(pair):
    pair.run(a_rank_without_samples)


def test_training_with_ddp(pair):
    pair.run(trains_with_ddp)


def test_a_group_of_one(pair):
    pair.run(a_group_of_one)
