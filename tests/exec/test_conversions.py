"""Floating-point numbers become integers as on GPUs, whatever form the conversion has: numbers outside of the range become
the nearest limit, NaN becomes 0."""

import re

import numpy as np
import pytest
import torch

from .conftest import MEETING, build

FLOATS = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}
INTEGERS = {
    f"{sign}{name}": getattr(np, f"{sign}int{bits}")
    for sign in ("", "u")
    for name, bits in (("char", 8), ("short", 16), ("int", 32), ("long", 64))
}
_ONES = [
    0.0,
    0.4,
    0.5,
    0.99,
    1.5,
    2.0,
    100.7,
    126.9,
    127.0,
    127.5,
    128.0,
    129.0,
    254.0,
    255.5,
    256.0,
    300.0,
]
_POWERS = [2.0**n + d for n in (15, 16, 31, 32, 63, 64, 100) for d in (-1, 0, 1)]
VALUES = [s * v for v in (*_ONES, *_POWERS, 3e9, 1e19, 3e38, float("inf")) for s in (1, -1)]
VALUES += [float("nan"), -float("nan")]
VALUES += [
    float(np.nextafter(np.float32(2.0**n), np.float32(0))) for n in (7, 8, 15, 16, 31, 32, 63, 64)
]

# Each form gives out[i] from the number x = in[i]. T: the integer type, F: that of the number.
FORMS = {
    "functional cast": "out[i] = T(x);",
    "C cast": "out[i] = (T)x;",
    "static_cast": "out[i] = static_cast<T>(x);",
    "initialiser": "T y = x; out[i] = y;",
    "initialiser of a const": "const T y = x * F(1); out[i] = y;",
    "assignment": "out[i] = x;",
    "returned value": "out[i] = returned(x);",
    "template parameter": "out[i] = cast_to<T>(x);",
    "returned by a template": "out[i] = returned_as<T>(x);",
    "member": "thing t; t.value = x; out[i] = t.value;",
    "component": "vec<T, 3> v(1); v.y = x; out[i] = v.y;",
    "alias": "out[i] = number(x);",
    "conditional": "out[i] = T(i < 100000 ? x : F(0));",
    "vector": "out[i] = vec<T, 4>(vec<F, 4>(F(1), x, F(2), F(3))).y;",
    "vector of scalars": "out[i] = vec<T, 2>(F(1), x).y;",
    "splat": "out[i] = vec<T, 3>(x).z;",
    "packed vector": "packed_F3 p = packed_F3(x); out[i] = vec<T, 3>(vec<F, 3>(p)).z;",
}
# Where C++ converts without being asked to.
IMPLICIT = {
    "argument": "out[i] = taken(x);",
    "argument of several": "out[i] = taken_last(x, 1, x);",
    "argument of a template": "out[i] = taken_with(x, x);",
    "argument of a named template": "out[i] = taken_as<T>(x);",
    "argument in a template": "out[i] = forwarded<T>(x);",
    "argument of a member": "thing t; out[i] = t.given(x);",
    "argument of a member of a template": "holder<T> t; out[i] = t.given(x);",
    "argument within a class": "thing t; out[i] = t.twice(x);",
    "argument of a call operator": "thing t; out[i] = t(x);",
    "argument of a lambda": "auto f = [](T y) { return y; }; out[i] = f(x);",
    "argument of a functor in a template": "out[i] = applied(thing(), x);",
    "argument of a lambda in a template": "out[i] = applied([](T y) { return y; }, x);",
    "argument of a functor that a template makes": "out[i] = applied_new<thing>(x);",
    "argument of a functor that is a member": "holder<thing> t; out[i] = applied_held(t, x);",
    "packed arguments": "out[i] = packed(x, 1, x);",
    "packed arguments of a functor": "out[i] = applied_packed(thing(), x);",
    "packed arguments of a functor of the global namespace": "out[i] = applied_global(x);",
    "packed arguments of a lambda": "out[i] = applied_packed([](T y) { return y; }, x);",
    "argument of a constructor": "made t(x); out[i] = t.value;",
    "argument of a temporary object": "out[i] = made(x).value;",
    "default argument": "out[i] = defaulted(x);",
    "conditional argument": "out[i] = taken(i < 100000 ? x : F(0));",
    "argument in braces": "out[i] = value_of({x});",
    "array of as many": "T y[] = {x, x}; out[i] = y[0] == y[1] ? y[1] : T(99);",
    "constant reference": "const thread T& y = x; out[i] = y;",
    "sum": "T y = 0; y += x; out[i] = y;",
    "difference": "T y = 0; y -= -x; out[i] = y;",
    "product": "T y = 1; y *= x; out[i] = y;",
    "quotient": "T y = 1; y *= x; y = 1; y /= F(1); y *= x; out[i] = y;",
    "sum in memory": "out[i] = 0; out[i] += x;",
    "sum of a member": "thing t; t.value = 0; t.value += x; out[i] = t.value;",
    "sum of a component": "vec<T, 3> v(0); v.z += x; out[i] = v.z;",
    "sum in a template": "T y = 0; add_to(y, x); out[i] = y;",
    "array": "T y[2] = {T(0), x}; out[i] = y[1];",
    "array of arrays": "T y[2][2] = {{1, 2}, {3, x}}; out[i] = y[1][1];",
    "array of the library": "array<T, 2> y = {1, x}; out[i] = y[1];",
    "braces": "T y{x}; out[i] = y;",
    "parentheses": "T y(x); out[i] = y;",
    "parentheses around a product": "T y(x * F(1)); out[i] = y;",
    "vector of scalars in braces": "vec<T, 2> y = {T(1), x}; out[i] = y.y;",
    "second of several": "T z = 1, y = x; out[i] = y;",
    "structure": "thing t = {x}; out[i] = t.value;",
    "structure in braces": "thing t{x}; out[i] = t.value;",
    "temporary structure": "out[i] = thing{x}.value;",
    "designated member": "thing t = {.value = x}; out[i] = t.value;",
    "structure in a structure": "outer t = {1, {x}}; out[i] = t.inner.value;",
    "array of structures": "thing t[2] = {{1}, {x}}; out[i] = t[1].value;",
    "structure of a template": "holder<T> t = {x}; out[i] = t.value;",
    "returned structure": "out[i] = returned_thing(x).value;",
    "assigned structure": "thing t; t = {x}; out[i] = t.value;",
    "member of an initialiser list": "listed t(x); out[i] = t.value;",
    "member of an initialiser list in braces": "listed t(x); out[i] = t.second;",
    "returned by a lambda": "auto f = [](F y) -> T { return y; }; out[i] = f(x);",
    "returned with a trailing type": "out[i] = returned_behind(x);",
    "returned by a conversion": "number_of y{x}; out[i] = y;",
    "returned by a member": "holder<T> t; out[i] = t.returned(x);",
    "conditional of both": "T y = i < 100000 ? x : T(1); out[i] = y;",
    "condition": "if (T y = x) out[i] = y; else out[i] = 0;",
    "loop": "for (T y = x;;) { out[i] = y; break; }",
    "comma": "T y = (0, x); out[i] = y;",
    "vector and scalar": "vec<T, 3> v(0); v += x; out[i] = v.z;",
}
SOURCE = """
typedef T number;
struct thing {
  T value;
  T given(T x) const { return x; }
  T twice(F x) const { return given(x); }
  T operator()(T x) const { return x; }
};
struct outer { int first; thing inner; };
template <typename A> struct holder {
  A value;
  A given(A x) { return x; }
  A returned(F x) { return x; }
};
struct made { T value; made(T x) : value(x) {} };
struct listed { T value; T second; listed(F x) : value(x), second{x} {} };
struct number_of { F x; operator T() const { return x; } };
static T returned(F x) { return x; }
static auto returned_behind(F x) -> T { return x; }
static thing returned_thing(F x) { return {x}; }
static T value_of(thing t) { return t.value; }
static T taken(T x) { return x; }
static T taken_last(F, int, T x) { return x; }
static T referred(const thread T& x) { return x; }
static T defaulted(F x, T y = F(2.5f)) { return y == T(2) ? taken(x) : T(99); }
template <typename Op> T applied(Op op, F x) { return op(x); }
template <typename Op> T applied_new(F x) { return Op()(x); }
template <typename Op> T applied_held(holder<Op> of, F x) { return of.value(x); }
template <typename... A> T packed(A... x) { return taken_last(x...); }
template <typename Op, typename... A> T applied_packed(Op op, A... x) { return op(x...); }
static thing global_functor() { return {}; }
template <typename... A> auto applied_global(A... x) -> decltype(::in_T::global_functor()(x...)) {
  return ::in_T::global_functor()(x...);
}
template <typename A> T taken_with(A, T x) { return x; }
template <typename A> A taken_as(A x) { return x; }
template <typename A, typename B> A forwarded(B x) { return taken(x); }
template <typename A, typename B> void add_to(thread A& x, B y) { x += y; }
template <typename A, typename B> A cast_to(B x) { return A(x); }
template <typename A, typename B> A returned_as(B x) { return x; }
"""


def _replaced(text, to, of):
    # `F` and `T` are words, or the first letter after `packed_`.
    words = {"T": to, "F": of, "packed_F3": f"packed_{of}3", "in_T": f"in_{to}"}
    words |= {name: f"{name}_{to}" for name in re.findall(r"(?:struct|static \w+) (\w+)", SOURCE)}
    pieces = []
    word = ""
    for c in text + "\0":
        if c.isalnum() or c == "_":
            word += c
        else:
            pieces += [words.get(word, word), c]
            word = ""
    return "".join(pieces)[:-1]


def _applies(form, of):
    """Whether a form is there for numbers of this type: Metal has no packed_bfloat3, and no int3 + bfloat."""
    return of != "bfloat" or not ("packed_F" in form or "v += x" in form)


def _source(to, of, forms, meeting=""):
    kernels = [
        f"kernel void {to}_{n}(device T* out, device const F* in, uint i [[thread_position_in_grid]])"
        f" {{ {meeting} F x = in[i]; {form} }}\n"
        for n, form in enumerate(forms)
        if _applies(form, of)
    ]
    return f"namespace in_{to} {{ {_replaced(SOURCE + ''.join(kernels), to, of)} }}\n"


def _expected(x, to):
    """x as an integer, by numbers of Python."""
    limits = np.iinfo(to)

    def one(v):
        if v != v:
            return 0
        return limits.max if v >= limits.max else limits.min if v <= limits.min else int(v)

    return np.array([one(v) for v in x.double().tolist()], dtype=to)


def check(integers, of, forms, build=build, meeting="", engine="auto"):
    """Asserts what kernels of each form write. build: gives the library of a source."""
    x = torch.tensor(VALUES).to(FLOATS[of])
    x = torch.cat([x] * 3)  # more than a vector of each
    library = build("".join(_source(to, of, forms.values(), meeting) for to in integers))
    for to in integers:
        expected = _expected(x, INTEGERS[to])
        for n, form in enumerate(forms.values()):
            if not _applies(form, of):
                continue
            out = torch.from_numpy(np.full(len(x), 77, dtype=INTEGERS[to]))
            library.launch(f"in_{to}::{to}_{n}", [out, x], len(x), 32, engine=engine)
            wrong = np.flatnonzero(out.numpy() != expected)
            assert not len(wrong), (to, form, x[wrong[0]].item(), out[wrong[0]].item())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("of", FLOATS)
def test_conversions_saturate(of, each_compiler):
    check(INTEGERS, of, FORMS)


@pytest.mark.sampled(4)
@pytest.mark.full
@pytest.mark.parametrize("of", FLOATS)
def test_implicit_conversions_saturate(of, each_compiler):
    check(["char", "uint"], of, IMPLICIT)


def test_arguments_do_not_choose_another_function(each_compiler):
    """Functions of the library, references, templates whose parameter is deduced, and overloads take the number itself."""
    source = """
    int max(int a, int b) { return 1000; }
    template <typename T> T kept(T x) { return x; }
    float halved(float x) { return x / 2; }
    int halved(int x) { return x / 2; }
    template <typename T> float read(const thread T& x) { return x; }
    struct reader { thread float& x; reader(thread float& y) : x(y) {} };
    template <typename T> void changed(T x) { x.x = 4.5f; }
    template <typename T> void change(thread float& x) { changed<T>(x); }
    kernel void k(device float* out, device const float* in) {
      float x = in[0];
      out[0] = max(x, 1.5f);
      out[1] = kept(x);
      out[2] = halved(x);
      out[3] = read(x);
      change<reader>(x);
      out[4] = x;
    }"""
    out = torch.zeros(5)
    build(source).launch("k", [out, torch.tensor([2.5])], 1, 1)
    assert out.tolist() == [2.5, 2.5, 1.25, 2.5, 4.5]


def test_values_of_unknown_types_live_as_long_as_what_binds_them(each_compiler):
    """A type of a template may be an integer or a class; a reference to an object is to no object that is gone."""
    source = """
    struct several { int values[64]; several(int x) { for (int i = 0; i < 64; ++i) values[i] = x + i; } };
    template <typename T> T made(int x) { return T(x); }
    template <typename T> int summed(T x, int lane) { return simd_sum(lane == 3 ? x.values[lane] : 0); }
    template <typename T> int bound(int i, int other) {
      const thread T& first = made<T>(i);
      const thread T& second = made<T>(other);
      return first.values[i & 63] + second.values[other & 63];
    }
    template <typename T> int passed(int x, int lane) { return summed<T>(made<T>(x), lane); }
    kernel void k(device int* out, device const int* in, uint i [[thread_position_in_grid]]) {
      out[i] = bound<several>(in[i], in[i] + 7) + passed<several>(in[0], i);
    }"""
    x = torch.arange(32, dtype=torch.int32)
    out = torch.zeros(32, dtype=torch.int32)
    build(source).launch("k", [out, x], 32, 32)
    assert out.tolist() == [2 * i + 2 * (i + 7) + 3 for i in range(32)]


def test_atomic_functions_saturate(each_compiler):
    source = """
    kernel void k(device atomic_int* out, device atomic_uint* unsigned_out, device const float* in) {
      atomic_store_explicit(&out[0], in[0], memory_order_relaxed);
      atomic_exchange_explicit(&unsigned_out[0], in[1], memory_order_relaxed);
      atomic_fetch_max_explicit(&out[1], in[2], memory_order_relaxed);
      atomic_fetch_or_explicit(&unsigned_out[1], in[3], memory_order_relaxed);
    }"""
    out, unsigned_out = torch.zeros(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    build(source).launch(
        "k", [out, unsigned_out, torch.tensor([3e9, -1.0, 1e30, float("nan")])], 1, 1
    )
    assert out.tolist() == [2**31 - 1] * 2
    assert unsigned_out.tolist() == [0, 1]


@pytest.mark.nightly
def test_conversions_saturate_in_group_loops(each_compiler):
    check(
        ["uchar", "int"], "float", {**FORMS, **IMPLICIT}, meeting=MEETING["group"], engine="group"
    )


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("argument", ["x", "y", "simd_max(x)", "x * 1.0f"])
def test_arguments_of_functions_in_which_threads_meet_saturate(argument):
    source = f"""
    int summed(uchar x) {{ return simd_sum(uint(x)); }}
    kernel void k(device int* out, device const float* in, uint i [[thread_position_in_grid]]) {{
      float x = in[i];
      threadgroup_barrier(mem_flags::mem_none);
      float y = x + 0;
      threadgroup_barrier(mem_flags::mem_none);
      out[i] = summed({argument}) + (x > 1 && y > 1);
    }}"""
    out, x = torch.zeros(32, dtype=torch.int32), torch.full((32,), 3e9)
    x[:5] = torch.tensor([-7.0, float("nan"), 1.5, float("-inf"), 300])
    library = build(source)
    library.launch("k", [out, x], 32, 32, engine="group")
    expected = 32 * 255 if "max" in argument else 28 * 255 + 1
    assert out.tolist() == [expected + (v > 1) for v in x.tolist()]


def test_bool_and_bits_are_no_conversions(each_compiler):
    source = """
    struct bits { uint low : 4; uint high : 4; };
    kernel void k(device int* out, device const float* in, device bool* flags) {
      flags[0] = in[0]; flags[1] = bool(in[1]); flags[2] = static_cast<bool>(in[2]);
      bits b; b.low = 7; b.high = int(b.low) + 1;
      out[0] = int(b.high); out[1] = as_type<int>(in[0]); out[2] = int(flags[0]) + (int)(2.9f);
    }"""
    flags, out = torch.zeros(3, dtype=torch.bool), torch.zeros(3, dtype=torch.int32)
    x = torch.tensor([0.25, float("nan"), 0.0])
    build(source).launch("k", [out, x, flags], 1, 1)
    assert flags.tolist() == [True, True, False]
    assert out.tolist() == [8, x.view(torch.int32)[0].item(), 3]


def test_names_of_the_library_are_the_programs(each_compiler):
    source = """
    template <typename T, typename V> vec<T, 4> converted(V x) { return vec<T, 4>(x) + vec<T, 4>(1); }
    template <typename T, typename V> T saturated(V x) { return T(x.x); }
    kernel void k(device int4* out, device const float4* in) {
      out[0] = converted<int>(in[0]) + saturated<int>(in[0]);
    }"""
    out, x = torch.zeros(4, dtype=torch.int32), torch.tensor([3e9, 1.0, -2.0, 0.0])
    x[0] = 5
    build(source).launch("k", [out, x], 1, 1)
    assert out.tolist() == [11, 7, 4, 6]


NAMES = """
namespace other { struct Given { int value; }; }
template <class Given> Given passed(Given x) { return x; }
template <class T> device T& element(device T* p, uint i) { return p[i]; }
struct Counter { using T = float; T value; };
template <class T> struct Holder { T value; void set(float x) { value = x; } };
template <class T, class R> void store(device R* out, device T* in, float x) {
  element<R>(out, 0) = x;
  Counter counter;
  counter.value = x;
  out[1] = counter.value;
  Holder<R> holder;
  holder.value = x;
  out[2] = holder.value;
  holder.set(x);
  out[3] = holder.value;
  in[0] = x;
  out[4] = passed(x);
}
kernel void names(device float* out, device int* in, uint i [[thread_position_in_grid]]) { store(out, in, 2.5f); }
"""


def test_types_are_those_of_the_place_that_names_them():
    """T is a type of the caller, of the function called, and of structures; Given of a template and a structure."""
    out, given = torch.zeros(5), torch.zeros(1, dtype=torch.int32)
    build(NAMES).launch("names", [out, given], 1, 1)
    assert out.tolist() == [2.5] * 5 and given.tolist() == [2]
