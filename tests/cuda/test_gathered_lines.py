"""Products of matrices whose elements a kernel finds itself (include/msl/cuda/gathered_lines.h), and the convolutions that are made
of them. Without a GPU they are compiled."""

import re
from pathlib import Path

import pytest
import torch
from metalops.cuda import nvrtc
from metalops.cuda.library import Library
from metalops.msl.source import languages

needs_nvrtc = pytest.mark.skipif(
    not nvrtc.is_available(), reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no NVIDIA GPU, or torch has no CUDA"
)
ROOT = Path(__file__).resolve().parents[2]
LANGUAGE = languages.number_of("4.0")
DTYPES = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}

# Line i of an operand is row (7 i + 3) % rows of a matrix, and element k is where a table says, which prepare() fills; elements of
# every fifth line that are in every third pack are zero.
SOURCE = """
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

struct Where { int offset; uint outside; };
constant constexpr int kPack = 16 / int(sizeof(TYPE));

struct Operand {
  typedef TYPE element;
  device const TYPE* elements;
  threadgroup Where* table;
  uint index;
  int lines, inners, stride;
  bool is_deep;
  int of_line(int i) const { return is_deep ? (7 * i + 3) % lines * stride : i; }
  int of_inner(int k) const { return is_deep ? k : (5 * k + 2) % inners * stride; }
  int line_pack(int i) const { return is_deep ? i : i / kPack; }
  int inner_pack(int k) const { return is_deep ? k / kPack : k; }
  Where line(int i) const {
    if (i >= lines) return {0, ~0u};
    return {of_line(i), 4u | (line_pack(i) % 5 == 0 ? 1u : 0u)};
  }
  void prepare(int k, int count) const {
    const int at = k + int(index);
    if (int(index) < count) {
      table[at % 256] = at < inners ? Where{of_inner(at), 8u | (inner_pack(at) % 3 == 0 ? 1u : 0u)} : Where{0, 12u};
    }
  }
  Where inner(int k) const { return table[k % 256]; }
};

typedef tensor<device TYPE, dextents<int, 2>, tensor_inline> Matrix;

kernel void product(device float* out, device const TYPE* a, device const TYPE* b, constant int4& sizes,
                    uint index [[thread_index_in_threadgroup]]) {
  threadgroup Where table[512];
  constexpr auto description = matmul2d_descriptor(ROWS, COLUMNS, int(dynamic_extent), !DEEP, DEEP, false,
                                                   matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<description, execution_simdgroups<4>> operation;
  const int rows = sizes.x, columns = sizes.y, inner = sizes.z;
  const Operand left{a, table, index, rows, inner, DEEP ? inner : rows, DEEP};
  const Operand right{b, table + 256, index, columns, inner, DEEP ? inner : columns, DEEP};
  auto sums = operation.template get_destination_cooperative_tensor<Matrix, Matrix, float>();
  for (uint16_t i = 0; i < sums.get_capacity(); ++i) sums[i] = 1.0f;
  run_gathered(operation, left, right, inner, sums);
#pragma unroll
  for (uint16_t i = 0; i < sums.get_capacity(); ++i) {
    const auto at = sums.get_multidimensional_index(i);
    if (at[1] < rows && at[0] < columns) out[at[1] * columns + at[0]] = sums[i];
  }
}
"""


def library(dtype, rows, columns, is_deep):
    macros = {"TYPE": dtype, "ROWS": rows, "COLUMNS": columns, "DEEP": str(is_deep).lower()}
    source = "".join(f"#define {name} {value}\n" for name, value in macros.items()) + SOURCE
    return Library(source, language=LANGUAGE)


def operand(x, is_deep):
    """The lines that a matrix is gathered to."""
    pack = 16 // x.element_size()
    lines, inner = x.shape if is_deep else x.shape[::-1]
    i, k = torch.arange(lines)[:, None], torch.arange(inner)[None]
    found = x[(7 * i + 3) % lines, k] if is_deep else x[(5 * k + 2) % inner, i]
    line, at = (i, k // pack) if is_deep else (i // pack, k)
    return torch.where((line % 5 == 0) & (at % 3 == 0), 0.0, found.double())


@needs_gpu
@pytest.mark.parametrize("is_deep", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "tile, sizes",
    [((128, 64), (128, 64, 640)), ((64, 128), (40, 104, 200)), ((128, 16), (64, 16, 24))],
)
def test_products_of_gathered_lines(tile, sizes, dtype, is_deep):
    rows, columns, inner = sizes
    torch.manual_seed(1)
    a, b = (
        torch.randn(*((n, inner) if is_deep else (inner, n))).to(DTYPES[dtype])
        for n in (rows, columns)
    )
    out = torch.empty(rows, columns, device="cuda")
    arguments = [
        out,
        a.cuda(),
        b.cuda(),
        torch.tensor([*sizes, 0], dtype=torch.int32).numpy().tobytes(),
    ]
    library(dtype, *tile, is_deep).launch("product", arguments, 128, 128)
    expected = 1 + operand(a, is_deep) @ operand(b, is_deep).T
    torch.testing.assert_close(out.cpu().double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.full
@needs_nvrtc
def test_convolutions_copy_packs_ahead_and_multiply_on_tensor_cores():
    """Floats are multiplied by FMA, and no kernel has more static shared memory than there is."""
    source = (ROOT / "kernels/spatial/convolution_packed.metal").read_text()
    include_dirs = [str(ROOT), str(ROOT / "python/metalops/include")]
    for name in ("packed_128x64_half", "packed_weight_split_64x128_bfloat", "packed_128x64_float"):
        kernels = [f"convolution_{name}"]
        found = Library(source, kernels=kernels, include_dirs=include_dirs, language=LANGUAGE)
        text = found.compile("compute_90a").decode()
        is_float = name.endswith("_float")
        for instruction in ("wgmma.mma_async", "cp.async.cg"):
            assert (instruction in text) != is_float, (name, instruction)
        assert (len(re.findall(r"\bfma\.rn\.f32", text)) > 100) == is_float
