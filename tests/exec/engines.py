"""Every launch on every engine that takes its kernel, each with the same memory before it.

compared() does that in a block; `python -m pytest --compare-engines tests/...` does it in every test.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from metalops import _host

# Kernels that write to more memory run once, as without comparing.
LARGEST = 2**26  # bytes
# Why engines may write other bytes, for kernels whose names match.
EXPECTED = {
    r"(fast_|precise_)?(sin|cos|tan|powr?)(_\w+)?": "the C library's functions of vectors are not those of numbers",
    # clang calls these functions of vectors in group loops; g++ does not.
    r"pdist_(backward_)?(narrow_)?general|indexing_embedding_renorm_float_\w+": "pow of vectors is not that of numbers",
    # g++ 12 fuses the four products of a complex one in loops, and nowhere else, whatever -ffp-contract says.
    r"cumulative_\w+_product_float2": "a complex product is fused in vector loops",
    r"several": "addresses of threadgroup memory, which each engine has elsewhere",
}
# Kernels that write vectors of three elements, of whose four places the last one holds nothing.
_OF_THREES = re.compile(r"\w+_u?(?P<type>char|short|int|long|half|float|bfloat)3")
_BYTES = {"char": 1, "short": 2, "int": 4, "long": 8, "half": 2, "float": 4, "bfloat": 2}


@dataclass
class Record:
    """What launches under compared() did.

    kernels: how many launches of each were compared. alone: those of kernels that ran once, since no other engine takes
    them or they write to much memory. differences: a line for each launch whose engines wrote other bytes.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


class _Memory:
    """What a kernel may write to: each byte once, however many buffers show it."""

    def __init__(self, launch: _host.HookedLaunch):
        spans: list[list[int]] = []
        written = [(begin, begin + size) for begin, size, writable in launch.buffers if writable]
        for begin, end in sorted(written):
            if spans and begin <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], end)
            elif begin < end:
                spans.append([begin, end])
        self.size = sum(end - begin for begin, end in spans)
        self._views = [
            torch.frombuffer(
                (ctypes.c_uint8 * (end - begin)).from_address(begin), dtype=torch.uint8
            )
            for begin, end in spans
        ]

    def read(self) -> list[torch.Tensor]:
        return [view.clone() for view in self._views]

    def write(self, contents: list[torch.Tensor]) -> None:
        for view, content in zip(self._views, contents, strict=True):
            view.copy_(content)


def _run(launch: _host.HookedLaunch, record: Record) -> None:
    default, *others = launch.engines
    memory = _Memory(launch)
    if not others or memory.size > LARGEST:
        record.alone[launch.name] += 1
    else:
        record.kernels[launch.name] += 1
        before = memory.read()
        results = {}
        for engine in launch.engines:
            launch.run(engine, 1)
            results[engine] = memory.read()
            memory.write(before)
        for engine in others:
            _compare(launch, record, engine, results[default], results[engine])
    launch.run(default, launch.threads)


def _compare(
    launch: _host.HookedLaunch,
    record: Record,
    engine: str,
    expected: list[torch.Tensor],
    actual: list[torch.Tensor],
) -> None:
    if any(re.fullmatch(pattern, launch.name) for pattern in EXPECTED):
        return
    threes = _OF_THREES.fullmatch(launch.name)
    for ours, theirs in zip(actual, expected, strict=True):
        if threes:
            ours, theirs = (t.view(-1, 4, _BYTES[threes["type"]])[:, :3] for t in (ours, theirs))
            ours, theirs = ours.flatten(), theirs.flatten()
        floats = re.search("float|half", launch.name) is not None
        if not torch.equal(ours, theirs) and not _equal_but_for_nan(ours, theirs, floats):
            where = (ours != theirs).nonzero().flatten()
            record.differences.append(
                f"{launch.name}, {launch.grid} threads in groups of {launch.group}: {len(where)} of {len(ours)} bytes "
                f"differ between {launch.engines[0]} and {engine}, the first at {int(where[0])}"
            )


def _equal_but_for_nan(a: torch.Tensor, b: torch.Tensor, floats: bool) -> bool:
    """Whether two tensors of bytes are equal if they hold floating-point numbers of some type. IEEE 754 leaves open what
    sign the NaN has that comes of an operation, and whether one that is only passed on becomes a quiet one; and which of
    two NaN an operation passes on, which is allowed where the bytes are known to be of floats."""
    for dtype, bits in (
        (torch.float32, torch.int32),
        (torch.float16, torch.int16),
        (torch.bfloat16, torch.int16),
    ):
        if len(a) % dtype.itemsize:
            continue
        x, y = (t.clone().view(dtype) for t in (a, b))  # clones are aligned
        sign = torch.iinfo(bits).min
        quiet = torch.tensor(torch.nan, dtype=dtype).view(bits) ^ torch.tensor(
            torch.inf, dtype=dtype
        ).view(bits)
        differing = (x.view(bits) ^ y.view(bits)) & ~(sign | quiet)
        both = x.isnan() & y.isnan() & (floats | (differing == 0))
        if ((x.view(bits) == y.view(bits)) | both).all():
            return True
    return False


@contextlib.contextmanager
def compared() -> Iterator[Record]:
    """Compares the launches of the block, of whatever CPU thread, that leave the engine open. What they leave is what
    they would leave without it.

    Memory that a kernel reaches by addresses in a buffer is not looked at.
    """
    record = Record()

    def hook(launch: _host.HookedLaunch) -> None:
        with torch.inference_mode(False), torch.no_grad():
            _run(launch, record)

    before = _host.set_launch_hook(hook)
    try:
        yield record
    finally:
        _host.set_launch_hook(before)
