"""Function constants, and program-scope constants computed from them."""

import struct

import torch

SOURCE = """
    constant bool negate [[function_constant(0)]];
    constant int factor [[function_constant(3)]];
    namespace settings { constant float offset [[function_constant(7)]]; }
    constant int doubled = factor * 2;
    constant bool has_offset = is_function_constant_defined(settings::offset);
    constant float shift = has_offset ? settings::offset : 0.5f;
    kernel void k(device float* out, constant float* in,
                  device float* extra [[buffer(2), function_constant(negate)]],
                  uint i [[thread_position_in_grid]]) {
      float x = in[i];
      if (negate) x = -x;
      if (is_function_constant_defined(factor)) x *= doubled;
      out[i] = x + shift;
    }
"""


def run(program):
    out = torch.zeros(2)
    program.launch("k", out, torch.tensor([1.0, 2.0]), grid=2)
    return out.tolist()


def test_unset_constants_are_zero_and_not_defined(program):
    assert run(program(SOURCE)) == [1.5, 2.5]


def test_set_constants_and_what_is_computed_from_them(program):
    p = program(SOURCE)
    special = p.specialise({0: b"\x01", 3: struct.pack("i", 5), 7: struct.pack("f", 0.25)})
    assert run(special) == [-10 + 0.25, -20 + 0.25]
    assert run(p) == [1.5, 2.5]
    assert run(p.specialise({3: struct.pack("i", 3)})) == [6.5, 12.5]


def test_several_constants_in_one_declaration(program):
    p = program("""
        constant int a [[function_constant(0)]];
        constant int b = a + 1, c = b * (a << 1);
        constant float2 v = float2(a, c).yx;
        kernel void k(device float* out) { out[0] = b + c; out[1] = v.x; }
    """)
    out = torch.zeros(2)
    p.specialise({0: struct.pack("i", 3)}).launch("k", out, grid=1)
    assert out.tolist() == [4 + 24, 24]


def test_constants_of_one_name_in_two_namespaces(program):
    """What is computed from plain ones is a constant expression still: the size of an array."""
    p = program("""
        namespace set { constant int size [[function_constant(0)]]; constant int twice = size * 2; }
        namespace plain { constant int size = 3; constant int twice = size * 2; }
        constant int size = 5;
        constant int more = size + 1;
        constant int both = plain::twice + set::twice;
        kernel void k(device int* out) {
          array<int, plain::twice + more> values = {};
          out[0] = sizeof(values) / sizeof(int);
          out[1] = set::twice;
          out[2] = both;
        }
    """)
    out = torch.zeros(3, dtype=torch.int32)
    p.specialise({0: struct.pack("i", 10)}).launch("k", out, grid=1)
    assert out.tolist() == [12, 20, 26]


SWITCHED = """
    constant bool has_extra [[function_constant(0)]];
    constant int mode [[function_constant(1)]];
    constant bool is_half = mode == 1;
    constant bool is_float = mode != 1;
    kernel void k(device float* out [[buffer(0)]],
                  constant float* extra [[buffer(1), function_constant(has_extra)]],
                  constant float& scale [[buffer(2), function_constant(has_extra)]],
                  constant half* h [[buffer(3), function_constant(is_half)]],
                  constant float* f [[buffer(3), function_constant(is_float)]],
                  device float& last [[buffer(4), function_constant(has_extra)]],
                  threadgroup float* kept [[threadgroup(0), function_constant(has_extra)]],
                  uint i [[thread_position_in_grid]]) {
      out[i] = is_half ? float(h[i]) : f[i];
      if (has_extra) {
        kept[i] = extra[i] * scale;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[i] += kept[i];
        if (i == 0) last = 5;
      }
    }
"""


def test_arguments_that_a_constant_switches_off_need_no_buffer(program):
    p = program(SWITCHED)
    for engine in ("group", "fiber"):
        out = torch.zeros(2)
        halves = torch.tensor([1.0, 2.0]).half()
        off = p.specialise({0: b"\0", 1: struct.pack("i", 1)})
        off.launch("k", out, None, None, halves, grid=2, engine=engine)
        assert out.tolist() == [1, 2]
        last = torch.zeros(1)
        on = p.specialise({0: b"\1", 1: struct.pack("i", 0)})
        buffers = out, torch.tensor([3.0, 4.0]), torch.tensor([10.0]), torch.tensor([1.0, 2.0]), last  # fmt: skip
        on.launch("k", *buffers, grid=2, engine=engine, threadgroup_bytes={0: 16})
        assert out.tolist() == [31, 42]
        assert last.item() == 5


def test_indices_that_are_enumerators(program):
    p = program("""
        namespace options {
        enum { first = 3, second };
        constant int one [[function_constant(first)]];
        }
        constant int two [[function_constant(options::second + 1)]];
        kernel void k(device int* o) { o[0] = options::one; o[1] = two; }
    """)
    out = torch.zeros(2, dtype=torch.int32)
    p.specialise({3: struct.pack("i", 7), 5: struct.pack("i", 8)}).launch("k", out, grid=1)
    assert out.tolist() == [7, 8]
