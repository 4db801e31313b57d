"""Processes that run functions together as the ranks of a group, over loopback only.

They are forked from a process that has imported torch and metalops, once for each process of pytest, because imports take
seconds. None outlives pytest: the kernel kills them when the process that forked them ends, which does when pytest does.
"""

from __future__ import annotations

import ctypes
import datetime
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
TIMEOUT = 20  # seconds that a collective may take, and a few more that a function may
PRELOADED = [
    "metalops",
    "pytest",
    "sklearn.datasets",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
]


class RankError(AssertionError):
    """What the ranks raised. errors: by rank, the name of the class and the traceback."""

    def __init__(self, errors):
        self.errors = errors
        super().__init__("".join(f"\nrank {rank}:\n{text}" for rank, (_, text) in errors.items()))


def _context():
    # What the forking process inherits.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _serve(connection, rank, size, store, options, root):
    """A rank: runs what comes until nothing more comes."""
    if sys.platform == "linux":  # elsewhere it ends with the connection
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if not multiprocessing.parent_process().is_alive():  # before that was asked for
        os._exit(1)
    sys.path.insert(0, root)
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        **{
            "init_method": f"file://{store}",
            "rank": rank,
            "world_size": size,
            "timeout": datetime.timedelta(seconds=TIMEOUT),
            **options,
        }
    )
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            break
        torch.manual_seed(0)
        try:
            answer = True, function(*arguments)
        except BaseException as error:
            answer = False, (type(error).__name__, traceback.format_exc())
        connection.send(answer)
    os._exit(0)


class Group:
    """size ranks of one group; options: of init_process_group."""

    def __init__(self, size=2, **options):
        context = _context()
        self._folder = tempfile.TemporaryDirectory()
        store = Path(self._folder.name) / "store"
        root = str(Path(__file__).parents[2])
        self.processes, self._connections = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, size, str(store), options, root), daemon=True
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._connections.append(ours)
        self.broken = False

    def start(self, function, *arguments, ranks=None):
        """Lets ranks begin with function(*arguments), a function of a module."""
        for rank, connection in enumerate(self._connections):
            if ranks is None or rank in ranks:
                connection.send((function, arguments))

    def finish(self, *, ranks=None, timeout=60):
        """What they return, in order of ranks. RankError if one raises, dies or takes too long."""
        results, errors = [], {}
        for rank, connection in enumerate(self._connections):
            if ranks is not None and rank not in ranks:
                continue
            if not connection.poll(timeout):
                errors[rank] = "Timeout", f"no answer within {timeout} s"
                continue
            try:
                good, result = connection.recv()
            except (EOFError, ConnectionError):
                self.processes[rank].join(5)
                errors[rank] = "Dead", f"ended with {self.processes[rank].exitcode}"
                continue
            if good:
                results.append(result)
            else:
                errors[rank] = result
        if errors:
            self.broken = True
            raise RankError(errors)
        return results

    def run(self, function, *arguments, **keywords):
        self.start(function, *arguments)
        return self.finish(**keywords)

    def close(self):
        for connection in self._connections:
            connection.close()
        for process in self.processes:
            if self.broken:
                process.kill()
            process.join(10)
            if process.exitcode is None:
                process.kill()
                process.join()
        self._folder.cleanup()


class Groups:
    """One group of each size, started when it is first asked for and again after a failure."""

    def __init__(self):
        self._groups = {}

    def __call__(self, size=2):
        group = self._groups.get(size)
        if group is not None and group.broken:
            group.close()
            group = None
        if group is None:
            group = self._groups[size] = Group(size)
        return group

    def close(self):
        for group in self._groups.values():
            group.close()
