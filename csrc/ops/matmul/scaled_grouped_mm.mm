// Host side of kernels/matmul/scaled_grouped_mm.metal: _scaled_grouped_mm and
// _scaled_grouped_mm_v2, which torch has for CUDA only. The checks are those of torch's CUDA
// operators, except that all layouts are accepted, as are sizes that its tensor cores do not
// support.
#include <ATen/BlasBackend.h>
#include <ATen/ops/_scaled_grouped_mm_v2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/matmul/operand.h>
#include <kernels/matmul/scaled_grouped_mm.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/matmul_library.h>
#include <metalops/stock.h>
#include <metalops/torch_internals.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

#include <csrc/ops/common/outputs.h>
#include <csrc/ops/matmul/grouped.h>
#include <csrc/ops/matmul/scaled.h>

namespace {

using at::ScalarType;
using at::Tensor;
using at::blas::ScalingType;
using at::blas::SwizzleType;
using metalops::Grouped;
using metalops::KernelName;
using metalops::MaybeTensor;
using metalops::ScalePlaces;
using metalops::scaled::blocks_of;
using metalops::scaled::format_of;
using metalops::scaled::is_fp4;
using metalops::scaled::is_fp8;
using metalops::scaled::Kind;
using metalops::scaled::name_of;
using metalops::scaled::result_of;

constexpr const char* kName = "_scaled_grouped_mm";

// ---- arguments ----------------------------------------------------------------------------------

// self: (rows, K) or (groups, rows, K); mat2: (K, columns) or (groups, K, columns).
struct Call {
  Tensor self;
  Tensor mat2;
  MaybeTensor offs;
  Grouped grouped;
  int64_t inner;  // in elements, of which a byte may hold two
  int64_t groups;
};

Call checked(const Tensor& self, const Tensor& mat2, const MaybeTensor& offs,
             const MaybeTensor& bias) {
  metalops::check_same_device(kName,
                              {{self, "self"}, {mat2, "mat2"}, {offs.value_or(self), "offs"}});
  TORCH_CHECK_VALUE(self.dim() == 2 || self.dim() == 3, "mat_a has to be 2 or 3d");
  TORCH_CHECK_VALUE(mat2.dim() == 2 || mat2.dim() == 3, "mat_b has to be 2 or 3d");
  TORCH_CHECK_VALUE(self.size(-1) == mat2.size(-2),
                    "contraction dimension of mat_a and mat_b must match");
  TORCH_CHECK_VALUE(!bias, "Bias not supported yet");
  const auto grouped = metalops::grouped_dimension(self, mat2);
  TORCH_CHECK_VALUE(offs.has_value() == (grouped != Grouped::kNone),
                    "Have to provide offsets if there is a 2d matrix");
  if (offs) {
    TORCH_CHECK_VALUE(offs->dim() == 1, "offs has to be 1D");
    TORCH_CHECK_VALUE(offs->scalar_type() == at::kInt, "Offsets have to be int32");
  }
  return {self,
          mat2,
          offs,
          grouped,
          self.size(-1) * (is_fp4(self) ? 2 : 1),
          offs ? offs->size(0) : self.size(0)};
}

ScalarType checked_result(std::optional<ScalarType> type) {
  const auto result = type.value_or(at::kBFloat16);
  TORCH_CHECK_VALUE(result == at::kBFloat16 || result == at::kHalf || result == at::kFloat,
                    "Only bf16, fp16 and fp32 output types are supported for grouped gemm, got ",
                    result);
  return result;
}

// ---- scales -------------------------------------------------------------------------------------

// The scales of an operand. blocks: the block scales of its lines, `step` apart from matrix to
// matrix; whole: the scales of lines or groups, with strides `line_step` and `group_step`.
struct OperandScales {
  Tensor blocks;
  ScalePlaces places{};
  int64_t step = 0;
  Tensor whole;
  int32_t line_step = 0;
  int32_t group_step = 0;
};

struct Operand {
  const Tensor& matrix;
  int64_t lines;
  int argument;  // number of the argument in messages
};

// One scale for each line, and in each group if the groups divide K.
OperandScales row_wise(const Call& call, const Operand& of, const Tensor& scale) {
  const auto number = of.argument;
  if (of.matrix.dim() == 2) {
    TORCH_CHECK(scale.dim() == 1, "scale must be a 1D tensor, but got ", scale.dim(), "D, arg ",
                number);
    TORCH_CHECK(scale.is_contiguous(), "scale must be contiguous for arg ", number);
    TORCH_CHECK(scale.size(0) == of.lines * (call.grouped == Grouped::kInner ? call.groups : 1),
                "scale must have the same length as mat for arg ", number);
  } else {
    TORCH_CHECK(scale.dim() == 2, "scale must be a 2D tensor, but got ", scale.dim(), "D for arg ",
                number);
    TORCH_CHECK(scale.size(1) <= 1 || scale.stride(1) == 1,
                "scale must be contiguous in the last dimension for arg ", number);
    TORCH_CHECK(scale.size(0) == of.matrix.size(0),
                "scale must have the same batch dimension as mat for arg ", number);
    TORCH_CHECK(scale.size(1) == of.lines,
                "scale must have the same first dimension as mat for arg ", number);
  }
  // If the groups divide a dimension, the lines of a group follow those of the previous one.
  const bool is_divided = of.matrix.dim() == 2 && call.grouped != Grouped::kInner;
  return {.whole = scale.contiguous(),
          .line_step = 1,
          .group_step = is_divided ? 0 : metalops::product_size(kName, of.lines, "an operand")};
}

OperandScales of_blocks(const Call& call, const Operand& of, const Tensor& scale, int32_t block,
                        bool is_swizzled) {
  TORCH_CHECK_VALUE(
      call.grouped == Grouped::kRows || (call.grouped == Grouped::kInner && !is_fp4(of.matrix)),
      "block-scaled grouped GEMM currently only supports 2d-3d, and 2d-2d of fp8");
  const auto across = blocks_of(call.inner, block);
  const auto fours = blocks_of(across, 4);
  int64_t step = 0;
  if (of.matrix.dim() == 2) {
    TORCH_CHECK(scale.dim() == 2,
                "for block-scaled, scale must have same number of dimensions as parent tensor, but "
                "got mat.dim() = 2 and scale.dim() = ",
                scale.dim(), " for arg ", of.argument);
    TORCH_CHECK(scale.size(0) >= of.lines, "for block-scaled, arg ", of.argument, " tensor shape (",
                of.matrix.size(0), ", ", of.matrix.size(1),
                ") must have scale.shape[0] >= ", of.lines, " but got scale.shape=(", scale.size(0),
                ", ", scale.size(1), ")");
  } else {
    step = is_swizzled ? blocks_of(of.lines, 128) * 128 * fours * 4 : of.lines * across;
    TORCH_CHECK((is_swizzled ? scale.dim() == 2 : scale.dim() == 2 || scale.dim() == 3) &&
                    scale.size(0) == of.matrix.size(0) && scale.numel() == step * scale.size(0),
                "for block-scaled grouped GEMM, the tensor shape (", of.matrix.size(0), ", ",
                call.inner, ", ", of.lines, ") must have scale shape (", of.matrix.size(0), ",",
                step, ") for arg ", of.argument, ", got: ", scale.sizes());
  }
  return {.blocks = scale.contiguous().view(at::kByte),
          .places = {across, 1, 1, block, static_cast<int32_t>(fours), is_swizzled, 0,
                     scale.numel() - 1},
          .step = step};
}

OperandScales with_global(OperandScales scales, const Call& call, const Tensor& scale) {
  TORCH_CHECK_VALUE(scale.numel() == 1 || scale.numel() == call.groups,
                    "a global scale must have 1 element or ", call.groups, ", but has ",
                    scale.numel());
  scales.whole = scale.reshape({-1}).contiguous();
  scales.group_step = scale.numel() == 1 ? 0 : 1;
  return scales;
}

// ---- products -----------------------------------------------------------------------------------

Tensor bytes_of(const Tensor& matrix) {
  const auto bytes = matrix.view(at::kByte);
  return bytes.dim() == 3 ? bytes : bytes.unsqueeze(0);
}

// Returns the dequantised left operand, (matrices * rows, K).
Tensor decoded(const Call& call, Kind kind, const OperandScales& scales, const Tensor& ends) {
  const auto bytes = bytes_of(call.self);
  const auto lines = bytes.size(0) * bytes.size(1);
  const auto type = kind == Kind::kE8m0 ? at::kBFloat16 : at::kHalf;
  const auto result = at::empty({lines, call.inner}, bytes.options().dtype(type));
  metalops::product_size(kName, lines, "mat_a");
  const metalops::ScaledGroupedDecode parameters{
      .matrix_stride = bytes.stride(0),
      .line_stride = bytes.stride(1),
      .inner_stride = bytes.stride(2),
      .lines = static_cast<int32_t>(bytes.size(1)),
      .inner = metalops::product_size(kName, call.inner, "the contraction dimension"),
      .groups = metalops::product_size(kName, call.groups, "offs"),
      .grouped = call.grouped,
      .format = format_of(call.self),
      .scales = scales.places};
  metalops::launch_rows(metalops::library("scaled_grouped_mm"),
                        KernelName("scaled_grouped_mm_decode_") + name_of(kind), call.inner, lines,
                        result, bytes, scales.blocks.defined() ? scales.blocks : bytes, ends,
                        parameters);
  return result;
}

// Launches the GEMM. Neither out nor K is empty.
void multiply(const Tensor& out, const Call& call, Kind kind, const OperandScales& of_self,
              const OperandScales& of_mat2) {
  const auto ends = call.offs ? call.offs->contiguous() : out;
  const auto left = decoded(call, kind, of_self, ends);
  auto right = bytes_of(call.mat2).transpose(1, 2);
  if (right.size(2) > 1 && right.stride(2) != 1) {
    right = right.contiguous();
  }
  const auto ones = at::ones({1}, out.options().dtype(at::kFloat));
  const auto rows = metalops::product_size(kName, call.self.size(-2), "mat_a");
  const metalops::ScaledGroupedParameters parameters{
      .left_step = call.self.dim() == 3 ? rows * call.inner : 0,
      .right_step = call.mat2.dim() == 3 ? right.stride(0) : 0,
      .right_stride = right.stride(1),
      .result_step = out.dim() == 3 ? out.stride(0) : 0,
      .result_stride = out.stride(-2),
      .left_stride = call.inner,
      .scale_step = of_mat2.step,
      .groups = metalops::product_size(kName, call.groups, "offs"),
      .rows = rows,
      .columns = metalops::product_size(kName, call.mat2.size(-1), "mat_b"),
      .inner = static_cast<int32_t>(call.inner),
      .grouped = call.grouped,
      .format = format_of(call.mat2),
      .scales = of_mat2.places,
      .row_step = of_self.line_step,
      .column_step = of_mat2.line_step,
      .row_group_step = of_self.group_step,
      .column_group_step = of_mat2.group_step,
      .result = *result_of(out.scalar_type())};
  const bool is_small = rows <= 32 || (call.grouped == Grouped::kRows && rows / call.groups <= 32);
  metalops::launch_threadgroups(
      metalops::matmul_library("scaled_grouped_mm"),
      KernelName("scaled_grouped_mm_") + (is_small ? "small_" : "large_") + name_of(kind),
      metalops::tiles_of_groups(parameters, is_small ? 16 : 64, 64), /*size=*/128, out, left, right,
      of_mat2.blocks.defined() ? of_mat2.blocks : right,
      of_self.whole.defined() ? of_self.whole : ones,
      of_mat2.whole.defined() ? of_mat2.whole : ones, ends, parameters);
}

Tensor run(const Call& call, ScalarType type, Kind kind, const OperandScales& of_self,
           const OperandScales& of_mat2) {
  const auto out =
      at::native::create_grouped_gemm_output_tensor(call.self, call.mat2, call.offs, type);
  if (out.numel() == 0) {
    return out;
  }
  if (call.self.numel() == 0 || call.mat2.numel() == 0) {
    return out.zero_();
  }
  multiply(out, call, kind, of_self, of_mat2);
  return out;
}

// ---- operators ----------------------------------------------------------------------------------

Tensor scaled_grouped_mm(const Tensor& self, const Tensor& mat2, const Tensor& scale_a,
                         const Tensor& scale_b, const MaybeTensor& offs, const MaybeTensor& bias,
                         const MaybeTensor& scale_result, std::optional<ScalarType> out_dtype,
                         bool /*use_fast_accum*/) {
  const auto call = checked(self, mat2, offs, bias);
  metalops::check_same_device(kName, {{self, "self"}, {scale_a, "scale_a"}, {scale_b, "scale_b"}});
  TORCH_CHECK_VALUE(!scale_result, "Scale result not supported yet");
  const bool is_mx =
      scale_a.scalar_type() == at::kFloat8_e8m0fnu && scale_b.scalar_type() == at::kFloat8_e8m0fnu;
  TORCH_CHECK_VALUE(
      is_mx || (scale_a.scalar_type() == at::kFloat && scale_b.scalar_type() == at::kFloat),
      "For FP8 tensorwise and rowwise, both scales must both be float32 tensors. For MXFP8, scales "
      "must both be float8_e8m0fnu tensors.");
  TORCH_CHECK_VALUE(is_fp8(self), "Expected mat_a to be Float8_e4m3 matrix got ",
                    self.scalar_type());
  TORCH_CHECK_VALUE(is_fp8(mat2), "Expected mat_b to be Float8_e4m3 matrix got ",
                    mat2.scalar_type());
  const Operand left{self, self.size(-2), 0};
  const Operand right{mat2, mat2.size(-1), 1};
  const auto of_self = is_mx ? of_blocks(call, left, scale_a, 32, /*is_swizzled=*/true)
                             : row_wise(call, left, scale_a);
  const auto of_mat2 = is_mx ? of_blocks(call, right, scale_b, 32, /*is_swizzled=*/true)
                             : row_wise(call, right, scale_b);
  return run(call, checked_result(out_dtype), is_mx ? Kind::kE8m0 : Kind::kWhole, of_self, of_mat2);
}

using TensorsArgument = metalops::internals::Argument<at::_ops::_scaled_grouped_mm_v2, 2>;

Tensor scaled_grouped_mm_v2(const Tensor& self, const Tensor& mat2, TensorsArgument scales_of_a,
                            at::IntArrayRef recipe_a, at::IntArrayRef swizzle_a,
                            TensorsArgument scales_of_b, at::IntArrayRef recipe_b,
                            at::IntArrayRef swizzle_b, const MaybeTensor& offs,
                            const MaybeTensor& bias, std::optional<ScalarType> out_dtype,
                            at::IntArrayRef contraction_dim, bool /*use_fast_accum*/) {
  const auto call = checked(self, mat2, offs, bias);
  const std::vector<Tensor> scale_a(scales_of_a.begin(), scales_of_a.end());
  const std::vector<Tensor> scale_b(scales_of_b.begin(), scales_of_b.end());
  for (const auto* scales : {&scale_a, &scale_b}) {
    for (const auto& scale : *scales) {
      metalops::check_same_device(kName, {{self, "self"}, {scale, "scale"}});
    }
  }
  TORCH_CHECK_VALUE(contraction_dim.empty() || contraction_dim == at::IntArrayRef({-1, -2}),
                    "Curently contraction dims must be (-1, -2) only");
  const auto type = checked_result(out_dtype);
  const auto is_recipe = [&](std::initializer_list<ScalingType> recipe,
                             std::initializer_list<ScalarType> types) {
    const auto has = [&](at::IntArrayRef given, at::TensorList scales) {
      return std::equal(
                 given.begin(), given.end(), recipe.begin(), recipe.end(),
                 [](int64_t a, ScalingType b) { return static_cast<ScalingType>(a) == b; }) &&
             std::equal(scales.begin(), scales.end(), types.begin(), types.end(),
                        [](const Tensor& a, ScalarType b) { return a.scalar_type() == b; });
    };
    return has(recipe_a, scale_a) && has(recipe_b, scale_b);
  };
  const auto is_swizzled = [](at::IntArrayRef swizzle) {
    return !swizzle.empty() && static_cast<SwizzleType>(swizzle[0]) == SwizzleType::SWIZZLE_32_4_4;
  };
  const bool are_fp8 = is_fp8(self) && is_fp8(mat2);
  const bool are_fp4 = is_fp4(self) && is_fp4(mat2);
  const Operand left{self, self.size(-2), 0};
  const Operand right{mat2, mat2.size(-1), 1};
  using enum ScalingType;
  if (are_fp8 && is_recipe({RowWise}, {at::kFloat})) {
    return run(call, type, Kind::kWhole, row_wise(call, left, scale_a[0]),
               row_wise(call, right, scale_b[0]));
  }
  const auto blocks = [&](const Operand& of, const Tensor& scale, int32_t block,
                          at::IntArrayRef swizzle) {
    return of_blocks(call, of, scale, block, is_swizzled(swizzle));
  };
  if ((are_fp8 || are_fp4) && is_recipe({BlockWise1x32}, {at::kFloat8_e8m0fnu})) {
    return run(call, type, Kind::kE8m0, blocks(left, scale_a[0], 32, swizzle_a),
               blocks(right, scale_b[0], 32, swizzle_b));
  }
  if (are_fp4 && is_recipe({BlockWise1x16, TensorWise}, {at::kFloat8_e4m3fn, at::kFloat})) {
    return run(call, type, Kind::kE4m3,
               with_global(blocks(left, scale_a[0], 16, swizzle_a), call, scale_a[1]),
               with_global(blocks(right, scale_b[0], 16, swizzle_b), call, scale_b[1]));
  }
  TORCH_CHECK_VALUE(false, "No gemm implementation was found");
}

// torch 2.14 added the overload.
Tensor& scaled_grouped_mm_v2_out(const Tensor& self, const Tensor& mat2, TensorsArgument scale_a,
                                 at::IntArrayRef recipe_a, at::IntArrayRef swizzle_a,
                                 TensorsArgument scale_b, at::IntArrayRef recipe_b,
                                 at::IntArrayRef swizzle_b, const MaybeTensor& offs,
                                 const MaybeTensor& bias, std::optional<ScalarType> out_dtype,
                                 at::IntArrayRef contraction_dim, bool use_fast_accum,
                                 Tensor& out) {
  metalops::check_same_device(kName, {{self, "self"}, {out, "out"}});
  const auto type = out_dtype.value_or(at::kBFloat16);
  TORCH_CHECK(type == out.scalar_type(), "Expected out tensor to have dtype ", type, ", but got ",
              out.scalar_type(), " instead");
  metalops::write_output(
      scaled_grouped_mm_v2(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b,
                           offs, bias, type, contraction_dim, use_fast_accum),
      out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_scaled_grouped_mm", scaled_grouped_mm);
  m.impl("_scaled_grouped_mm_v2", scaled_grouped_mm_v2);
  m.impl("_scaled_grouped_mm_v2.out", scaled_grouped_mm_v2_out);
}

}  // namespace
