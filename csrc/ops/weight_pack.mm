// Products with weights of 8 and 4 bits under ATen's names: _weight_int8pack_mm for all sizes, and
// _weight_int4pack_mm in the layout of stock MPS, whose bytes are rows of weights, the first of two
// in the lower half. All are made of metalops::quantized_matmul.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <optional>
#include <string_view>

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

// x: (M, K); packed: (N, bytes); scales, biases: (N, groups).
Tensor product_with_packed(const Tensor& x, const Tensor& packed, const Tensor& scales,
                           const MaybeTensor& biases, int64_t bits, int64_t group_size,
                           std::string_view mode) {
  using Function = Tensor(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&,
                          const MaybeTensor&, const MaybeTensor&, const MaybeTensor&,
                          const MaybeTensor&, bool, int64_t, int64_t, std::string_view);
  static const auto multiply = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("metalops::quantized_matmul", "")
                                   .typed<Function>();
  const auto of_one = [](const Tensor& tensor) { return tensor.unsqueeze(0); };
  return multiply
      .call(of_one(x), of_one(packed), of_one(scales),
            biases ? MaybeTensor(of_one(*biases)) : std::nullopt, std::nullopt, std::nullopt,
            std::nullopt, std::nullopt, /*transpose=*/true, bits, group_size, mode)
      .squeeze(0);
}

// ---- 8 bits -------------------------------------------------------------------------------------

// With zeros up to a multiple of eight elements of a row.
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

// weights: (N, K / 2), of two the first in the upper half of a byte. Their halves change places.
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

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.replace("_weight_int8pack_mm", weight_int8pack_mm, "needs sizes that are multiples of 32");
  constexpr const char* kSlow = "reads all weights again for every row";
  m.replace("_convert_weight_to_int4pack", convert_weight_to_int4pack, kSlow);
  m.replace("_weight_int4pack_mm", weight_int4pack_mm, kSlow);
}

}  // namespace
