"""Kernels that run as loops over the grid, or over the threads of a group: threads do not share memory of their own,
however it is addressed, at any width of the compiler's vectors."""

import re

import pytest
import torch
from metalops import _host, msl
from metalops.msl import build
from metalops.msl.source import compiler

from .conftest import HEADER, MEETING

THREADS = 4096
# Straight-line code, as compilers vectorise it: each thread writes one of four numbers of its own, and reads one.
NUMBERS = "{x, x * x, x * x * x, 1}"
PREFIX = """
struct Four {
  float a, b, c, d;
};
struct Numbers {
  float values[4];
};
struct Two {
  float a, b;
  thread float& at(uint n) {
    if (n & 1) return b;
    return a;
  }
};
inline Numbers operator+(Numbers v, uint n) {
  v.values[n] = 7;
  return v;
}
inline float operator|(Numbers v, uint n) { return v.values[n]; }
struct Functor {
  float operator()(float x, uint to, uint from) const;
};
inline float Functor::operator()(float x, uint to, uint from) const {
  float v[4] = NUMBERS;
  v[to] = 7;
  return v[from];
}
inline void write(thread float* v, uint n) { *(v + n) = 7; }
inline float read(thread const float* v, uint n) { return *(v + n); }
template <typename P>
inline void write_any(P v, uint n) { v[n] = 7; }
template <typename P>
inline float read_any(P v, uint n) { return v[n]; }
""".replace("NUMBERS", NUMBERS)
BODIES = {
    "an array": f"float v[4] = {NUMBERS}; v[to] = 7; y = v[from];",
    "a free operator": f"y = Numbers{{{NUMBERS}}} + to | from;",
    "a member defined outside of its class": "y = Functor()(x, to, from);",
    "pointer arithmetic": f"Four v = {NUMBERS}; thread float* p = &v.a; *(p + to) = 7; y = *(p + from);",
    "pointer arithmetic in helpers": f"Four v = {NUMBERS}; write(&v.a, to); y = read(&v.a, from);",
    "pointers of a template": f"Four v = {NUMBERS}; write_any(&v.a, to); y = read_any(&v.a, from);",
    "an array object": f"array<float, 4> v = {NUMBERS}; v[to] = 7; y = v[from];",
    "components by their numbers": f"float4 v = {NUMBERS}; v[to] = 7; y = v[from];",
    "a variable with the name of a parameter": f"""Four v = {NUMBERS};
        {{ thread float* in = &v.a; in[to] = 7; y = in[from]; }}""",
}


def _expected(x):
    numbers = torch.stack([x, x * x, x * x * x, torch.ones(THREADS)], 1)
    i = torch.arange(THREADS)
    numbers[i, (i >> 2) & 3] = 7
    return numbers[i, i & 3]


def _source(body, engine):
    return (
        f"{HEADER}{PREFIX}\nkernel void k(device float* out, device const float* in, "
        "uint i [[thread_position_in_grid]]) { float x = in[i]; uint from = uint(x) & 3, to = (uint(x) >> 2) & 3; "
        f"float y; {MEETING[engine]} {body} out[i] = y + sqrt(x) * x; }}"
    )


def _run(body, engine):
    x, out = torch.arange(THREADS).float(), torch.zeros(THREADS)
    library = _host.Library(str(msl.compile_source(_source(body, engine))))
    library.launch("k", [out, x], THREADS, 256, engine=engine)
    return x, out


@pytest.mark.sampled(4)
@pytest.mark.parametrize("engine", MEETING)
@pytest.mark.parametrize("what", BODIES)
def test_memory_of_a_thread_is_its_own(what, engine, each_compiler):
    x, out = _run(BODIES[what], engine)
    torch.testing.assert_close(out, _expected(x) + x.sqrt() * x)


@pytest.mark.parametrize("engine", MEETING)
def test_references_to_one_of_two_members(engine, each_compiler):
    x, out = _run("Two v{x, x * x}; v.at(to) = 7; y = v.at(from);", engine)
    i = torch.arange(THREADS)
    read_b, wrote_b = i & 1 == 1, i >> 2 & 1 == 1
    y = torch.where(read_b == wrote_b, 7, torch.where(read_b, x * x, x))
    torch.testing.assert_close(out, y + x.sqrt() * x)


@pytest.mark.parametrize("what", BODIES)
def test_compilers_are_not_promised_independent_threads(what):
    """Whether they would make use of it is a matter of their version and of the CPU."""
    assert "MSL_INDEPENDENT" not in msl.emit_source(_source(BODIES[what], "loop"))
    in_group = msl.emit_source(_source(BODIES[what], "group")).split("k_in_group", 1)[1]
    assert re.findall(r"::each<(\w+)>", in_group)[:2] == ["true", "false"]


# What a thread wrote to memory that all share, and reads by another expression.
READ_BACK = """
struct Pair {
  uint first, second;
  uint sum() const { return first + 2 * second; }
};
inline void put(SPACE uint* at, uint v) { *at = v; }
inline uint exchange(SPACE uint* a, SPACE const uint* b, uint i, uint other, uint v) {
  a[2 * i] = v;
  uint r = b[2 * other] + 2 * b[2 * other + 1];
  a[2 * i + 1] = 3;
  return r + b[2 * other] + 2 * b[2 * other + 1];
}
kernel void members(SPACE Pair* s [[buffer(1)]], PARAMETERS) {
  s[i].first = v;
  uint r = s[other].sum();
  s[i].second = 3;
  out[i] = r + s[other].sum();
}
kernel void components(SPACE uint2* s [[buffer(1)]], PARAMETERS) {
  s[i].x = v;
  uint r = s[other].x + 2 * s[other].y;
  s[i].y = 3;
  out[i] = r + s[other].x + 2 * s[other].y;
}
kernel void elements(SPACE uint* s [[buffer(1)]], PARAMETERS) {
  s[2 * i] = v;
  uint r = s[2 * other] + 2 * s[2 * other + 1];
  s[2 * i + 1] = 3;
  SPACE uint* again = s + 2 * other;
  out[i] = r + again[0] + 2 * again[1];
}
kernel void addresses(SPACE uint* s [[buffer(1)]], PARAMETERS) {
  *(s + 2 * i) = v;
  uint r = *(s + 2 * other) + 2 * *(s + (2 * other + 1));
  *(s + (2 * i + 1)) = 3;
  out[i] = r + *(s + 2 * other) + 2 * *(s + (2 * other + 1));
}
kernel void passed_addresses(SPACE uint* s [[buffer(1)]], PARAMETERS) {
  put(s + 2 * i, v);
  uint r = s[2 * other] + 2 * s[2 * other + 1];
  put(s + (2 * i + 1), 3);
  out[i] = r + s[2 * other] + 2 * s[2 * other + 1];
}
kernel void an_address_passed_twice(SPACE uint* s [[buffer(1)]], PARAMETERS) {
  out[i] = exchange(s, s + 0u * i, i, other, v);
}
"""


@pytest.mark.parametrize("engine", MEETING)
@pytest.mark.parametrize(
    "kernel",
    [
        "members",
        "components",
        "elements",
        "addresses",
        "passed_addresses",
        "an_address_passed_twice",
    ],
)
def test_a_thread_sees_what_it_wrote_to_shared_memory(kernel, engine, each_compiler):
    n = 1024
    parameters = "device uint* out [[buffer(0)]], device const uint* x [[buffer(2)]], uint i [[thread_position_in_grid]]"
    body = f") {{ {MEETING[engine]} const uint v = x[i], other = i + (v & 1) * {n};"
    source = READ_BACK.replace("SPACE", "device").replace("PARAMETERS", parameters)
    source = source.replace("]]) {", f"]]{body}")
    x = torch.randint(0, 64, (n,), dtype=torch.int32, generator=torch.manual_seed(0))
    pairs = torch.tensor([[5, 6]] * n + [[7, 8]] * n, dtype=torch.int32)
    out = torch.zeros(n, dtype=torch.int32)
    options = msl.Options(engines="all")
    library = _host.Library(str(msl.compile_source(HEADER + source, options=options)))
    library.launch(kernel, [out, pairs, x], n, 256, engine=engine)
    expected = torch.where(x & 1 == 1, 2 * (7 + 2 * 8), (x + 2 * 6) + (x + 2 * 3))
    assert torch.equal(out, expected.int())


# Functions that take and return vectors by value, as people write them.
BY_VALUE = """
inline float total(TYPE4 v) { return float((v.x + v.y) + (v.z + v.w)); }
inline TYPE4 squares(TYPE4 v) { return v * v; }
inline float both(TYPE2 v) { return float(v.x + v.y); }
kernel void k(device float* out, device const TYPE4* in, uint i [[thread_position_in_grid]]) {
  TYPE4 v = in[i];
  MEETING
  out[i] = total(squares(v)) + both(v.xy) + both(v.zw);
}
"""


@pytest.mark.parametrize("kind", ["float", "int", "half"])
@pytest.mark.parametrize("each_compiler", ["clang++-19"], indirect=True)
def test_clang_vectorises_functions_of_vectors_by_value(kind, each_compiler, tmp_path):
    """The x86-64 ABI passes a float4 in two registers of two floats each, which kept clang from vectorising the loops
    over threads that call such functions, even where the calls were inlined."""
    text = HEADER + BY_VALUE.replace("TYPE", kind).replace("MEETING", "")
    source = tmp_path / "kernel.cpp"
    source.write_text(msl.emit_source(text))
    host = compiler.find()
    flags = [*host.flags(3, "x86-64-v3"), f"-I{build.HEADERS}", '-DMETALOPS_BUILD="test"']
    result = host.run([*flags, "-Rpass=loop-vectorize", "-c", str(source), "-o", "/dev/null"])
    assert result.returncode == 0 and b"vectorized loop" in result.stderr


@pytest.mark.parametrize("kind", ["float", "int", "half"])
def test_functions_of_vectors_by_value(kind, each_compiler):
    x = torch.randint(-9, 9, (THREADS, 4)).to(getattr(torch, kind))
    out = torch.zeros(THREADS)
    for meeting in MEETING.values():
        text = HEADER + BY_VALUE.replace("TYPE", kind).replace("MEETING", meeting)
        _host.Library(str(msl.compile_source(text))).launch("k", [out, x], THREADS, 256)
        assert torch.equal(out, (x * x + x).sum(1).float())
