"""Three tiers of tests, of which pytest's options choose one:

- quick, `-m quick`: at each save, under five minutes on two CPUs. The first CASES cases of each function that has neither
  of the marks below; operators and dtypes of torch's OpInfo tests are cases, too.
- full, the default: what README and .ci/run run, under 20 minutes. All but what is marked `nightly`.
- nightly, `--nightly`: everything else, in parts by `--shard 1/4`. `--all` selects both.

Mark a function `full` if it takes more than a second, for example because it starts a compiler, and `nightly` if it repeats
with more cases, dtypes, engines or machines what others show, or takes more than ten seconds. A function with many cases that
has the mark `sampled(N)` leaves one in N to the full tier and the others to the nightly one. Times are in durations.txt.
A test that the command line names with `::` runs whatever its tier is.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections import Counter
from collections.abc import Iterable

import pytest

CASES = 2


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers", "tiers of tests (tests/tiers.py)")
    group.addoption(
        "--nightly", action="store_true", help="run the tests marked nightly, no others"
    )
    group.addoption("--all", action="store_true", help="run the tests of all tiers")
    group.addoption(
        "--record-durations", metavar="FILE", help="write how long tests take (tests/durations.py)"
    )
    group.addoption(
        "--shard", metavar="I/N", type=_shard, default=(0, 1), help="run the Ith of N parts"
    )


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    part, parts = (int(found[1]) - 1, int(found[2])) if found else (-1, 0)
    if not 0 <= part < parts:
        raise argparse.ArgumentTypeError(f"{text} is no part and number of parts, such as 1/4")
    return part, parts


def function_of(item: pytest.Item) -> str:
    """The id of a test without its parameters: what durations.txt lists."""
    return item.nodeid.partition("[")[0]


def _generic(item: pytest.Item) -> str:
    """The id of the function that a test is a case of. torch makes a function for each operator and dtype, in whose id these
    are part of the name, and which keeps the name of the one that was written."""
    written = getattr(getattr(item, "function", None), "__name__", None)
    place, _, name = function_of(item).rpartition("::")
    return f"{place}::{written or name}"


def mark_tiers(items: Iterable[pytest.Item]) -> None:
    """Gives items the marks that follow from those of their functions: nightly from sampled, and quick."""
    seen: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for item in items:
        function = function_of(item)
        if sampled := item.get_closest_marker("sampled"):
            if cases[function] % sampled.args[0]:
                item.add_marker(pytest.mark.nightly)
            cases[function] += 1
        if item.get_closest_marker("full") or item.get_closest_marker("nightly"):
            continue
        generic = _generic(item)
        seen[generic] += 1
        if seen[generic] <= CASES:
            item.add_marker(pytest.mark.quick)


def _is_selected(item: pytest.Item, config: pytest.Config) -> bool:
    part, parts = config.getoption("shard")
    # By the function, because its cases share what fixtures make.
    if parts > 1 and zlib.crc32(function_of(item).encode()) % parts != part:
        return False
    if config.getoption("all") or config.getoption("markexpr"):
        return True
    is_nightly = item.get_closest_marker("nightly") is not None
    if config.getoption("nightly"):
        return is_nightly
    return not is_nightly or any("::" in argument for argument in config.args)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps those of the tier that the options ask for."""
    mark_tiers(items)
    left_out = [item for item in items if not _is_selected(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        chosen = set(items) - set(left_out)
        items[:] = [item for item in items if item in chosen]
