// Host side of kernels/training/margin_loss.metal: multi_margin_loss, multilabel_margin_loss and
// their backward functions, which stock MPS lacks.
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/LossMulti.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/outputs.h>
#include <kernels/training/margin_loss.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/views.h>

#include <tuple>

namespace {

using at::Tensor;
using c10::Scalar;
using metalops::MarginLossParameters;
using metalops::MaybeTensor;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("margin_loss"); }

void check_dtype(const char* name, at::ScalarType type) { metalops::check_metal_float(name, type); }

void check_scalar_type(const Tensor& tensor, at::ScalarType expected) {
  TORCH_CHECK(tensor.scalar_type() == expected, "expected scalar type ", expected, " but found ",
              tensor.scalar_type());
}

// Returns the factor of the losses: 1 / classes, and for the mean over samples 1 / (classes *
// samples).
float scale_of(const MarginLossParameters& parameters, int64_t reduction) {
  const auto classes = static_cast<double>(parameters.classes);
  const auto rows = reduction == at::Reduction::Mean ? static_cast<double>(parameters.rows) : 1.0;
  return static_cast<float>(1.0 / (classes * rows));
}

// Launches the kernel that processes each row of classes with a threadgroup or a thread.
template <class... Arguments>
void launch_samples(const metalops::KernelName& name, at::ScalarType type,
                    const MarginLossParameters& parameters, const Arguments&... arguments) {
  metalops::launch_reduction(kernels(), name, metalops::metal_type(type), parameters.rows,
                             parameters.classes, arguments...);
}

// Calls write(losses) with a contiguous float tensor for the loss of each sample, and writes their
// sum, or all of them if `each`, to `out`.
template <class Write>
void reduce_losses(const Tensor& out, bool each, int64_t rows, const Write& write) {
  const bool is_direct = out.scalar_type() == at::kFloat && out.is_contiguous();
  if (each) {
    metalops::write_through(out, is_direct, at::kFloat, write);
    return;
  }
  const auto losses = at::empty({rows}, out.options().dtype(at::kFloat));
  write(losses);
  metalops::write_through(out, is_direct, at::kFloat, [&](const Tensor& sum) {
    constexpr uint64_t kThreads = 256;
    metalops::launch_threadgroups(kernels(), "margin_loss_sum", 1, kThreads, sum, losses, rows);
  });
}

// Returns the stride of the gradient from sample to sample.
int64_t stride_of_grad(const Tensor& grad_output, const MarginLossParameters& parameters,
                       int64_t reduction) {
  if (reduction != at::Reduction::None || grad_output.dim() == 0) {
    TORCH_CHECK(grad_output.numel() == 1,
                "expected a gradient of one element, but got one of size ", grad_output.sizes());
    return 0;
  }
  at::check_dim_size(grad_output, 1, 0, parameters.rows);
  return grad_output.stride(0);
}

// ---- multi_margin_loss --------------------------------------------------------------------------

MarginLossParameters check_multi_margin(const Tensor& input, const Tensor& target, const Scalar& p,
                                        const Scalar& margin, const MaybeTensor& weight,
                                        int64_t reduction) {
  const auto power = p.toInt();
  TORCH_CHECK(power == 1 || power == 2, "only p == 1 and p == 2 supported");
  MarginLossParameters parameters{};
  at::native::multi_margin_loss_shape_check(parameters.rows, parameters.classes, input.dim(), input,
                                            target, weight);
  check_dtype("multi_margin_loss", input.scalar_type());
  check_scalar_type(target, at::kLong);
  if (weight.has_value() && weight->defined()) {
    check_scalar_type(*weight, input.scalar_type());
    parameters.weighted = 1;
  }
  parameters.scale = scale_of(parameters, reduction);
  parameters.margin = margin.to<float>();
  parameters.power = power;
  return parameters;
}

// Returns the weights, contiguous, or a dummy for the launch if there are none.
Tensor contiguous_weights(const MaybeTensor& weight, const Tensor& otherwise) {
  return weight.has_value() && weight->defined() ? weight->contiguous() : otherwise;
}

Tensor& multi_margin_loss_out(const Tensor& self, const Tensor& target, const Scalar& p,
                              const Scalar& margin, const MaybeTensor& weight, int64_t reduction,
                              Tensor& out) {
  constexpr const char* kName = "multi_margin_loss";
  metalops::check_same_device(
      kName, {{out, "out"}, {self, "self"}, {target, "target"}, {weight.value_or(self), "weight"}});
  const auto parameters = check_multi_margin(self, target, p, margin, weight, reduction);
  check_scalar_type(out, self.scalar_type());
  // A single sample without a sample dimension has a loss without one.
  const bool each = reduction == at::Reduction::None && target.dim() > 0;
  at::native::resize_output(out, each ? at::IntArrayRef(parameters.rows) : at::IntArrayRef());
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  const auto input = self.contiguous();
  const auto weights = contiguous_weights(weight, input);
  reduce_losses(out, each, parameters.rows, [&](const Tensor& losses) {
    launch_samples("margin_loss_multi", self.scalar_type(), parameters, losses, input,
                   target.contiguous(), weights, parameters, metalops::kErrorBuffer);
  });
  return out;
}

Tensor multi_margin_loss(const Tensor& self, const Tensor& target, const Scalar& p,
                         const Scalar& margin, const MaybeTensor& weight, int64_t reduction) {
  auto out = at::empty({0}, self.options());
  return multi_margin_loss_out(self, target, p, margin, weight, reduction, out);
}

Tensor& multi_margin_loss_backward_out(const Tensor& grad_output, const Tensor& self,
                                       const Tensor& target, const Scalar& p, const Scalar& margin,
                                       const MaybeTensor& weight, int64_t reduction,
                                       Tensor& grad_input) {
  constexpr const char* kName = "multi_margin_loss_backward";
  metalops::check_same_device(kName, {{grad_input, "grad_input"},
                                      {grad_output, "grad_output"},
                                      {self, "self"},
                                      {target, "target"},
                                      {weight.value_or(self), "weight"}});
  auto parameters = check_multi_margin(self, target, p, margin, weight, reduction);
  check_scalar_type(grad_output, self.scalar_type());
  check_scalar_type(grad_input, self.scalar_type());
  parameters.grad_stride = stride_of_grad(grad_output, parameters, reduction);
  at::native::resize_output(grad_input, self.sizes());
  at::assert_no_internal_overlap(grad_input);
  at::assert_no_overlap(grad_input, self);
  at::assert_no_overlap(grad_input, grad_output);
  const auto input = self.contiguous();
  const auto weights = contiguous_weights(weight, input);
  metalops::write_contiguous(grad_input, [&](const Tensor& result) {
    launch_samples("margin_loss_multi_backward", self.scalar_type(), parameters, result,
                   grad_output, input, target.contiguous(), weights, parameters,
                   metalops::kErrorBuffer);
  });
  return grad_input;
}

Tensor multi_margin_loss_backward(const Tensor& grad_output, const Tensor& self,
                                  const Tensor& target, const Scalar& p, const Scalar& margin,
                                  const MaybeTensor& weight, int64_t reduction) {
  auto grad_input = at::empty({0}, self.options());
  return multi_margin_loss_backward_out(grad_output, self, target, p, margin, weight, reduction,
                                        grad_input);
}

// ---- multilabel_margin_loss ---------------------------------------------------------------------

MarginLossParameters check_multilabel_margin(const Tensor& input, const Tensor& target,
                                             int64_t reduction) {
  MarginLossParameters parameters{};
  at::native::multilabel_margin_loss_shape_check(parameters.rows, parameters.classes, input.dim(),
                                                 input, target);
  check_dtype("multilabel_margin_loss", input.scalar_type());
  check_scalar_type(target, at::kLong);
  parameters.scale = scale_of(parameters, reduction);
  return parameters;
}

// is_target: 1 where the class is one of its row's targets, else 0.
std::tuple<Tensor&, Tensor&> multilabel_margin_loss_forward_out(const Tensor& self,
                                                                const Tensor& target,
                                                                int64_t reduction, Tensor& output,
                                                                Tensor& is_target) {
  constexpr const char* kName = "multilabel_margin_loss";
  metalops::check_same_device(
      kName, {{output, "output"}, {is_target, "is_target"}, {self, "self"}, {target, "target"}});
  const auto parameters = check_multilabel_margin(self, target, reduction);
  check_scalar_type(output, self.scalar_type());
  check_scalar_type(is_target, self.scalar_type());
  const bool each = reduction == at::Reduction::None && target.dim() > 1;
  at::native::resize_output(output, each ? at::IntArrayRef(parameters.rows) : at::IntArrayRef());
  at::native::resize_output(is_target, target.sizes());
  for (const auto& written : {output, is_target}) {
    at::assert_no_internal_overlap(written);
    at::assert_no_overlap(written, self);
  }
  at::assert_no_overlap(output, is_target);
  metalops::write_contiguous(is_target, [&](const Tensor& marks) {
    reduce_losses(output, each, parameters.rows, [&](const Tensor& losses) {
      launch_samples("margin_loss_multilabel", self.scalar_type(), parameters, losses, marks,
                     self.contiguous(), target.contiguous(), parameters, metalops::kErrorBuffer);
    });
  });
  return {output, is_target};
}

std::tuple<Tensor, Tensor> multilabel_margin_loss_forward(const Tensor& self, const Tensor& target,
                                                          int64_t reduction) {
  auto output = at::empty({0}, self.options());
  auto is_target = at::empty({0}, self.options());
  return multilabel_margin_loss_forward_out(self, target, reduction, output, is_target);
}

Tensor& multilabel_margin_loss_backward_out(const Tensor& grad_output, const Tensor& self,
                                            const Tensor& target, int64_t reduction,
                                            const Tensor& is_target, Tensor& grad_input) {
  constexpr const char* kName = "multilabel_margin_loss_backward";
  metalops::check_same_device(kName, {{grad_input, "grad_input"},
                                      {grad_output, "grad_output"},
                                      {self, "self"},
                                      {target, "target"},
                                      {is_target, "is_target"}});
  auto parameters = check_multilabel_margin(self, target, reduction);
  at::checkSameSize(kName, {target, "target", 3}, {is_target, "is_target", 5});
  for (const auto& tensor : {grad_output, is_target, grad_input}) {
    check_scalar_type(tensor, self.scalar_type());
  }
  parameters.grad_stride = stride_of_grad(grad_output, parameters, reduction);
  at::native::resize_output(grad_input, self.sizes());
  at::assert_no_internal_overlap(grad_input);
  for (const auto& read : {self, grad_output, is_target}) {
    at::assert_no_overlap(grad_input, read);
  }
  metalops::write_contiguous(grad_input, [&](const Tensor& result) {
    metalops::launch_threads(kernels(),
                             metalops::KernelName("margin_loss_multilabel_backward_") +
                                 metalops::metal_type(self.scalar_type()),
                             self.numel(), result, grad_output, self.contiguous(),
                             target.contiguous(), is_target.contiguous(), parameters,
                             metalops::kErrorBuffer);
  });
  return grad_input;
}

Tensor multilabel_margin_loss_backward(const Tensor& grad_output, const Tensor& self,
                                       const Tensor& target, int64_t reduction,
                                       const Tensor& is_target) {
  auto grad_input = at::empty({0}, self.options());
  return multilabel_margin_loss_backward_out(grad_output, self, target, reduction, is_target,
                                             grad_input);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("multi_margin_loss", multi_margin_loss);
  m.impl("multi_margin_loss.out", multi_margin_loss_out);
  m.impl("multi_margin_loss_backward", multi_margin_loss_backward);
  m.impl("multi_margin_loss_backward.grad_input", multi_margin_loss_backward_out);
  m.impl("multilabel_margin_loss_forward", multilabel_margin_loss_forward);
  m.impl("multilabel_margin_loss_forward.output", multilabel_margin_loss_forward_out);
  m.impl("multilabel_margin_loss_backward", multilabel_margin_loss_backward);
  m.impl("multilabel_margin_loss_backward.grad_input", multilabel_margin_loss_backward_out);
}

}  // namespace
