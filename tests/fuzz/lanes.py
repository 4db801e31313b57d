"""Random kernels that loop and never synchronise, run as vector lanes and thread by thread:
python -m tests.fuzz.lanes [--count N] [--seed N]

A kernel reads memory at adjacent, equal and computed positions, in loops that are uniform or divergent, with break, continue
and return, and with variables that are numbers, vectors, structs and arrays. What they leave in memory is compared bit for
bit with what the loop over the grid leaves without lanes. Numbers stay finite. In some launches buffers share memory.
"""

from __future__ import annotations

import argparse
import random
import sys

import torch
from metalops import msl

COLUMNS = 200  # threads in x
ROWS = 3
SIZE = 4096  # elements of each buffer
HEADER = """#include <metal_stdlib>
using namespace metal;
struct Pair { float first; uint second; };
inline float blend(float a, float b) { return a * 0.75f + b * 0.25f; }
inline uint mix_bits(uint a) { a ^= a >> 3; return a * 9u + 1u; }
"""


class Writer:
    """Makes the kernel of a seed. plain: true if it is to have only what lanes take."""

    def __init__(self, seed: int):
        self.chance = random.Random(seed)
        self.seed = seed
        self.plain = self.chance.random() < 0.6
        self.is_2d = self.chance.random() < 0.5
        self.gid = "gid.x" if self.is_2d else "gid"
        self.row = "gid.y * n + gid.x" if self.is_2d else "gid"
        self.counters: list[str] = []
        self.made = 0
        self.statements = 14
        self.locals: list[str] = []

    def text(self) -> str:
        gid = "uint2 gid" if self.is_2d else "uint gid"
        row = self.row
        lines = []
        if self.chance.random() < 0.5:
            lines.append(f"  if ({self.gid} >= n) return;")
        elif self.chance.random() < 0.3:
            lines.append(f"  if (y[{row}] % 16u == 1u) return;")
        lines += [
            f"  float a = x[{row}], b = 0.5f, c = 1;",
            f"  uint u = {self.gid} * 3u + 1u, v = y[{row}];",
            "  uint even = m * 2u + 1u;",
        ]
        if not self.plain and self.chance.random() < 0.3:
            lines.append("  float4 q = float4(a, b, c, 1);")
            self.locals.append("q.y")
        if not self.plain and self.chance.random() < 0.3:
            lines.append("  Pair p = {a, u};")
            self.locals.append("p.first")
        if not self.plain and self.chance.random() < 0.3:
            lines.append("  float w[3] = {a, b, c};")
            self.locals.append(self.chance.choice(("w[1]", "w[u % 3u]")))
        lines.append(self.loop(1, "for uniform"))
        lines += [self.statement(1, False) for _ in range(self.chance.randint(1, 4))]
        store = f"out[{row}] = a + b * c;"
        if self.chance.random() < 0.3:
            store = f"if ({self.condition()}) {store}"
        lines.append(f"  {store}")
        if self.chance.random() < 0.4:
            lines.append(f"  bits[{row}] {self.chance.choice(('=', '+=', '^='))} u + v;")
        if self.chance.random() < 0.4:
            lines.append(self.row_of_elements())
        if not self.plain and self.chance.random() < 0.2:
            lines.append(f"  out[{row} + 1u] = c;")
        body = "\n".join(lines)
        return (
            f"kernel void k{self.seed}(device float* out, device uint* bits, device const float* x, "
            f"device const uint* y, device float* wide, constant uint& n, constant uint& m, {gid} [[thread_position_in_grid]]) {{\n{body}\n}}\n"
        )

    def row_of_elements(self) -> str:
        """Loops over elements that are this thread's own."""
        self.made += 1
        counter = f"i{self.made}"
        length = self.chance.choice(("m", "3u", "n / 64u"))
        lines, index = [], f"({self.row}) * {length} + {counter}"
        if self.chance.random() < 0.4:
            lines.append(f"  uint start = ({self.row}) * {length};")
            index = f"start + {counter}"
        self.counters.append(counter)
        operator = self.chance.choice(("=", "+="))
        body = f"wide[{index}] {operator} clamp({self.float_value()}, -9.0f, 9.0f);"
        if self.chance.random() < 0.3:
            body = f"if ({self.condition()}) {body}"
        self.counters.pop()
        lines.append(
            f"  for (uint {counter} = 0u; {counter} < {length}; ++{counter}) {{\n    {body}\n  }}"
        )
        return "\n".join(lines)

    def float_value(self, depth: int = 0) -> str:
        kind = self.chance.random()
        if kind < 0.35 or depth > 2:
            return self.chance.choice(["a", "b", "c", "0.5f", "-1.25f", *self.locals])
        if kind < 0.5:
            return f"x[{self.index()}]"
        if kind < 0.58:
            return f"float({self.uint_value(depth + 1)} & 15u)"
        one, two = self.float_value(depth + 1), self.float_value(depth + 1)
        if kind < 0.68:
            form = self.chance.choice(("min({}, {})", "max({}, {})", "fma({}, 0.5f, {})"))
            return form.format(one, two)
        if kind < 0.74:
            return f"({self.condition()} ? {one} : {two})"
        if kind < 0.78 and not self.plain:
            return f"blend({one}, {two})"
        return f"({one} {self.chance.choice('+-*')} {two})"

    def uint_value(self, depth: int = 0) -> str:
        kind = self.chance.random()
        if kind < 0.5 or depth > 2:
            return self.chance.choice(["u", "v", "m", "even", self.gid, "7u", *self.counters])
        if kind < 0.6:
            return f"y[{self.index()}]"
        if kind < 0.64 and not self.plain:
            return f"mix_bits({self.uint_value(depth + 1)})"
        one, two = self.uint_value(depth + 1), self.uint_value(depth + 1)
        return f"({one} {self.chance.choice(('+', '*', '^', '&', '-', '>> 2u ^'))} {two})"

    def index(self) -> str:
        if self.seed % 8 in (1, 2):  # what is read is written by the same thread (_buffers)
            return self.row
        counter = self.chance.choice([*self.counters, "m"])
        return self.chance.choice(
            (
                self.gid,
                f"{counter} * n + {self.gid}",
                f"{self.gid} + {counter}",
                f"{counter} * 3u",
                f"{self.gid} * 5u + {counter}",
                f"({self.gid} - {counter}) & 1023u",
                f"(u ^ {counter}) & 1023u",
                "v & 1023u",
            )
        )

    def condition(self) -> str:
        return self.chance.choice(
            (
                f"{self.uint_value(1)} % 3u == 1u",
                f"{self.float_value(2)} < {self.float_value(2)}",
                f"({self.uint_value(2)} & 4u) != 0u && a < 9",
                "m > 2u",
            )
        )

    def statement(self, depth: int, in_loop: bool) -> str:
        self.statements -= 1
        kind, pad = self.chance.random(), "  " * depth
        if kind < 0.5 or self.statements < 0 or depth > 4:
            if self.chance.random() < 0.65:
                to = self.chance.choice(["a", "b", "c", *self.locals])
                return f"{pad}{to} = clamp({self.float_value()}, -9.0f, 9.0f);"
            to = self.chance.choice("uv")
            return f"{pad}{to} {self.chance.choice(('=', '+=', '^='))} {self.uint_value()};"
        if kind < 0.62:
            self.made += 1
            name = f"t{self.made}"
            return (
                f"{pad}float {name} = clamp({self.float_value()}, -9.0f, 9.0f);\n{pad}a = {name} * 0.5f + "
                f"clamp({self.float_value()}, -9.0f, 9.0f);"
            )
        if kind < 0.72:
            inner = self.statement(depth + 1, in_loop and not self.plain)
            if in_loop and not self.plain and self.chance.random() < 0.5:
                inner += f"\n{pad}  {self.chance.choice(('break;', 'continue;'))}"
            other = f" else {{\n{self.statement(depth + 1, False)}\n{pad}}}"
            other = self.chance.choice(("", other))
            return f"{pad}if ({self.condition()}) {{\n{inner}\n{pad}}}{other}"
        if kind < 0.76 and not self.plain:
            return f"{pad}if ({self.condition()}) return;"
        if kind < 0.8 and not self.plain:
            return (
                f"{pad}out[{self.chance.choice((self.gid, 'u & 1023u', self.gid + ' + m'))}] = a;"
            )
        kinds = ("for uniform",) if self.plain else ("for uniform", "for", "while", "do")
        return self.loop(depth, self.chance.choice(kinds))

    def loop(self, depth: int, kind: str) -> str:
        self.made += 1
        counter, pad = f"i{self.made}", "  " * depth
        uniform = self.chance.choice(
            ("m", "even", "n / 64u", "3u", f"m + {(self.counters or ['1u'])[-1]}")
        )
        varying = self.chance.choice(("(u & 3u)", "(v % 5u)", f"({self.gid} & 1u) + m"))
        self.counters.append(counter)
        body = "\n".join(self.statement(depth + 1, True) for _ in range(self.chance.randint(1, 3)))
        self.counters.pop()
        if kind.startswith("for"):
            limit = uniform if kind == "for uniform" else varying
            step = self.chance.choice((f"++{counter}", f"{counter}++", f"{counter} += 2u"))
            return (
                f"{pad}for (uint {counter} = 0u; {counter} < {limit}; {step}) {{\n{body}\n{pad}}}"
            )
        before = f"{pad}uint {counter} = 0u;\n"
        if kind == "while":
            both = f"{counter}++ < {varying} && a < 8"
            return f"{before}{pad}while ({both}) {{\n{body}\n{pad}}}"
        return f"{before}{pad}do {{\n{body}\n{pad}}} while (++{counter} < {varying});"


def text_of(seed: int) -> str:
    return Writer(seed).text()


def source_of(seeds: list[int]) -> str:
    return HEADER + "".join(map(text_of, seeds))


def _buffers(seed: int) -> list[torch.Tensor]:
    """The buffers of a launch: in one of four launches two of them share memory, as far as that is no data race."""
    chance = torch.Generator().manual_seed(seed)
    memory = torch.rand(2 * SIZE, generator=chance)
    x, out = memory[:SIZE], memory[SIZE:]
    bits, y = (torch.randint(0, 64, (SIZE,), generator=chance, dtype=torch.int32) for _ in range(2))
    kind = seed % 8
    if kind == 1:
        out = x
    elif kind == 2:
        bits = y
    elif kind == 3:  # to the device the first one ends where the memory ends
        x, out = out, memory
    return [out, bits, x, y, torch.zeros(SIZE)]


def differences(seeds: list[int], optimize: int = 3) -> tuple[list[int], set[int]]:
    """Of the kernels of these seeds, compiled as one library: those whose lanes leave other memory than threads without
    them; and those that run as lanes."""
    from metalops import _host
    from metalops.msl.source.preprocess import preprocess
    from metalops.msl.targets.host.emit import emit

    source = source_of(seeds)
    taken = emit(preprocess(source), lanes=True).lanes
    options = (msl.Options(optimize=optimize, lanes=lanes) for lanes in (False, True))
    libraries = [_host.Library(str(msl.compile_source(source, options=o))) for o in options]
    wrong = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # some threads write one element, in the order in which they run
    for seed in seeds:
        grid = [COLUMNS, ROWS] if Writer(seed).is_2d else [COLUMNS * ROWS]
        found = []
        for library in libraries:
            buffers = _buffers(seed)
            n, m = (torch.tensor([v], dtype=torch.int32) for v in (COLUMNS - seed % 3, seed % 5))
            group = [64, 1] if len(grid) == 2 else [256]
            library.launch(f"k{seed}", [*buffers, n, m], grid, group, engine="loop")
            found.append([b.view(torch.int32) for b in buffers])
        if any(not torch.equal(a, b) for a, b in zip(*found, strict=True)):
            wrong.append(seed)
    torch.set_num_threads(threads)
    return wrong, {seed for seed in seeds if f"k{seed}" in taken}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.lanes")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1000)
    arguments = parser.parse_args()
    seeds = list(range(arguments.seed, arguments.seed + arguments.count))
    as_lanes = 0
    for first in range(0, len(seeds), 20):
        wrong, taken = differences(seeds[first : first + 20])
        as_lanes += len(taken)
        for seed in wrong:
            print(f"seed {seed}: lanes leave other memory than threads without them")
            print(source_of([seed]))
            return 1
    print(f"{len(seeds)} kernels, {as_lanes} of them as lanes, leave the same memory either way")
    return 0


if __name__ == "__main__":
    sys.exit(main())
