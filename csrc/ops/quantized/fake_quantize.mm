// Host side of kernels/quantized/fake_quantize.metal: the operators of quantisation-aware training,
// which stock MPS lacks. None of them waits for the device: the kernels read scales, zero points
// and switches there.
#include <ATen/ops/empty_like.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/quantized/fake_quantize.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/views.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <tuple>

namespace {

using at::Tensor;
using metalops::FakeQuantizeParameters;
using metalops::MovingAverageParameters;
using metalops::ZeroPointRounding;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("fake_quantize"); }

void check_dtype(const char* name, const Tensor& self) {
  const auto type = self.scalar_type();
  metalops::check_metal_float(name, type);
}

void check_range(int64_t quant_min, int64_t quant_max) {
  TORCH_CHECK(quant_min <= quant_max, "`quant_min` should be less than or equal to `quant_max`.");
}

// Returns the parameters of a tensor without gaps, whatever its order of dimensions. axis: the
// dimension of channels; nothing if there is one scale for all elements.
FakeQuantizeParameters parameters_of(const Tensor& dense, std::optional<int64_t> axis,
                                     int64_t quant_min, int64_t quant_max) {
  FakeQuantizeParameters parameters{};
  parameters.count = dense.numel();
  parameters.channels = axis ? dense.size(*axis) : 1;
  parameters.inner = parameters.channels == 1 ? dense.numel() : dense.stride(*axis);
  parameters.quant_min = static_cast<float>(quant_min);
  parameters.quant_max = static_cast<float>(quant_max);
  parameters.grad_factor = 1;
  return parameters;
}

// Launches a kernel. read: the tensors of elements that the kernel reads; those that it writes are
// new.
template <class... Arguments>
void launch(const metalops::KernelName& name, const metalops::KernelName& type,
            const FakeQuantizeParameters& parameters, std::initializer_list<Tensor> read,
            const Arguments&... arguments) {
  constexpr int64_t kShortestRow = 16;
  constexpr int64_t kLongestRow = int64_t{1} << 30;
  if (parameters.inner >= kShortestRow && parameters.inner <= kLongestRow) {
    const bool packs = parameters.inner % metalops::kPack == 0 &&
                       std::all_of(read.begin(), read.end(), metalops::begins_with_pack);
    metalops::launch_rows(kernels(), name + (packs ? "_packs" : "_rows") + type,
                          packs ? parameters.inner / metalops::kPack : parameters.inner,
                          parameters.count / parameters.inner, arguments..., parameters);
  } else {
    metalops::launch_threads(kernels(), name + type, parameters.count, arguments..., parameters);
  }
}

// Returns the fake-quantised tensor and its mask. scale, zero_point, fake_quant_on: tensors of
// float, float and int, or numbers of these types.
template <class Scale, class ZeroPoint, class Switch>
std::tuple<Tensor, Tensor> quantized(const Tensor& self, const Scale& scale,
                                     const ZeroPoint& zero_point, const Switch& fake_quant_on,
                                     std::optional<int64_t> axis, int64_t quant_min,
                                     int64_t quant_max,
                                     ZeroPointRounding rounding = ZeroPointRounding::kNone,
                                     bool adds_before_rounding = false) {
  const auto output = at::empty_like(self);
  const auto mask = at::empty_like(self, self.options().dtype(at::kBool));
  auto parameters = parameters_of(output, axis, quant_min, quant_max);
  parameters.rounding = rounding;
  parameters.adds_before_rounding = adds_before_rounding;
  const auto input = metalops::in_layout_of(output, self);
  launch("fake_quantize", metalops::typed_kernel("_", self), parameters, {input}, output, mask,
         input, scale, zero_point, fake_quant_on);
  return {output, mask};
}

// Makes the device raise an error if a zero point is NaN or out of range.
void check_zero_points(const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
                       ZeroPointRounding rounding) {
  auto parameters = parameters_of(zero_point, std::nullopt, quant_min, quant_max);
  parameters.rounding = rounding;
  metalops::launch_threads(kernels(), "fake_quantize_check_zero_points", zero_point.numel(),
                           zero_point, parameters, metalops::kErrorBuffer);
}

Tensor as_float(const Tensor& tensor) { return tensor.to(at::kFloat).contiguous(); }

void check_one_element(const Tensor& tensor) {
  TORCH_CHECK(tensor.numel() == 1, "a Tensor with ", tensor.numel(),
              " elements cannot be converted to Scalar");
}

// ---- one scale for all elements -----------------------------------------------------------------

std::tuple<Tensor, Tensor> per_tensor_cachemask(const Tensor& self, double scale,
                                                int64_t zero_point, int64_t quant_min,
                                                int64_t quant_max) {
  check_range(quant_min, quant_max);
  TORCH_CHECK(zero_point >= quant_min && zero_point <= quant_max,
              "`zero_point` must be between `quant_min` and `quant_max`.");
  check_dtype("fake_quantize_per_tensor_affine", self);
  return quantized(self, static_cast<float>(scale), static_cast<float>(zero_point), int32_t{1},
                   std::nullopt, quant_min, quant_max);
}

std::tuple<Tensor, Tensor> per_tensor_cachemask_tensor_qparams(
    const Tensor& self, const Tensor& scale, const Tensor& zero_point,
    const Tensor& fake_quant_enabled, int64_t quant_min, int64_t quant_max) {
  metalops::check_same_device("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
                              {{self, "self"},
                               {scale, "scale"},
                               {zero_point, "zero_point"},
                               {fake_quant_enabled, "fake_quant_enabled"}});
  check_range(quant_min, quant_max);
  for (const auto& one : {scale, zero_point, fake_quant_enabled}) {
    check_one_element(one);
  }
  check_dtype("fake_quantize_per_tensor_affine", self);
  const bool whole = at::isIntegralType(zero_point.scalar_type(), /*includeBool=*/true);
  return quantized(self, as_float(scale), as_float(whole ? zero_point : zero_point.to(at::kInt)),
                   fake_quant_enabled.to(at::kInt), std::nullopt, quant_min, quant_max);
}

Tensor learnable_per_tensor(const Tensor& self, const Tensor& scale, const Tensor& zero_point,
                            int64_t quant_min, int64_t quant_max, double /*grad_factor*/) {
  metalops::check_same_device("_fake_quantize_learnable_per_tensor_affine",
                              {{self, "self"}, {scale, "scale"}, {zero_point, "zero_point"}});
  const auto place = as_float(zero_point.select(0, 0));
  const auto step = as_float(scale.select(0, 0));
  check_range(quant_min, quant_max);
  check_dtype("fake_quantize_per_tensor_affine", self);
  check_zero_points(place, quant_min, quant_max, ZeroPointRounding::kNearest);
  return std::get<0>(quantized(self, step, place, int32_t{1}, std::nullopt, quant_min, quant_max,
                               ZeroPointRounding::kNearest));
}

// ---- one scale for each channel -----------------------------------------------------------------

void check_channels(const Tensor& self, const Tensor& scale, const Tensor& zero_point,
                    int64_t axis) {
  TORCH_CHECK(scale.dim() == 1, "scale should be a 1-D tensor");
  TORCH_CHECK(zero_point.dim() == 1, "zero point should be a 1-D tensor");
  TORCH_CHECK(scale.numel() == zero_point.numel(),
              "scale and zero-point need to have the same dimensions");
  TORCH_CHECK(scale.numel() == self.size(axis),
              "dimensions of scale and zero-point are not consistent with input tensor");
  TORCH_CHECK(axis >= 0 && axis < self.dim(),
              "`axis` must be between 0 and number of dimensions of input");
}

std::tuple<Tensor, Tensor> per_channel_cachemask(const Tensor& self, const Tensor& scale,
                                                 const Tensor& zero_point, int64_t axis,
                                                 int64_t quant_min, int64_t quant_max) {
  metalops::check_same_device("fake_quantize_per_channel_affine_cachemask",
                              {{self, "self"}, {scale, "scale"}, {zero_point, "zero_point"}});
  const auto type = zero_point.scalar_type();
  TORCH_CHECK(scale.scalar_type() == at::kFloat || scale.scalar_type() == at::kBFloat16,
              "Scale must be Float or BFloat16, found ", scale.scalar_type());
  TORCH_CHECK(type == at::kInt || type == at::kFloat || type == at::kHalf,
              "Zero-point must be Int32, Float or Half, found ", type);
  check_channels(self, scale, zero_point, axis);
  check_range(quant_min, quant_max);
  check_dtype("fake_quantize_per_channel_affine", self);
  const auto places = as_float(zero_point);
  if (type == at::kInt) {
    check_zero_points(places, quant_min, quant_max, ZeroPointRounding::kNone);
  }
  return quantized(self, as_float(scale), places, int32_t{1}, axis, quant_min, quant_max,
                   ZeroPointRounding::kNone, /*adds_before_rounding=*/type != at::kInt);
}

Tensor learnable_per_channel(const Tensor& self, const Tensor& scale, const Tensor& zero_point,
                             int64_t axis, int64_t quant_min, int64_t quant_max,
                             double /*grad_factor*/) {
  metalops::check_same_device("_fake_quantize_learnable_per_channel_affine",
                              {{self, "self"}, {scale, "scale"}, {zero_point, "zero_point"}});
  TORCH_CHECK(scale.scalar_type() == at::kFloat || scale.scalar_type() == at::kBFloat16,
              "Scale must be Float or BFloat16, found ", scale.scalar_type());
  check_channels(self, scale, zero_point, axis);
  check_range(quant_min, quant_max);
  check_dtype("fake_quantize_per_channel_affine", self);
  const auto places = as_float(zero_point);
  check_zero_points(places, quant_min, quant_max, ZeroPointRounding::kNearest);
  return std::get<0>(quantized(self, as_float(scale), places, int32_t{1}, axis, quant_min,
                               quant_max, ZeroPointRounding::kNearest));
}

// ---- gradients of learned scales and zero points ------------------------------------------------

// bfloat16 is computed in float and has float gradients. The names are those in torch's messages.
struct LearnableOperands {
  Tensor dY_;
  Tensor X_;
  Tensor scale_;
  Tensor zero_point_;

  LearnableOperands(const Tensor& grad, const Tensor& self, const Tensor& scale,
                    const Tensor& zero_point) {
    metalops::check_same_device(
        "_fake_quantize_learnable_affine_backward",
        {{grad, "grad"}, {self, "self"}, {scale, "scale"}, {zero_point, "zero_point"}});
    const bool widens = self.scalar_type() == at::kBFloat16;
    dY_ = widens ? grad.to(at::kFloat) : grad;
    X_ = widens ? self.to(at::kFloat) : self;
    scale_ = widens ? scale.to(at::kFloat) : scale;
    zero_point_ = widens ? zero_point.to(at::kFloat) : zero_point;
    TORCH_CHECK(dY_.scalar_type() == at::ScalarType::Float);
    TORCH_CHECK(X_.scalar_type() == at::ScalarType::Float);
    TORCH_CHECK(scale_.scalar_type() == at::ScalarType::Float);
    TORCH_CHECK(zero_point_.scalar_type() == at::ScalarType::Float);
  }
};

// Returns the gradients of the input, and of scale and zero point for each element.
std::tuple<Tensor, Tensor, Tensor> learnable_gradients(
    const Tensor& grad_output, const Tensor& input, const Tensor& scale, const Tensor& zero_point,
    std::optional<int64_t> axis, int64_t quant_min, int64_t quant_max, ZeroPointRounding rounding,
    double grad_factor) {
  check_zero_points(zero_point, quant_min, quant_max, rounding);
  const auto grad_input = at::empty_like(input);
  const auto by_scale = at::empty_like(grad_input);
  const auto by_zero_point = at::empty_like(grad_input);
  auto parameters = parameters_of(grad_input, axis, quant_min, quant_max);
  parameters.grad_factor = static_cast<float>(grad_factor);
  parameters.rounding = rounding;
  parameters.adds_before_rounding = true;
  const auto grad = metalops::in_layout_of(grad_input, grad_output);
  const auto values = metalops::in_layout_of(grad_input, input);
  launch("fake_quantize_learnable_backward", "", parameters, {grad, values}, grad_input, by_scale,
         by_zero_point, grad, values, scale, zero_point);
  return {grad_input, by_scale, by_zero_point};
}

std::tuple<Tensor, Tensor, Tensor> learnable_per_tensor_backward(
    const Tensor& grad, const Tensor& self, const Tensor& scale, const Tensor& zero_point,
    int64_t quant_min, int64_t quant_max, double grad_factor) {
  const auto [dY_, X_, scale_, zero_point_] = LearnableOperands(grad, self, scale, zero_point);
  TORCH_CHECK(X_.numel() == dY_.numel(), "`X` and `dY` are not the same size");
  TORCH_CHECK(quant_min <= 0 && quant_max >= 0,
              "`quant_min` should be less than or equal to `quant_max`, and the quantization range "
              "should include 0.");
  if (X_.numel() == 0) {
    return {self, scale, zero_point};
  }
  const auto [grad_input, by_scale, by_zero_point] = learnable_gradients(
      dY_.reshape(X_.sizes()), X_, scale_.select(0, 0), zero_point_.select(0, 0), std::nullopt,
      quant_min, quant_max, ZeroPointRounding::kHalfUp, grad_factor);
  return {grad_input, by_scale.sum().unsqueeze(0), by_zero_point.sum().unsqueeze(0)};
}

std::tuple<Tensor, Tensor, Tensor> learnable_per_channel_backward(
    const Tensor& grad, const Tensor& self, const Tensor& scale, const Tensor& zero_point,
    int64_t axis, int64_t quant_min, int64_t quant_max, double grad_factor) {
  const auto [dY_, X_, scale_, zero_point_] = LearnableOperands(grad, self, scale, zero_point);
  TORCH_CHECK(X_.sizes() == dY_.sizes(), "`X` and `dY` are not the same size");
  TORCH_CHECK(quant_min <= 0 && quant_max >= 0, "Expecting `quant_min` <= 0 and `quant_max` >= 0");
  check_channels(X_, scale_, zero_point_, axis);
  if (X_.numel() == 0) {
    return {self, scale, zero_point};
  }
  const auto [grad_input, by_scale, by_zero_point] =
      learnable_gradients(dY_, X_, scale_.contiguous(), zero_point_.contiguous(), axis, quant_min,
                          quant_max, ZeroPointRounding::kNearest, grad_factor);
  const auto of_channels = [axis](const Tensor& gradient) {
    return gradient.movedim(axis, 0).flatten(1).sum(1);
  };
  const bool one_dimension = X_.dim() == 1;
  return {grad_input, one_dimension ? by_scale : of_channels(by_scale),
          one_dimension ? by_zero_point : of_channels(by_zero_point)};
}

// ---- fused observers: observing, choosing scales and zero points, fake quantisation -------------

void check_observed(const Tensor& tensor, const char* name, int64_t channels, at::ScalarType type) {
  TORCH_CHECK(tensor.scalar_type() == type, "expected scalar type ", type, " but found ",
              tensor.scalar_type());
  TORCH_CHECK(tensor.numel() == channels && tensor.is_contiguous(),
              "_fused_moving_avg_obs_fq_helper: expected ", name, " to be contiguous and to have ",
              channels, " elements, but it has sizes ", tensor.sizes(), " and strides ",
              tensor.strides());
}

std::tuple<Tensor, Tensor> fused_moving_average(const Tensor& self, const Tensor& observer_on,
                                                const Tensor& fake_quant_on, Tensor& running_min,
                                                Tensor& running_max, Tensor& scale,
                                                Tensor& zero_point, double averaging_const,
                                                int64_t quant_min, int64_t quant_max,
                                                int64_t ch_axis, bool per_row_fake_quant,
                                                bool symmetric_quant) {
  metalops::check_same_device("_fused_moving_avg_obs_fq_helper", {{self, "self"},
                                                                  {observer_on, "observer_on"},
                                                                  {fake_quant_on, "fake_quant_on"},
                                                                  {running_min, "running_min"},
                                                                  {running_max, "running_max"},
                                                                  {scale, "scale"},
                                                                  {zero_point, "zero_point"}});
  TORCH_CHECK(ch_axis < self.dim(),
              "Error in fused_moving_avg_obs_fake_quant: ch_axis must be < self.dim()");
  TORCH_CHECK(!per_row_fake_quant || ch_axis == 0,
              "Per-channel FakeQuant in fused_moving_avg_obs_fake_quant is only supported on axis "
              "== 0");
  TORCH_CHECK(self.scalar_type() == at::kFloat, "expected scalar type Float but found ",
              self.scalar_type());
  TORCH_CHECK(self.numel() != 0,
              "aminmax(): cannot compute aminmax over an empty dimension as the operation has no "
              "identity.");
  check_range(quant_min, quant_max);
  check_one_element(observer_on);
  check_one_element(fake_quant_on);
  const auto channels = per_row_fake_quant ? self.size(0) : int64_t{1};
  if (per_row_fake_quant && running_min.numel() == 0) {
    running_min.resize_({channels}).fill_(std::numeric_limits<float>::infinity());
    running_max.resize_({channels}).fill_(-std::numeric_limits<float>::infinity());
    scale.resize_({channels});
    zero_point.resize_({channels});
  }
  check_observed(running_min, "running_min", channels, at::kFloat);
  check_observed(running_max, "running_max", channels, at::kFloat);
  check_observed(scale, "scale", channels, at::kFloat);
  check_observed(zero_point, "zero_point", channels, at::kInt);
  const auto observer_switch = observer_on.to(at::kInt);
  const auto fake_quant_switch = fake_quant_on.to(at::kInt);
  const MovingAverageParameters parameters{channels, static_cast<float>(averaging_const),
                                           static_cast<float>(quant_min),
                                           static_cast<float>(quant_max), symmetric_quant};
  const auto [lowest, highest] = self.reshape({channels, -1}).aminmax(1);
  metalops::launch_threads(kernels(), "fake_quantize_observe", channels, running_min, running_max,
                           scale, zero_point, lowest, highest, observer_switch, fake_quant_switch,
                           parameters);
  const auto axis = per_row_fake_quant ? std::optional<int64_t>(0) : std::nullopt;
  return quantized(self, scale, as_float(zero_point), fake_quant_switch, axis, quant_min,
                   quant_max);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("fake_quantize_per_tensor_affine_cachemask", per_tensor_cachemask);
  m.impl("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
         per_tensor_cachemask_tensor_qparams);
  m.impl("fake_quantize_per_channel_affine_cachemask", per_channel_cachemask);
  m.impl("_fake_quantize_learnable_per_tensor_affine", learnable_per_tensor);
  m.impl("_fake_quantize_learnable_per_tensor_affine_backward", learnable_per_tensor_backward);
  m.impl("_fake_quantize_learnable_per_channel_affine", learnable_per_channel);
  m.impl("_fake_quantize_learnable_per_channel_affine_backward", learnable_per_channel_backward);
  m.impl("_fused_moving_avg_obs_fq_helper", fused_moving_average);
}

}  // namespace
