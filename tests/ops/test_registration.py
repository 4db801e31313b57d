"""The macros of <metalops/registration.h>: which kernels each of them makes, and that those run."""

import pytest
import torch
from metalops import msl
from metalops.build import paths

FLOATS = ("float", "half", "bfloat")
INTEGERS = ("long", "int", "short", "uchar", "char")

FUNCTORS = """
#include <metalops/registration.h>
using namespace metal;
using metalops::float_result_t;

// The sum of the operands; in alpha kernels times alpha.
template <typename T>
struct sum {
  inline T operator()(T a) const { return a; }
  inline T operator()(T a, T b) const { return T(a + b); }
  inline T operator()(T a, T b, T c) const { return T(a + b + c); }
};

struct same_functor {
  template <typename T> inline T operator()(const T a) { return a; }
  template <typename T> inline T operator()(const T a, const T b) { return sum<T>()(a, b); }
  template <typename T> inline T operator()(const T a, const T b, const T c) { return sum<T>()(a, b, c); }
};

struct same_alpha_functor {
  template <typename T> inline T operator()(const T a, const float s) { return T(float(a) * s); }
  template <typename T> inline T operator()(const T a, const T b, const float s) { return T(float(sum<T>()(a, b)) * s); }
};

struct real_functor {
  template <typename T> inline float_result_t<T> operator()(const T a) { return float(a) / 2; }
  template <typename T> inline float_result_t<T> operator()(const T a, const T b) { return float(a) / float(b); }
  template <typename T> inline float_result_t<T> operator()(const T a, const T b, const T c) { return float(a) / float(b) + float(c); }
};

struct real_alpha_functor {
  template <typename T> inline float_result_t<T> operator()(const T a, const float s) { return float(a) * s; }
  template <typename T> inline float_result_t<T> operator()(const T a, const T b, const float s) { return (float(a) + float(b)) * s; }
};
"""


def _library(tmp_path, *lines):
    source = tmp_path / "registration.metal"
    source.write_text(FUNCTORS + "".join(f"{line};\n" for line in lines))
    return torch.mps.compile_shader(msl.flatten(source, include_dirs=paths.include_paths()))


def _pairs(library, functor, alpha):
    """(input, output) types of the dense kernels; castout, broadcast and scalar flavours share them."""
    names = [n.removeprefix(f"{functor}_dense_") for n in dir(library)]
    types = {*FLOATS, *INTEGERS, "bool"}
    pairs = [n.removesuffix("_float" if alpha else "") for n in names]
    return {
        tuple(reversed(pair.split("_")))
        for pair in pairs
        if len(pair.split("_")) == 2 and set(pair.split("_")) <= types
    }


@pytest.mark.sampled(4)
@pytest.mark.full
@pytest.mark.parametrize("arity", ["UNARY", "BINARY", "TERNARY", "UNARY_ALPHA", "BINARY_ALPHA"])
def test_types(tmp_path, arity):
    alpha = "_alpha" if arity.endswith("ALPHA") else ""
    macros = {
        f"REGISTER_FLOAT_{arity}_OP": (f"same{alpha}", {(t, t) for t in FLOATS}),
        f"REGISTER_INTEGER_{arity}_OP": (f"same{alpha}", {(t, t) for t in (*INTEGERS, "bool")}),
        f"REGISTER_INTEGER_{arity}_OP_NO_BOOL": (f"same{alpha}", {(t, t) for t in INTEGERS}),
        f"REGISTER_INT2FLOAT_{arity}_OP": (
            f"real{alpha}",
            {(t, "float") for t in (*INTEGERS, "bool")},
        ),
        f"REGISTER_INT2FLOAT_{arity}_OP_NO_BOOL": (
            f"real{alpha}",
            {(t, "float") for t in INTEGERS},
        ),
    }
    if arity in ("BINARY", "TERNARY"):
        macros[f"REGISTER_OPMATH_FLOAT_{arity}_OP"] = ("same", {(t, t) for t in FLOATS})
    # One library for all of them, with a functor of its own for each.
    lines = []
    for macro, (functor, _) in macros.items():
        lines.append(f"struct {macro.lower()}_functor : {functor}_functor {{}}")
        lines.append(f"{macro}({macro.lower()})")
    library = _library(tmp_path, *lines)
    for macro, (_, expected) in macros.items():
        assert _pairs(library, macro.lower(), alpha=bool(alpha)) == expected, macro


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """One library for the tests that run kernels."""
    return _library(
        tmp_path_factory.mktemp("registration"),
        "REGISTER_FLOAT_TERNARY_OP(same)",
        "struct opmath_functor : same_functor {}",
        "REGISTER_OPMATH_FLOAT_TERNARY_OP(opmath)",
        "REGISTER_FLOAT_UNARY_ALPHA_OP(same_alpha)",
        "REGISTER_INT2FLOAT_BINARY_OP(real)",
    )


@pytest.mark.full
def test_opmath_rounds_once(library):
    a = torch.tensor([60000.0], dtype=torch.float16, device="mps")
    out = torch.empty_like(a)
    results = []
    for kernel in (library.same_dense_half_half, library.opmath_dense_half_half):
        kernel(out, a, a, -a)
        results.append(out.item())
    assert results == [float("inf"), 60000.0]


@pytest.mark.full
def test_alpha_is_not_rounded_to_the_type_of_the_operands(library):
    # 3.0008 is 3 in half precision; 3 * 1366 is 4098, which half precision rounds to 4096, 3.0008 * 1366 to 4100.
    x = torch.tensor([1366.0], dtype=torch.float16, device="mps")
    out = torch.empty_like(x)
    library.same_alpha_dense_half_half_float(out, x, 3.0008)
    assert torch.tensor(3.0008).half().item() == 3.0
    assert out.item() == 4100.0


@pytest.mark.full
def test_integers_become_floating_point(library):
    a = torch.tensor([1, 2, 3], dtype=torch.int16, device="mps")
    b = torch.tensor([2, 4, 8], dtype=torch.int16, device="mps")
    out = torch.empty(3, device="mps")
    library.real_dense_float_short(out, a, b)
    assert out.tolist() == [0.5, 0.5, 0.375]
