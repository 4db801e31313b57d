// Host side of kernels/adagrad.metal: _fused_adagrad_, torch.optim.Adagrad(fused=True). Step
// counts, grad_scale, found_inf and a learning rate on the device are read there.
#include <ATen/ops/full.h>
#include <kernels/adagrad.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/views.h>

#include <algorithm>

namespace {

using at::Tensor;
using at::TensorList;
using MaybeTensor = std::optional<Tensor>;

struct Options {
  double lr_decay;
  double weight_decay;
  double eps;
  bool maximize;
};

void check(const Tensor& param, const Tensor& grad, const Tensor& state_sum, const Tensor& step) {
  constexpr const char* kName = "_fused_adagrad_";
  metalops::check_same_device(
      kName, {{param, "self"}, {grad, "grads"}, {state_sum, "state_sums"}, {step, "state_steps"}});
  const auto type = param.scalar_type();
  metalops::check_metal_float(kName, type);
  for (const auto& other : {grad, state_sum}) {
    TORCH_CHECK(other.scalar_type() == type, "expected scalar type ", type, " but found ",
                other.scalar_type());
    TORCH_CHECK(other.sizes() == param.sizes(), kName,
                ": expected gradients and sums to have the sizes of their parameter, ",
                param.sizes(), ", but found ", other.sizes());
  }
  TORCH_CHECK(step.numel() == 1, kName, ": expected a step count of one element, but found sizes ",
              step.sizes());
}

void copy_back(const Tensor& target, const Tensor& source) {
  if (!target.is_same(source)) {
    target.copy_(source);
  }
}

// lr: a tensor or a number, of float.
template <class Rate>
void step_all(TensorList params, TensorList grads, TensorList state_sums, TensorList state_steps,
              const Rate& lr, const Options& options, const MaybeTensor& grad_scale,
              const MaybeTensor& found_inf) {
  const auto n_tensors = params.size();
  TORCH_CHECK(grads.size() == n_tensors);
  TORCH_CHECK(state_sums.size() == n_tensors);
  TORCH_CHECK(state_steps.size() == n_tensors);
  const auto float_or = [&](const MaybeTensor& tensor, double otherwise) {
    return tensor && tensor->defined()
               ? tensor->to(at::kFloat)
               : at::full({}, otherwise, params[0].options().dtype(at::kFloat));
  };
  if (n_tensors == 0) {
    return;
  }
  const bool has_grad_scale = grad_scale && grad_scale->defined();
  const auto scale = float_or(grad_scale, 1);
  const auto overflow = float_or(found_inf, 0);
  metalops::check_same_device(
      "_fused_adagrad_", {{params[0], "self"}, {scale, "grad_scale"}, {overflow, "found_inf"}});
  for (size_t i = 0; i < n_tensors; ++i) {
    check(params[i], grads[i], state_sums[i], state_steps[i]);
    const auto param =
        params[i].is_non_overlapping_and_dense() ? params[i] : params[i].contiguous();
    const auto grad = metalops::in_layout_of(param, grads[i]);
    const auto state_sum = metalops::in_layout_of(param, state_sums[i]);
    const metalops::AdagradParameters parameters{
        static_cast<float>(options.lr_decay), static_cast<float>(options.weight_decay),
        static_cast<float>(options.eps), options.maximize, has_grad_scale};
    const auto step = state_steps[i].to(at::kFloat);
    constexpr int64_t kMost = int64_t{1} << 30;
    for (int64_t begin = 0; begin < param.numel(); begin += kMost) {
      const auto count = std::min(kMost, param.numel() - begin);
      const auto piece = [&](const Tensor& tensor) {
        return metalops::view_storage(tensor, {count}, {1}, tensor.storage_offset() + begin);
      };
      metalops::launch_rows(
          metalops::library("adagrad"),
          metalops::KernelName("adagrad_") + metalops::metal_type(param.scalar_type()), count, 1,
          piece(param), piece(grad), piece(state_sum), step, lr, scale, overflow, parameters);
    }
    copy_back(params[i], param);
    copy_back(state_sums[i], state_sum);
    if (has_grad_scale) {
      copy_back(grads[i], grad);
    }
  }
}

void fused_adagrad_(TensorList params, TensorList grads, TensorList state_sums,
                    TensorList state_steps, double lr, double lr_decay, double weight_decay,
                    double eps, bool maximize, const MaybeTensor& grad_scale,
                    const MaybeTensor& found_inf) {
  step_all(params, grads, state_sums, state_steps, static_cast<float>(lr),
           {lr_decay, weight_decay, eps, maximize}, grad_scale, found_inf);
}

void fused_adagrad_tensor_lr_(TensorList params, TensorList grads, TensorList state_sums,
                              TensorList state_steps, const Tensor& lr, double lr_decay,
                              double weight_decay, double eps, bool maximize,
                              const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  TORCH_CHECK(lr.numel() == 1, "a Tensor with ", lr.numel(),
              " elements cannot be converted to Scalar");
  const Options options{lr_decay, weight_decay, eps, maximize};
  if (lr.is_cpu()) {
    step_all(params, grads, state_sums, state_steps, lr.item<float>(), options, grad_scale,
             found_inf);
  } else {
    step_all(params, grads, state_sums, state_steps, lr.to(at::kFloat), options, grad_scale,
             found_inf);
  }
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_fused_adagrad_", fused_adagrad_);
  m.impl("_fused_adagrad_.tensor_lr", fused_adagrad_tensor_lr_);
}

}  // namespace
