"""The arguments of a kernel that its function constants and template arguments leave unused: nothing need be bound to them, and
an access to what is not bound is an error."""

import re
import struct

import metalops
import pytest
import torch
from metalops import _host, msl

from .conftest import build

HEAD = """
#include <metal_stdlib>
using namespace metal;
constant bool on [[function_constant(0)]];
constant int kind [[function_constant(1)]];
constant bool has_kind = is_function_constant_defined(kind);
constant bool both = on && kind == 3;
constant int other = 7;
template <int N> inline bool is_large() { return N > 2; }
inline float first(device const float* p) { return p[0]; }
inline float first_if_on(device const float* p, uint i) { return on ? p[i] : 0.0f; }
inline float nothing_of(device const float* p) { return 1; }
inline float counted(device const float* p, uint i) { return i == 0 ? 0.0f : counted(p, i - 1); }
struct Row { device const float* begin; float at(uint i) const { return begin[i]; } };
"""
# The body of a kernel (device float* out, device const float* x, uint i), and for which (on, kind) it uses x.
ALL = {(on, kind) for on in (False, True) for kind in (0, 3)}
ON = {(True, 0), (True, 3)}
OFF = ALL - ON
BODIES = {
    "never": ("out[i] = 1;", set()),
    "always": ("out[i] = x[i];", ALL),
    "if": ("if (on) out[i] = x[i];", ON),
    "else": ("if (on) out[i] = 1; else out[i] = x[i];", OFF),
    "not": ("if (!on) out[i] = x[i];", OFF),
    "in both": ("if (on) out[i] = x[i]; else out[i] = x[0];", ALL),
    "in both and else": ("if (on && i > 3) out[i] = x[i]; else out[i] = x[0];", ALL),
    "conditional": ("out[i] = on ? x[i] : 1;", ON),
    "other conditional": ("out[i] = on ? 1 : x[i];", OFF),
    "and": ("out[i] = on && x[i] > 0;", ON),
    "or": ("out[i] = on || x[i] > 0;", OFF),
    "with a thread's condition": ("if (i > 3 && on) out[i] = x[i];", ON),
    "or a thread's condition": ("if (i > 3 || on) out[i] = x[i];", ALL),
    "neither": ("if (!(i > 3 || on)) out[i] = x[i];", OFF),
    "derived": ("if (both) out[i] = x[i];", {(True, 3)}),
    "comparison": ("if (kind == other - 4) out[i] = x[i];", {(False, 3), (True, 3)}),
    "two uses": ("if (on) out[i] = x[i]; if (kind == 3) out[i] = x[0];", ON | {(False, 3)}),
    "nested": ("if (on) { if (kind == 3) { out[i] = x[i]; } }", {(True, 3)}),
    "is defined": ("if (has_kind) out[i] = x[i];", ALL),
    "is not defined": ("if (!is_function_constant_defined(kind)) out[i] = x[i];", set()),
    "local constant": ("const bool mine = on && kind == 3; if (mine) out[i] = x[i];", {(True, 3)}),
    "local alias": (
        "using T = int; const T k = kind; if ((T)k == 3) out[i] = x[i];",
        {(False, 3), (True, 3)},
    ),
    "two of a name": (
        "{ const bool c = on; if (c) out[i] = x[i]; } { const bool c = kind == 3; if (c) out[i] = x[0]; }",
        ALL,
    ),
    "variable": ("bool mine = on; mine = i > 3; if (mine) out[i] = x[i];", ALL),
    "constant of the thread": ("const bool mine = on || i > 3; if (mine) out[i] = x[i];", ALL),
    "template": ("if (is_large<3>() && on) out[i] = x[i]; if (is_large<1>()) out[i] = x[i];", ON),
    "loop": ("for (int j = 0; j < 3 && on; ++j) out[i] += x[j];", ON),
    "loop's end": ("for (int j = 0; on ? x[j] < 3 : j < 3; ++j) out[i] += j;", ON),
    "while": ("int j = 0; while (on && j < 3) { out[i] += x[j]; j++; }", ON),
    "return": ("out[i] = 0; if (!on) return; out[i] = x[i];", ON),
    "return of some": ("if (!on && i > 3) return; out[i] = x[i];", ALL),
    "return in a block": (
        "if (kind == 3) { out[i] = 2; return; } out[i] = x[i];",
        OFF - {(False, 3)} | {(True, 0)},
    ),
    "pointer": ("device const float* p = x + i; if (on) out[i] = *p;", ON),
    "cast pointer": (
        "auto p = reinterpret_cast<device const int*>(x + 1); if (on) out[i] = p[i]; p++; p += 2;",
        ON,
    ),
    "pointer of two": ("device const float* p = on ? x : out; out[i] = *p;", ON),
    "pointer that is set twice": (
        "device const float* p = out; if (on) p = x; if (kind == 3) p = x; out[i] = *p;",
        ON | {(False, 3)},
    ),
    "pointer in a loop": (
        "device const float* p = x; for (int j = 0; j < 3; ++j) { p = p + 1; if (on) out[i] = *p; }",
        ON,
    ),
    "moved": ("x += i; if (on) out[i] = *x;", ON),
    "moved and read": ("out[i] = *x++;", ALL),
    "object": ("Row row = {x}; if (on) out[i] = row.at(i);", ALL),
    "call": ("out[i] = first(x);", ALL),
    "call if on": ("if (on) out[i] = first(x + 1);", ON),
    "call that looks": ("out[i] = first_if_on(x, i);", ON),
    "call that ignores": ("out[i] = nothing_of(x);", set()),
    "call of itself": ("out[i] = counted(x, i);", ALL),
    "lambda": ("auto f = [&] { return x[i]; }; if (on) out[i] = f();", ALL),
    "lambda's condition": ("auto f = [&] { return on ? x[i] : 0.0f; }; out[i] = f();", ON),
    "mentioned": ("(void)x; out[i] = 1;", set()),
    "address": ("out[i] = x ? 1 : 0;", ALL),
    "switch": ("switch (kind) { case 3: out[i] = x[i]; break; default: out[i] = 1; }", ALL),
}
MEETING = {"loop": "", "group": "threadgroup_barrier(mem_flags::mem_none);"}


@pytest.fixture(scope="module", params=MEETING)
def library(request):
    kernels = "".join(
        f"kernel void k{n}(device float* out, device const float* x, uint i [[thread_position_in_grid]])"
        f" {{ {MEETING[request.param]} {body} }}\n"
        for n, (body, _) in enumerate(BODIES.values())
    )
    return build(HEAD + kernels, 1)


def used(library, constants, name="x"):
    """Whether each kernel uses an argument in a copy of the library for values of the function constants."""
    table = library.specialise(constants).kernel_table() if constants else library.kernel_table()
    return {
        entry["name"]: argument["is_used"]
        for entry in table
        for argument in entry["arguments"]
        if argument["name"] == name
    }


@pytest.mark.parametrize(("on", "kind"), sorted(ALL))
def test_what_is_used_is_what_is_left_of_the_kernel(library, on, kind):
    found = used(library, {0: struct.pack("?", on), 1: struct.pack("i", kind)})
    wanted = {f"k{n}": (on, kind) in uses for n, (_, uses) in enumerate(BODIES.values())}
    assert found == wanted, [list(BODIES)[int(k[1:])] for k in wanted if wanted[k] != found[k]]


@pytest.mark.parametrize(("on", "kind"), sorted(ALL))
def test_what_is_not_used_need_not_be_bound(library, on, kind):
    special = library.specialise({0: struct.pack("?", on), 1: struct.pack("i", kind)})
    x = torch.arange(40.0)
    for n, (name, (_, uses)) in enumerate(BODIES.items()):
        if (on, kind) in uses:
            continue
        bound, unbound = torch.zeros(32), torch.zeros(32)
        for engine in (
            *next(e["engines"] for e in special.kernel_table() if e["name"] == f"k{n}"),
        ):
            special.launch(f"k{n}", [bound, x], 32, 32, engine=engine)
            special.launch(f"k{n}", [unbound, None], 32, 32, engine=engine)
            assert torch.equal(bound, unbound), (name, engine)


TEMPLATES = """
#include <metal_stdlib>
using namespace metal;
template <typename T> struct Reads { static constant constexpr bool value = true; };
template <> struct Reads<half> { static constant constexpr bool value = false; };
template <typename T, int N>
kernel void k(device T* out, device const T* x, constant T& y [[buffer(2)]], device T& z [[buffer(3)]],
              threadgroup T* shared [[threadgroup(0)]], uint i [[thread_position_in_grid]]) {
  constexpr int many = N * 2;
  if constexpr (many > 2) out[i] = x[i];
  if (Reads<T>::value && many > 6) out[i] = y;
  if (N < 0) z = 1;
  if (N == 4) shared[i] = 1;
}
template [[host_name("half_1")]] kernel void k<half, 1>(device half*, device const half*, constant half&, device half&, threadgroup half*, uint);
template [[host_name("half_4")]] kernel void k<half, 4>(device half*, device const half*, constant half&, device half&, threadgroup half*, uint);
typedef decltype(k<float, 2>) Kernel;
template [[host_name("float_2")]] kernel Kernel k<float, 2>;
template [[host_name("float_4")]] kernel Kernel k<float, 4>;
"""


def test_template_arguments_decide_it_for_each_instance():
    library = build(TEMPLATES)
    assert used(library, {}) == {"half_1": False, "half_4": True, "float_2": True, "float_4": True}
    assert used(library, {}, "y") == {
        "half_1": False,
        "half_4": False,
        "float_2": False,
        "float_4": True,
    }
    # A reference to memory that may be written is made of what is bound.
    assert all(used(library, {}, "z").values())
    assert used(library, {}, "shared") == {
        "half_1": False,
        "half_4": True,
        "float_2": False,
        "float_4": True,
    }


def test_kernels_that_are_compiled_later_tell_the_same(monkeypatch):
    from metalops.msl.targets.host import emit

    at_once = used(build(TEMPLATES), {})
    monkeypatch.setattr(emit, "MUCH", 0)
    options = msl.runtime_options()
    described = msl.compile_source("// described\n" + TEMPLATES, options=options)
    library = _host.Library(str(described))
    assert used(library, {}) == at_once
    out = torch.zeros(4, dtype=torch.half)
    z = torch.zeros(1, dtype=torch.half)
    library.launch("half_1", [out, None, None, z], 4, 4)


TEXTURES = (
    HEAD
    + """
kernel void k(texture2d<float> t [[texture(1)]], sampler s [[sampler(0)]], device float* out [[buffer(0)]],
              uint i [[thread_position_in_grid]]) {
  out[i] = on ? t.sample(s, float2(0)).x : 3.0f;
}
"""
)


def test_textures_and_samplers_that_are_not_used_need_not_be_bound():
    library = metalops.compile_shader(TEXTURES, constants={"on": False, "kind": 0})
    out = torch.zeros(4, device="mps")
    library.k(out)
    assert out.tolist() == [3] * 4
    with pytest.raises(RuntimeError, match="nothing is bound to texture 1"):
        metalops.compile_shader(TEXTURES, constants={"on": True, "kind": 0}).k(out)


UNBOUND = (
    HEAD
    + """
kernel void k(device float* out, device const float* x, uint i [[thread_position_in_grid]]) {
  if (on) out[i] = x[i];
  else out[i] = 5;
}
"""
)


def test_an_argument_that_is_used_must_be_bound():
    out = torch.zeros(4, device="mps")
    metalops.compile_shader(UNBOUND, constants={"on": False, "kind": 0}).k(out)
    assert out.tolist() == [5] * 4
    with pytest.raises(
        RuntimeError, match=re.escape("'k': nothing is bound to buffer 1 ('device const float")
    ):
        metalops.compile_shader(UNBOUND, constants={"on": True, "kind": 0}).k(out)
