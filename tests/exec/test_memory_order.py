"""A thread sees its own accesses to device memory in the order in which they are written, whatever loops over threads become:
random programs on every engine, against torch on the CPU."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from metalops import _host, msl

from .conftest import HEADER, MEETING

THREADS = 600
SEEDS = [*range(40), 73, 97, 105, 148, 180, 267]  # with those that were wrong once
OWN = 2  # elements of each memory that are a thread's
HELPERS = """
inline void put(device int* p, uint i, uint k, int v) { p[2 * i + k] = v; }
inline int get(device const int* p, uint i, uint k) { return p[2 * i + k]; }
inline void add(device int& r, int v) { r += v; }
inline void put_two(device int* p, device int* q, uint i, uint k, int v) { p[2 * i + k] = v; q[2 * i + (k ^ 1)] = v + 1; }
"""
# The engine, threads in a group, and what numbers the threads: compilers know most of what a loop itself counts.
LAUNCHES = {
    "loop": ("loop", 256, "thread_position_in_grid"),
    "groups": ("group", 256, "thread_position_in_grid"),
    "one group": ("group", THREADS, "thread_index_in_threadgroup"),
}


@dataclass
class State:
    """Of all threads: their elements of memories, and three variables each."""

    memory: dict[str, torch.Tensor]
    x: list[torch.Tensor]

    def __post_init__(self):
        self.threads = torch.arange(THREADS)

    def read(self, p, k):
        return self.memory[p][self.threads, k(self)]

    def write(self, p, k, value):
        self.memory[p][self.threads, k(self)] = value


@dataclass
class Program:
    """Statements of one thread, and what each does to the State."""

    seed: int
    pointers: str
    forms: tuple[str, ...]
    computed: float  # how many indices are
    lines: list[str] = field(default_factory=list)
    effects: list[Callable[[State], None]] = field(default_factory=list)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        for _ in range(self.random.randint(3, 9)):
            self._add(self.random.choice(self.forms))

    def _index(self):
        if self.random.random() < self.computed:
            v = self.random.randrange(3)
            return f"uint(x{v} & 1)", lambda s: (s.x[v] & 1).long()
        k = self.random.randrange(OWN)
        return str(k), lambda s: torch.full((THREADS,), k)

    def _value(self):
        v, w, c = self.random.randrange(3), self.random.randrange(3), self.random.randrange(1, 9)
        return f"x{v} * 3 + x{w} + {c}", lambda s: s.x[v] * 3 + s.x[w] + c

    def _add(self, form: str) -> None:
        p, q = (self.random.choice(self.pointers) for _ in range(2))
        (k_text, k), (v_text, v), x = self._index(), self._value(), self.random.randrange(3)

        def set_x(s, value):
            s.x[x] = value

        def write_some(s):
            some = (s.x[x] & 1) == 1
            s.write(p, k, torch.where(some, v(s), s.read(p, k)))

        def write_two(s):
            value, other = v(s), lambda s: k(s) ^ 1
            s.write(p, k, value)
            s.write(q, other, value + 1)

        def write_all(s):
            for j in range(OWN):
                s.memory[p][:, j] = s.memory[q][:, j ^ 1] + s.x[x]

        place = f"2 * i + {k_text}"
        line, effect = {
            "read": (f"x{x} = {p}[{place}];", lambda s: set_x(s, s.read(p, k))),
            "read by sum": (
                f"x{x} += *({p} + {place});",
                lambda s: set_x(s, s.x[x] + s.read(p, k)),
            ),
            "read by helper": (f"x{x} = get({p}, i, {k_text});", lambda s: set_x(s, s.read(p, k))),
            "write": (f"{p}[{place}] = {v_text};", lambda s: s.write(p, k, v(s))),
            "write by sum": (f"*({p} + {place}) = {v_text};", lambda s: s.write(p, k, v(s))),
            "write by helper": (
                f"put({p}, i, {k_text}, {v_text});",
                lambda s: s.write(p, k, v(s)),
            ),
            "write by pointer": (
                f"{{ device int* own = {p} + 2 * i; own[{k_text}] = {v_text}; }}",
                lambda s: s.write(p, k, v(s)),
            ),
            "write by reference": (
                f"add({p}[{place}], {v_text});",
                lambda s: s.write(p, k, s.read(p, k) + v(s)),
            ),
            "write some": (f"if (x{x} & 1) {p}[{place}] = {v_text};", write_some),
            "write two": (f"put_two({p}, {q}, i, {k_text}, {v_text});", write_two),
            "write all": (
                f"for (uint j = 0; j < 2; ++j) {p}[2 * i + j] = {q}[2 * i + (j ^ 1)] + x{x};",
                write_all,
            ),
        }[form]
        self.lines.append(line)
        self.effects.append(effect)

    def source(self, engine: str, number: str) -> str:
        body = "\n  ".join([MEETING[engine], *self.lines])
        return f"""kernel void k{self.seed}(device int* a, device int* b, device int* out, device const int* in,
    uint i [[{number}]]) {{
  int x0 = in[i], x1 = x0 * 5, x2 = x0 + 7;
  {body}
  out[i] = x0 + 3 * x1 + 5 * x2;
}}
"""

    def run(self, memory, x) -> torch.Tensor:
        state = State(memory, [x, x * 5, x + 7])
        for effect in self.effects:
            effect(state)
        return state.x[0] + 3 * state.x[1] + 5 * state.x[2]


WRITES = ("write", "write by sum", "write by helper", "write by reference")
PLAIN = ("read", "read by sum", "read by helper", *WRITES, "write two")
# By name: the pointers, the forms of statements, and how many indices are computed.
KINDS = {
    "two pointers": ("ab", PLAIN, 0.03),
    "two pointers, everything": (
        "ab",
        (*PLAIN, "write by pointer", "write some", "write all"),
        0.1,
    ),
    "helpers": ("a", ("read by helper", "write by helper", "write by helper", "write two"), 0.2),
    "writes": ("a", ("write", "write by sum"), 0.3),
}


def _memory(is_shared: bool) -> dict[str, torch.Tensor]:
    a = torch.arange(THREADS * OWN, dtype=torch.int32).view(THREADS, OWN)
    return {"a": a, "b": a if is_shared else a * 3 + 1}


def _is_right(library, program: Program, engine: str, group: int, is_shared: bool) -> bool:
    x = torch.randint(1000, (THREADS,), generator=torch.Generator().manual_seed(1)).int()
    expected, memory = _memory(is_shared), _memory(is_shared)
    out = torch.zeros_like(x)
    buffers = [memory["a"], memory["b"], out, x]
    library.launch(f"k{program.seed}", buffers, THREADS, group, engine=engine)
    results = {"out": out, **memory}
    expected["out"] = program.run(expected, x)
    return all(torch.equal(results[name], expected[name]) for name in results)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_random_programs(kind, launch, each_compiler):
    engine, group, number = LAUNCHES[launch]
    programs = [Program(seed, *KINDS[kind]) for seed in SEEDS]
    source = HEADER + HELPERS + "".join(p.source(engine, number) for p in programs)
    library = _host.Library(str(msl.compile_source(source, options=msl.Options(engines="all"))))
    wrong = [
        (p.seed, taken, is_shared)
        for p in programs
        for taken in (engine, "fiber")
        for is_shared in (False, True)
        if not _is_right(library, p, taken, group, is_shared)
    ]
    assert wrong == []


# ---- what is known of a kernel -------------------------------------------------------------------


def _emitted(body: str) -> str:
    return msl.emit_source(
        f"{HEADER}{HELPERS}kernel void k(device int* a, device int* b, device const int* c, constant int* d, "
        f"uint i [[thread_position_in_grid]]) {{ {body} }}"
    )


@pytest.mark.parametrize(
    "body",
    [
        "a[i] = c[i];",
        "a[2 * i] = c[i]; a[2 * i + 1] = c[i] + 1;",
        "a[i] = 1; a[i] += c[i];",
        "if (c[i]) a[i] = 1; else a[i + 1] = 2;",
        "switch (c[i]) { case 0: put(a, i, 0, 1); break; default: put(a, i, 1, 2); }",
        "device int* own = a + 2 * i; own[0] = 1; own[1] = 2;",
    ],
)
def test_compilers_are_promised_independent_threads(body):
    assert "MSL_INDEPENDENT\n" in _emitted(body)


@pytest.mark.parametrize(
    "body",
    [
        "a[i] = c[i]; b[i] = a[d[i]];",
        "a[2 * i] = 1; a[2 * i + (c[i] & 1)] = 2; a[2 * i + 1] = 3;",
        "put(a, i, 0, 1); put(a, i, c[i] & 1, 2); put(a, i, 1, 3);",
        "switch (c[i]) { case 0: put(a, i, 0, 1); default: put(a, i, 1, 2); }",
        "for (int j = 0; j < 2; ++j) a[i + j] = a[i + j + 1];",
        "device int* own = c[i] ? a : b; own[0] = 1; b[i] = 2;",
        "device int* own = a; own++; own[0] = 1; own--; own[0] = 2;",
        "put_two(a, a, i, 0, 1);",
    ],
)
def test_compilers_are_not_promised_independent_threads(body):
    assert "MSL_INDEPENDENT\n" not in _emitted(body)


@pytest.mark.parametrize(
    "body, needs",
    [
        ("a[i] = b[i] + c[i];", False),
        ("a[i] = c[i]; b[i] = c[i];", False),
        ("a[i] = d[i]; b[i] = c[i];", False),
        ("a[i] = d[i]; b[i] = c[i + 1] + c[i];", True),
        ("a[i] = 1; b[i] = 2;", False),
        ("a[2 * i] = 1; b[2 * i + 1] = 2;", False),
        ("a[2 * i] = 1; b[2 * i] = 2; a[2 * i + 1] = 3;", True),
        ("put_two(a, b, i, 0, 1);", True),
        ("a[i] = 1; b[i] = d[i] + d[i + 1];", False),
        ("a[i] = get(c, i, 0) + b[i + 1];", False),
    ],
)
def test_kernels_that_need_separate_buffers(body, needs):
    """Where that matters in a loop over the grid, the launch is told; a loop over the threads of a group is promised nothing."""
    text = _emitted(body)
    (found,) = re.findall(r'\{"k", \S*msl_arguments_0, 5, 0, 1024, ([01]), ', text)
    assert bool(int(found)) == needs
    in_group = _emitted(MEETING["group"] + body).split("k_in_group", 1)[1]
    assert re.findall(r"::each<(\w+)>", in_group) == ["false" if needs else "true"]


@pytest.mark.parametrize("promise", ["", "#pragma clang loop vectorize(assume_safety)"])
def test_a_promise_of_the_source_is_passed_on(promise):
    body = f"""{MEETING["group"]}
{promise}
    for (uint k = i; k < 600; k += 32) {{ put(a, k, 0, c[k]); put(a, k, 1, 2); }}"""
    text = _emitted(body).split("k_in_group", 1)[1]
    assert re.findall(r"::stride<(\w+),", text) == ["true" if promise else "false"]


def test_a_promise_is_only_about_shared_memory():
    body = f"""{MEETING["group"]}
#pragma clang loop vectorize(assume_safety)
    for (uint k = i; k < 600; k += 32) {{ int v[2] = {{1, 2}}; v[k & 1] = c[k]; a[k] = v[1]; }}"""
    text = _emitted(body).split("k_in_group", 1)[1]
    assert re.findall(r"::stride<(\w+),", text) == ["false"]
