"""simdgroup_matrix: loads, stores, products, and Apple's distribution of the elements over the lanes."""

import pytest
import torch

from .conftest import build

TYPES = {"half": torch.float16, "bfloat": torch.bfloat16, "float": torch.float32}


def kernels():
    text = []
    for t in TYPES:
        text.append(f"""
kernel void lanes_of_{t}(device const {t}* in, device float* out, uint lane [[thread_index_in_simdgroup]]) {{
  simdgroup_matrix<{t}, 8, 8> m;
  simdgroup_load(m, in);
  out[lane * 2] = float(m.thread_elements()[0]);
  out[lane * 2 + 1] = float(m.thread_elements()[1]);
}}
kernel void move_{t}(device const {t}* in, device {t}* out, constant ulong2& from, constant ulong2& to, constant bool2& transpose) {{
  simdgroup_matrix<{t}, 8, 8> m;
  simdgroup_load(m, in, 20, from, transpose.x);
  simdgroup_store(m, out, 24, to, transpose.y);
}}
kernel void multiply_{t}(device const {t}* a, device const {t}* b, device const float* c, device float* out) {{
  simdgroup_matrix<{t}, 8, 8> A, B;
  simdgroup_float8x8 C, D;
  simdgroup_load(A, a, 8);
  simdgroup_load(B, b, 8);
  simdgroup_load(C, c, 8);
  simdgroup_multiply_accumulate(D, A, B, C);
  simdgroup_store(D, out, 8);
  simdgroup_multiply(D, A, B);
  simdgroup_store(D, out + 64, 8);
  simdgroup_matrix<{t}, 8, 8> E = A * B;
  simdgroup_store(E, out + 128, 8);
  simdgroup_multiply_accumulate(C, A, B, C);
  simdgroup_store(C, out + 192, 8);
}}
kernel void filled_{t}(device {t}* out) {{
  simdgroup_matrix<{t}, 8, 8> m = make_filled_simdgroup_matrix<{t}, 8>({t}(3.0f));
  simdgroup_store(m, out, 8);
  m = make_filled_simdgroup_matrix<{t}, 8, 8>({t}(4.0f));
  simdgroup_store(m, out + 64, 8);
  m = simdgroup_matrix<{t}, 8, 8>({t}(5.0f));
  simdgroup_store(m, out + 128, 8);
  m = make_diagonal_simdgroup_matrix<{t}, 8, 8>({t}(6.0f));
  simdgroup_store(m, out + 192, 8);
}}""")
    return "".join(text)


SOURCE = (
    kernels()
    + """
// C (64 x 64) = A (64 x K) B (K x 64): two simdgroups, tiles in threadgroup memory.
kernel void tiled(device const half* a, device const half* b, device float* c, constant uint& K,
                  uint t [[thread_index_in_threadgroup]], uint sg [[simdgroup_index_in_threadgroup]],
                  uint2 group [[threadgroup_position_in_grid]]) {
  threadgroup half ta[16 * 8];
  threadgroup half tb[8 * 8];
  simdgroup_float8x8 acc = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k = 0; k < K; k += 8) {
    for (uint i = t; i < 128; i += 64) ta[i] = a[(group.y * 16 + i / 8) * K + k + i % 8];
    tb[t] = b[(k + t / 8) * 64 + group.x * 8 + t % 8];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_half8x8 A, B;
    simdgroup_load(A, ta + sg * 64, 8);
    simdgroup_load(B, tb, 8);
    simdgroup_multiply_accumulate(acc, A, B, acc);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  simdgroup_store(acc, c, 64, ulong2(group.x * 8, group.y * 16 + sg * 8));
}
"""
)
each_type = pytest.mark.parametrize("name", list(TYPES))


def launch(name, buffers, threads=32, group=None):
    build(SOURCE).launch(name, buffers, threads, group or threads)


@pytest.mark.full
@each_type
def test_elements_of_each_lane(name):
    x = torch.arange(64).to(TYPES[name])
    out = torch.zeros(32, 2)
    launch(f"lanes_of_{name}", [x, out])
    for lane in range(32):
        # The formula that kernels in the wild use (MLX: BaseMMAFrag::get_coord).
        quad = lane // 4
        row = (quad & 4) + (lane // 2) % 4
        column = (quad & 2) * 2 + (lane % 2) * 2
        assert out[lane].tolist() == [row * 8 + column, row * 8 + column + 1]


@each_type
@pytest.mark.parametrize("transpose", [(False, False), (True, False), (False, True), (True, True)])
def test_load_and_store_with_origin_and_transpose(name, transpose):
    x = torch.randn(32, 20).to(TYPES[name])
    out = torch.zeros(32, 24, dtype=TYPES[name])
    # matrix_origin is (x, y), column and row as the lanes see the matrix: in memory they swap when it is transposed.
    origin, destination = torch.tensor([3, 5]), torch.tensor([9, 2])
    flags = torch.tensor(transpose)
    launch(f"move_{name}", [x, out, origin, destination, flags])
    tile = x[3:11, 5:13].t() if transpose[0] else x[5:13, 3:11]
    expected = torch.zeros_like(out)
    if transpose[1]:
        expected[9:17, 2:10] = tile.t()
    else:
        expected[2:10, 9:17] = tile
    assert torch.equal(out, expected)


@each_type
def test_products(name):
    a, b = torch.randn(8, 8).to(TYPES[name]), torch.randn(8, 8).to(TYPES[name])
    c = torch.randn(8, 8)
    out = torch.zeros(4, 8, 8)
    launch(f"multiply_{name}", [a, b, c, out])
    product = a.double() @ b.double()
    torch.testing.assert_close(out[0].double(), product + c.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[1].double(), product, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[3].double(), product + c.double(), rtol=1e-5, atol=1e-5)
    rounded = product.to(TYPES[name]).double()
    torch.testing.assert_close(out[2].double(), rounded, rtol=2e-2, atol=1e-5)


@each_type
def test_filled_and_diagonal(name):
    out = torch.zeros(4, 8, 8, dtype=TYPES[name])
    launch(f"filled_{name}", [out])
    assert (out[0] == 3).all() and (out[1] == 4).all()
    assert torch.equal(out[2], torch.eye(8).to(TYPES[name]) * 5)
    assert torch.equal(out[3], torch.eye(8).to(TYPES[name]) * 6)


def test_tiled_product_of_two_simdgroups():
    a, b = torch.randn(64, 40).half(), torch.randn(40, 64).half()
    c = torch.zeros(64, 64)
    k = torch.tensor([40], dtype=torch.int32)
    build(SOURCE).launch("tiled", [a, b, c, k], [64 * 8, 4], [64, 1])
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)
