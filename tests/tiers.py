"""Three tiers of tests, of which pytest's options choose one:

- quick, `-m quick`: at each save, under five minutes on two CPUs. The first CASES cases of each function that has neither
  of the marks below; operators and dtypes of torch's OpInfo tests are cases, too.
- full, the default: what README and .ci/run run. All but what is marked `nightly`, so that it takes under 20 minutes on two
  fast CPUs.
- nightly, `--nightly`: everything else, in parts by `--shard 1/4`. `--all` selects both.

Mark a function `full` if it takes more than a second, for example because it starts a compiler, and `nightly` if it repeats
with more cases, dtypes, engines or machines what others show, or takes more than ten seconds. Times are in durations.txt.
Two rules divide the cases of one function between the full tier and the nightly one:

- `sampled(N)` leaves one in N to the full tier: those where the numbers of the values of all parameters add up to a multiple
  of N. So each value of a parameter is met by some value of another one, although few pairs are left.
- Of cases of tests/ops and tests/cuda that differ only in dtypes of one class (CLASSES), whose kernels are instantiations of
  one template, the full tier has one. It is the same class member for a whole folder, so that kernels of the others are not
  compiled for it, and another one in other folders.

A test that the command line names with `::` runs whatever its tier is.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections import Counter
from collections.abc import Iterable

import pytest
import torch

CASES = 2
CLASSES = (
    (torch.float16, torch.bfloat16),
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
FAMILIES = ("tests/ops/", "tests/cuda/")


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


def _parameters(item: pytest.Item) -> dict[str, object]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec else {}


def _class_of(value: object) -> tuple[torch.dtype, ...] | None:
    """The class of a dtype; None for one that has none, and for other parameters."""
    is_dtype = isinstance(value, torch.dtype)
    return next((members for members in CLASSES if value in members), None) if is_dtype else None


def _of_other_dtypes(cases: list[pytest.Item]) -> Iterable[pytest.Item]:
    """The cases of a function for which another one stands, whose dtypes are of the same classes."""
    alike: dict[object, list[pytest.Item]] = {}
    for item in cases:
        key = [_class_of(value) or id(value) for value in _parameters(item).values()]
        alike.setdefault(tuple(key), []).append(item)
    for group in alike.values():
        folder = group[0].nodeid.partition("::")[0].rpartition("/")[0]
        chosen = min(group, key=lambda item: _ranks(item, zlib.crc32(folder.encode())))
        yield from (item for item in group if item is not chosen)


def _ranks(item: pytest.Item, first: int) -> list[int]:
    """Where the dtypes of a case stand in their classes if these begin with number `first`. The same one comes first whatever
    other members there are, and in which order."""
    members = [(value, _class_of(value)) for value in _parameters(item).values()]
    return [(of.index(value) - first) % len(of) for value, of in members if of]


def _left_out(cases: list[pytest.Item], of: int) -> Iterable[pytest.Item]:
    """The cases of a function that the mark sampled(of) leaves to the nightly tier."""
    numbers = {
        # Arguments that one `parametrize` gives together have the same numbers, and count once.
        tuple(_numbers([id(_parameters(item)[name]) for item in cases]))
        for name in _parameters(cases[0])
    } or {tuple(range(len(cases)))}
    for item, *own in zip(cases, *numbers, strict=True):
        if sum(own) % of:
            yield item


def _numbers(values: list[object]) -> Iterable[int]:
    """The values of a parameter in a function's cases as numbers, in the order in which they occur."""
    order: dict[object, int] = {}
    return [order.setdefault(value, len(order)) for value in values]


def _mark_nightly(cases: list[pytest.Item]) -> None:
    """Marks the cases of a function that the rules above leave to the nightly tier."""
    left = [item for item in cases if not item.get_closest_marker("nightly")]
    if left and left[0].nodeid.startswith(FAMILIES) and _parameters(left[0]):
        for item in _of_other_dtypes(left):
            item.add_marker(pytest.mark.nightly)
        left = [item for item in left if not item.get_closest_marker("nightly")]
    sampled = left and left[0].get_closest_marker("sampled")
    if sampled:
        for item in _left_out(left, *sampled.args):
            item.add_marker(pytest.mark.nightly)


def mark_tiers(items: Iterable[pytest.Item]) -> None:
    """Gives items the marks that follow from those of their functions: nightly from dtypes and sampled, and quick."""
    items = list(items)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(function_of(item), []).append(item)
    for of_function in cases.values():
        _mark_nightly(of_function)
    seen: Counter[str] = Counter()
    for item in items:
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
