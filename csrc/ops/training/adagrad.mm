// Host side of kernels/training/adagrad.metal: _fused_adagrad_, torch.optim.Adagrad(fused=True).
// The kernels read step counts, grad_scale, found_inf and a learning rate on the device. A launch
// updates several tensors.
#include <ATen/ops/full.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/training/adagrad.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/views.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using at::TensorList;
using metalops::MaybeTensor;

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

constexpr int64_t kMostElements = int64_t{1} << 30;  // of a launch

// A parameter tensor, or a part of it, with its gradient and state.
struct Piece {
  Tensor param;
  Tensor grad;
  Tensor state_sum;
  Tensor step;
};

static_assert(metalops::kAdagradPack == metalops::kPack);

// Collects pieces of one dtype, which are given one by one, and launches kernels for them.
template <class Rate>
class Launches {
 public:
  Launches(const Rate& lr, const Tensor& scale, const Tensor& overflow,
           const metalops::AdagradParameters& parameters)
      : lr_(lr), scale_(scale), overflow_(overflow), parameters_(parameters) {}

  void add(const Piece& piece) {
    if (!pieces_.empty() && (pieces_[0].param.scalar_type() != piece.param.scalar_type() ||
                             elements_ + piece.param.numel() > kMostElements)) {
      finish();
    }
    pieces_.push_back(piece);
    elements_ += piece.param.numel();
    // CPUs vectorise across threads that all do the same, and get one piece per launch.
    if (pieces_.size() == metalops::kAdagradTensors || metalops::a_thread_for_each_element()) {
      finish();
    }
  }

  void finish() {
    if (pieces_.size() == 1) {
      const auto& [param, grad, state_sum, step] = pieces_[0];
      metalops::launch_rows(metalops::library("adagrad"), name("adagrad_"), elements_, 1, param,
                            grad, state_sum, step, lr_, scale_, overflow_, parameters_);
    } else if (!pieces_.empty()) {
      launch_together(std::make_index_sequence<metalops::kAdagradTensors>());
    }
    pieces_.clear();
    elements_ = 0;
  }

 private:
  metalops::KernelName name(const char* kernel) const {
    return metalops::typed_kernel(kernel, pieces_[0].param);
  }

  // Where pieces are fewer, the last one is bound again, with no elements left.
  template <size_t... kIndices>
  void launch_together(std::index_sequence<kIndices...>) {
    metalops::AdagradTensors tensors{};
    uint32_t packs = 0;
    for (size_t i = 0; i < metalops::kAdagradTensors; ++i) {
      tensors.of[i].first_pack = packs;
      if (i < pieces_.size()) {
        const auto& [param, grad, state_sum, step] = pieces_[i];
        const auto elements = static_cast<uint32_t>(param.numel());
        tensors.of[i].elements = elements;
        tensors.of[i].aligned = metalops::begins_with_pack(param) &&
                                metalops::begins_with_pack(grad) &&
                                metalops::begins_with_pack(state_sum);
        packs += c10::metal::ceil_div(elements, metalops::kAdagradPack);
      }
    }
    const auto of = [&](size_t i) {
      const auto& piece = pieces_[std::min(i, pieces_.size() - 1)];
      return std::tie(piece.param, piece.grad, piece.state_sum, piece.step);
    };
    std::apply(
        [&](const auto&... operands) {
          metalops::launch_rows(metalops::library("adagrad"), name("adagrad_together_"), packs, 1,
                                operands..., lr_, scale_, overflow_, parameters_, tensors);
        },
        std::tuple_cat(of(kIndices)...));
  }

  const Rate& lr_;
  const Tensor& scale_;
  const Tensor& overflow_;
  const metalops::AdagradParameters parameters_;
  std::vector<Piece> pieces_;
  int64_t elements_ = 0;
};

// Updates all parameters. lr: a tensor or a number, of float.
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
  Launches<Rate> launches(
      lr, scale, overflow,
      {static_cast<float>(options.lr_decay), static_cast<float>(options.weight_decay),
       static_cast<float>(options.eps), options.maximize, has_grad_scale});
  // Tensors that are updated in the layout of their parameter instead of their own.
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (size_t i = 0; i < n_tensors; ++i) {
    check(params[i], grads[i], state_sums[i], state_steps[i]);
    const auto param =
        params[i].is_non_overlapping_and_dense() ? params[i] : params[i].contiguous();
    const auto grad = metalops::in_layout_of(param, grads[i]);
    const auto state_sum = metalops::in_layout_of(param, state_sums[i]);
    const auto step = state_steps[i].to(at::kFloat);
    for (int64_t begin = 0; begin < param.numel(); begin += kMostElements) {
      const auto count = std::min(kMostElements, param.numel() - begin);
      const auto part = [&](const Tensor& tensor) {
        return metalops::view_storage(tensor, {count}, {1}, tensor.storage_offset() + begin);
      };
      launches.add({part(param), part(grad), part(state_sum), step});
    }
    copies.emplace_back(params[i], param);
    copies.emplace_back(state_sums[i], state_sum);
    if (has_grad_scale) {
      copies.emplace_back(grads[i], grad);
    }
  }
  launches.finish();
  for (const auto& [target, source] : copies) {
    copy_back(target, source);
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
