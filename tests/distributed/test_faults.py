"""Ranks that call something else than the others, or end."""

import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from . import digits
from .group import LOOPBACK, Group, RankError

MPS = "mps"


@pytest.fixture
def fresh():
    """A group that may break: fresh(size, **options of init_process_group)."""
    groups = []

    def start(size=2, **options):
        options.setdefault("timeout", datetime.timedelta(seconds=20))
        groups.append(Group(size, **options))
        return groups[-1]

    yield start
    for group in groups:
        group.broken = True
        group.close()


def shapes():
    dist.all_reduce(torch.ones(4 + dist.get_rank(), device=MPS))


def layouts():
    dist.all_reduce(torch.ones((2, 3) if dist.get_rank() else (3, 2), device=MPS))


def dtypes():
    dtype = torch.float16 if dist.get_rank() else torch.float32
    dist.broadcast(torch.ones(4, dtype=dtype, device=MPS), 0)


def operations():
    x = torch.ones(4, device=MPS)
    dist.all_reduce(x) if dist.get_rank() else dist.broadcast(x, 0)


def reductions():
    dist.all_reduce(
        torch.ones(4, device=MPS), [dist.ReduceOp.SUM, dist.ReduceOp.MAX][dist.get_rank()]
    )


def roots():
    dist.broadcast(torch.ones(4, device=MPS), dist.get_rank())


def gathered():
    x = torch.ones(3 + dist.get_rank(), device=MPS)
    dist.all_gather_into_tensor(torch.empty(2 * len(x), device=MPS), x)


def last_batch():
    """One rank has done that before, the other has not."""
    x = torch.ones(8, device=MPS)
    for _ in range(3):
        dist.all_reduce(x)
    dist.all_reduce(x[: 8 - dist.get_rank()])


def parts():
    x = [torch.ones(3 + dist.get_rank(), device=MPS) for _ in range(2)]
    dist.all_to_all([torch.empty_like(y) for y in x], x)


def equal_parts():
    x = torch.ones(4 + 2 * dist.get_rank(), 3, device=MPS)
    dist.all_to_all_single(torch.empty_like(x), x)


def at_once(function):
    """The same with a collective that returns at once and is waited for later."""

    def later(*arguments):
        function(*arguments, async_op=True).wait()

    return later


def shapes_later():
    at_once(dist.all_reduce)(torch.ones(4 + dist.get_rank(), device=MPS))


def dtypes_later():
    dtype = torch.float16 if dist.get_rank() else torch.float32
    at_once(dist.broadcast)(torch.ones(4, dtype=dtype, device=MPS), 0)


def operations_later():
    x = torch.ones(4, device=MPS)
    at_once(dist.all_reduce)(x) if dist.get_rank() else at_once(dist.broadcast)(x, 0)


def last_batch_later():
    x = torch.ones(8, device=MPS)
    for _ in range(3):
        at_once(dist.all_reduce)(x)
    at_once(dist.all_reduce)(x[: 8 - dist.get_rank()])


def one_later():
    """One waits at once and one later."""
    x = torch.ones(4 + dist.get_rank(), device=MPS)
    (dist.all_reduce if dist.get_rank() else at_once(dist.all_reduce))(x)


def message_of_other_length(*sizes):
    x = torch.ones(sizes[dist.get_rank()], device=MPS)
    dist.send(x, 1, tag=3) if dist.get_rank() == 0 else dist.recv(x, 0, tag=3)


def longer_message():
    message_of_other_length(6, 5)


def shorter_message():
    message_of_other_length(5, 6)


def message_of_other_dtype():
    dtype = torch.int32 if dist.get_rank() else torch.float32
    x = torch.ones(4, dtype=dtype, device=MPS)
    (dist.irecv(x, 0) if dist.get_rank() else dist.isend(x, 1)).wait()


MISMATCHES = {
    shapes: ("calls all_reduce (SUM) of Float [4]", "calls all_reduce (SUM) of Float [5]"),
    layouts: ("of Float [3, 2]", "of Float [2, 3]"),
    dtypes: ("broadcast with root 0 of Float [4]", "broadcast with root 0 of Half [4]"),
    operations: ("broadcast with root 0 of Float [4]", "all_reduce (SUM) of Float [4]"),
    reductions: ("all_reduce (SUM)", "all_reduce (MAX)"),
    roots: ("with root 0", "with root 1"),
    gathered: ("all_gather_into_tensor of Float [3]", "all_gather_into_tensor of Float [4]"),
    last_batch: ("of Float [8]", "of Float [7]"),
    parts: ("all_to_all of Float [3], Float [3]", "all_to_all of Float [4], Float [4]"),
    equal_parts: ("of Float [*, 3] in equal parts of [4, 3]", "in equal parts of [6, 3]"),
    shapes_later: ("all_reduce (SUM) of Float [4]", "all_reduce (SUM) of Float [5]"),
    dtypes_later: ("broadcast with root 0 of Float [4]", "broadcast with root 0 of Half [4]"),
    operations_later: ("broadcast with root 0 of Float [4]", "all_reduce (SUM) of Float [4]"),
    last_batch_later: ("of Float [8]", "of Float [7]"),
    one_later: ("all_reduce (SUM) of Float [4]", "all_reduce (SUM) of Float [5]"),
    longer_message: ("has 6 elements of Float", "has 5 elements of Float"),
    shorter_message: ("has 5 elements of Float", "has 6 elements of Float"),
    message_of_other_dtype: ("has 4 elements of Float", "has 4 elements of Int"),
}


@pytest.mark.parametrize("mismatch", MISMATCHES, ids=lambda mismatch: mismatch.__name__)
def test_all_ranks_say_what_differs(fresh, mismatch):
    group = fresh()
    group.run(dist.get_rank)  # once they are there
    start = time.monotonic()
    with pytest.raises(RankError) as error:
        group.run(mismatch)
    assert time.monotonic() - start < 15, "not by the timeout"
    assert sorted(error.value.errors) == [0, 1]
    for name, text in error.value.errors.values():
        assert name in ("RuntimeError", "DistBackendError")
        # Whichever came first is named first.
        for rank, call in enumerate(MISMATCHES[mismatch]):
            said = re.search(
                rf"rank {rank} (calls .*?|has .*?)(, but rank|;|$)", text, re.MULTILINE
            )
            assert call in said[0]


def one_of_four():
    x = torch.ones(4 if dist.get_rank() != 2 else 5, device=MPS)
    dist.all_reduce(x, async_op=True).wait()


def test_four_ranks_say_what_differs(fresh):
    group = fresh(4)
    group.run(dist.get_rank)
    with pytest.raises(RankError) as error:
        group.run(one_of_four)
    assert sorted(error.value.errors) == [0, 1, 2, 3]
    for _, text in error.value.errors.values():
        assert "calls all_reduce (SUM) of Float [4]" in text
        assert "calls all_reduce (SUM) of Float [5]" in text


def known_messages():
    x, y = torch.ones(6, device=MPS), torch.full((8,), 5.0, device=MPS)
    if dist.get_rank() == 0:
        dist.send(x, 1)
        dist.send(y, 1)
        dist.send(x, 1)
        return None
    dist.recv(x, 0)
    dist.recv(y, 0)
    return message_and_values(dist.recv, y, 0)


def known_broadcast():
    short, long = torch.ones(6, device=MPS), torch.full((8,), 5.0, device=MPS)
    dist.broadcast(short, 0)
    dist.broadcast(long, 0)
    if dist.get_rank() == 0:
        dist.broadcast(short, 0)
        return None
    return message_and_values(dist.broadcast, long, 0)


def uneven_parts():
    """Rank 1 is told to expect three rows of rank 0, which gives two."""
    x = torch.ones(3 if dist.get_rank() == 0 else 4, device=MPS, dtype=torch.int64)
    out = torch.full((3 if dist.get_rank() == 0 else 5,), 5, device=MPS, dtype=torch.int64)
    theirs, mine = ([1, 2], [1, 2]) if dist.get_rank() == 0 else ([3, 2], [2, 2])
    if dist.get_rank() == 0:
        dist.all_to_all_single(out, x, theirs, mine)
        return None
    return message_and_values(dist.all_to_all_single, out, x, theirs, mine)


def message_and_values(function, x, *arguments):
    try:
        function(x, *arguments)
    except Exception as error:
        return type(error).__name__, str(error), x.tolist()
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("case", "values"),
    [
        (known_messages, [1] * 6 + [5] * 2),
        (known_broadcast, [1] * 6 + [5] * 2),
        (uneven_parts, [1, 1, 5, 1, 1]),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_what_is_smaller_than_expected_is_an_error_though_nothing_is_compared(fresh, case, values):
    name, text, received = fresh().run(case)[1]
    assert name == "RuntimeError" and "another rank has sent a smaller tensor" in text
    assert " on mps, rank 1 of 2 in group 0" in text
    assert received == values


def other_operation_of_known_ones():
    x = torch.ones(4, device=MPS)
    out = torch.empty(8, device=MPS)
    dist.all_reduce(x)
    dist.all_gather_into_tensor(out, x)
    dist.all_reduce(x) if dist.get_rank() else dist.all_gather_into_tensor(out, x)


@pytest.mark.nightly
def test_ranks_that_wait_for_long_say_what_they_call(fresh):
    with pytest.raises(RankError) as error:
        fresh(timeout=datetime.timedelta(seconds=60)).run(other_operation_of_known_ones)
    for _, text in error.value.errors.values():
        assert "rank 0 calls all_gather_into_tensor of Float [4]" in text
        assert "rank 1 calls all_reduce (SUM) of Float [4]" in text


def after_a_disagreement():
    for _ in range(2):
        found = message_and_values(dist.all_reduce, torch.ones(4 + dist.get_rank(), device=MPS))
    return found[1]


def test_a_group_that_has_disagreed_is_not_used_any_more(fresh):
    for text in fresh().run(after_a_disagreement):
        assert "there has been a disagreement before: collective 0 of mps tensors" in text


def alternating():
    """Many calls, of which each is new once, and asynchronous ones between them."""
    for i in range(30):
        x = torch.ones(1 + i % 3, device=MPS)
        work = dist.all_reduce(x, async_op=True)
        dist.all_reduce(torch.ones(1 + i % 5, device=MPS))
        work.wait()
        assert x.eq(2).all()
    # One waits at once and one later.
    x = torch.ones(77, device=MPS)
    work = dist.all_reduce(x, async_op=dist.get_rank() == 1)
    if work is not None:
        work.wait()
    assert x.eq(2).all()


def exchanged():
    """Messages in both directions at once, of new sizes each time, with tags, and from any rank."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    for i in range(1, 80):
        out = torch.empty(2, i, device=MPS)
        works = [
            dist.isend(torch.full((i, 2), float(rank), device=MPS), other, tag=i % 70),
            dist.irecv(out, other, tag=i % 70),
        ]
        for work in works:
            work.wait()
        assert out.eq(other).all()
    for i in range(1, 4):
        x = torch.full((i,), float(i), device=MPS)
        if rank == 0:
            dist.send(x, 1)
            continue
        out = torch.empty_like(x)
        assert dist.recv(out, None if i % 2 else 0) == 0
        assert out.eq(i).all()


def depending():
    """One rank begins a new collective that the other only calls when it has got a message."""
    x, y = torch.ones(5, 7, device=MPS), torch.ones(3, device=MPS)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        dist.send(y, 1)
        work.wait()
    else:
        dist.recv(y, 0)
        dist.all_reduce(x)
    assert x.eq(2).all()


def between_devices():
    """What one rank has on mps and the other on the CPU: only ranks that compare have to agree."""
    x = torch.ones(4, device=MPS if dist.get_rank() else "cpu")
    dist.send(x, 1, tag=99) if dist.get_rank() == 0 else dist.recv(x, 0, tag=99)
    dist.recv(x, 1, tag=99) if dist.get_rank() == 0 else dist.send(x, 0, tag=99)
    assert x.eq(1).all()


def parts_in_several_ways():
    """Only one rank says that its parts are equal."""
    x = torch.arange(4.0, device=MPS).view(4, 1) + 10 * dist.get_rank()
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x, *([[2, 2]] * 2 if dist.get_rank() else []))
    expected = [[0, 1, 10, 11], [2, 3, 12, 13]][dist.get_rank()]
    assert out.flatten().tolist() == expected


@pytest.mark.parametrize(
    "case",
    [alternating, exchanged, depending, between_devices, parts_in_several_ways],
    ids=lambda case: case.__name__,
)
def test_what_agrees_passes(pair, case):
    start = time.monotonic()
    pair.run(case)
    assert time.monotonic() - start < 15


def late():
    """Longer than what a rank waits before it looks what others call."""
    x = torch.ones(8, device=MPS)
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        time.sleep(2.5)
    dist.all_reduce(x)
    assert x.eq(4).all()


def test_a_late_rank_is_waited_for(pair):
    pair.run(late)


def kill_yourself(calls):
    x = torch.ones(1000, device=MPS)
    for _ in range(calls):
        dist.all_reduce(x)
    os.kill(os.getpid(), signal.SIGKILL)


def reduce_for_ever():
    x = torch.ones(1000, device=MPS)
    while True:
        dist.all_reduce(x)


@pytest.mark.parametrize("calls", [0, 3])
def test_others_raise_when_a_rank_is_killed(fresh, calls):
    group = fresh(timeout=datetime.timedelta(seconds=4))
    group.run(dist.get_rank)
    group.start(kill_yourself, calls, ranks=[1])
    group.start(reduce_for_ever, ranks=[0])
    start = time.monotonic()
    with pytest.raises(RankError) as error:
        group.finish(timeout=30)
    assert time.monotonic() - start < 15
    name, text = error.value.errors[0]
    assert name in ("DistBackendError", "DistStoreError", "RuntimeError")
    assert "in all_reduce (SUM) of Float [1000] on mps, rank 0 of 2 in group" in text
    assert error.value.errors[1] == ("Dead", "ended with -9")


def reduce_once():
    dist.all_reduce(torch.ones(1000, device=MPS))


def test_others_raise_long_before_the_timeout_when_a_rank_was_killed_at_once(fresh):
    group = fresh(timeout=datetime.timedelta(seconds=300))
    group.run(dist.get_rank)
    group.start(kill_yourself, 0, ranks=[1])
    group.start(reduce_once, ranks=[0])
    with pytest.raises(RankError) as error:
        group.finish(timeout=40)
    name, text = error.value.errors[0]
    assert name == "DistBackendError", text
    assert "in all_reduce (SUM) of Float [1000] on mps, rank 0 of 2 in group" in text


START_AND_WAIT = """
import sys
sys.path.insert(0, {root!r})
from tests.distributed.group import Group
if __name__ == "__main__":
    group = Group(2)
    print(*(process.pid for process in group.processes), flush=True)
    sys.stdin.read()
"""


def is_alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_no_rank_outlives_killed_tests(tmp_path):
    script = tmp_path / "start.py"
    script.write_text(START_AND_WAIT.format(root=str(Path(__file__).parents[2])))
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as tests:
        ranks = [int(pid) for pid in tests.stdout.readline().split()]
        assert len(ranks) == 2 and all(map(is_alive, ranks))
        tests.kill()
    deadline = (
        time.monotonic() + 60
    )  # a rank that still imports torch looks for the tests afterwards
    while any(map(is_alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, ranks))


def losses_of(steps):
    return digits.train(steps)[0]


@pytest.mark.nightly
def test_torchrun_restarts_and_training_goes_on_as_if_nothing_had_happened(pair, tmp_path):
    expected = pair.run(losses_of, 12)[0]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [
        "--max-restarts=1",
        "--monitor-interval=0.1",
        digits.__file__,
        str(tmp_path),
        "--fail-at=8",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "losses-0.json").exists()
    resumed = json.loads((tmp_path / "losses-1.json").read_text())
    assert list(resumed) == ["5", "6", "7", "8", "9", "10", "11"]
    assert resumed == {str(step): expected[step] for step in range(5, 12)}


@pytest.mark.full
def test_ranks_that_one_of_several_agents_restarts_say_what_is_missing():
    environment = {
        **os.environ,
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GROUP_WORLD_SIZE": "2",
    }
    command = [sys.executable, "-c", "import metalops"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in result.stderr
