#include <csrc/plans/quantized/quantized.h>
#include <csrc/plans/quantized/skinny_gemm.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace metalops::plans {

namespace {

constexpr int64_t kMostOfDimension = std::numeric_limits<uint32_t>::max();

struct Format {
  CodeFormat code;
  ScaleFormat scale;
};

Format format_of(QuantizedMode mode) {
  constexpr std::array<Format, 7> kFormats{{
      {CodeFormat::kInteger, ScaleFormat::kElement},
      {CodeFormat::kE2M1, ScaleFormat::kE8M0},
      {CodeFormat::kE4M3, ScaleFormat::kE8M0},
      {CodeFormat::kE2M1, ScaleFormat::kE4M3},
      {CodeFormat::kNormalFloat4, ScaleFormat::kFloat},
      {CodeFormat::kFloat4, ScaleFormat::kFloat},
      {CodeFormat::kSigned8, ScaleFormat::kElement},
  }};
  return kFormats[static_cast<size_t>(mode)];
}

const char* name_of_format(const PackedLayout& layout) {
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

// Weights as kernels read them, contiguous, and their layout.
struct Readable {
  View codes, scales, biases, global_scale;
  PackedLayout layout;
};

Readable readable(Plan& plan, const QuantizedWeights& weights, const Device& device) {
  constexpr int64_t kWidest = 16;   // bytes of a vector load
  constexpr int64_t kTogether = 4;  // bytes of scales that are loaded together
  const auto& codes = weights.codes;
  Readable result{
      device.multiprocessors > 0 ? aligned(plan, codes, kWidest) : plan.contiguous(codes),
      device.multiprocessors > 0 ? aligned(plan, weights.scales, kTogether)
                                 : plan.contiguous(weights.scales),
      plan.contiguous(weights.biases), weights.global_scale,
      packed_layout(codes.size(-2), codes.size(-1) / weights.bits * 8, weights.bits,
                    weights.group_size, static_cast<QuantizedMode>(weights.mode))};
  auto& layout = result.layout;
  const auto together = std::min(kWidest, 4 * weights.bits & -(4 * weights.bits));
  // Kernels count the bytes of eight rows in 32 bits.
  layout.is_aligned = layout.line_bytes % together == 0 &&
                      result.codes.begins_at_multiple_of(together) &&
                      layout.line_bytes < std::numeric_limits<int32_t>::max() / 4;
  layout.has_global = static_cast<bool>(weights.global_scale);
  return result;
}

// ---- products -----------------------------------------------------------------------------------

// Returns true if a CPU has kernels of its own: for integers of 4 bits, of which 64 share a scale.
bool has_kernels_of_cpus(const QuantizedProduct& p, const Device& device) {
  constexpr uint32_t kTogether = 64;
  return device.a_thread_for_each_element && !p.right_transposed &&
         p.right.format == CodeFormat::kInteger && p.right.bits == 4 &&
         p.right.group_shift >= std::countr_zero(kTogether);
}

// Returns true if weights are decoded in registers while warpgroups multiply them.
bool are_coded_lines(const QuantizedProduct& p, int64_t pairs, Type type, const Device& device) {
  constexpr int32_t kDepth = 64;  // elements of K that are decoded together
  const auto& layout = p.right;
  const auto bits = layout.bits;
  const bool has_kernel = layout.format == CodeFormat::kInteger
                              ? bits == 2 || bits == 4 || bits == 8
                              : layout.format != CodeFormat::kSigned8;
  return device.has_warpgroups && has_kernel && type != Type::kFloat && pairs == 1 &&
         !p.has_left_index && !p.has_right_index && !p.right_transposed &&
         p.rows > most_rows_of_matrices(device) && layout.is_aligned && p.inner % kDepth == 0;
}

// Returns the tile of such weights: rows of x by lines of weights. Of few rows, parts of K have
// warpgroups of their own, so that enough warps decode.
ProductTile tile_of_coded_lines(const char* format, int64_t rows) {
  struct Size {
    const char* name;
    int64_t most, rows, lines, threads;
  };
  constexpr std::array<Size, 5> kSizes{{{"32_", 32, 32, 64, 512},
                                        {"64_", 64, 64, 64, 384},
                                        {"128_", 128, 128, 64, 256},
                                        {"256_", 256, 128, 128, 256},
                                        {"large_", 0, 256, 128, 256}}};
  const auto* size = kSizes.data();
  while (rows > size->most && size->most > 0) {
    ++size;
  }
  return {Name("quantized_matmul_lines_") + size->name + format, size->rows, size->lines,
          size->threads, true};
}

// Returns the tile of a product, and sets the product's splits.
ProductTile tile_of(QuantizedProduct& p, int64_t pairs, Type type, const Device& device) {
  const auto* const format = name_of_format(p.right);
  if (has_kernels_of_cpus(p, device)) {
    if (p.rows == 1 && p.inner % 64 == 0) {
      return {"quantized_matmul_gemv_lines", 1, 128, 32};
    }
    if (p.rows > 1 && device.has_tensors) {
      return p.rows <= 32 ? ProductTile{"quantized_matmul_tiles_deep_small", 16, 32, 32, true}
                          : ProductTile{"quantized_matmul_tiles_deep_large", 64, 32, 32, true};
    }
  }
  if (!p.right_transposed && p.rows <= most_rows_of_matrices(device) && p.rows > 1 &&
      type != Type::kFloat && p.right.is_aligned && p.inner % 32 == 0) {
    return tile_of_matrices("quantized_matmul_skinny_", format, p.rows);
  }
  if (are_coded_lines(p, pairs, type, device)) {
    return tile_of_coded_lines(format, p.rows);
  }
  if (p.rows > kMostSkinnyRows) {
    return p.rows <= 32 ? ProductTile{"quantized_matmul_tiles_small", 16, 64, 128, true}
                        : ProductTile{"quantized_matmul_tiles_large", 64, 64, 128, true};
  }
  if (p.right_transposed) {
    return {"quantized_matmul_gemv_transposed", 1, 256, 256};
  }
  const bool are_more = p.rows > 1 && type == Type::kFloat;
  ProductTile tile{
      Name(are_more ? "quantized_matmul_skinny_" : "quantized_matmul_skinny_1_") + format,
      are_more ? 4 : 1, are_more ? 4 : 8};
  p.splits = splits_of(tile.groups(pairs, p.rows, p.columns), p.inner);
  tile.columns *= 4 / p.splits;
  return tile;
}

// Returns true if one row is multiplied by the GEMV of NVIDIA GPUs.
bool is_gemv(const QuantizedProduct& p, int64_t pairs, const Device& device) {
  const auto& layout = p.right;
  const bool has_kernel = layout.format == CodeFormat::kInteger
                              ? layout.bits == 4
                              : layout.format != CodeFormat::kSigned8;
  return has_kernel && pairs == 1 && p.rows == 1 && !p.has_left_index && !p.has_right_index &&
         !p.right_transposed && layout.is_aligned && p.inner % 32 == 0 &&
         suits_gemv(p.columns, p.inner, device);
}

QuantizedProduct product_of(const QuantizedMatmul& call, const PackedLayout& layout) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max() - 64;  // rounded up to a tile
  const auto size = [](int64_t x) {
    return checked_int32(x, kLargest, "quantized_matmul: a size");
  };
  return {.right = layout,
          .left_matrix = call.x.size(1) * call.x.size(2),
          .left_matrices = call.x.size(0),
          .right_matrices = call.weights.codes.size(0),
          .rows = size(call.x.size(1)),
          .columns = size(call.result.size(2)),
          .inner = size(call.x.size(2)),
          .splits = 1,
          .right_transposed = !call.transpose,
          .has_bias = static_cast<bool>(call.bias),
          .has_left_index = static_cast<bool>(call.left_index),
          .has_right_index = static_cast<bool>(call.right_index)};
}

}  // namespace

PackedLayout packed_layout(int64_t lines, int64_t inner, int64_t bits, int64_t group_size,
                           QuantizedMode mode) {
  const auto format = format_of(mode);
  if (format.code == CodeFormat::kSigned8) {
    group_size = int64_t{1} << 30;  // the whole row
  }
  const auto line_scales = ceil_div(inner, group_size);
  return {.line_bytes = inner / 8 * bits,
          .line_scales = line_scales,
          .matrix_bytes = inner / 8 * bits * lines,
          .matrix_scales = line_scales * lines,
          .lines = static_cast<int32_t>(lines),
          .inner = static_cast<int32_t>(inner),
          .bits = static_cast<int32_t>(bits),
          .group_shift = std::countr_zero(static_cast<uint64_t>(group_size)),
          .format = format.code,
          .scale = format.scale,
          .has_global = false,
          .is_aligned = false};
}

Type scale_type(const PackedLayout& layout, Type element) {
  return layout.scale == ScaleFormat::kElement ? element
         : layout.scale == ScaleFormat::kFloat ? Type::kFloat
                                               : Type::kByte;
}

void quantized_quantize(Plan& plan, const QuantizedQuantize& call, const Device&) {
  const auto& results = call.results;
  auto layout = packed_layout(call.weight.size(0), call.weight.size(1), results.bits,
                              results.group_size, static_cast<QuantizedMode>(results.mode));
  layout.has_global = static_cast<bool>(results.global_scale);
  // Lanes process a group, eight codes each.
  const auto lanes = std::min<int64_t>((int64_t{1} << layout.group_shift) / 8, 32);
  plan.launch("quantized", Name("quantized_quantize_") + call.weight.type,
              grid_of_threads(layout.matrix_scales * lanes), results.codes, results.scales,
              results.biases, plan.contiguous(call.weight), results.global_scale, layout);
}

void quantized_dequantize(Plan& plan, const QuantizedDequantize& call, const Device& device) {
  const auto weights = readable(plan, call.weights, device);
  const auto rows = call.result.size(0);
  if (rows > kMostOfDimension) {
    throw TooLarge("dequantize: " + std::to_string(rows) + " rows are too many for MPS");
  }
  plan.launch("quantized", Name("quantized_dequantize_") + call.result.type,
              grid_of_elements(weights.layout.inner / 8, rows, 1), call.result, weights.codes,
              weights.scales, weights.biases, weights.global_scale, plan.contiguous(call.indices),
              weights.layout, static_cast<bool>(call.indices), kErrors);
}

void quantized_matmul(Plan& plan, const QuantizedMatmul& call, const Device& device) {
  const auto weights = readable(plan, call.weights, device);
  const auto x = ready_for_vectors(plan, call.x, device);
  const auto bias = plan.contiguous(call.bias);
  const auto pairs = call.result.size(0);
  auto p = product_of(call, weights.layout);
  const auto type = call.x.type;
  if (is_gemv(p, pairs, device)) {
    const auto gemv = gemv_of(p.columns, p.inner);
    plan.launch("quantized_matmul",
                Name("quantized_matmul_gemv_") + name_of_format(p.right) + "_" + type, gemv.grid,
                call.result, x, weights.codes, weights.scales, weights.biases, bias,
                weights.global_scale, p, gemv.lines);
    return;
  }
  const auto tile = tile_of(p, pairs, type, device);
  const auto groups = tile.groups(pairs, p.rows, p.columns);
  if (groups > kMostOfDimension) {
    throw TooLarge("quantized_matmul: a result of sizes [" + std::to_string(pairs) + ", " +
                   std::to_string(p.rows) + ", " + std::to_string(p.columns) +
                   "] is too large for MPS");
  }
  plan.launch({"quantized_matmul", /*has_products=*/tile.is_of_tile_gemm}, tile.kernel + "_" + type,
              grid_of_threadgroups(groups, tile.threads), call.result, x, weights.codes,
              weights.scales, weights.biases, bias, weights.global_scale,
              plan.contiguous(call.left_index), plan.contiguous(call.right_index), p, kErrors);
}

}  // namespace metalops::plans
