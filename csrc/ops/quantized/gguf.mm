// Host side of kernels/quantized/gguf.metal: weights of GGUF files (ggml's block formats).
#include <ATen/ops/empty.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/quantized/skinny_gemm.h>
#include <kernels/quantized/gguf.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/matmul_library.h>
#include <metalops/metal_type.h>
#include <torch/library.h>

#include <limits>

namespace {

using at::Tensor;
using metalops::GgufLayout;
using metalops::GgufProduct;
using metalops::GgufType;
using metalops::KernelName;
using metalops::MaybeTensor;

metalops::Library& gguf_kernels() { return metalops::library("gguf"); }

// Returns the bytes of a block, 0 for unknown types.
int64_t gguf_block_bytes(GgufType type) {
  switch (type) {
    case GgufType::kQ4_0:
    case GgufType::kIQ4_NL:
      return 18;
    case GgufType::kQ4_1:
      return 20;
    case GgufType::kQ5_0:
      return 22;
    case GgufType::kQ5_1:
      return 24;
    case GgufType::kQ8_0:
      return 34;
    case GgufType::kQ2_K:
      return 84;
    case GgufType::kQ3_K:
      return 110;
    case GgufType::kQ4_K:
      return 144;
    case GgufType::kQ5_K:
      return 176;
    case GgufType::kQ6_K:
      return 210;
    case GgufType::kIQ4_XS:
      return 136;
    case GgufType::kMXFP4:
      return 17;
  }
  return 0;
}

bool has_blocks_of_256(GgufType type) {
  return (type >= GgufType::kQ2_K && type <= GgufType::kQ6_K) || type == GgufType::kIQ4_XS;
}

GgufLayout gguf_layout(const char* name, const Tensor& data, int64_t number) {
  constexpr int64_t kMost = 39;
  TORCH_CHECK_VALUE(number >= 0 && number <= kMost, name, ": there is no type ", number);
  const auto type = static_cast<GgufType>(number);
  const auto bytes = gguf_block_bytes(type);
  TORCH_CHECK_VALUE(bytes > 0, name, ": there is no type ", number);
  TORCH_CHECK_VALUE(data.dim() >= 1 && data.scalar_type() == at::kByte, name,
                    ": data must be bytes of at least one dimension, but is ", data.scalar_type(),
                    " of sizes ", data.sizes());
  const auto line_bytes = data.size(-1);
  TORCH_CHECK_VALUE(line_bytes % bytes == 0, name, ": rows must be blocks of ", bytes,
                    " bytes, but data has sizes ", data.sizes());
  const int shift = has_blocks_of_256(type) ? 8 : 5;
  const auto inner = line_bytes / bytes << shift;
  TORCH_CHECK(inner <= metalops::kLargestTiledSize, name, ": rows of ", inner,
              " elements are too long for MPS");
  return {.line_bytes = line_bytes,
          .lines = line_bytes == 0 ? 0 : data.numel() / line_bytes,
          .inner = static_cast<int32_t>(inner),
          .block_shift = shift,
          .block_bytes = static_cast<int32_t>(bytes),
          .type = type};
}

// Dequantises data, (..., bytes); with indices, the rows of (rows, bytes) that they name.
Tensor gguf_dequantize(const Tensor& data, const MaybeTensor& indices, int64_t type,
                       at::ScalarType dtype) {
  constexpr const char* kName = "gguf_dequantize";
  metalops::check_metal_float(kName, dtype);
  const auto layout = gguf_layout(kName, data, type);
  const auto blocks = data.contiguous();
  at::DimVector sizes(data.sizes());
  auto lines = layout.lines;
  auto rows = blocks;
  if (indices) {
    metalops::check_same_device(kName, {{data, "data"}, {*indices, "indices"}});
    TORCH_CHECK_VALUE(data.dim() == 2 && indices->scalar_type() == at::kLong, kName,
                      ": indices must be int64 and data of 2 dimensions");
    rows = indices->contiguous();
    lines = rows.numel();
    sizes = at::DimVector(indices->sizes());
    sizes.push_back(0);
  }
  sizes.back() = layout.inner;
  TORCH_CHECK(lines <= std::numeric_limits<uint32_t>::max(), kName, ": ", lines,
              " rows are too many for MPS");
  const auto result = at::empty(sizes, data.options().dtype(dtype));
  metalops::launch_rows(gguf_kernels(), metalops::typed_kernel("gguf_dequantize_", dtype),
                        static_cast<uint64_t>(layout.inner / 8), static_cast<uint64_t>(lines),
                        result, blocks, rows, layout, indices.has_value(), metalops::kErrorBuffer);
  return result;
}

// The kernel that multiplies, and the size of its threadgroup's tile of the result.
struct GgufWay {
  metalops::Library& kernels;
  KernelName name;
  int64_t rows;
  int64_t columns;
};

// Returns the kernels' name of a type that is known at compile time, else an empty name.
const char* gguf_type_name(GgufType type) {
  switch (type) {
    case GgufType::kQ4_0:
      return "Q4_0_";
    case GgufType::kQ8_0:
      return "Q8_0_";
    case GgufType::kQ4_K:
      return "Q4_K_";
    case GgufType::kQ5_K:
      return "Q5_K_";
    case GgufType::kQ6_K:
      return "Q6_K_";
    default:
      return "";
  }
}

GgufWay gguf_way(GgufProduct& p) {
  constexpr int32_t kFewRows = 8;
  if (p.rows > kFewRows) {
    auto& tiles = metalops::matmul_library("gguf");
    if (p.rows <= 32) {
      return {tiles, KernelName("gguf_tiles_small_"), 16, 64};
    }
    return {tiles, KernelName("gguf_tiles_large_"), 64, 64};
  }
  const bool is_one = p.rows == 1;
  const auto name = KernelName(is_one ? "gguf_skinny_1_" : "gguf_skinny_");
  const int64_t rows = is_one ? 1 : 4;
  const char* const type = gguf_type_name(p.right.type);
  if (type[0] == '\0') {
    return {gguf_kernels(), name, rows, 8};
  }
  const int64_t columns = !is_one ? 2 : p.right.type == GgufType::kQ4_K ? 8 : 4;
  p.splits = metalops::splits_of(c10::metal::ceil_div<int64_t>(p.rows, rows) *
                                     c10::metal::ceil_div<int64_t>(p.columns, columns),
                                 p.inner);
  return {gguf_kernels(), name + type, rows, 4 / p.splits * columns};
}

// Returns bytes, contiguous, whose rows kernels can load as whole words.
Tensor ready_for_words(const Tensor& data) {
  const auto result = data.contiguous();
  return result.storage_offset() % 16 == 0 ? result : result.clone();
}

// Returns x W^T, (M, N). x: (M, K). data: the rows of W, (N, bytes).
Tensor gguf_linear(const Tensor& x, const Tensor& data, const MaybeTensor& bias, int64_t type) {
  constexpr const char* kName = "gguf_linear";
  metalops::check_metal_float(kName, x.scalar_type());
  metalops::check_same_device(kName, {{x, "x"}, {data, "data"}, {bias.value_or(x), "bias"}});
  const auto layout = gguf_layout(kName, data, type);
  TORCH_CHECK_VALUE(x.dim() == 2 && data.dim() == 2 && x.size(1) == layout.inner, kName,
                    ": x must have rows of ", layout.inner, " elements, but has sizes ", x.sizes());
  const auto columns = data.size(0);
  TORCH_CHECK_VALUE(!bias || (bias->dim() == 1 && bias->size(0) == columns &&
                              bias->scalar_type() == x.scalar_type()),
                    kName, ": bias must be ", x.scalar_type(), " of ", columns, " elements");
  TORCH_CHECK(std::max(x.size(0), columns) <= metalops::kLargestTiledSize, kName, ": sizes ",
              x.sizes(), " and ", data.sizes(), " are too large for MPS");
  const auto result = at::empty({x.size(0), columns}, x.options());
  if (result.numel() == 0) {
    return result;
  }
  if (layout.inner == 0) {
    return bias ? result.copy_(bias->expand(result.sizes())) : result.zero_();
  }
  GgufProduct p{.right = layout,
                .rows = static_cast<int32_t>(x.size(0)),
                .columns = static_cast<int32_t>(columns),
                .inner = layout.inner,
                .splits = 1,
                .has_bias = bias.has_value()};
  const auto way = gguf_way(p);
  metalops::launch_threadgroups(
      way.kernels, way.name + metalops::metal_type(x.scalar_type()),
      static_cast<uint64_t>(c10::metal::ceil_div<int64_t>(p.rows, way.rows) *
                            c10::metal::ceil_div<int64_t>(columns, way.columns)),
      /*size=*/128, result, metalops::ready_for_vectors(x), ready_for_words(data),
      bias ? bias->contiguous() : result, p);
  return result;
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def("metalops::gguf_dequantize(Tensor data, Tensor? indices, int qtype, ScalarType dtype) -> "
        "Tensor",
        tags);
  m.def("metalops::gguf_linear(Tensor x, Tensor data, Tensor? bias, int qtype) -> Tensor", tags);
  m.impl("gguf_dequantize", torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(gguf_dequantize)));
  m.impl("gguf_linear", torch::dispatch(c10::DispatchKey::MPS, TORCH_FN(gguf_linear)));
}

}  // namespace
