"""Ranks that call something else than the others, or end."""

import datetime
import json
import os
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
    """A group that may break: fresh(**options of init_process_group)."""
    groups = []

    def start(**options):
        options.setdefault("timeout", datetime.timedelta(seconds=20))
        groups.append(Group(2, **options))
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


MISMATCHES = {
    shapes: ("all_reduce (SUM) of Float [4]", "all_reduce (SUM) of Float [5]"),
    layouts: ("of Float [3, 2]", "of Float [2, 3]"),
    dtypes: ("broadcast with root 0 of Float [4]", "broadcast with root 0 of Half [4]"),
    operations: ("broadcast with root 0 of Float [4]", "all_reduce (SUM) of Float [4]"),
    reductions: ("all_reduce (SUM)", "all_reduce (MAX)"),
    roots: ("with root 0", "with root 1"),
    gathered: ("all_gather_into_tensor of Float [3]", "all_gather_into_tensor of Float [4]"),
    last_batch: ("of Float [8]", "of Float [7]"),
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
            said = (
                text[text.index(f"rank {rank} calls") :]
                .replace(", but rank", "\n")
                .partition("\n")[0]
            )
            assert call in said


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


def test_what_agrees_passes(pair):
    pair.run(alternating)


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
    deadline = time.monotonic() + 10
    while any(map(is_alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, ranks))


def losses_of(steps):
    return digits.train(steps)[0]


@pytest.mark.slow
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
    # Otherwise torch's agents keep the addresses of Gloo's first attempt in their store, and the second one calls them.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "losses-0.json").exists()
    resumed = json.loads((tmp_path / "losses-1.json").read_text())
    assert list(resumed) == ["5", "6", "7", "8", "9", "10", "11"]
    assert resumed == {str(step): expected[step] for step in range(5, 12)}
