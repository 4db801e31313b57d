#include <csrc/plans/quantized/gguf.h>
#include <csrc/plans/quantized/quantized_arguments.h>

#include <array>
#include <vector>

namespace metalops::plans {

namespace {

constexpr int64_t kLargestGroup = int64_t{1} << 30;

PackedLayout checked_layout(const char* name, int64_t lines, int64_t inner, int64_t bits,
                            int64_t group_size, std::string_view text) {
  const auto mode = quantized_mode(name, text);
  check_value(bits >= 1 && bits <= 8, name, ": bits must be between 1 and 8, but are ", bits);
  const bool has_bytes = mode == QuantizedMode::kMxfp8 || mode == QuantizedMode::kInt8;
  const auto expected = mode == QuantizedMode::kAffine ? bits : has_bytes ? 8 : 4;
  check_value(bits == expected, name, ": mode '", text, "' has ", expected, " bits, but bits is ",
              bits);
  if (mode == QuantizedMode::kInt8) {
    group_size = kLargestGroup;
  }
  check_value(
      group_size >= 16 && group_size <= kLargestGroup && (group_size & (group_size - 1)) == 0, name,
      ": group_size must be a power of two from 16 to 2^30, but is ", group_size);
  check_value(inner % 8 == 0, name,
              ": rows of weights must have a multiple of 8 elements, but have ", inner);
  return packed_layout(lines, inner, bits, group_size, mode);
}

void check_global_scale(const char* name, const Operand& scale, std::string_view mode) {
  check_value(!scale || (scale.numel() == 1 && scale.type == Type::kFloat), name,
              ": global_scale must be one float32");
  check_value(!scale || mode == "nvfp4", name, ": only mode 'nvfp4' has a global_scale, not '",
              mode, "'");
}

// Rows of weights and the elements of each.
struct WeightSizes {
  int64_t lines, inner;
};

// element: the dtype of scales that have no format of their own. least: the number of dimensions.
WeightSizes check_weights(const char* name, const QuantizedWeightArguments& weights, Type element,
                          int32_t least = 2) {
  const auto& [packed, scales, biases, global_scale, bits, group_size, mode] = weights;
  check_value(packed.dims >= least && packed.type == Type::kByte, name,
              ": packed must be bytes of at least 2 dimensions, but is ", packed.type, " of sizes ",
              packed.sizes());
  const auto row = packed.size(-1);
  check_value(bits >= 1 && row % bits == 0, name, ": rows of ", row, " bytes do not hold codes of ",
              bits, " bits");
  const WeightSizes found{packed.dims > 1 ? packed.size(-2) : 1, row / bits * 8};
  const auto layout = checked_layout(name, found.lines, found.inner, bits, group_size, mode);
  std::vector<int64_t> sizes(packed.sizes().begin(), packed.sizes().end());
  sizes.back() = layout.line_scales;
  const auto type = scale_type(layout, element);
  const auto check_one = [&](const char* argument, const Operand& x) {
    check_value(x.has_sizes(sizes) && x.type == type, name, ": ", argument, " must be ", type,
                " of sizes ", sizes, ", but are ", x.type, " of sizes ", x.sizes());
  };
  check_one("scales", scales);
  check_value(static_cast<bool>(biases) == has_biases(layout), name, ": mode '",
              std::string_view(mode), "' has ", biases ? "no " : "", "biases");
  if (biases) {
    check_one("biases", biases);
  }
  check_global_scale(name, global_scale, mode);
  return found;
}

void check_bias(const char* name, const Operand& bias, int64_t columns, Type type) {
  check_value(!bias || (bias.has_sizes({columns}) && bias.type == type), name, ": bias must be ",
              type, " of ", columns, " elements");
}

// Returns the elements of a row.
int64_t check_blocks(const char* name, const Operand& data, int64_t qtype) {
  constexpr int64_t kLast = 39;
  const auto bytes =
      qtype >= 0 && qtype <= kLast ? gguf_block_bytes(static_cast<GgufType>(qtype)) : 0;
  check_value(bytes > 0, name, ": there is no type ", qtype);
  check_value(data.dims >= 1 && data.type == Type::kByte, name,
              ": data must be bytes of at least one dimension, but is ", data.type, " of sizes ",
              data.sizes());
  check_value(data.size(-1) % bytes == 0, name, ": rows must be blocks of ", bytes,
              " bytes, but data has sizes ", data.sizes());
  return data.size(-1) / bytes << gguf_layout(0, 0, static_cast<GgufType>(qtype)).block_shift;
}

}  // namespace

QuantizedMode quantized_mode(const char* name, std::string_view mode) {
  // In the order of QuantizedMode.
  constexpr std::array<std::string_view, 7> kModes{"affine", "mxfp4", "mxfp8", "nvfp4",
                                                   "nf4",    "fp4",   "int8"};
  const auto* found = std::ranges::find(kModes, mode);
  check_value(found != kModes.end(), name, ": there is no mode '", mode, "'");
  return static_cast<QuantizedMode>(found - kModes.begin());
}

void check_quantize(const QuantizeArguments& arguments) {
  constexpr const char* kName = "quantize";
  const auto& [weight, global_scale, bits, group_size, mode] = arguments;
  check_metal_float(kName, weight.type);
  check_value(weight.dims > 0, kName, ": weights must have at least one dimension");
  check_global_scale(kName, global_scale, mode);
  check_value(std::string_view(mode) != "int8", kName, ": there is no mode 'int8'");
  checked_layout(kName, 1, weight.size(-1), bits, group_size, mode);
}

void check_dequantize(const DequantizeArguments& arguments) {
  constexpr const char* kName = "dequantize";
  const auto& [weights, indices, dtype] = arguments;
  check_metal_float(kName, dtype);
  check_value(weights.packed.dims > 0 && weights.scales.dims > 0, kName,
              ": packed and scales must have at least one dimension");
  check_weights(kName, weights, dtype, /*least=*/1);
  check_value(!indices || (weights.packed.dims == 2 && indices.type == Type::kLong), kName,
              ": indices must be int64 and packed of 2 dimensions");
}

void check_quantized_matmul(const QuantizedMatmulArguments& arguments) {
  constexpr const char* kName = "quantized_matmul";
  const auto& [x, weights, bias, left, right, transpose] = arguments;
  const auto& packed = weights.packed;
  check_metal_float(kName, x.type);
  check_value(x.dims == 3 && packed.dims == 3, kName,
              ": x and packed must have 3 dimensions, but have sizes ", x.sizes(), " and ",
              packed.sizes());
  const auto sizes = check_weights(kName, weights, x.type);
  const auto inner = transpose ? sizes.inner : sizes.lines;
  check_value(x.size(2) == inner, kName, ": rows of x must have ", inner,
              " elements, but x has sizes ", x.sizes());
  check_bias(kName, bias, transpose ? sizes.lines : sizes.inner, x.type);
  const auto pairs = left ? left.numel() : right ? right.numel() : x.size(0);
  for (const auto& index : {left, right}) {
    check_value(!index || (index.type == Type::kLong && index.has_sizes({pairs})), kName,
                ": indices must be int64 and as many as each other, of one dimension");
  }
  // Without matrices, kernels have nothing to read instead for an index out of range.
  check(pairs == 0 || (x.size(0) > 0 && packed.size(0) > 0),
        "gather_quantized_matmul: no index is one of ", x.size(0), " matrices of x and ",
        packed.size(0), " of weights");
  check_value((left || x.size(0) == pairs) && (right || packed.size(0) == pairs), kName,
              ": there are ", x.size(0), " matrices of x and ", packed.size(0), " of weights for ",
              pairs, " pairs");
}

void check_quantized_scales_gradient(const QuantizedScalesGradientArguments& arguments) {
  constexpr const char* kName = "quantized_scales_gradient";
  const auto& [grad, packed, scales, bits, group_size, mode] = arguments;
  const std::string_view name = mode;
  const auto biases = name == "affine" ? scales : Operand{};
  check_metal_float(kName, grad.type);
  check_weights(kName, {packed, scales, biases, {}, bits, group_size, mode}, grad.type);
  check_value(grad.numel() == packed.numel() / bits * 8, kName, ": grad of sizes ", grad.sizes(),
              " is not of packed of sizes ", packed.sizes());
  check_value(scales.type != Type::kByte, kName, ": mode '", name, "' has no gradients");
}

void check_gguf_dequantize(const GgufDequantizeArguments& arguments) {
  constexpr const char* kName = "gguf_dequantize";
  const auto& [data, indices, qtype, dtype] = arguments;
  check_metal_float(kName, dtype);
  check_blocks(kName, data, qtype);
  check_value(!indices || (data.dims == 2 && indices.type == Type::kLong), kName,
              ": indices must be int64 and data of 2 dimensions");
}

void check_gguf_linear(const GgufLinearArguments& arguments) {
  constexpr const char* kName = "gguf_linear";
  const auto& [x, data, bias, qtype] = arguments;
  check_metal_float(kName, x.type);
  const auto inner = check_blocks(kName, data, qtype);
  check_value(x.dims == 2 && data.dims == 2 && x.size(1) == inner, kName, ": x must have rows of ",
              inner, " elements, but has sizes ", x.sizes());
  check_bias(kName, bias, data.size(0), x.type);
}

}  // namespace metalops::plans
