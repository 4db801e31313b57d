// ATen's GEMMs with 8-bit and 4-bit weights: _weight_int8pack_mm for all sizes; _weight_int4pack_mm
// in the layout of stock MPS, rows of bytes with the first of two weights in the low nibble;
// _dyn_quant_matmul_4bit in the layout of torch's CPU operator without a library; and
// _mixed_dtypes_linear in that of its CUDA operator. All are composed of metalops::quantized_matmul
// or _int_mm.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <optional>
#include <string_view>
#include <vector>

namespace {

using at::Tensor;
using metalops::MaybeTensor;

// Returns x W^T. x: (M, K); packed: (N, bytes); scales, biases: (N, groups).
Tensor product_with_packed(const Tensor& x, const Tensor& packed, const Tensor& scales,
                           const MaybeTensor& biases, int64_t bits, int64_t group_size,
                           std::string_view mode, const MaybeTensor& bias = std::nullopt) {
  using Function = Tensor(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&,
                          const MaybeTensor&, const MaybeTensor&, const MaybeTensor&,
                          const MaybeTensor&, bool, int64_t, int64_t, std::string_view);
  static const auto multiply = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("metalops::quantized_matmul", "")
                                   .typed<Function>();
  const auto of_one = [](const Tensor& tensor) { return tensor.unsqueeze(0); };
  return multiply
      .call(of_one(x), of_one(packed), of_one(scales),
            biases ? MaybeTensor(of_one(*biases)) : std::nullopt, bias, std::nullopt, std::nullopt,
            std::nullopt, /*transpose=*/true, bits, group_size, mode)
      .squeeze(0);
}

// ---- 8 bits -------------------------------------------------------------------------------------

// Returns the matrix, its rows padded with zeros to a multiple of eight elements.
Tensor filled_up(const Tensor& matrix) {
  const auto missing = (8 - matrix.size(1) % 8) % 8;
  return missing == 0 ? matrix : at::constant_pad_nd(matrix, {0, missing}, 0);
}

Tensor weight_int8pack_mm(const Tensor& self, const Tensor& mat2, const Tensor& scales) {
  constexpr const char* kName = "_weight_int8pack_mm";
  metalops::check_same_device(kName, {{self, "self"}, {mat2, "mat2"}, {scales, "scales"}});
  TORCH_CHECK(metalops::is_metal_float(self.scalar_type()), kName, "_mps",
              " : expect A to be either 32-bit or 16-bit float tensor.");
  TORCH_CHECK(self.dim() == 2, kName, "_mps", " : expect A to be 2D tensor.");
  TORCH_CHECK(mat2.scalar_type() == at::kChar, kName, "_mps", " : expect B to be int8 tensor.");
  TORCH_CHECK(mat2.dim() == 2 && mat2.size(1) == self.size(1), kName, "_mps",
              " : expect B.size(1) == ", self.size(1), ", but B has sizes ", mat2.sizes());
  TORCH_CHECK(scales.dim() == 1 && scales.size(0) == mat2.size(0), kName, "_mps",
              " : expect scales to be 1d tensor with size ", mat2.size(0));
  TORCH_CHECK(scales.scalar_type() == self.scalar_type(), kName, "_mps",
              " : expect scales to have the dtype of A, ", self.scalar_type(), ", but it has ",
              scales.scalar_type());
  if (self.size(1) == 0) {
    return at::zeros({self.size(0), mat2.size(0)}, self.options());
  }
  return product_with_packed(filled_up(self), filled_up(mat2).contiguous().view(at::kByte),
                             scales.unsqueeze(1), std::nullopt, 8, 64, "int8");
}

// ---- 4 bits -------------------------------------------------------------------------------------

// Swaps the nibbles of weights, (N, K / 2), the first of two being in the high nibble.
Tensor convert_weight_to_int4pack(const Tensor& weights, int64_t inner_k_tiles) {
  constexpr const char* kName = "_convert_weight_to_int4pack_mps";
  TORCH_CHECK(weights.dim() == 2, kName, " : expect weight to be 2D tensor.");
  TORCH_CHECK(weights.scalar_type() == at::kByte, kName, " : expect weight to be uint8.");
  TORCH_CHECK(inner_k_tiles == 2 || inner_k_tiles == 4 || inner_k_tiles == 8, kName,
              " : innerKTiles must be 2, 4 or 8, but is ", inner_k_tiles);
  const auto lines = weights.size(0);
  const auto inner = weights.size(1) * 2;
  TORCH_CHECK(lines % 8 == 0, kName, " : expect N to be a multiple of 8, but it is ", lines);
  TORCH_CHECK(inner % (16 * inner_k_tiles) == 0, kName, " : expect K to be a multiple of ",
              16 * inner_k_tiles, ", but it is ", inner);
  const auto swapped =
      weights.bitwise_left_shift(4).bitwise_or(weights.bitwise_right_shift(4)).contiguous();
  return swapped.view(at::kInt).view(
      {lines / 8, inner / (16 * inner_k_tiles), 32, inner_k_tiles / 2});
}

// W = (q - 8) scale + zero.
Tensor weight_int4pack_mm(const Tensor& self, const Tensor& mat2, int64_t group_size,
                          const Tensor& scales_and_zeros) {
  constexpr const char* kName = "_weight_int4pack_mm_mps";
  metalops::check_same_device(
      "_weight_int4pack_mm",
      {{self, "self"}, {mat2, "mat2"}, {scales_and_zeros, "qScaleAndZeros"}});
  TORCH_CHECK(metalops::is_metal_float(self.scalar_type()), kName,
              " : expect A to be either 32-bit or 16-bit float tensor.");
  TORCH_CHECK(self.dim() == 2, kName, " : expect A to be 2D tensor.");
  TORCH_CHECK(mat2.scalar_type() == at::kInt, kName, " : expect B to be int32 tensor.");
  TORCH_CHECK(mat2.dim() == 4, kName, " : expect B to 4d tensor.");
  TORCH_CHECK(group_size == 32 || group_size == 64 || group_size == 128 || group_size == 256, kName,
              ": expect qGroupSize to be 32, 64, 128 or 256, got ", group_size);
  const auto lines = mat2.size(0) * 8;
  const auto inner = self.size(1);
  TORCH_CHECK(mat2.size(1) * mat2.size(2) * mat2.size(3) == inner, kName,
              " : expect B to have rows of ", inner, " weights, but it has sizes ", mat2.sizes());
  TORCH_CHECK(scales_and_zeros.dim() == 3 && scales_and_zeros.size(1) == lines &&
                  scales_and_zeros.size(2) == 2,
              kName, ": expect qScaleAndZeros to be 3d tensor with sizes [:, ", lines, ", 2]");
  TORCH_CHECK(scales_and_zeros.size(0) * group_size == inner, kName,
              ": expect qScaleAndZeros to have ", inner, " / ", group_size,
              " groups, but it has sizes ", scales_and_zeros.sizes());
  TORCH_CHECK(scales_and_zeros.scalar_type() == self.scalar_type(), kName,
              ": expect qScaleAndZeros to have the dtype of A, ", self.scalar_type(),
              ", but it has ", scales_and_zeros.scalar_type());
  const auto scales = scales_and_zeros.select(2, 0).t();
  const auto zeros = scales_and_zeros.select(2, 1).t();
  const auto biases = zeros.sub(scales, 8).contiguous();
  return product_with_packed(self, mat2.contiguous().view(at::kByte).view({lines, inner / 2}),
                             scales.contiguous(), biases, 4, group_size, "affine");
}

// ---- 4 bits, and activations of 8 ---------------------------------------------------------------

// The operators' names in messages, which are those of torch's CPU operators.
constexpr const char* kDynamicPack = "_dyn_quant_pack_4bit_weight_cpu";
constexpr const char* kDynamicProduct = "_dyn_quant_matmul_4bit_cpu";

void check_blocks(const char* name, int64_t block_size, int64_t inner) {
  TORCH_CHECK(
      block_size > 0 && (block_size == inner || (block_size % 32 == 0 && inner % block_size == 0)),
      name, ": Group size should be multiple of 32, in_features [", inner, "]. Provided ",
      block_size);
}

Tensor dyn_quant_pack_4bit_weight(const Tensor& weights, const Tensor& scales_zeros,
                                  const MaybeTensor& bias, int64_t block_size, int64_t in_features,
                                  int64_t /*out_features*/) {
  metalops::check_same_device(
      kDynamicPack,
      {{weights, "weights"}, {scales_zeros, "scales_zeros"}, {bias.value_or(weights), "bias"}});
  TORCH_CHECK(weights.scalar_type() == at::kByte, kDynamicPack, " : expect weight to be kByte.");
  check_blocks(kDynamicPack, block_size, in_features);
  std::vector<Tensor> parts{weights, scales_zeros};
  if (bias) {
    parts.push_back(*bias);
  }
  for (auto& part : parts) {
    part = part.reshape({-1}).to(at::kFloat);
  }
  return at::cat(parts);
}

// Rows quantised to int8: x is about (codes - zero) * step.
struct DynamicRows {
  Tensor codes;  // float32, as are the others, which are (rows, 1)
  Tensor zero;
  Tensor step;
};

DynamicRows dynamic_rows(const Tensor& x) {
  const auto low = x.amin(1, /*keepdim=*/true).clamp_max(0);
  const auto high = x.amax(1, /*keepdim=*/true).clamp_min(0);
  const auto range = high - low;
  const auto per_unit = at::where(range == 0, at::Scalar(1.0f), range.reciprocal() * 255);
  const auto from_low = -128 - low * per_unit;
  const auto from_high = 127 - high * per_unit;
  const auto zero =
      at::where(from_low + from_high < 0, from_low, from_high).clamp(-128, 127).round();
  // Rounds to nearest, ties away from zero.
  const auto wide = x * per_unit;
  const auto whole = wide.trunc();
  const auto rounded = whole + ((wide - whole) * 2).trunc();
  return {(rounded + zero).clamp(-128, 127), zero, per_unit.reciprocal()};
}

// Unpacks nibbles, the low one first: (..., n) to (..., 2 n).
Tensor halves_of_bytes(const Tensor& bytes) {
  return at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, -1).flatten(-2);
}

Tensor dyn_quant_matmul_4bit(const Tensor& inp, const Tensor& packed_weights, int64_t block_size,
                             int64_t in_features, int64_t out_features) {
  metalops::check_same_device(kDynamicProduct, {{inp, "inp"}, {packed_weights, "packed_weights"}});
  const auto type = inp.scalar_type();
  TORCH_CHECK(type == at::kFloat || (type == at::kBFloat16 && block_size == in_features),
              kDynamicProduct, " : expect input to be float32 or bfloat16 tensor.");
  check_blocks(kDynamicProduct, block_size, in_features);
  TORCH_CHECK(inp.dim() == 2 && inp.size(1) == in_features && in_features % 2 == 0, kDynamicProduct,
              " : expect input to be a 2D tensor of an even number of columns, ", in_features,
              ", but it has sizes ", inp.sizes());
  TORCH_CHECK(packed_weights.dim() == 1 && packed_weights.scalar_type() == at::kFloat,
              kDynamicProduct, " : expect packed weights to be a 1D float32 tensor.");
  const auto bytes = out_features * in_features / 2;
  const auto blocks = in_features / block_size;
  const auto rest = packed_weights.size(0) - bytes - out_features * blocks;
  TORCH_CHECK(rest >= 0, "Invalid packed weight tensor size");
  TORCH_CHECK(rest == 0 || rest == out_features, "Expected bias length to match output dimension");
  const auto codes =
      packed_weights.narrow(0, 0, bytes).to(at::kByte).view({out_features, in_features / 2});
  const auto scales =
      packed_weights.narrow(0, bytes, out_features * blocks).view({out_features, blocks});
  const auto rows = dynamic_rows(inp.to(at::kFloat));
  Tensor sums;
  if (blocks == 1) {
    const auto weights = halves_of_bytes(codes).to(at::kChar).sub_(8);
    const auto products = at::_int_mm(rows.codes.to(at::kChar), weights.t());
    const auto of_zero = rows.zero.to(at::kInt) * weights.sum(1, /*keepdim=*/false, at::kInt);
    sums = (products - of_zero).to(at::kFloat) * scales.t();
  } else {
    const auto of_32 = scales.unsqueeze(2)
                           .expand({out_features, blocks, block_size / 32})
                           .reshape({out_features, in_features / 32});
    sums = product_with_packed(rows.codes - rows.zero, codes, of_32, of_32 * -8, 4, 32, "affine");
  }
  sums = sums * rows.step;
  if (rest > 0) {
    sums = sums + packed_weights.narrow(0, packed_weights.size(0) - rest, rest);
  }
  return sums.to(type);
}

// ---- a linear layer of halves and integers ------------------------------------------------------

constexpr const char* kMixed = "_mixed_dtypes_linear";

// Returns the int8 weights, (N, K), of a weight (K, N), or of 4 bits (K, N / 2), that
// torch.quantization._quantized_conversions has reordered for CUTLASS: columns are interleaved by
// two (4 bits: by four) in runs of 64 elements; groups of 16 (32) are in the order of the tensor
// cores, and words in that of the conversion; and a bias is added.
Tensor unordered(const Tensor& weight, bool is_4_bit) {
  const auto stored = is_4_bit ? halves_of_bytes(weight) : weight;
  const auto inner = weight.size(0);
  const auto lines = stored.size(1);
  const auto runs = inner / 64;
  const auto places = is_4_bit ? stored.contiguous().view({lines / 4, runs, 4, 2, 4, 2, 4})
                               : stored.contiguous().view({lines / 2, runs, 2, 4, 4, 2, 2});
  const auto biased = places.permute({0, 2, 1, 3, 6, 4, 5}).reshape({lines, inner});
  return is_4_bit ? biased.to(at::kChar).sub_(8) : biased.bitwise_xor(128).view(at::kChar);
}

Tensor mixed_dtypes_linear(const Tensor& input, const Tensor& weight, const Tensor& scale,
                           const MaybeTensor& bias_or_none,
                           std::optional<std::string_view> activation_or_none) {
  const auto bias = bias_or_none && bias_or_none->numel() > 0 ? bias_or_none : std::nullopt;
  const auto activation = activation_or_none.value_or("none");
  const auto type = input.scalar_type();
  metalops::check_same_device(
      kMixed,
      {{input, "input"}, {weight, "weight"}, {scale, "scale"}, {bias.value_or(input), "bias"}});
  TORCH_CHECK(type == at::kHalf || type == at::kBFloat16, kMixed, ": The input datatype ",
              input.dtype(), " is not supported");
  TORCH_CHECK(weight.scalar_type() == at::kByte, kMixed, ": The weight datatype ", weight.dtype(),
              " is not supported");
  TORCH_CHECK(scale.scalar_type() == type, kMixed, ": Expected scale datatype ", input.dtype(),
              " but got", scale.dtype());
  TORCH_CHECK(!bias || bias->scalar_type() == type, kMixed, ": Expected bias datatype ",
              input.dtype(), " but got", bias ? bias->dtype() : input.dtype());
  TORCH_CHECK(input.dim() > 0, kMixed, ": Expected input argument to have at least one dimension");
  TORCH_CHECK(weight.dim() == 2, kMixed, ": Expected weight argument to be 2D tensor, got ",
              weight.dim(), " dims");
  TORCH_CHECK(scale.dim() == 1, kMixed, ": Expected scale argument to be 1D tensor, got ",
              scale.dim(), " dims");
  TORCH_CHECK(!bias || bias->dim() == 1, kMixed, ": Expected bias argument to be 1D tensor, got ",
              bias ? bias->dim() : 1, " dims");
  const auto inner = weight.size(0);
  const auto lines = scale.size(0);
  TORCH_CHECK(input.size(-1) == inner, kMixed, ": Expected input argument to have ", inner,
              " columns, but got ", input.size(-1));
  const bool is_4_bit = weight.size(1) != lines;
  TORCH_CHECK(!is_4_bit || 2 * weight.size(1) == lines, kMixed,
              ": Expected weight argument to have either ", lines, " or ",
              static_cast<float>(lines) / 2, " columns, but got ", weight.size(1));
  TORCH_CHECK(!bias || bias->size(0) == lines, kMixed, ": Expected bias argument to have ", lines,
              " elements, but got ", bias ? bias->size(0) : lines);
  TORCH_CHECK(
      inner % 64 == 0 && lines % 64 == 0,
      "mixed_dtypes_linear_dispatch_dtype: Number of rows/columns of the weight matrix must "
      "be divisible by 64");
  TORCH_CHECK(activation == "none" || activation == "relu" || activation == "silu",
              "mixed_dtypes_linear_dispatch_bias_activation: Activation \"", activation,
              "\" is not supported");
  const auto result =
      product_with_packed(input.reshape({-1, inner}), unordered(weight, is_4_bit).view(at::kByte),
                          scale.unsqueeze(1), std::nullopt, 8, 64, "int8", bias);
  auto sizes = input.sizes().vec();
  sizes.back() = lines;
  const auto shaped = result.view(sizes);
  return activation == "relu" ? at::relu(shaped) : activation == "silu" ? at::silu(shaped) : shaped;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.replace("_weight_int8pack_mm", weight_int8pack_mm, "needs sizes that are multiples of 32");
  constexpr const char* kSlow = "reads all weights again for every row";
  m.replace("_convert_weight_to_int4pack", convert_weight_to_int4pack, kSlow);
  m.replace("_weight_int4pack_mm", weight_int4pack_mm, kSlow);
  m.impl("_dyn_quant_pack_4bit_weight", dyn_quant_pack_4bit_weight);
  m.impl("_dyn_quant_matmul_4bit", dyn_quant_matmul_4bit);
  m.impl("_mixed_dtypes_linear", mixed_dtypes_linear);
}

}  // namespace
