"""Operations on tensors in kernels that run as loops over the threads of a group, against fibers and float64."""

import pytest
import torch
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

from .products import HEADER, build

KERNELS = """
using In = tensor<device half, dextents<int, 2>, tensor_inline>;
using Staged = tensor<threadgroup half, extents<int, 32, 16>, tensor_inline>;
template <typename C>
inline void clear(thread C& c) {
  for (uint16_t i = 0; i < c.get_capacity(); ++i) c.set(i, 0.0f);
}

// A tile of 48 x 32 of all four simdgroups, whose right operand is staged 16 rows at a time.
kernel void staged(device half* a, device half* b, device float* out, constant int& inner,
                   uint t [[thread_index_in_threadgroup]], uint g [[threadgroup_position_in_grid]]) {
  constexpr auto d = matmul2d_descriptor(48, 32, static_cast<int>(dynamic_extent), false, false, false,
                                         matmul2d_descriptor::mode::multiply_accumulate);
  threadgroup half brought[16 * 32];
  matmul2d<d, execution_simdgroups<4>> op;
  auto c = op.get_destination_cooperative_tensor<In, Staged, float>();
  clear(c);
  for (int k = 0; k < inner; k += 16) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = t; i < 16 * 32; i += 128) brought[i] = b[k * 32 + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    In left(a + g * 48 * inner + k, dextents<int, 2>(16, 48), array<int, 2>{1, inner});
    Staged right(brought, extents<int, 32, 16>());
    op.run(left, right, c);
  }
  for (uint16_t i = 0; i < c.get_capacity(); ++i) {
    if (!c.is_valid_element(i)) continue;
    const auto at = c.get_multidimensional_index(i);
    out[(g * 48 + at[1]) * 32 + at[0]] = c[i] + at[1];
  }
}

// Of two simdgroups the second one multiplies, and the first lane's thread alone another tile.
kernel void diverged(device half* a, device half* b, device float* out, device float* largest,
                     device float* small, uint s [[simdgroup_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
  constexpr auto d = matmul2d_descriptor(16, 32, 16);
  constexpr auto e = matmul2d_descriptor(16, 16, 32);
  constexpr auto f = matmul2d_descriptor(8, 8, 16);
  matmul2d<d, execution_simdgroup> first;
  matmul2d<e, execution_simdgroup> second;
  matmul2d<f, execution_thread> alone;
  In left(a, dextents<int, 2>(16, 16)), right(b, dextents<int, 2>(32, 16));
  if (s == 1) {
    auto c = first.get_destination_cooperative_tensor<In, In, float>();
    auto rows = first.get_row_reduction_destination_cooperative_tensor<In, In, float>();
    first.run(left, right, c);
    reduce_rows(c, rows, reduction_operation::max, -INFINITY);
    rows.store(tensor<device float, extents<int, 16>, tensor_inline>(largest, extents<int, 16>()));
    auto again = second.get_left_input_cooperative_tensor<float, half, float>(c);
    In other(b, dextents<int, 2>(16, 32));
    tensor<device float, dextents<int, 2>, tensor_inline> to(out, dextents<int, 2>(16, 16));
    second.run(again, other, to);
  } else if (lane == 0) {
    In l(a, dextents<int, 2>(16, 8), array<int, 2>{1, 16}), r(b, dextents<int, 2>(8, 16), array<int, 2>{1, 32});
    tensor<device float, dextents<int, 2>, tensor_inline> to(small, dextents<int, 2>(8, 8));
    alone.run(l, r, to);
  }
}
"""


def engines(source):
    return emit(preprocess(HEADER + source)).engines


@pytest.mark.full
def test_all_scopes_and_divergent_simdgroups_as_on_fibers():
    assert set(engines(KERNELS).values()) == {("group", None)}
    library = build(KERNELS)
    a, b = torch.randn(2 * 48, 64).half(), torch.randn(64, 32).half()
    q, w = torch.randn(16, 16).half(), torch.randn(16, 32).half()
    results = []
    for engine in ("group", "fiber"):
        staged, out = torch.zeros(2 * 48, 32), torch.zeros(16, 16)
        largest, small = torch.zeros(16), torch.zeros(8, 8)
        inner = torch.tensor([64], dtype=torch.int32)
        library.launch("staged", [a, b, staged, inner], 256, 128, engine=engine)
        library.launch("diverged", [q, w, out, largest, small], 64, 64, engine=engine)
        results.append((staged, out, largest, small))
    for group, fiber in zip(*results, strict=True):
        assert torch.equal(group, fiber)
    staged, out, largest, small = results[0]
    product = q.double() @ w.double()
    rows = torch.arange(48, dtype=torch.double).repeat(2)[:, None]
    torch.testing.assert_close(
        staged.double(), a.double() @ b.double() + rows, rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(largest.double(), product.amax(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        out.double(), product @ w.double().reshape(32, 16), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        small.double(), (q[:8].double() @ w.double())[:, :8], rtol=1e-4, atol=1e-4
    )


BY_CONSTRUCTOR = """
using In = tensor<device half, dextents<int, 2>, tensor_inline>;
kernel void k(device half* a, device float* out, uint t [[thread_index_in_threadgroup]]) {
  constexpr auto d = matmul2d_descriptor(16, 16, 16);
  matmul2d<d, execution_simdgroup> op;
  In in(a, dextents<int, 2>(16, 16));
  auto c = op.get_destination_cooperative_tensor<In, In, float>();
  DECLARATION
  op.run(in, in, other);
  out[t] = other[0];
}
"""


@pytest.mark.parametrize(
    "declaration",
    [
        "decltype(c) other;",
        "matmul2d<d, execution_simdgroup>::cooperative_tensor_destination_t<half, half, float> other;",
    ],
)
def test_tensors_that_a_constructor_creates_are_left_to_fibers(declaration):
    engine, why = engines(BY_CONSTRUCTOR.replace("DECLARATION", declaration))["k"]
    assert engine == "fiber" and "functions do not create" in why


@pytest.mark.full
def test_an_overfull_threadgroup_is_refused():
    library = build(KERNELS)
    a = torch.zeros(2 * 48, 64).half()
    inner = torch.tensor([64], dtype=torch.int32)
    for engine in ("group", "fiber"):
        with pytest.raises(RuntimeError, match="threadgroup of N simdgroups"):
            library.launch("staged", [a, a, torch.zeros(96, 32), inner], 256, 256, engine=engine)
