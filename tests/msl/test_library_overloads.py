"""Functions of Metal's library take the types that the specification states and no others: a program may overload them
for other types, as a function or as a template, and without such an overload a call is an error (Metal Shading Language
Specification, chapter 6)."""

import pytest
import torch
from metalops.msl.check import check_source

pytestmark = pytest.mark.full

FLOATING = {
    1: "acos acosh asin asinh atan atanh ceil cos cosh cospi exp exp10 exp2 fabs floor fract log log10 log2 rint round "
    "rsqrt sin sinh sinpi sqrt tan tanh tanpi trunc sign saturate isfinite isinf isnan isnormal signbit ilogb",
    2: "atan2 divide fdim fmax fmin fmod pow powr step copysign nextafter isordered isunordered",
    3: "fmax3 fmin3 fmedian3 mix smoothstep fma",
}
INTEGER = {
    1: "clz ctz popcount reverse_bits",
    2: "absdiff addsat subsat hadd rhadd mulhi rotate",
    3: "madhi madsat",
}
NUMBER = {1: "abs", 2: "max min", 3: "max3 min3 median3 clamp"}
GEOMETRIC = {
    1: "length length_squared normalize",
    2: "dot distance distance_squared reflect",
    3: "faceforward",
}
FLOATS, INTEGERS = ("float", "half"), ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")  # fmt: skip
OTHERS = ("bool", "bfloat")
FAMILIES = ((FLOATING, FLOATS), (INTEGER, INTEGERS), (NUMBER, FLOATS + INTEGERS), (GEOMETRIC, FLOATS))  # fmt: skip


def cases():
    """Yields (function, number of arguments, types of elements that it takes)."""
    for family, taken in FAMILIES:
        for count, names in family.items():
            for name in names.split():
                yield name, count, taken
    yield "mul24", 2, ("int", "uint")
    yield "mad24", 3, ("int", "uint")
    yield "cross", 2, FLOATS


def widths(name):
    return (3,) if name == "cross" else (2, 3, 4)


def vectors(name, elements):
    return [f"{element}{width}" for element in elements for width in widths(name)]


ALL = FLOATS + INTEGERS + OTHERS


SMALL = ("char", "uchar", "short", "ushort", "int", "uint")
LANES = {
    **dict.fromkeys("sum product max min".split(), ("", SMALL + FLOATS + ("bfloat",))),
    **dict.fromkeys(
        [f"prefix_{kind}_{name}" for kind in ("inclusive", "exclusive") for name in ("sum", "product")],
        ("", SMALL + FLOATS + ("bfloat",)),
    ),
    **dict.fromkeys("and or xor".split(), ("", SMALL)),
    "broadcast_first": ("", SMALL + FLOATS + ("bfloat",)),
    **dict.fromkeys(
        "broadcast shuffle shuffle_xor shuffle_up shuffle_down shuffle_rotate_up shuffle_rotate_down".split(),
        (", ushort(1)", SMALL + FLOATS + ("bfloat",)),
    ),
    **dict.fromkeys(
        ("shuffle_and_fill_up", "shuffle_and_fill_down"),
        (", declval<T>(), ushort(1)", SMALL + FLOATS + ("bfloat",)),
    ),
}  # fmt: skip


def lane_cases():
    """Yields (function, arguments after the first, types of elements that it takes) of the functions that combine or move
    the values of lanes."""
    for group in ("simd", "quad"):
        for name, (more, taken) in LANES.items():
            if group == "simd" or "fill" not in name:
                yield f"{group}_{name}", more, taken


def test_lanes_pass_no_64_bit_integers(program):
    lines = []
    for name, more, taken in lane_cases():
        lines.append(f"""
            struct takes_{name} {{
              template <typename T, typename = decltype({name}(declval<T>(){more}))> static true_type ask(int);
              template <typename T> static false_type ask(...);
            }};""")
        for element in FLOATS + INTEGERS + OTHERS:
            for type_ in (element, f"{element}2", f"{element}3", f"{element}4"):
                if type_ == "bool":  # promoted to int
                    continue
                is_taken = str(element in taken).lower()
                lines.append(
                    f'static_assert(decltype(takes_{name}::ask<{type_}>(0))::value == {is_taken}, "{name}({type_})");'
                )
    program("\n".join([*lines, "kernel void k() {}"]))


@pytest.mark.parametrize("amount", ["ushort(1)", "1"])
@pytest.mark.parametrize("kind", ["function", "template", "template for some"])
def test_an_overload_for_64_bit_integers_is_called(program, kind, amount):
    lines, calls = ["struct mine { int by; };"], []
    for name, more, _ in lane_cases():
        for type_ in ("long", "ulong", "long2", "ulong4"):
            rest = {"": "", ", ushort(1)": ", ushort"}.get(more, f", {type_}, ushort")
            if kind == "function":
                lines.append(f"inline mine {name}({type_}{rest}) {{ return {{1}}; }}")
            arguments = f"{type_}(1){more.replace('declval<T>', type_)}".replace(
                f"{type_}(),", f"{type_}(1),"
            ).replace("ushort(1)", amount)
            calls.append(
                f'static_assert(is_same_v<decltype({name}({arguments})), mine>, "{name}({type_})");'
            )
        rest = {"": "", ", ushort(1)": ", ushort"}.get(more, ", T, ushort")
        if kind == "template":
            lines.append(f"template <typename T> inline mine {name}(T{rest}) {{ return {{1}}; }}")
        elif kind == "template for some":
            lines.append(
                f"template <typename T> inline enable_if_t<sizeof(make_scalar_t<T>) == 8, mine> {name}(T{rest}) "
                "{ return {1}; }"
            )
    program("\n".join([*lines, "kernel void k() {", *calls, "}"]))


@pytest.mark.parametrize(
    "name", ["simd_sum", "quad_prefix_exclusive_product", "simd_broadcast_first"]
)
@pytest.mark.parametrize("type_", ["long", "ulong", "long3"])
def test_the_error_says_that_lanes_pass_no_64_bit_integers(program, name, type_):
    with pytest.raises(SyntaxError, match=rf"{name} takes neither bool nor 64-bit integers"):
        program(f"kernel void k(device {type_}* x) {{ x[0] = {name}(x[1]); }}")


@pytest.mark.parametrize("name", ["simd_shuffle_up", "quad_broadcast"])
def test_the_error_of_a_shuffle_says_it_too(program, name):
    sentence = f"the call of {name} is ambiguous; it takes neither bool nor 64-bit integers"
    with pytest.raises(SyntaxError, match=sentence):
        program(f"kernel void k(device long* x) {{ x[0] = {name}(x[1], 1); }}")


def test_a_call_with_other_types_is_an_error(program):
    lines = []
    for name, count, taken in cases():
        arguments = ", ".join(["declval<T>()"] * count)
        lines.append(f"""
            struct takes_{name} {{
              template <typename T, typename = decltype({name}({arguments}))> static true_type ask(int);
              template <typename T> static false_type ask(...);
            }};""")
        for element in ALL:
            for vector in vectors(name, (element,)):
                is_taken = str(element in taken).lower()
                lines.append(
                    f'static_assert(decltype(takes_{name}::ask<{vector}>(0))::value == {is_taken}, "{name}({vector})");'
                )
    program("\n".join([*lines, "kernel void k() {}"]))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("kind", ["function", "template", "template of vectors"])
def test_an_overload_for_other_types_is_called(program, kind, part):
    lines, calls = ["struct mine { int by; };"], []
    for number, (name, count, taken) in enumerate([*cases()][part::4]):
        others = [e for e in ALL if e not in taken]
        if kind == "function":
            for vector in vectors(name, others):
                lines.append(
                    f"inline mine {name}({', '.join([vector] * count)}) {{ return {{{number}}}; }}"
                )
        elif kind == "template":
            lines.append(
                f"template <typename T> inline mine {name}({', '.join(['T'] * count)}) {{ return {{{number}}}; }}"
            )
        else:
            types = ", ".join(["vec<T, N>"] * count)
            chosen = " || ".join(f"is_same_v<T, {e}>" for e in others)
            lines.append(
                f"template <typename T, int N, typename = enable_if_t<{chosen}>> inline mine {name}({types}) "
                f"{{ return {{{number}}}; }}"
            )
        for vector in vectors(name, others):
            arguments = ", ".join([f"{vector}(1)"] * count)
            calls.append(
                f'static_assert(is_same_v<decltype({name}({arguments})), mine>, "{name}({vector})");'
            )
        for vector in vectors(name, taken):
            arguments = ", ".join([f"{vector}(1)"] * count)
            calls.append(
                f'static_assert(!is_same_v<decltype({name}({arguments})), mine>, "{name}({vector})");'
            )
    program("\n".join([*lines, "kernel void k() {", *calls, "}"]))  # fmt: skip


_SPACED = """
inline float atomic_fetch_min_explicit(device atomic_float* a, float v, memory_order) { return 1; }
inline float atomic_fetch_min_explicit(threadgroup atomic_float* a, float v, memory_order) { return 2; }
inline float atomic_fetch_add_explicit(threadgroup atomic_float* a, float v, memory_order) { return 3; }
float modf(float x, device float& r) { r = 4; return x; }
template <typename T> T min_of(device T* p, T x) {
  return atomic_fetch_min_explicit((device atomic<T>*)p, x, memory_order_relaxed);
}
template <typename P> float added(P p) { return atomic_fetch_add_explicit(p, 1.0f, memory_order_relaxed); }
template <typename P> float split(float x, P p) { return modf(x, *p) + *p; }
"""


def test_overloads_for_one_address_space_leave_the_library_the_others(program):
    """As the atomic functions of LuisaCompute's library."""
    source = f"""{_SPACED}
    kernel void k(device float* o, device int* n) {{
      threadgroup float t[2];
      threadgroup int m[2];
      threadgroup atomic_float* shared = (threadgroup atomic_float*)t;
      t[0] = 5;
      m[0] = 6;
      float own;
      o[0] = min_of(o + 8, 1.0f);
      o[1] = atomic_fetch_min_explicit(shared, 1.0f, memory_order_relaxed);
      o[2] = atomic_fetch_min_explicit((device atomic_int*)n, 4, memory_order_relaxed) + n[0];
      o[3] = atomic_fetch_min_explicit((threadgroup atomic_int*)m, 4, memory_order_relaxed) + m[0];
      o[4] = added(shared) + added((device atomic_float*)(o + 8)) + o[8];
      o[5] = modf(2.5f, o[9]) + o[9];
      o[6] = modf(2.5f, own) + own;
      o[7] = split(2.5f, o + 9);
    }}"""
    out = torch.zeros(10)
    program(source).launch("k", out, torch.tensor([7], dtype=torch.int32), grid=1)
    assert out.tolist() == [1, 2, 11, 10, 4, 6.5, 2.5, 6.5, 1, 4]
    assert check_source(f"#include <metal_stdlib>\nusing namespace metal;\n{source}") == []
