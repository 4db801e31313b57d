"""How long the tests of the quick tier take: durations.txt, which .ci/style checks.

    python -m pytest tests --record-durations FILE    # seconds of CPU time of every test
    python -m tests.durations FILE                    # renews durations.txt from it
    python -m tests.durations                         # fails if a test of the quick tier takes more than LIMIT

A line of durations.txt is a test function and the time of its slowest case in the quick tier, where that is over LISTED. A
function that takes longer than LIMIT there is to be made faster, or marked `full` (see tiers.py).

The time is that of the test and of the processes that it starts, without the compilers that build kernels: which test of a
file pays for a kernel depends on the order, and from the second run on none does. What a test compiles in another way, as a
whole extension or by NVRTC, counts.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

LIMIT, LISTED = 1.0, 0.3  # seconds
TESTS = Path(__file__).parent
FILE = TESTS / "durations.txt"


class Recorder:
    """A pytest plugin that appends a line for each test to a file: seconds, tier and id."""

    def __init__(self, path: str):
        self._path = path
        self._compilers = _Compilers()

    def pytest_runtest_logstart(self, nodeid, location):
        self._begin = _cpu_seconds() - self._compilers.seconds

    def pytest_runtest_teardown(self, item, nextitem):
        tiers = [name for name in ("nightly", "full", "quick") if item.get_closest_marker(name)]
        seconds = _cpu_seconds() - self._compilers.seconds - self._begin
        line = f"{seconds:.3f}\t{tiers[0] if tiers else 'cases'}\t{item.nodeid}\n"
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(line)


class _Compilers:
    """seconds: the CPU time of the compilers of kernels that this process has run, from now on."""

    def __init__(self):
        self.seconds = 0.0
        self._running, self._lock = 0, threading.Lock()
        # Here, because the style is checked before metalops is installed.
        from metalops.msl.source.compiler import Compiler

        run = Compiler.run

        @functools.wraps(run)
        def counted(*args, **kwargs):
            with self._counted():
                return run(*args, **kwargs)

        Compiler.run = counted

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Several threads may compile at once, and only the sum of all children is known."""
        with self._lock:
            if self._running == 0:
                self._before = _children_seconds()
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    self.seconds += _children_seconds() - self._before


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + _children_seconds()


def _marked(path: Path) -> Iterator[str]:
    """The test functions of a file that are marked full or nightly, or whose file is."""

    def has_mark(node: ast.AST) -> bool:
        names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
        return bool(names & {"full", "nightly"})

    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_file = any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and has_mark(node.value)
        for node in tree.body
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            if of_file or any(map(has_mark, node.decorator_list)):
                yield node.name


def renew(record: Path) -> None:
    slowest: dict[str, float] = {}
    for line in record.read_text(encoding="utf-8").splitlines():
        seconds, tier, test = line.split("\t")
        if tier == "quick":
            function = test.partition("[")[0]
            slowest[function] = max(slowest.get(function, 0.0), float(seconds))
    lines = [f"{seconds:.1f} {name}\n" for name, seconds in sorted(slowest.items()) if seconds > LISTED]  # fmt: skip
    FILE.write_text("".join(lines), encoding="utf-8")


def too_slow() -> list[str]:
    """Functions of the quick tier that take too long for it."""
    result = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        seconds, function = line.split(" ", 1)
        if float(seconds) > LIMIT:
            path = TESTS.parent / function.split("::")[0]
            name = function.split("::")[-1]
            if path.exists() and name not in _marked(path):
                result.append(f"{function}: {seconds} s")
    return result


def main(arguments: list[str]) -> int:
    for record in arguments:
        renew(Path(record))
    slow = too_slow()
    for line in slow:
        print(f"{line}, and the limit of the quick tier is {LIMIT} s: see tests/tiers.py")
    return len(slow) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
