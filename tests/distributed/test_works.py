"""What asynchronous operations return, groups, objects, and what errors say."""

import datetime

import pytest
import torch
import torch.distributed as dist

from .group import Group


def shared_memory():
    """Nothing is copied: what Gloo wrote is in the tensor's memory without a copy back, and views see it."""
    x = torch.ones(4, device="mps")
    view, address = x[1:3], x.data_ptr()
    dist.all_reduce(x)
    assert x.data_ptr() == address and view.tolist() == [2, 2]


def work_of_a_collective():
    for x in (torch.ones(2, 3, device="mps"), torch.ones(3, 2, device="mps").mT):
        before = x
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future().then(lambda done: done.value()[0] * 10)
        assert work.wait()
        assert work.is_completed() and work.is_success()
        assert x is before and x.tolist() == [[2.0] * 3] * 2
        (result,) = work.result()
        assert result.data_ptr() == x.data_ptr() and result.device.type == "mps"
        assert future.wait().tolist() == [[20.0] * 3] * 2


def future_of_lists():
    x = torch.full((2,), float(dist.get_rank()), device="mps")
    out = [torch.empty(2, device="mps") for _ in range(2)]
    value = dist.all_gather(out, x, async_op=True).get_future().wait()
    assert [y.tolist() for y in out] == [[0, 0], [1, 1]]
    flat = value[0] if isinstance(value[0], list) else value
    assert [y.data_ptr() for y in flat] == [y.data_ptr() for y in out]


def many_at_once():
    tensors = [torch.full((100,), float(i), device="mps") for i in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for i in reversed(range(20)):
        works[i].wait()
        assert tensors[i].eq(2 * i).all()


def ordered_with_kernels():
    """What kernels write before is sent, and kernels after see what came."""
    x = torch.zeros(2**16, device="mps")
    for i in range(20):
        x.add_(1)
        dist.all_reduce(x)
        x.mul_(0.5)
        assert x[i].item() == i + 1 and x[-1].item() == i + 1


def point_to_point_without_waiting():
    other = 1 - dist.get_rank()
    x = torch.arange(6.0, device="mps").view(2, 3) + dist.get_rank()
    out = torch.empty(3, 2, device="mps").mT
    works = [dist.isend(x, other), dist.irecv(out, other)]
    for work in works:
        work.wait()
    assert torch.equal(out, torch.arange(6.0, device="mps").view(2, 3) + other)


def empty_tensors():
    for shape in ((0,), (0, 3), ()):
        x = torch.ones(shape, device="mps")
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        out = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(out, x)
        assert all(y.shape == x.shape and y.eq(2).all() for y in (x, *out))


def lazily_conjugated():
    """Below torch.distributed, which refuses them."""
    x = torch.tensor([1 + 2j, 3 - 1j], device="mps").conj()
    other, group = 1 - dist.get_rank(), dist.group.WORLD
    out = torch.empty(2, dtype=torch.complex64, device="mps")
    for work in [group.send([x], other, 0), group.recv([out], other, 0)]:
        work.wait()
    assert x.is_conj() and torch.equal(out, x.resolve_conj())


def averages():
    x = torch.full((3,), 1.0 + 2 * dist.get_rank(), device="mps", dtype=torch.float16)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x.tolist() == [2, 2, 2]


def reductions():
    """Of dtypes for which Gloo has no kernels, with results that wrap around."""
    ops = {
        "SUM": lambda a, b: a + b,
        "PRODUCT": lambda a, b: a * b,
        "MAX": torch.maximum,
        "MIN": torch.minimum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
    for dtype in (torch.int16, torch.uint16, torch.uint32):
        info = torch.iinfo(dtype)
        sides = torch.tensor([[info.max, 3, info.min], [info.max - 1, 5, info.max]])
        for name, function in ops.items():
            x = sides[dist.get_rank()].to(dtype).to("mps")
            dist.all_reduce(x, getattr(dist.ReduceOp, name))
            expected = function(*sides) & (2 ** (8 * dtype.itemsize) - 1)
            actual = x.cpu().long() & (2 ** (8 * dtype.itemsize) - 1)
            assert torch.equal(actual, expected), (dtype, name)
    x = torch.tensor([2**63 + 5], dtype=torch.uint64).to("mps")
    dist.all_reduce(x)
    assert x.item() == 10


def inference_mode():
    with torch.inference_mode():
        x = torch.ones(3, 2, device="mps").mT
        dist.all_reduce(x)
        assert x.sum().item() == 12


def sub_groups():
    x = torch.ones(3, device="mps")
    both = dist.new_group([0, 1])
    dist.all_reduce(x, group=both)
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    dist.all_reduce(x, group=alone)
    assert x.tolist() == [2, 2, 2]
    for backend in ("gloo", "mps:gloo", "cpu:gloo,mps:gloo"):
        group = dist.new_group([0, 1], backend=backend)
        dist.all_reduce(x, group=group)
        dist.barrier(group=group)
    assert x.tolist() == [16, 16, 16]
    dist.new_group([0, 1], backend="gloo").monitored_barrier()
    dist.barrier(device_ids=[0])


def objects():
    out = [None] * 2
    dist.all_gather_object(out, {"rank": dist.get_rank()})
    assert out == [{"rank": 0}, {"rank": 1}]
    what = [torch.full((2,), float(dist.get_rank()), device="mps")]
    dist.broadcast_object_list(what, 1, device=torch.device("mps"))
    assert what[0].tolist() == [1, 1] and what[0].device.type == "mps"
    scattered = [None]
    dist.scatter_object_list(scattered, ["a", "b"] if dist.get_rank() == 0 else None)
    assert scattered == ["ab"[dist.get_rank()]]


def objects_between_two():
    rank = dist.get_rank()
    gathered = [None] * 2 if rank == 1 else None
    dist.gather_object({"rank": rank}, gathered, dst=1)
    assert gathered in (None, [{"rank": 0}, {"rank": 1}])
    what = [torch.full((2,), 7.0, device="mps"), "text"] if rank == 0 else [None, None]
    if rank == 0:
        dist.send_object_list(what, 1, device=torch.device("mps"))
    else:
        assert dist.recv_object_list(what, 0, device=torch.device("mps")) == 0
    assert what[0].tolist() == [7, 7] and what[1] == "text"


def barriers():
    work = dist.barrier(async_op=True)
    assert work.wait() and work.is_completed()
    gloo = dist.new_group([0, 1], backend="gloo")
    dist.monitored_barrier(gloo, datetime.timedelta(seconds=20), wait_all_ranks=True)


def dtypes_that_only_move():
    """Those that mps stores and hardly computes with."""
    rank = dist.get_rank()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32):
        codes = torch.arange(24, dtype=torch.uint8).view(2, 12) + 30 * rank
        x = codes.to("mps").view(dtype)
        theirs = (codes + 30 * (1 - 2 * rank)).to("mps")
        out = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(out, x)
        assert torch.equal(out[1 - rank].view(torch.uint8), theirs)
        other = torch.empty_like(x)
        for work in [dist.isend(x, 1 - rank), dist.irecv(other, 1 - rank)]:
            work.wait()
        assert torch.equal(other.view(torch.uint8), theirs)
        dist.broadcast(x, 0)
        assert torch.equal(x.view(torch.uint8), theirs if rank else codes.to("mps"))


def lists_at_once():
    """The coalesced forms that torch.distributed keeps for programs of before."""
    rank = dist.get_rank()
    x = [torch.full((n,), rank + 1.0, device="mps") for n in (2, 3)]
    gathered = [[torch.empty_like(y) for y in x] for _ in range(2)]
    dist.all_gather_coalesced(gathered, x)
    assert [[y[0].item() for y in part] for part in gathered] == [[1, 1], [2, 2]]
    dist.all_reduce_coalesced(x)
    assert all(y.eq(3).all() for y in x)


CASES = [
    shared_memory,
    work_of_a_collective,
    future_of_lists,
    many_at_once,
    ordered_with_kernels,
    point_to_point_without_waiting,
    empty_tensors,
    lazily_conjugated,
    averages,
    reductions,
    inference_mode,
    sub_groups,
    objects,
    objects_between_two,
    barriers,
    dtypes_that_only_move,
    lists_at_once,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_case(pair, case):
    pair.run(case)


def four():
    """Every kind of operation among four, also in groups of two."""
    rank, size = dist.get_rank(), 4
    x = torch.arange(8.0, device="mps").view(4, 2) + 10 * rank
    everyone = [torch.arange(8.0).view(4, 2) + 10 * r for r in range(size)]

    def check(result, expected):
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0)

    y = x.clone()
    dist.all_reduce(y)
    check(y, sum(everyone))
    y = x.mT.contiguous().mT
    dist.broadcast(y, 2)
    check(y, everyone[2])
    dist.reduce(y.copy_(x), 3, dist.ReduceOp.MAX)
    check(y, everyone[3]) if rank == 3 else None
    out = torch.empty(16, 2, device="mps")
    dist.all_gather_into_tensor(out, x)
    check(out, torch.cat(everyone))
    out = torch.empty(1, 2, device="mps")
    dist.reduce_scatter_tensor(out, x)
    check(out, sum(everyone)[rank : rank + 1])
    dist.scatter(out, list(x.split(1)) if rank == 1 else None, 1)
    check(out, everyone[1][rank : rank + 1])
    gathered = [torch.empty_like(x) for _ in range(size)] if rank == 3 else None
    dist.gather(x, gathered, 3)
    for z, expected in zip(gathered or [], everyone):
        check(z, expected)
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    check(out, torch.stack([z[rank] for z in everyone]))
    parts = [torch.empty(1, 2, device="mps") for _ in range(size)]
    dist.all_to_all(parts, list(x.split(1)))
    check(torch.cat(parts), torch.stack([z[rank] for z in everyone]))
    works = [dist.isend(x, (rank + 1) % size), dist.irecv(out, (rank - 1) % size)]
    for work in works:
        work.wait()
    check(out, everyone[rank - 1])
    groups = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])]
    mine = groups[rank in (1, 2)]
    y = x.clone()
    dist.all_reduce(y, group=mine, async_op=True).wait()
    check(y, everyone[rank] + everyone[3 - rank])
    dist.broadcast(y, group=mine, group_src=1)
    check(y, everyone[rank] + everyone[3 - rank])
    dist.barrier()


def test_four_processes(groups):
    groups(4).run(four)


def named_gloo():
    x = torch.ones(3, device="mps")
    dist.all_reduce(x)
    y = torch.ones(3)
    dist.all_reduce(y)
    if dist.get_backend() == "gloo":  # torch asks for the name
        dist.monitored_barrier()
    assert x.tolist() == y.tolist() == [2, 2, 2]


@pytest.mark.parametrize("backend", [None, "gloo", "cpu:gloo,mps:gloo"])
def test_backends_that_serve_mps(backend):
    group = Group(2, **({} if backend is None else {"backend": backend}))
    try:
        group.run(named_gloo)
    finally:
        group.close()


def message(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("nothing was raised")


def errors():
    u64 = torch.ones(2, dtype=torch.uint64).to("mps")
    yield message(dist.all_reduce, u64, dist.ReduceOp.MAX)
    yield message(dist.all_reduce, torch.ones(2, 3, device="mps"), dist.ReduceOp.BOR)
    yield message(dist.all_gather, [torch.ones(2, device="mps")] * 3, torch.ones(2, device="mps"))
    group = dist.new_group([0, 1], backend="cpu:gloo")
    yield message(dist.all_reduce, torch.ones(2, device="mps"), dist.ReduceOp.SUM, group)


def list_of_errors():
    return list(errors())


def test_errors_name_rank_operation_and_tensor(pair):
    for rank, found in enumerate(pair.run(list_of_errors)):
        no_max, no_bor, wrong_count, no_backend = found
        assert no_max[0] == "NotImplementedError"
        assert "Gloo has no MAX of UInt64" in no_max[1]
        assert f"in all_reduce (MAX) of UInt64 [2] on mps, rank {rank} of 2 in group " in no_max[1]
        assert no_bor[0] == "RuntimeError" and "non-integral" in no_bor[1]
        assert f"in all_reduce (BOR) of Float [2, 3] on mps, rank {rank} of 2" in no_bor[1]
        assert wrong_count[0] in ("RuntimeError", "ValueError") and "all_gather" in wrong_count[1]
        assert no_backend[0] == "RuntimeError"
        assert "all_reduce: the process group has no backend for mps tensors" in no_backend[1]


def late(rank):
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
    x = torch.ones(3, device="mps")
    dist.all_reduce(x, group=group)
    if dist.get_rank() == rank:
        return None
    return message(dist.all_reduce, x, dist.ReduceOp.SUM, group)


def test_a_rank_that_does_not_come_is_a_timeout(pair):
    name, text = pair.run(late, 1)[0]
    assert name == "DistBackendError" and "1000ms" in text
    assert "in all_reduce (SUM) of Float [3] on mps, rank 0 of 2 in group" in text
