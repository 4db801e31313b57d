"""How long the tests of the quick tier take: durations.txt, which .ci/style checks.

    python -m pytest tests --record-durations FILE    # seconds of CPU time of every test, with those of its processes
    python -m tests.durations FILE                    # renews durations.txt from it
    python -m tests.durations                         # fails if a test of the quick tier takes more than LIMIT

A line of durations.txt is a test function and the time of its slowest case in the quick tier, where that is over LISTED. A
function that takes longer than LIMIT there is to be made faster, or marked `full` (see tiers.py).
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

LIMIT, LISTED = 1.0, 0.3  # seconds
TESTS = Path(__file__).parent
FILE = TESTS / "durations.txt"


class Recorder:
    """A pytest plugin that appends a line for each test to a file: seconds, tier and id."""

    def __init__(self, path: str):
        self._path = path

    def pytest_runtest_logstart(self, nodeid, location):
        self._begin = _cpu_seconds()

    def pytest_runtest_teardown(self, item, nextitem):
        tiers = [name for name in ("nightly", "full", "quick") if item.get_closest_marker(name)]
        line = (
            f"{_cpu_seconds() - self._begin:.3f}\t{tiers[0] if tiers else 'cases'}\t{item.nodeid}\n"
        )
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(line)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


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
