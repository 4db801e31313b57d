"""Buffers that hold addresses of other buffers, as structs and as arrays of pointers."""

import struct

import torch

from .conftest import build

SOURCE = """
struct Arguments {
  device const float* in;
  device float* out;
  float factor;
  constant uint* index;
};
kernel void scale(constant Arguments& a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  a.out[i] = a.in[a.index[i]] * a.factor;
}
struct Table { device float* rows[8]; };
kernel void fill_rows(device Table& table [[buffer(2)]], uint2 p [[thread_position_in_grid]]) {
  table.rows[p.y][p.x] = float(p.y * 100 + p.x);
}
kernel void sum_of_all(device const float* const* inputs [[buffer(0)]], device float* out [[buffer(1)]],
                       constant uint& count [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  float s = 0;
  for (uint k = 0; k < count; ++k) s += inputs[k][i];
  out[i] = s;
}
"""


def addresses(*tensors):
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64)


def test_struct_of_pointers(engine):
    x, out = torch.randn(100), torch.zeros(100)
    index = torch.randperm(100).int()
    arguments = struct.pack("PPf4xP", x.data_ptr(), out.data_ptr(), 2.5, index.data_ptr())
    build(SOURCE).launch("scale", [arguments], 100, 64, engine=engine)
    assert torch.equal(out, x[index.long()] * 2.5)


def test_array_in_a_struct(engine):
    rows = [torch.zeros(5) for _ in range(8)]
    build(SOURCE).launch("fill_rows", [None, None, addresses(*rows)], [5, 8], [5, 1], engine=engine)
    for k, row in enumerate(rows):
        assert torch.equal(row, torch.arange(5.0) + 100 * k)


def test_array_of_addresses(engine):
    inputs = [torch.randn(50) for _ in range(5)]
    out = torch.zeros(50)
    count = torch.tensor([5], dtype=torch.int32)
    build(SOURCE).launch("sum_of_all", [addresses(*inputs), out, count], 50, 32, engine=engine)
    torch.testing.assert_close(out, torch.stack(inputs).sum(0))
