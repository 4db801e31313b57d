// Host side of kernels/quantized/quantized.metal: quantising and dequantising weights.
#include <ATen/ops/empty.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/quantized/quantized.h>
#include <metalops/autograd.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>
#include <tuple>

namespace {

using at::Tensor;
using metalops::MaybeTensor;
using metalops::PackedLayout;
using metalops::QuantizedWeights;
using metalops::plans::Type;

metalops::Library& quantized_kernels() { return metalops::library("quantized"); }

// Returns the layout of `lines` rows of `inner` codes. Raises RuntimeError if they are too large.
PackedLayout weights_layout(const char* name, int64_t lines, int64_t inner, int64_t bits,
                            int64_t group_size, std::string_view mode) {
  TORCH_CHECK(std::max(lines, inner) <= metalops::kLargestTiledSize, name, ": weights of ", lines,
              " times ", inner, " elements are too large for MPS");
  return metalops::plans::packed_layout(lines, inner, bits, group_size,
                                        metalops::plans::quantized_mode(name, mode));
}

// Returns matrices as one of two dimensions.
Tensor as_one(const Tensor& matrices) {
  const auto rows = matrices.sizes().slice(0, matrices.dim() - 1);
  return matrices.reshape({c10::multiply_integers(rows), matrices.size(-1)});
}

}  // namespace

metalops::plans::QuantizedWeightArguments metalops::weight_operands(
    Operands& of, const Tensor& packed, const Tensor& scales, const MaybeTensor& biases,
    const MaybeTensor& global_scale, int64_t bits, int64_t group_size, std::string_view mode) {
  return {of(packed, "packed"),
          of(scales, "scales"),
          of(biases, "biases"),
          of(global_scale, "global_scale"),
          bits,
          group_size,
          text_of(mode)};
}

QuantizedWeights metalops::quantized_weights(const char* name, const Tensor& packed,
                                             const Tensor& scales, const MaybeTensor& biases,
                                             const MaybeTensor& global_scale, int64_t bits,
                                             int64_t group_size, std::string_view mode) {
  return {
      packed,
      scales,
      biases,
      global_scale,
      group_size,
      plans::quantized_mode(name, mode),
      weights_layout(name, packed.size(-2), packed.size(-1) / bits * 8, bits, group_size, mode)};
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
  metalops::Operands of(kName);
  metalops::check_arguments(metalops::plans::check_quantize,
                            {of(weight, "weight"), of(global_scale, "global_scale"), bits,
                             group_size, metalops::text_of(mode)});
  const auto inner = weight.size(-1);
  auto layout =
      weights_layout(kName, inner == 0 ? 0 : weight.numel() / inner, inner, bits, group_size, mode);
  layout.has_global = global_scale.has_value();
  at::DimVector sizes(weight.sizes());
  sizes.back() = layout.line_bytes;
  const auto codes = at::empty(sizes, weight.options().dtype(at::kByte));
  sizes.back() = layout.line_scales;
  const auto type = metalops::plans::scale_type(layout, static_cast<Type>(weight.scalar_type()));
  const auto scales = at::empty(sizes, weight.options().dtype(static_cast<at::ScalarType>(type)));
  const bool has_biases = metalops::plans::has_biases(layout);
  const auto biases =
      has_biases ? at::empty(sizes, weight.options()) : at::empty({0}, weight.options());
  if (weight.numel() != 0) {
    const QuantizedWeights results{
        codes,        scales,     has_biases ? MaybeTensor(biases) : std::nullopt,
        global_scale, group_size, metalops::plans::quantized_mode(kName, mode),
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
  metalops::Operands of(kName);
  metalops::check_arguments(
      metalops::plans::check_dequantize,
      {metalops::weight_operands(of, packed, scales, biases, global_scale, bits, group_size, mode),
       of(indices, "indices"), static_cast<Type>(dtype)});
  const auto one = [](const Tensor& x) { return x.dim() == 1 ? x.unsqueeze(0) : x; };
  const auto weights = metalops::quantized_weights(
      kName, one(packed), one(scales), biases ? MaybeTensor(one(*biases)) : std::nullopt,
      global_scale, bits, group_size, mode);
  at::DimVector sizes(packed.sizes());
  if (indices) {
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
  metalops::Operands of(kName);
  metalops::check_arguments(metalops::plans::check_quantized_scales_gradient,
                            {of(grad, "grad"), of(packed, "packed"), of(scales, "scales"), bits,
                             group_size, metalops::text_of(mode)});
  const auto weights = metalops::quantized_weights(kName, packed, scales, std::nullopt,
                                                   std::nullopt, bits, group_size, mode);
  auto layout = weights.layout;
  const auto codes = weights.codes.contiguous();
  const auto from = grad.contiguous();
  const auto grad_scales = at::empty(scales.sizes(), scales.options());
  const bool has_biases = metalops::plans::has_biases(layout);
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
