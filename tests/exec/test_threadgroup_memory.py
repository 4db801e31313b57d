"""Threadgroup variables and dynamic threadgroup arguments: sizes, alignment, initial contents, limits."""

from itertools import pairwise

import pytest
import torch

from .conftest import build

SOURCE = """
kernel void reverse_static(device const int* in, device int* out, uint i [[thread_position_in_grid]],
                           uint t [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  threadgroup int s[512];
  s[t] = in[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = s[n - 1 - t];
}
kernel void reverse_dynamic(device const int* in, device int* out, threadgroup int* s [[threadgroup(0)]],
                            threadgroup float4* u [[threadgroup(3)]], uint i [[thread_position_in_grid]],
                            uint t [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  s[t] = in[i];
  u[t] = float4(in[i]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = s[n - 1 - t] + int(u[n - 1 - t].w);
}
struct Pair { char c; long l; };
kernel void several(device ulong* out, uint t [[thread_index_in_threadgroup]]) {
  threadgroup char a;
  threadgroup float4 b[3];
  threadgroup Pair c[2];
  threadgroup short d;
  threadgroup long4 e;
  threadgroup float f;
  if (t == 0) {
    a = 1;
    b[2] = float4(2);
    c[1].l = 3;
    d = 4;
    e = long4(5);
    f = 6;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t * 8] = ulong(a) + ulong(b[2].w) * 10 + ulong(c[1].l) * 100 + ulong(d) * 1000 + ulong(e.w) * 10000 + ulong(f) * 100000;
  out[t * 8 + 1] = ulong(&a);
  out[t * 8 + 2] = ulong(&b[0]);
  out[t * 8 + 3] = ulong(&c[0]);
  out[t * 8 + 4] = ulong(&d);
  out[t * 8 + 5] = ulong(&e);
  out[t * 8 + 6] = ulong(&f);
}
kernel void initial_contents(device uint* out, threadgroup uint* dynamic [[threadgroup(0)]],
                             uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  threadgroup uint s[64];
  out[i] = s[t] + dynamic[t];
  s[t] = 77;
  dynamic[t] = 78;
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
template <typename T>
T in_a_function(threadgroup T* scratch, uint t, T v) {
  scratch[t] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  T r = scratch[t ^ 1];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return r;
}
kernel void in_branches(device int* out, constant bool& first, uint t [[thread_index_in_threadgroup]]) {
  if (first) {
    threadgroup int a[64];
    out[t] = in_a_function(a, t, int(t));
  } else {
    threadgroup float b[64];
    out[t] = int(in_a_function(b, t, float(t) * 2));
  }
}
kernel void large(device int* out, threadgroup char* more [[threadgroup(1)]], uint t [[thread_index_in_threadgroup]]) {
  threadgroup int s[8000];
  s[t + 7000] = t;
  more[t] = 1;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = s[7000 + (t ^ 1)] + more[t ^ 1];
}
kernel void transposed(device const float* in, device float* out, constant uint2& size,
                       uint2 p [[thread_position_in_grid]], uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[8][9];
  if (p.x < size.x && p.y < size.y) tile[t.y][t.x] = in[p.y * size.x + p.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (p.x < size.x && p.y < size.y) out[p.x * size.y + p.y] = tile[t.y][t.x];
}
"""


@pytest.mark.parametrize("group", [1, 32, 50, 512])
def test_static(group):
    x = torch.randint(-1000, 1000, (777,), dtype=torch.int32)
    out = torch.zeros_like(x)
    build(SOURCE).launch("reverse_static", [x, out], 777, group)
    assert torch.equal(out, torch.cat([part.flip(0) for part in x.split(group)]))


def test_dynamic():
    x = torch.randint(-1000, 1000, (200,), dtype=torch.int32)
    out = torch.zeros_like(x)
    build(SOURCE).launch("reverse_dynamic", [x, out], 200, 64, {0: 256, 3: 1024})
    assert torch.equal(out, 2 * torch.cat([part.flip(0) for part in x.split(64)]))


def test_several_variables_do_not_overlap_and_are_aligned():
    out = torch.zeros(40, 8, dtype=torch.int64)
    build(SOURCE).launch("several", [out], 40, 40)
    assert (out[:, 0] == 654321).all()
    assert (out[:, 1:] == out[:1, 1:]).all()  # the same variables for every thread
    a, b, c, d, e, f = out[0, 1:7].tolist()
    assert [v % 16 for v in (a, b, c, d, f)] == [0] * 5 and e % 32 == 0
    extents = sorted([(a, 1), (b, 48), (c, 32), (d, 2), (e, 32), (f, 4)])
    assert all(begin + size <= following for (begin, size), (following, _) in pairwise(extents))


@pytest.mark.reported("reads what nothing has written")
def test_every_group_starts_with_zeros():
    out = torch.full((64 * 20,), 5, dtype=torch.int32)
    build(SOURCE).launch("initial_contents", [out], 64 * 20, 64, {0: 256})
    assert (out == 0).all()


@pytest.mark.parametrize("first", [True, False])
def test_variables_in_branches(first):
    out = torch.zeros(64, dtype=torch.int32)
    build(SOURCE).launch("in_branches", [out, torch.tensor(first)], 64, 64)
    t = torch.arange(64, dtype=torch.int32)
    assert torch.equal(out, (t ^ 1) * (1 if first else 2))


def test_the_whole_of_the_memory():
    out = torch.zeros(512, dtype=torch.int32)
    build(SOURCE).launch("large", [out], 512, 512, {1: 768})
    assert torch.equal(out, (torch.arange(512, dtype=torch.int32) ^ 1) + 1)


def test_too_much_is_an_error_with_the_sizes():
    out = torch.zeros(512, dtype=torch.int32)
    message = r"kernel 'large' needs 32784 bytes of threadgroup memory \(32000 declared in the kernel, 784 set"
    with pytest.raises(RuntimeError, match=message):
        build(SOURCE).launch("large", [out], 512, 512, {1: 784})
    assert (out == 0).all()


def test_two_dimensional_tiles_with_partial_groups():
    x = torch.randn(19, 13)
    out = torch.zeros(13, 19)
    build(SOURCE).launch(
        "transposed", [x, out, torch.tensor([13, 19], dtype=torch.int32)], [13, 19], [8, 8]
    )
    assert torch.equal(out, x.t())


def test_sizes_are_in_the_kernel_table():
    table = {entry["name"]: entry for entry in build(SOURCE).kernel_table()}
    assert table["reverse_static"]["static_threadgroup_bytes"] == 2048
    assert table["reverse_dynamic"]["static_threadgroup_bytes"] == 0
    assert table["large"]["static_threadgroup_bytes"] == 32000
