// Host side of kernels/quantized/quantized.metal: quantising and dequantising weights.
#include <ATen/ops/empty.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/quantized/quantized.h>
#include <metalops/autograd.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

namespace {

using at::Tensor;
using metalops::CodeFormat;
using metalops::MaybeTensor;
using metalops::PackedLayout;
using metalops::QuantizedWeights;
using metalops::ScaleFormat;
using metalops::plans::QuantizedMode;

metalops::Library& quantized_kernels() { return metalops::library("quantized"); }

QuantizedMode mode_of(const char* name, std::string_view mode) {
  // In the order of QuantizedMode.
  constexpr std::array<std::string_view, 7> kModes{"affine", "mxfp4", "mxfp8", "nvfp4",
                                                   "nf4",    "fp4",   "int8"};
  const auto* found = std::find(kModes.begin(), kModes.end(), mode);
  TORCH_CHECK_VALUE(found != kModes.end(), name, ": there is no mode '", mode, "'");
  return static_cast<QuantizedMode>(found - kModes.begin());
}

// Returns matrices as one of two dimensions.
Tensor as_one(const Tensor& matrices) {
  const auto rows = matrices.sizes().slice(0, matrices.dim() - 1);
  return matrices.reshape({c10::multiply_integers(rows), matrices.size(-1)});
}

}  // namespace

PackedLayout metalops::packed_layout(const char* name, int64_t lines, int64_t inner, int64_t bits,
                                     int64_t group_size, std::string_view mode) {
  const auto known = mode_of(name, mode);
  TORCH_CHECK_VALUE(bits >= 1 && bits <= 8, name, ": bits must be between 1 and 8, but are ", bits);
  if (known == QuantizedMode::kInt8) {
    group_size = int64_t{1} << 30;  // the whole row
  }
  TORCH_CHECK_VALUE(
      group_size >= 16 && group_size <= (int64_t{1} << 30) && (group_size & (group_size - 1)) == 0,
      name, ": group_size must be a power of two from 16 to 2^30, but is ", group_size);
  TORCH_CHECK_VALUE(inner % 8 == 0, name, ": rows of weights must have a multiple of 8 elements, ",
                    "but have ", inner);
  TORCH_CHECK(std::max(lines, inner) <= metalops::kLargestTiledSize, name, ": weights of ", lines,
              " times ", inner, " elements are too large for MPS");
  return plans::packed_layout(lines, inner, bits, group_size, known);
}

at::ScalarType metalops::scale_type(const PackedLayout& layout, at::ScalarType element) {
  return layout.scale == ScaleFormat::kElement ? element
         : layout.scale == ScaleFormat::kFloat ? at::kFloat
                                               : at::kByte;
}

QuantizedWeights metalops::quantized_weights(const char* name, const Tensor& packed,
                                             const Tensor& scales, const MaybeTensor& biases,
                                             const MaybeTensor& global_scale, int64_t bits,
                                             int64_t group_size, std::string_view mode,
                                             at::ScalarType element) {
  check_same_device(name, {{packed, "packed"},
                           {scales, "scales"},
                           {biases.value_or(scales), "biases"},
                           {global_scale.value_or(scales), "global_scale"}});
  TORCH_CHECK_VALUE(packed.dim() >= 2 && packed.scalar_type() == at::kByte, name,
                    ": packed must be bytes of at least 2 dimensions, but is ",
                    packed.scalar_type(), " of sizes ", packed.sizes());
  TORCH_CHECK_VALUE(bits >= 1 && packed.size(-1) % bits == 0, name, ": rows of ", packed.size(-1),
                    " bytes do not hold codes of ", bits, " bits");
  auto layout =
      packed_layout(name, packed.size(-2), packed.size(-1) / bits * 8, bits, group_size, mode);
  at::DimVector sizes(packed.sizes());
  sizes.back() = layout.line_scales;
  const auto check = [&](const char* argument, const Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.sizes() == at::IntArrayRef(sizes) &&
                          tensor.scalar_type() == scale_type(layout, element),
                      name, ": ", argument, " must be ", scale_type(layout, element), " of sizes ",
                      at::IntArrayRef(sizes), ", but are ", tensor.scalar_type(), " of sizes ",
                      tensor.sizes());
  };
  check("scales", scales);
  TORCH_CHECK_VALUE(biases.has_value() == (layout.format == CodeFormat::kInteger), name, ": mode '",
                    mode, "' has ", biases ? "no " : "", "biases");
  if (biases) {
    check("biases", *biases);
  }
  TORCH_CHECK_VALUE(
      !global_scale || (global_scale->numel() == 1 && global_scale->scalar_type() == at::kFloat),
      name, ": global_scale must be one float32");
  return {packed, scales, biases, global_scale, group_size, mode_of(name, mode), layout};
}

metalops::plans::QuantizedWeights metalops::views_of(PlanRun& run, const QuantizedWeights& weights,
                                                     bool is_one) {
  const auto view = [&](const Tensor& x) { return run.view(is_one ? as_one(x) : x); };
  return {.codes = view(weights.codes),
          .scales = view(weights.scales),
          .biases = weights.biases ? view(*weights.biases) : plans::View{},
          .global_scale =
              weights.global_scale ? run.view(weights.global_scale->reshape({1})) : plans::View{},
          .bits = weights.layout.bits,
          .group_size = weights.group_size,
          .mode = static_cast<int64_t>(weights.mode)};
}

namespace {

// Quantises weight, (..., K).
std::tuple<Tensor, Tensor, Tensor> quantize(const Tensor& weight, const MaybeTensor& global_scale,
                                            int64_t bits, int64_t group_size,
                                            std::string_view mode) {
  constexpr const char* kName = "quantize";
  metalops::check_metal_float(kName, weight.scalar_type());
  TORCH_CHECK_VALUE(weight.dim() > 0, kName, ": weights must have at least one dimension");
  TORCH_CHECK_VALUE(
      !global_scale || (global_scale->numel() == 1 && global_scale->scalar_type() == at::kFloat),
      kName, ": global_scale must be one float32");
  metalops::check_same_device(
      kName, {{weight, "weight"}, {global_scale.value_or(weight), "global_scale"}});
  const auto inner = weight.size(-1);
  auto layout = metalops::packed_layout(kName, inner == 0 ? 0 : weight.numel() / inner, inner, bits,
                                        group_size, mode);
  layout.has_global = global_scale.has_value();
  at::DimVector sizes(weight.sizes());
  sizes.back() = layout.line_bytes;
  const auto codes = at::empty(sizes, weight.options().dtype(at::kByte));
  sizes.back() = layout.line_scales;
  const auto type = metalops::scale_type(layout, weight.scalar_type());
  const auto scales = at::empty(sizes, weight.options().dtype(type));
  const bool has_biases = layout.format == CodeFormat::kInteger;
  const auto biases =
      has_biases ? at::empty(sizes, weight.options()) : at::empty({0}, weight.options());
  if (weight.numel() != 0) {
    const QuantizedWeights results{
        codes,        scales,     has_biases ? MaybeTensor(biases) : std::nullopt,
        global_scale, group_size, mode_of(kName, mode),
        layout};
    metalops::PlanRun run;
    metalops::plans::quantized_quantize(
        run.plan(),
        {.results = metalops::views_of(run, results, /*is_one=*/true),
         .weight = run.view(as_one(weight))},
        metalops::plan_device());
    run.run();
  }
  return {codes, scales, biases};
}

// Dequantises packed, (..., bytes); with indices, the rows of one matrix, (rows, bytes), that they
// name.
Tensor dequantize(const Tensor& packed, const Tensor& scales, const MaybeTensor& biases,
                  const MaybeTensor& global_scale, const MaybeTensor& indices, int64_t bits,
                  int64_t group_size, std::string_view mode, at::ScalarType dtype) {
  constexpr const char* kName = "dequantize";
  metalops::check_metal_float(kName, dtype);
  TORCH_CHECK_VALUE(packed.dim() > 0 && scales.dim() > 0, kName,
                    ": packed and scales must have at least one dimension");
  const auto one = [](const Tensor& x) { return x.dim() == 1 ? x.unsqueeze(0) : x; };
  const auto weights = metalops::quantized_weights(
      kName, one(packed), one(scales), biases ? MaybeTensor(one(*biases)) : std::nullopt,
      global_scale, bits, group_size, mode, dtype);
  at::DimVector sizes(packed.sizes());
  if (indices) {
    TORCH_CHECK_VALUE(packed.dim() == 2 && indices->scalar_type() == at::kLong, kName,
                      ": indices must be int64 and packed of 2 dimensions");
    metalops::check_same_device(kName, {{packed, "packed"}, {*indices, "indices"}});
    sizes = at::DimVector(indices->sizes());
    sizes.push_back(0);
  }
  sizes.back() = weights.layout.inner;
  const auto result = at::empty(sizes, packed.options().dtype(dtype));
  if (result.numel() != 0) {
    metalops::PlanRun run;
    metalops::plans::quantized_dequantize(
        run.plan(),
        {.result = run.view(as_one(result)),
         .weights = metalops::views_of(run, weights, /*is_one=*/true),
         .indices = indices ? run.view(indices->reshape({-1})) : metalops::plans::View{}},
        metalops::plan_device());
    run.run();
  }
  return result;
}

// Returns the gradients of scales and biases (empty where there are none). grad: that of the result
// of dequantize(), without the factor global_scale.
std::tuple<Tensor, Tensor> quantized_scales_gradient(const Tensor& grad, const Tensor& packed,
                                                     const Tensor& scales, int64_t bits,
                                                     int64_t group_size, std::string_view mode) {
  constexpr const char* kName = "quantized_scales_gradient";
  metalops::check_metal_float(kName, grad.scalar_type());
  const auto weights = metalops::quantized_weights(
      kName, packed, scales, mode == "affine" ? MaybeTensor(scales) : std::nullopt, std::nullopt,
      bits, group_size, mode, grad.scalar_type());
  auto layout = weights.layout;
  const auto codes = weights.codes.contiguous();
  const auto from = grad.contiguous();
  TORCH_CHECK_VALUE(from.numel() == codes.numel() / bits * 8, kName, ": grad of sizes ",
                    grad.sizes(), " is not of packed of sizes ", packed.sizes());
  TORCH_CHECK_VALUE(scales.is_floating_point(), kName, ": mode '", mode, "' has no gradients");
  const auto grad_scales = at::empty(scales.sizes(), scales.options());
  const bool has_biases = layout.format == CodeFormat::kInteger;
  const auto grad_biases =
      has_biases ? at::empty(scales.sizes(), scales.options()) : at::empty({0}, scales.options());
  // All matrices are processed as one.
  const auto matrices =
      layout.lines == 0 ? 0 : scales.numel() / std::max<int64_t>(layout.matrix_scales, 1);
  // Lanes process a group, eight codes each.
  const auto lanes = std::min<int64_t>((int64_t{1} << layout.group_shift) / 8, 32);
  const auto threads = static_cast<uint64_t>(matrices * layout.matrix_scales * lanes);
  layout.lines *= static_cast<int32_t>(matrices);
  metalops::launch_threads(quantized_kernels(),
                           metalops::typed_kernel("quantized_scales_gradient_", grad), threads,
                           grad_scales, has_biases ? grad_biases : from, from, codes, layout);
  return {grad_scales, grad_biases};
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  using c10::DispatchKey;
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def("metalops::quantize(Tensor weight, Tensor? global_scale, int bits, int group_size, "
        "str mode) -> (Tensor, Tensor, Tensor)",
        tags);
  m.def("metalops::dequantize(Tensor packed, Tensor scales, Tensor? biases, Tensor? global_scale, "
        "Tensor? indices, int bits, int group_size, str mode, ScalarType dtype) -> Tensor",
        tags);
  m.def("metalops::quantized_scales_gradient(Tensor grad, Tensor packed, Tensor scales, int bits, "
        "int group_size, str mode) -> (Tensor, Tensor)",
        tags);
  m.impl("quantize", torch::dispatch(DispatchKey::MPS, TORCH_FN(quantize)));
  m.impl("dequantize", torch::dispatch(DispatchKey::MPS, TORCH_FN(dequantize)));
  m.impl("quantized_scales_gradient",
         torch::dispatch(DispatchKey::MPS, TORCH_FN(quantized_scales_gradient)));
}

}  // namespace
