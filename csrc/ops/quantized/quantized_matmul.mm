// Host side of kernels/quantized/quantized_matmul.metal: GEMV, skinny GEMM and tile GEMM with
// quantised weights.
#include <ATen/ops/empty.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/quantized/quantized.h>
#include <csrc/ops/quantized/skinny_gemm.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/matmul_library.h>
#include <metalops/metal_type.h>
#include <torch/library.h>

#include <array>
#include <limits>

namespace {

using at::Tensor;
using metalops::CodeFormat;
using metalops::KernelName;
using metalops::MaybeTensor;
using metalops::PackedLayout;
using metalops::QuantizedProduct;
using metalops::ScaleFormat;

metalops::Library& product_kernels() { return metalops::library("quantized_matmul"); }

// The kernel that multiplies, and the size of its threadgroup's tile of the result.
struct ProductWay {
  metalops::Library& kernels;
  KernelName name;
  int64_t rows;
  int64_t columns;
  uint64_t threads;
};

const char* format_name(const PackedLayout& layout) {
  constexpr std::array<const char*, 8> kIntegers{"int1", "int2", "int3", "int4",
                                                 "int5", "int6", "int7", "int8"};
  switch (layout.format) {
    case CodeFormat::kInteger:
      return kIntegers[layout.bits - 1];
    case CodeFormat::kE2M1:
      return layout.scale == ScaleFormat::kE8M0 ? "mxfp4" : "nvfp4";
    case CodeFormat::kE4M3:
      return "mxfp8";
    case CodeFormat::kSigned8:
      return "signed8";
    case CodeFormat::kNormalFloat4:
      return "nf4";
    default:
      return "fp4";
  }
}

ProductWay product_way(QuantizedProduct& p, int64_t pairs, at::ScalarType type) {
  constexpr int32_t kFewRows = 8;
  if (p.rows <= kFewRows) {
    if (p.right_transposed) {
      return {product_kernels(), KernelName("quantized_matmul_gemv_transposed"), 1, 256, 256};
    }
    const char* const format = format_name(p.right);
    if (p.rows > 1 && type != at::kFloat && p.right.is_aligned && p.inner % 32 == 0) {
      return {product_kernels(), KernelName("quantized_matmul_skinny_") + format, 8, 32, 256};
    }
    const bool are_more = p.rows > 1 && type == at::kFloat;
    const int64_t rows = are_more ? 4 : 1;
    const int64_t columns = are_more ? 4 : 8;
    p.splits = metalops::splits_of(pairs * c10::metal::ceil_div<int64_t>(p.rows, rows) *
                                       c10::metal::ceil_div<int64_t>(p.columns, columns),
                                   p.inner);
    return {
        product_kernels(),
        KernelName(are_more ? "quantized_matmul_skinny_" : "quantized_matmul_skinny_1_") + format,
        rows, 4 / p.splits * columns, 128};
  }
  auto& tiles = metalops::matmul_library("quantized_matmul");
  if (p.rows <= 32) {
    return {tiles, KernelName("quantized_matmul_tiles_small"), 16, 64, 128};
  }
  return {tiles, KernelName("quantized_matmul_tiles_large"), 64, 64, 128};
}

int32_t size_of_product(int64_t size) {
  return metalops::checked_int32(size, metalops::kLargestTiledSize, "quantized_matmul: a size of");
}

// Returns x W^T, (pairs, M, N), for x of sizes (matrices, M, K); or, without `transpose`, x W,
// (pairs, M, K), for x of sizes (matrices, M, N). packed: the rows of W, (matrices, N, bytes).
// left_index, right_index: the matrices of each pair; in order where absent.
Tensor quantized_matmul(const Tensor& x, const Tensor& packed, const Tensor& scales,
                        const MaybeTensor& biases, const MaybeTensor& bias,
                        const MaybeTensor& global_scale, const MaybeTensor& left_index,
                        const MaybeTensor& right_index, bool transpose, int64_t bits,
                        int64_t group_size, std::string_view mode) {
  constexpr const char* kName = "quantized_matmul";
  const auto type = x.scalar_type();
  metalops::check_metal_float(kName, type);
  metalops::check_same_device(kName, {{x, "x"},
                                      {packed, "packed"},
                                      {bias.value_or(x), "bias"},
                                      {left_index.value_or(x), "lhs_indices"},
                                      {right_index.value_or(x), "rhs_indices"}});
  TORCH_CHECK_VALUE(x.dim() == 3 && packed.dim() == 3, kName,
                    ": x and packed must have 3 dimensions, but have sizes ", x.sizes(), " and ",
                    packed.sizes());
  const auto weights = metalops::quantized_weights(kName, packed, scales, biases, global_scale,
                                                   bits, group_size, mode, type);
  const int64_t inner = transpose ? weights.layout.inner : weights.layout.lines;
  const int64_t columns = transpose ? weights.layout.lines : weights.layout.inner;
  TORCH_CHECK_VALUE(x.size(2) == inner, kName, ": rows of x must have ", inner,
                    " elements, but x has sizes ", x.sizes());
  TORCH_CHECK_VALUE(
      !bias || (bias->dim() == 1 && bias->size(0) == columns && bias->scalar_type() == type), kName,
      ": bias must be ", type, " of ", columns, " elements");
  const int64_t pairs = left_index    ? left_index->numel()
                        : right_index ? right_index->numel()
                                      : x.size(0);
  for (const auto* index : {&left_index, &right_index}) {
    TORCH_CHECK_VALUE(!*index || ((*index)->scalar_type() == at::kLong && (*index)->dim() == 1 &&
                                  (*index)->numel() == pairs),
                      kName, ": indices must be int64 and as many as each other, of one dimension");
  }
  // Without matrices, kernels have nothing to read instead for an index out of range.
  TORCH_CHECK(pairs == 0 || (x.size(0) > 0 && packed.size(0) > 0),
              "gather_quantized_matmul: no index is one of ", x.size(0), " matrices of x and ",
              packed.size(0), " of weights");
  TORCH_CHECK_VALUE((left_index || x.size(0) == pairs) && (right_index || packed.size(0) == pairs),
                    kName, ": there are ", x.size(0), " matrices of x and ", packed.size(0),
                    " of weights for ", pairs, " pairs");
  const auto result = at::empty({pairs, x.size(1), columns}, x.options());
  if (result.numel() == 0) {
    return result;
  }
  if (inner == 0) {
    return bias ? result.copy_(bias->expand(result.sizes())) : result.zero_();
  }
  QuantizedProduct p{.right = weights.layout,
                     .left_matrix = x.size(1) * x.size(2),
                     .left_matrices = x.size(0),
                     .right_matrices = packed.size(0),
                     .rows = size_of_product(x.size(1)),
                     .columns = size_of_product(columns),
                     .inner = size_of_product(inner),
                     .splits = 1,
                     .right_transposed = !transpose,
                     .has_bias = bias.has_value(),
                     .has_left_index = left_index.has_value(),
                     .has_right_index = right_index.has_value()};
  const auto way = product_way(p, pairs, type);
  const auto groups = pairs * c10::metal::ceil_div<int64_t>(p.rows, way.rows) *
                      c10::metal::ceil_div<int64_t>(p.columns, way.columns);
  TORCH_CHECK(groups <= std::numeric_limits<uint32_t>::max(), kName, ": a result of sizes ",
              result.sizes(), " is too large for MPS");
  metalops::launch_threadgroups(
      way.kernels, way.name + "_" + metalops::metal_type(type), static_cast<uint64_t>(groups),
      way.threads, result, metalops::ready_for_vectors(x), weights.codes, weights.scales,
      weights.biases, bias ? bias->contiguous() : result, weights.global_scale,
      left_index ? left_index->contiguous() : result,
      right_index ? right_index->contiguous() : result, p, metalops::kErrorBuffer);
  return result;
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  m.def("metalops::quantized_matmul(Tensor x, Tensor packed, Tensor scales, Tensor? biases, "
        "Tensor? bias, Tensor? global_scale, Tensor? left_index, Tensor? right_index, "
        "bool transpose, int bits, int group_size, str mode) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.impl("quantized_matmul", torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(quantized_matmul)));
}

}  // namespace
