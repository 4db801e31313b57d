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
