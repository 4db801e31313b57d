// Host side of kernels/matmul/scaled_mm.metal: _scaled_mm, which stock MPS lacks, and
// _scaled_mm_v2.
#include <ATen/BlasBackend.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_scaled_mm_v2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/matmul/operand.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/matmul_library.h>
#include <metalops/stock.h>
#include <metalops/torch_internals.h>

#include <optional>
#include <vector>

#include <csrc/ops/matmul/scaled.h>

namespace {

using at::ScalarType;
using at::Tensor;
using at::blas::ScalingType;
using at::blas::SwizzleType;
using metalops::KernelName;
using metalops::MaybeTensor;
using metalops::NarrowFormat;
using metalops::ScaledResult;
using metalops::ScalePlaces;
using metalops::scaled::blocks_of;
using metalops::scaled::format_of;
using metalops::scaled::is_fp4;
using metalops::scaled::is_fp8;
using metalops::scaled::Kind;
using metalops::scaled::name_of;
using metalops::scaled::result_of;
using Recipe = std::vector<ScalingType>;

constexpr const char* kName = "_scaled_mm";

// ---- scales -------------------------------------------------------------------------------------

// The scales of an operand. blocks: block scales; whole: one scale for all lines, or one for each.
struct OperandScales {
  Tensor blocks;
  ScalePlaces places;
  Tensor whole;
};

struct Scaling {
  Kind kind;
  OperandScales a;
  OperandScales b;
};

// An operand as a matrix of lines along K. inner: counts elements, not bytes.
struct Lines {
  Tensor bytes;
  int64_t lines;
  int64_t inner;
  NarrowFormat format;
};

Lines lines_of(const Tensor& matrix) {
  return {matrix.view(at::kByte), matrix.size(0), matrix.size(1) * (is_fp4(matrix) ? 2 : 1),
          format_of(matrix)};
}

OperandScales whole_scales(const Tensor& scale) { return {{}, {}, scale.reshape({-1})}; }

// Returns the scales of blocks of `block` elements along K, in the order of torchao's to_blocked()
// (swizzled), or line by line.
OperandScales line_scales(const Tensor& scale, int64_t lines, int64_t inner, int32_t block,
                          bool is_swizzled, const char* name) {
  const auto across = blocks_of(inner, block);
  const auto count =
      is_swizzled ? blocks_of(lines, 128) * 128 * blocks_of(across, 4) * 4 : lines * across;
  TORCH_CHECK_VALUE(scale.numel() == count, name, " must have ", count, " ", scale.dtype(),
                    " elements, got ", scale.numel());
  return {
      scale.contiguous().view(at::kByte),
      {across, 1, 1, block, static_cast<int32_t>(blocks_of(across, 4)), is_swizzled, 0, count - 1},
      {}};
}

// Returns the offset of the last element.
int64_t last_of(const Tensor& scale) {
  return (scale.size(0) - 1) * scale.stride(0) + (scale.size(1) - 1) * scale.stride(1);
}

// Returns the scales of blocks of 128 elements along K: (lines, blocks).
OperandScales scales_1x128(const Tensor& scale, int64_t lines, int64_t inner, const char* name) {
  const auto across = blocks_of(inner, 128);
  TORCH_CHECK_VALUE(scale.dim() == 2 && scale.size(0) == lines && scale.size(1) == across, name,
                    " must have shape [", lines, ", ", across, "], got ", scale.sizes());
  return {scale, {scale.stride(0), scale.stride(1), 1, 128, 0, false, 0, last_of(scale)}, {}};
}

// Returns the scales of blocks of 128 x 128: (blocks along K, rounded up to a multiple of four or
// not, blocks of lines).
OperandScales scales_128x128(const Tensor& scale, int64_t lines, int64_t inner, const char* name) {
  const auto down = blocks_of(lines, 128);
  const auto across = blocks_of(inner, 128);
  const auto padded = blocks_of(across, 4) * 4;
  TORCH_CHECK_VALUE(scale.dim() == 2 && scale.size(1) == down &&
                        (scale.size(0) == across || scale.size(0) == padded),
                    name, " must have shape [", padded, ", ", down, "], got ", scale.sizes());
  return {scale, {scale.stride(1), scale.stride(0), 128, 128, 0, false, 0, last_of(scale)}, {}};
}

// ---- recipes ------------------------------------------------------------------------------------

// An operand with its scales, as the call states them.
struct Given {
  const Tensor& matrix;
  std::vector<Tensor> scales;
  Recipe recipe;
  std::vector<SwizzleType> swizzles;
  const char* name;  // name of its scales

  bool has(std::initializer_list<ScalingType> expected,
           std::initializer_list<ScalarType> types) const {
    if (recipe != Recipe(expected) || scales.size() != recipe.size()) {
      return false;
    }
    size_t i = 0;
    for (const auto type : types) {
      if (scales[i++].scalar_type() != type) {
        return false;
      }
    }
    return true;
  }
  bool is_swizzled() const {
    return !swizzles.empty() && swizzles[0] == SwizzleType::SWIZZLE_32_4_4;
  }
};

[[noreturn]] void refuse(const Given& a, const Given& b) {
  const auto rows = a.matrix.size(0);
  const auto columns = b.matrix.size(1);
  TORCH_CHECK_VALUE(
      false,
      "Invalid scaling configuration.\n"
      "- For TensorWise scaling, a and b should be float8, scales should be float and singletons.\n"
      "- For RowWise scaling, a and b should be float8, scales should be float, scale_a should be "
      "(",
      rows, ", 1) and scale_b should be (1, ", columns, "), and both should be contiguous.\n",
      "Got mat_a.dtype()=", a.matrix.scalar_type(), ", scale_a.dtype()=", a.scales[0].scalar_type(),
      ", scale_a.size()=", a.scales[0].sizes(), ", scale_a.stride()=", a.scales[0].strides(),
      ", mat_b.dtype()=", b.matrix.scalar_type(), ", scale_b.dtype()=", b.scales[0].scalar_type(),
      ", scale_b.size()=", b.scales[0].sizes(), " and scale_b.stride()=", b.scales[0].strides());
}

// Returns how the operands are scaled. b.matrix: (K, N).
Scaling scaling_of(const Given& a, const Given& b) {
  const bool are_fp8 = is_fp8(a.matrix) && is_fp8(b.matrix);
  const bool are_fp4 = is_fp4(a.matrix) && is_fp4(b.matrix);
  const auto rows = a.matrix.size(0);
  const auto columns = b.matrix.size(1);
  const auto inner = a.matrix.size(1) * (are_fp4 ? 2 : 1);
  using enum ScalingType;
  const auto both = [&](std::initializer_list<ScalingType> recipe,
                        std::initializer_list<ScalarType> types) {
    return a.has(recipe, types) && b.has(recipe, types);
  };
  const auto of_lines = [&](const Given& given, int64_t lines, int32_t block) {
    return line_scales(given.scales[0], lines, inner, block, given.is_swizzled(), given.name);
  };
  const auto of_blocks = [&](const Given& given, int64_t lines) {
    return given.recipe[0] == BlockWise1x128
               ? scales_1x128(given.scales[0], lines, inner, given.name)
               : scales_128x128(given.scales[0], lines, inner, given.name);
  };
  const auto is_of_blocks = [](const Given& given) {
    return given.has({BlockWise1x128}, {at::kFloat}) || given.has({BlockWise128x128}, {at::kFloat});
  };
  if (are_fp8 && both({TensorWise}, {at::kFloat})) {
    for (const auto* given : {&a, &b}) {
      TORCH_CHECK_VALUE(given->scales[0].numel() == 1, given->name, " must have 1 Float element");
    }
    return {Kind::kWhole, whole_scales(a.scales[0]), whole_scales(b.scales[0])};
  }
  if (are_fp8 && both({RowWise}, {at::kFloat})) {
    TORCH_CHECK_VALUE(a.scales[0].numel() == rows, "scale_a must have ", rows,
                      " Float elements, got ", a.scales[0].numel());
    TORCH_CHECK_VALUE(b.scales[0].numel() == columns, "scale_b must have ", columns,
                      " Float elements, got ", b.scales[0].numel());
    return {Kind::kWhole, whole_scales(a.scales[0]), whole_scales(b.scales[0])};
  }
  if (are_fp8 && is_of_blocks(a) && is_of_blocks(b)) {
    return {Kind::kFloat, of_blocks(a, rows), of_blocks(b, columns)};
  }
  if ((are_fp8 || are_fp4) && both({BlockWise1x32}, {at::kFloat8_e8m0fnu})) {
    return {Kind::kE8m0, of_lines(a, rows, 32), of_lines(b, columns, 32)};
  }
  if (are_fp4 && both({BlockWise1x16}, {at::kFloat8_e4m3fn})) {
    return {Kind::kE4m3, of_lines(a, rows, 16), of_lines(b, columns, 16)};
  }
  if (are_fp4 && both({BlockWise1x16, TensorWise}, {at::kFloat8_e4m3fn, at::kFloat})) {
    Scaling result{Kind::kE4m3, of_lines(a, rows, 16), of_lines(b, columns, 16)};
    for (const auto* given : {&a, &b}) {
      TORCH_CHECK_VALUE(given->scales[1].numel() == 1, given->name,
                        " must have 1 Float element as its second scale");
    }
    result.a.whole = a.scales[1].reshape({-1});
    result.b.whole = b.scales[1].reshape({-1});
    return result;
  }
  refuse(a, b);
}

// ---- products -----------------------------------------------------------------------------------

// Returns the dequantised left operand, which a GEMM kernel reads instead of codes and scales.
Tensor decoded(const Lines& left, const Scaling& scaling) {
  const auto type = scaling.kind == Kind::kFloat  ? at::kFloat
                    : scaling.kind == Kind::kE8m0 ? at::kBFloat16
                                                  : at::kHalf;
  const auto result = at::empty({left.lines, left.inner}, left.bytes.options().dtype(type));
  const metalops::ScaledDecode parameters{.line_stride = left.bytes.stride(0),
                                          .inner_stride = left.bytes.stride(1),
                                          .format = left.format,
                                          .scales = scaling.a.places};
  metalops::launch_rows(metalops::library("scaled_mm"),
                        KernelName("scaled_mm_decode_") + name_of(scaling.kind), left.inner,
                        left.lines, result, left.bytes,
                        scaling.a.blocks.defined() ? scaling.a.blocks : left.bytes, parameters);
  return result;
}

// Launches the GEMM. result: contiguous.
void multiply(const Tensor& result, ScaledResult type, const Tensor& self, const Tensor& mat2,
              const Scaling& scaling, const MaybeTensor& bias, const MaybeTensor& scale_result) {
  const auto left = lines_of(self);
  const auto right_matrix = mat2.t();
  const auto right = lines_of(right_matrix.size(1) <= 1 || right_matrix.stride(1) == 1
                                  ? right_matrix
                                  : right_matrix.contiguous());
  const auto a = decoded(left, scaling);
  const auto options = result.options().dtype(at::kFloat);
  const auto whole = [&](const OperandScales& scales) {
    return scales.whole.defined() ? scales.whole.contiguous() : at::ones({1}, options);
  };
  const auto of_rows = whole(scaling.a);
  const auto of_columns = whole(scaling.b);
  const auto added = bias ? bias->to(at::kFloat).contiguous() : of_rows;
  const metalops::ScaledParameters parameters{
      .left_stride = left.inner,
      .right_stride = right.bytes.stride(0),
      .rows = metalops::product_size(kName, left.lines, "self"),
      .columns = metalops::product_size(kName, right.lines, "mat2"),
      .inner = metalops::product_size(kName, left.inner, "the inner dimension"),
      .format = right.format,
      .scales = scaling.b.places,
      .row_step = of_rows.numel() == 1 ? 0 : 1,
      .column_step = of_columns.numel() == 1 ? 0 : 1,
      .result = type,
      .has_bias = bias.has_value(),
      .has_result_scale = scale_result.has_value()};
  struct Way {
    metalops::Library& kernels;
    const char* name;
    int32_t rows;
    int32_t columns;
  };
  const auto way = left.lines <= 4 ? Way{metalops::library("scaled_mm"), "skinny_", 4, 8}
                   : left.lines <= 32
                       ? Way{metalops::matmul_library("scaled_mm"), "small_", 16, 64}
                       : Way{metalops::matmul_library("scaled_mm"), "large_", 64, 64};
  const auto groups = static_cast<uint64_t>(blocks_of(parameters.rows, way.rows)) *
                      static_cast<uint64_t>(blocks_of(parameters.columns, way.columns));
  metalops::launch_threadgroups(
      way.kernels, KernelName("scaled_mm_") + way.name + name_of(scaling.kind), groups,
      /*size=*/128, result, a, right.bytes,
      scaling.b.blocks.defined() ? scaling.b.blocks : right.bytes, of_rows, of_columns, added,
      scale_result.value_or(of_rows), parameters);
}

// ---- arguments ----------------------------------------------------------------------------------

MaybeTensor scale_of_result(const MaybeTensor& scale, ScalarType type) {
  if (!scale) {
    return std::nullopt;
  }
  TORCH_CHECK(scale->numel() == 1 && scale->scalar_type() == at::kFloat,
              "scale_result must be a float scalar");
  return metalops::is_narrow_float(type) ? scale : std::nullopt;
}

Tensor& run(const Given& a, const Given& b, const MaybeTensor& bias,
            const MaybeTensor& scale_result, Tensor& out) {
  const auto scaling = scaling_of(a, b);
  const auto& self = a.matrix;
  const auto& mat2 = b.matrix;
  at::native::resize_output(out, {self.size(0), mat2.size(1)});
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mat2);
  if (out.numel() == 0) {
    return out;
  }
  const auto type = result_of(out.scalar_type());
  const auto divisor = scale_of_result(scale_result, out.scalar_type());
  metalops::write_through(out, type && out.is_contiguous(), type ? out.scalar_type() : at::kFloat,
                          [&](const Tensor& result) {
                            multiply(result, type.value_or(ScaledResult::kFloat), self, mat2,
                                     scaling, bias, divisor);
                          });
  return out;
}

void check_devices(const Tensor& self, const Tensor& mat2, at::TensorList scale_a,
                   at::TensorList scale_b, const MaybeTensor& bias) {
  metalops::check_same_device(kName, {{self, "self"}, {mat2, "mat2"}});
  for (const auto& scale : scale_a) {
    metalops::check_same_device(kName, {{self, "self"}, {scale, "scale_a"}});
  }
  for (const auto& scale : scale_b) {
    metalops::check_same_device(kName, {{self, "self"}, {scale, "scale_b"}});
  }
  if (bias) {
    metalops::check_same_device(kName, {{self, "self"}, {*bias, "bias"}});
  }
}

// ---- _scaled_mm ---------------------------------------------------------------------------------

// The recipe that the shapes and dtypes of an operand's scales imply.
struct Deduced {
  ScalingType recipe;
  bool is_swizzled;
};

Deduced deduced(const Tensor& scale, int64_t lines, int64_t inner, bool is_right, bool are_fp4) {
  using enum ScalingType;
  if (scale.scalar_type() == at::kFloat8_e8m0fnu) {
    return {BlockWise1x32, true};
  }
  if (scale.scalar_type() == at::kFloat8_e4m3fn && are_fp4) {
    return {BlockWise1x16, true};
  }
  if (scale.dim() != 2) {
    return {TensorWise, false};
  }
  const auto across = blocks_of(inner, 128);
  const auto of_lines = scale.size(is_right ? 1 : 0);
  const auto of_inner = scale.size(is_right ? 0 : 1);
  if (of_inner == 1 && of_lines == lines && scale.is_contiguous()) {
    return {RowWise, false};
  }
  if (of_inner == across && of_lines == lines) {
    return {BlockWise1x128, false};
  }
  if (of_inner == across && of_lines == blocks_of(lines, 128)) {
    return {BlockWise128x128, false};
  }
  return {TensorWise, false};
}

Tensor& scaled_mm_out(const Tensor& self, const Tensor& mat2, const Tensor& scale_a,
                      const Tensor& scale_b, const MaybeTensor& bias,
                      const MaybeTensor& scale_result, std::optional<ScalarType> out_dtype,
                      bool /*use_fast_accum*/, Tensor& out) {
  check_devices(self, mat2, scale_a, scale_b, bias);
  metalops::check_same_device(kName, {{self, "self"}, {out, "out"}});
  TORCH_CHECK(self.dim() == 2, "mat1 must be a matrix");
  TORCH_CHECK(mat2.dim() == 2, "mat2 must be a matrix");
  TORCH_CHECK(self.size(1) == mat2.size(0), "mat_a and mat_b shapes cannot be multiplied (",
              self.size(0), "x", self.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
  TORCH_CHECK(!out_dtype || *out_dtype == out.scalar_type(),
              "out_dtype must match output matrix type");
  TORCH_CHECK(!bias || bias->numel() == mat2.size(1), "Bias must be size ", mat2.size(1),
              " but got ", bias->numel());
  scale_of_result(scale_result, out.scalar_type());
  const bool are_fp4 = is_fp4(self) && is_fp4(mat2);
  const auto inner = self.size(1) * (are_fp4 ? 2 : 1);
  auto of_a = deduced(scale_a, self.size(0), inner, /*is_right=*/false, are_fp4);
  auto of_b = deduced(scale_b, mat2.size(1), inner, /*is_right=*/true, are_fp4);
  Given a{self, {scale_a}, {of_a.recipe}, {}, "scale_a"};
  Given b{mat2, {scale_b}, {of_b.recipe}, {}, "scale_b"};
  if (scale_a.numel() == 1 && scale_b.numel() == 1 && scale_a.scalar_type() == at::kFloat) {
    a.recipe = b.recipe = {ScalingType::TensorWise};
  } else if (of_a.recipe == ScalingType::TensorWise || of_b.recipe == ScalingType::TensorWise) {
    refuse(a, b);
  }
  if (of_a.is_swizzled) {
    a.swizzles = {SwizzleType::SWIZZLE_32_4_4};
  }
  if (of_b.is_swizzled) {
    b.swizzles = {SwizzleType::SWIZZLE_32_4_4};
  }
  // A single row may be the only block of rows, and a first block of 128 the only one.
  const auto is_block = [](const Deduced& one) {
    return one.recipe == ScalingType::BlockWise1x128 || one.recipe == ScalingType::BlockWise128x128;
  };
  if (a.recipe[0] == ScalingType::RowWise && is_block(of_b) && blocks_of(inner, 128) == 1) {
    a.recipe = {ScalingType::BlockWise1x128};
  }
  if (b.recipe[0] == ScalingType::RowWise && is_block(of_a) && blocks_of(inner, 128) == 1) {
    b.recipe = {ScalingType::BlockWise1x128};
  }
  // Kernels take scales with lines first, but blocks of 128 x 128 with those along K first.
  if (b.recipe[0] == ScalingType::BlockWise1x128) {
    b.scales[0] = scale_b.t();
  }
  if (a.recipe[0] == ScalingType::BlockWise128x128) {
    a.scales[0] = scale_a.t();
  }
  return run(a, b, bias, scale_result, out);
}

Tensor scaled_mm(const Tensor& self, const Tensor& mat2, const Tensor& scale_a,
                 const Tensor& scale_b, const MaybeTensor& bias, const MaybeTensor& scale_result,
                 std::optional<ScalarType> out_dtype, bool use_fast_accum) {
  auto out = at::empty({0}, self.options().dtype(out_dtype.value_or(self.scalar_type())));
  return scaled_mm_out(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum,
                       out);
}

// ---- _scaled_mm_v2 ------------------------------------------------------------------------------

template <class Enum>
std::vector<Enum> enums_of(at::IntArrayRef numbers) {
  std::vector<Enum> result;
  for (const auto number : numbers) {
    result.push_back(static_cast<Enum>(number));
  }
  return result;
}

using TensorsArgument = metalops::internals::Argument<at::_ops::_scaled_mm_v2, 2>;

// Returns true if the product is along the last dimension of the first operand and the first of the
// second.
bool is_last_by_first(at::IntArrayRef dims) {
  return dims.size() == 2 && (dims[0] == 1 || dims[0] == -1) && (dims[1] == 0 || dims[1] == -2);
}

Tensor& scaled_mm_v2_out(const Tensor& self, const Tensor& mat2, TensorsArgument scales_of_a,
                         at::IntArrayRef recipe_a, at::IntArrayRef swizzle_a,
                         TensorsArgument scales_of_b, at::IntArrayRef recipe_b,
                         at::IntArrayRef swizzle_b, const MaybeTensor& bias,
                         std::optional<ScalarType> out_dtype, at::IntArrayRef contraction_dim,
                         bool /*use_fast_accum*/, Tensor& out) {
  const std::vector<Tensor> scale_a(scales_of_a.begin(), scales_of_a.end());
  const std::vector<Tensor> scale_b(scales_of_b.begin(), scales_of_b.end());
  check_devices(self, mat2, scale_a, scale_b, bias);
  metalops::check_same_device(kName, {{self, "self"}, {out, "out"}});
  TORCH_CHECK_VALUE(self.dim() == 2, "mat_a must be a matrix");
  TORCH_CHECK_VALUE(mat2.dim() == 2, "mat_b must be a matrix");
  if (contraction_dim.empty()) {
    TORCH_CHECK_VALUE(self.size(1) == mat2.size(0), "mat_a and mat_b shapes cannot be multiplied (",
                      self.size(0), "x", self.size(1), " and ", mat2.size(0), "x", mat2.size(1),
                      ")");
  } else {
    TORCH_CHECK_VALUE(contraction_dim.size() == 2, "contraction_dim must have exactly 2 elements");
    const auto a = contraction_dim[0];
    const auto b = contraction_dim[1];
    TORCH_CHECK_VALUE(is_last_by_first(contraction_dim) && self.size(1) == mat2.size(0),
                      "mat_a and mat_b shapes cannot be multiplied (", self.size(0), "x",
                      self.size(1), " and ", mat2.size(0), "x", mat2.size(1),
                      ") with contraction dims mat_a: ", a, ", mat_b: ", b);
  }
  TORCH_CHECK_VALUE(!bias || bias->numel() == mat2.size(1), "Bias must be size ", mat2.size(1),
                    " but got ", bias->numel());
  TORCH_CHECK_VALUE(!out_dtype || *out_dtype == out.scalar_type(),
                    "out_dtype must match output matrix type");
  TORCH_CHECK_VALUE(!scale_a.empty() && !scale_b.empty(),
                    "scale_a and scale_b must have at least one tensor each");
  return run(Given{self, scale_a, enums_of<ScalingType>(recipe_a), enums_of<SwizzleType>(swizzle_a),
                   "scale_a"},
             Given{mat2, scale_b, enums_of<ScalingType>(recipe_b), enums_of<SwizzleType>(swizzle_b),
                   "scale_b"},
             bias, std::nullopt, out);
}

Tensor scaled_mm_v2(const Tensor& self, const Tensor& mat2, TensorsArgument scale_a,
                    at::IntArrayRef recipe_a, at::IntArrayRef swizzle_a, TensorsArgument scale_b,
                    at::IntArrayRef recipe_b, at::IntArrayRef swizzle_b, const MaybeTensor& bias,
                    std::optional<ScalarType> out_dtype, at::IntArrayRef contraction_dim,
                    bool use_fast_accum) {
  auto out = at::empty({0}, self.options().dtype(out_dtype.value_or(self.scalar_type())));
  return scaled_mm_v2_out(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b,
                          bias, out_dtype, contraction_dim, use_fast_accum, out);
}

// ---- _scaled_addmm ------------------------------------------------------------------------------

void check_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                 at::IntArrayRef contraction_dim, const at::Scalar& beta, const at::Scalar& alpha,
                 const Tensor& out) {
  metalops::check_same_device("_scaled_addmm", {{mat1, "mat1"}, {self, "self"}, {out, "out"}});
  TORCH_CHECK(!alpha.isComplex() && !beta.isComplex(),
              "torch._scaled_addmm only supports real alpha and beta values");
  TORCH_CHECK(contraction_dim.empty() || is_last_by_first(contraction_dim),
              "torch._scaled_addmm only supports contraction_dim=(1, 0)");
  TORCH_CHECK(mat1.dim() == 2 && mat2.dim() == 2,
              "Inputs must be 2D but got self.dim()=", mat1.dim(), " and mat2.dim()=", mat2.dim());
  TORCH_CHECK(self.dim() == 2, "input must be a matrix, but got ", self.dim(), " dimensions");
  TORCH_CHECK(self.size(0) == mat1.size(0), "input dim 0 must be ", mat1.size(0), ", but got ",
              self.size(0));
  TORCH_CHECK(self.size(1) == mat2.size(1), "input dim 1 must be ", mat2.size(1), ", but got ",
              self.size(1));
  const auto type = self.scalar_type();
  TORCH_CHECK(metalops::is_metal_float(type),
              "input must have dtype BFloat16, Half, or Float, but got ", type);
  TORCH_CHECK(self.stride(1) == 1 && self.stride(0) == std::max<int64_t>(1, self.size(1)),
              "input must have canonical contiguous row-major strides");
  TORCH_CHECK(out.scalar_type() == type, "Expected out tensor to have dtype ", type, ", but got ",
              out.scalar_type(), " instead");
}

// out = beta self + alpha (mat1 @ mat2), rounded once. torch makes the functional and the in-place
// overload from this one.
Tensor& scaled_addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                         TensorsArgument scale_a, at::IntArrayRef recipe_a,
                         at::IntArrayRef swizzle_a, TensorsArgument scale_b,
                         at::IntArrayRef recipe_b, at::IntArrayRef swizzle_b,
                         at::IntArrayRef contraction_dim, const at::Scalar& beta,
                         const at::Scalar& alpha, bool use_fast_accum, Tensor& out) {
  check_addmm(self, mat1, mat2, contraction_dim, beta, alpha, out);
  auto product = scaled_mm_v2(mat1, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b,
                              swizzle_b, /*bias=*/std::nullopt, at::kFloat,
                              /*contraction_dim=*/{}, use_fast_accum);
  if (alpha.toDouble() != 1) {
    product.mul_(alpha);
  }
  if (beta.toDouble() != 0) {
    product.add_(self, beta);
  }
  metalops::resize_and_copy(product, out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_scaled_mm", scaled_mm);
  m.impl("_scaled_mm.out", scaled_mm_out);
  constexpr auto kReason =
      "has no 4-bit floats, of 8-bit ones e4m3fn alone, and no scales of blocks";
  m.replace("_scaled_mm_v2", scaled_mm_v2, kReason);
  m.replace("_scaled_mm_v2.out", scaled_mm_v2_out, kReason);
  m.impl("_scaled_addmm.out", scaled_addmm_out);
}

}  // namespace
