"""half, bfloat and vectors are plain types in Metal, and classes in the C++ that kernels become: where g++ takes no class, or
chooses another overload for one.

Every program is compiled with each compiler that is installed.
"""

import pytest
import torch
from metalops.msl import emit_source

from .conftest import HEADER

pytestmark = pytest.mark.full

# Each class has members a = 1, b = 2 and c = 4.
CLASSES = {
    "typedef": "typedef struct { union { struct { half a; half b; }; half2 ab; }; half c; } block;",
    "tag": "typedef struct block_tag { union { struct { half a, b; }; half2 ab; }; half c; } block, *pointer;",
    "struct": "struct block { union { struct { half a, b; }; packed_half2 ab; }; half c; };",
    "nested": "struct block { struct { struct { half a; }; union { half b; half q; }; }; half c; };",
    "bfloat": "struct block { struct { bfloat a, b; }; metal::bfloat c; };",
    "own": "struct number { half x; operator float() const thread { return x; } operator float() const device { return x; } };"
    "struct block { struct { number a, b; }; number c; };",
    "itself": "struct block { struct { half a, b; }; half c; static half of(device const block& x) { return x.a; } };",
    "member": "struct outer { struct block { struct { half a, b; }; half c; }; }; typedef outer::block block;",
    "template": "template <typename T> struct blocks { struct { T a; half b; }; T c; }; typedef blocks<half> block;",
    "of a number": "template <int N> struct blocks { struct { half a, b; }; half c; }; typedef blocks<2> block;",
}


@pytest.mark.parametrize("declared", CLASSES)
def test_members_of_an_anonymous_struct_may_have_constructors(compiler, program, declared):
    kernel = "kernel void k(device float* out, device const block* x) { out[0] = x->a; out[1] = x->b; out[2] = x->c; }"
    dtype = torch.bfloat16 if declared == "bfloat" else torch.float16
    out, block = torch.zeros(3), torch.tensor([1, 2, 4], dtype=dtype)
    program(CLASSES[declared] + kernel).launch("k", out, block, grid=1)
    assert out.tolist() == [1, 2, 4]


def test_a_class_with_an_anonymous_struct_is_an_aggregate(compiler, program):
    source = """
    typedef struct { union { struct { half d, m; }; half2 dm; }; uchar q[2]; } block;
    constant block table = {{{1.0h, 2.0h}}, {3, 4}};
    kernel void k(device float* out) {
      block mine = {{{5.0h, 6.0h}}, {7, 8}};
      thread half* d = &mine.d;
      d[1] += 1;
      out[0] = table.dm.y; out[1] = table.q[1]; out[2] = mine.dm.y; out[3] = sizeof(block);
    }"""
    out = torch.zeros(4)
    program(source).launch("k", out, grid=1)
    assert out.tolist() == [2, 4, 7, 8]


# Functions of which `f` is called with a half and a bfloat, and what it returns; what C++ finds ambiguous, and what it does not.
COMPLEX = """struct complex { float re, im;
  template <typename T, typename = enable_if_t<is_convertible_v<T, float>>> complex(T x) thread : re(x), im(0) {} };"""
OVERLOADS = {
    "float bfloat": ("float f(float) { return 1; } float f(bfloat) { return 2; }", (1, 2)),
    "float half": ("float f(float) { return 1; } float f(half) { return 2; }", (2, 1)),
    "float class": (COMPLEX + "float f(float) { return 1; } float f(complex) { return 2; }", (1, 1)),
    "float bfloat class": (
        COMPLEX + "float f(float) { return 1; } float f(bfloat) { return 2; } float f(complex) { return 3; }",
        (1, 2),
    ),
    "float int": ("float f(float) { return 1; } float f(int) { return 2; }", (1, 1)),
    "float uint": ("float f(float) { return 1; } float f(uint) { return 2; }", (1, 1)),
    "float vector": ("float f(float) { return 1; } float f(float4) { return 2; }", (1, 1)),
    "half vectors": (
        "float f(half) { return 1; } float f(half4) { return 2; } float f(float) { return 3; } float f(float4) { return 4; }",
        (1, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("overloads", OVERLOADS)
def test_half_and_bfloat_choose_among_overloads_as_numbers(compiler, program, overloads):
    source, expected = OVERLOADS[overloads]
    kernel = "kernel void k(device float* out, device half* h, device bfloat* b) { out[0] = f(*h); out[1] = f(*b); }"
    out = torch.zeros(2)
    h, b = (torch.ones(1, dtype=dtype) for dtype in (torch.float16, torch.bfloat16))
    program(source + kernel).launch("k", out, h, b, grid=1)
    assert tuple(out.tolist()) == expected


def test_each_argument_chooses_among_overloads_as_a_number(compiler, program):
    source = """
    namespace mine {
    float f(float a, float b) { return a - b; }
    float4 f(float4 a, float4 b) { return a + b; }
    }
    template <typename T> float g(T a, float b) { return mine::f(a, b) + 10 * mine::f(a, a + a); }
    kernel void k(device float* out, device half* h, device bfloat* b) {
      using namespace mine;
      out[0] = f(*h, *h) + f(2, *h); out[1] = f(*h, *b); out[2] = g(*h, 1); out[3] = f(float4(1), *h).x;
    }"""
    out = torch.zeros(4)
    h, b = torch.tensor([3.0], dtype=torch.float16), torch.tensor([1.0], dtype=torch.bfloat16)
    program(source).launch("k", out, h, b, grid=1)
    assert out.tolist() == [-1, 2, 2 - 30, 4]


@pytest.mark.parametrize("engine", ["group", "fiber"])
def test_elements_are_designated_in_any_order_and_by_ranges(compiler, program, engine):
    source = """
    constant float table[4] = {[2] = 1.0f, 5, [0] = 2};
    constant half2 pairs[] = {[1] = {1, 2}, [3] = half2(3)};
    template <int Q> float sum(half x) {
      float s[Q] = { [0 ... Q-1] = 0.5h }, m[Q] = { [ 0 ... Q - 1 ] = -1 };
      const half c[Q + 3] = { x, 2, [3] = x, 7 };
      float total = 0;
      for (int i = 0; i < Q; ++i) total += s[i] + m[i] + c[i + 1];
      return total;
    }
    kernel void k(device float* out, uint t [[thread_position_in_threadgroup]]) {
      float v[3] = {[0 ... 2] = float(t)};
      float w[2] = {[t & 1] = simd_sum(v[0])};
      threadgroup_barrier(mem_flags::mem_threadgroup);
      out[t] = w[0] + 100 * w[1] + table[t] + pairs[t].y;
      if (t == 0) out[4] = sum<2>(3) + sum<3>(1);
    }"""
    out = torch.zeros(5)
    program(source).launch("k", out, grid=4, engine=engine)
    assert out.tolist() == [6 + 2, 600 + 2, 6 + 1, 600 + 5 + 3, (2 - 1) + (2 + 1 - 1.5)]


def test_errors_name_a_class_as_the_program_does(compiler):
    from metalops import msl

    source = "struct block { struct { half a, b; }; }; kernel void k(device block* x) { *x + 1; }"
    with pytest.raises(SyntaxError, match=r"'block'") as raised:
        msl.compile_source(HEADER + source)
    assert "msl_" not in str(raised.value)


def test_a_class_that_may_be_no_alias_stays_as_it_is():
    source = (
        "struct a; struct a { struct { half x; }; };"
        "struct b { struct { half x; }; b() thread : x(1) {} };"
        "kernel void k(device float* out) { struct c { struct { half x; }; }; c mine; out[0] = mine.x; }"
    )
    assert "msl_of_" not in emit_source(HEADER + source)


ONLY_CLANG = {
    "a class in a function": "struct c { struct { half x; }; }; c mine; mine.x = 1; out[0] = mine.x;",
    "fields out of order": "pair p = {.b = 1, .a = 2}; out[0] = p.b;",
    "constant positions": "out[0] = table[second];",
}


@pytest.mark.parametrize("construct", ONLY_CLANG)
def test_an_error_says_that_clang_takes_what_gnu_refuses(compiler, program, construct):
    source = f"""
    struct pair {{ float a, b; }};
    enum {{ first, second }};
    {"constant float table[2] = {[second] = 1, [first] = 2};" if construct == "constant positions" else ""}
    kernel void k(device float* out) {{ {ONLY_CLANG[construct]} }}"""
    if compiler == "g++":
        with pytest.raises(
            SyntaxError, match=r"g\+\+ refuses this and clang\+\+ takes it"
        ) as raised:
            program(source)
        assert raised.value.lineno > 1
        return
    out = torch.zeros(1)
    program(source).launch("k", out, grid=1)
    assert out.tolist() == [1]
