"""Checks of the interfaces for kernels in Python, each with its particular features, and of torch's own classes and
compilers around them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import metalops

from .check import Check, assert_near

_ROW_SUMS = """
#include <metal_stdlib>
using namespace metal;

// Each row by a threadgroup: simdgroups add up, threadgroup memory joins them, an atomic counts rows.
kernel void row_sums(device float* sums, device const float* x, constant long& n, device atomic_uint* rows,
                     uint row [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float parts[4];
  float sum = 0;
  for (uint at = i; at < n; at += 128) {
    sum += x[row * n + at];
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    parts[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) {
    sums[row] = parts[0] + parts[1] + parts[2] + parts[3];
    atomic_fetch_add_explicit(rows, 1, memory_order_relaxed);
  }
}
"""

_TILES = """
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

kernel void multiply(device float* c, device const float* a, device const float* b) {
  simdgroup_float8x8 left, right, sums = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  simdgroup_load(left, a, 8);
  simdgroup_load(right, b, 8);
  simdgroup_multiply_accumulate(sums, left, right, sums);
  simdgroup_store(sums, c, 8);
}
"""

_REVERSED = """
#include <metal_stdlib>
using namespace metal;
constant uint width [[function_constant(0)]];

kernel void reverse_rows(device float* y, device const float* x, threadgroup float* row [[threadgroup(0)]],
                         uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  row[t] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = row[width - 1 - t];
}
"""


def _compile_shader() -> None:
    x = torch.randn(5, 300)
    sums, rows = torch.zeros(5, device="mps"), torch.zeros(1, dtype=torch.int32, device="mps")
    library = torch.mps.compile_shader(_ROW_SUMS)
    library.row_sums(sums, x.to("mps"), 300, rows, threads=128 * 5, group_size=128)
    assert_near(sums, x.double().sum(1), 1e-6, x)
    assert rows.item() == 5, f"{rows.item()} rows were counted, expected 5"


def _simdgroup_matrices() -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    c = torch.zeros(8, 8, device="mps")
    library = torch.mps.compile_shader(_TILES)
    library.multiply(c, a.to("mps"), b.to("mps"), threads=32, group_size=32)
    assert_near(c, a.double() @ b.double(), 1e-6, (a, b))


def _constants_and_memory() -> None:
    x = torch.randn(6, 64)
    y = torch.zeros(6, 64, device="mps")
    shader = metalops.compile_shader(_REVERSED, {"width": 64}, threadgroup_memory={0: 4 * 64})
    shader.reverse_rows(y, x.to("mps"), threads=x.numel(), group_size=64)
    assert_near(y, x.flip(1), 0, x)


def _functor() -> None:
    mish = metalops.functor(
        "selftest_mish",
        "x * tanh(log(1 + exp(x)))",
        grad="grad * (tanh(log(1 + exp(x))) + x * (1 - pow(tanh(log(1 + exp(x))), 2)) / (1 + exp(-x)))",
    )
    for dtype, bound in ((torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)):
        x = torch.randn(33, 20).to(dtype).t()
        leaf, expected = x.to("mps").requires_grad_(), x.double().requires_grad_()
        result = mish(leaf)
        assert_near(result, torch.nn.functional.mish(expected), bound, x)
        result.sum().backward()
        torch.nn.functional.mish(expected).sum().backward()
        assert_near(leaf.grad, expected.grad, 2 * bound, x)


def _generated_signature() -> None:
    kernel = metalops.metal_kernel(
        name="selftest_scaled",
        input_names=["x", "factor"],
        output_names=["y"],
        source="""
            uint i = thread_position_in_grid.x;
            y[i] = T(x[elem_to_loc(i, x_shape, x_strides, x_ndim)] * factor);
        """,
        ensure_row_contiguous=False,
    )
    x = torch.randn(9, 14)
    (y,) = kernel(
        inputs=[x.to("mps").t(), 2.5],
        template=[("T", torch.float32)],
        output_shapes=[(14, 9)],
        output_dtypes=[torch.float32],
        grid=(x.numel(), 1, 1),
        threadgroup=(32, 1, 1),
    )
    assert_near(y, 2.5 * x.t(), 0, x)


def _product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return A @ B


def _over_tensors() -> None:
    product = metalops.TorchMetalKernel(
        "selftest_product",
        input_names=["A", "B"],
        result_names=["C"],
        src="""
            float sum = 0;
            for (uint k = 0; k < A.get_extent(0); ++k) {
                sum += A[k, gid.y] * B[gid.x, k];
            }
            C[gid.x, gid.y] = sum;
        """,
        torch_defn=_product,
        metal_params=[metalops.MetalParameter("gid", "uint2", "thread_position_in_grid")],
    )
    a, b = torch.randn(9, 20), torch.randn(20, 12)
    c = product(
        a.to("mps"),
        b.to("mps"),
        threads_per_grid=(12, 9, 1),
        threads_per_thread_group=(12, 3, 1),
        result_shapes=[[9, 12]],
    )
    assert_near(c, a.double() @ b.double(), 1e-6, (a, b))


def _traced() -> None:
    def function(x):
        return metalops.ops.silu_and_mul(x * 2) + 1

    x = torch.randn(6, 20)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert_near(compiled(x.to("mps")), function(x), 2e-6, x)


def _training() -> None:
    """Checks that a small model learns by the same steps as on the CPU."""
    torch.manual_seed(0)
    x, target = torch.randn(64, 20), torch.randn(64, 8)
    first, second = torch.randn(40, 20) / 5, torch.randn(8, 20) / 5
    found = []
    for device in ("cpu", "mps"):
        weights = [w.clone().to(device).requires_grad_() for w in (first, second)]
        optimiser = torch.optim.SGD(weights, lr=0.05)
        for _ in range(20):
            hidden = metalops.ops.silu_and_mul(x.to(device) @ weights[0].t())
            loss = (hidden @ weights[1].t() - target.to(device)).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        found.append([w.detach().cpu() for w in weights])
    for actual, expected in zip(found[1], found[0], strict=True):
        assert_near(actual, expected, 1e-4, (first, second))


def checks() -> Iterator[Check]:
    yield Check("torch.mps.compile_shader: barriers, simdgroups, atomics", _compile_shader)
    yield Check("torch.mps.compile_shader: simdgroup matrices", _simdgroup_matrices)
    yield Check("metalops.compile_shader: constants, threadgroup memory", _constants_and_memory)
    yield Check("metalops.functor", _functor)
    yield Check("metalops.metal_kernel", _generated_signature)
    yield Check("metalops.TorchMetalKernel", _over_tensors)
    yield Check("torch.compile", _traced)
    yield Check("training", _training)
