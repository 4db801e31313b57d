#include <ATen/core/LegacyTypeDispatch.h>
#include <metalops/autograd.h>
#include <metalops/boxed.h>
#include <metalops/checks.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace metalops::autograd {
namespace {

// How to call the backward operator of an operator.
struct BackwardCall {
  BackwardCall(const c10::FunctionSchema& forward, const c10::OperatorHandle& backward)
      : op(backward) {
    const auto& arguments = backward.schema().arguments();
    for (size_t i = forward.returns().size(); i < arguments.size(); ++i) {  // after grad_output
      const auto position = forward.argumentIndexWithName(arguments[i].name());
      TORCH_CHECK(position.has_value(), backward.schema().name(), ": ", forward.name(),
                  " has no argument ", arguments[i].name());
      positions.push_back(*position);
    }
    for (const auto& argument : forward.arguments()) {
      gradients += argument.type()->kind() == c10::TypeKind::TensorType;
    }
    TORCH_CHECK(gradients >= backward.schema().returns().size(), backward.schema().name(),
                " returns more gradients than ", forward.name(), " has tensor arguments");
  }

  c10::OperatorHandle op;
  std::vector<size_t> positions;  // of its arguments after grad_output, in the forward operator's
  size_t gradients = 0;
};

class BackwardNode final : public torch::autograd::Node {
 public:
  explicit BackwardNode(std::shared_ptr<const BackwardCall> call) : call_(std::move(call)) {}

  // arguments: the forward operator's; changed: the tensor among them that it overwrites, or null.
  void save(c10::ArrayRef<c10::IValue> arguments, const c10::TensorImpl* changed) {
    for (const auto position : call_->positions) {
      const auto& argument = arguments[position];
      if (argument.isTensor()) {
        const auto& tensor = argument.toTensor();
        const bool copy = tensor.unsafeGetTensorImpl() == changed;
        tensors_.emplace_back(copy ? tensor.clone() : tensor, /*is_output=*/false);
        others_.emplace_back();
      } else {
        others_.push_back(argument);
      }
    }
    for (const auto& argument : arguments) {
      if (argument.isTensor()) {
        const auto& tensor = argument.toTensor();
        add_next_edge(torch::autograd::impl::gradient_edge(tensor));
        is_complex_.push_back(tensor.is_complex());
      }
    }
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (std::none_of(gradients.begin(), gradients.end(),
                     [](const at::Tensor& gradient) { return gradient.defined(); })) {
      return torch::autograd::variable_list(call_->gradients);
    }
    torch::jit::Stack stack;
    for (size_t i = 0; i < gradients.size(); ++i) {
      stack.emplace_back(gradients[i].defined()
                             ? gradients[i]
                             : input_metadata(static_cast<uint32_t>(i)).zeros_like());
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
      auto tensor = tensors_.begin();
      for (const auto& other : others_) {
        stack.push_back(other.isNone() ? c10::IValue((tensor++)->unpack()) : other);
      }
    }
    call_->op.callBoxed(stack);
    torch::autograd::variable_list result;
    for (auto& gradient : stack) {
      result.push_back(std::move(gradient).toTensor());
    }
    result.resize(call_->gradients, gradients[0]);
    for (size_t i = 0; i < result.size(); ++i) {
      if (result[i].is_complex() && !is_complex_[i]) {
        result[i] = at::real(result[i]);
      }
    }
    return result;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
    for (auto& tensor : tensors_) {
      tensor.reset_data();
    }
  }

  // gelu_new_backward: GeluNewBackward
  std::string name() const override {
    const auto& full = call_->op.schema().name();
    std::string result;
    bool upper = true;
    for (const char c : unqualified(full)) {
      if (c != '_') {
        result += upper ? static_cast<char>(std::toupper(c)) : c;
      }
      upper = c == '_';
    }
    return result;
  }

 private:
  std::shared_ptr<const BackwardCall> call_;
  std::vector<torch::autograd::SavedVariable> tensors_;
  std::vector<c10::IValue> others_;  // None stands for the next of tensors_
  std::vector<bool> is_complex_;     // the forward operator's tensors
  bool released_ = false;
};

bool any_requires_grad(c10::ArrayRef<c10::IValue> arguments) {
  if (!c10::GradMode::is_enabled()) {
    return false;
  }
  for (const auto& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().requires_grad()) {
      return true;
    }
  }
  return false;
}

void check_no_forward_gradient(const c10::OperatorHandle& op,
                               c10::ArrayRef<c10::IValue> arguments) {
  for (const auto& argument : arguments) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !argument.isTensor() || !torch::autograd::isFwGradDefined(argument.toTensor()),
        "Trying to use forward AD with ", op.schema().name(),
        " that does not support it because it has not been implemented yet.");
  }
}

// Runs an operator whose arguments require gradients and makes `node` the origin of its results.
// changed: the argument that it overwrites, if any.
void run_recorded(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                  const at::Tensor& changed, c10::intrusive_ptr<torch::autograd::Node> node) {
  {
    at::AutoDispatchBelowAutograd guard;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
  if (changed.defined()) {
    torch::autograd::rebase_history(stack->back().toTensor(), std::move(node));
    return;
  }
  for (const auto& result : torch::jit::last(*stack, op.schema().returns().size())) {
    torch::autograd::set_history(result.toTensor(), node);
  }
}

// Kernel of the functional and the in-place overload.
class DifferentiableKernel final : public c10::OperatorKernel {
 public:
  DifferentiableKernel(std::shared_ptr<const BackwardCall> call, bool inplace)
      : call_(std::move(call)), inplace_(inplace) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    check_no_forward_gradient(op, arguments);
    if (!any_requires_grad(arguments)) {
      at::AutoDispatchBelowAutograd guard;
      op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
      return;
    }
    const at::Tensor changed = inplace_ ? arguments[0].toTensor() : at::Tensor();
    if (inplace_) {
      torch::autograd::check_inplace(changed, /*requires_grad=*/true);
    }
    auto node = c10::make_intrusive<BackwardNode>(call_);
    node->save(arguments, inplace_ ? changed.unsafeGetTensorImpl() : nullptr);
    run_recorded(op, keys, stack, changed, std::move(node));
  }

 private:
  const std::shared_ptr<const BackwardCall> call_;
  const bool inplace_;
};

// Raises when gradients arrive.
class NotDifferentiableNode final : public torch::autograd::Node {
 public:
  explicit NotDifferentiableNode(std::string message) : message_(std::move(message)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, message_);
  }

 private:
  const std::string message_;
};

// Kernel of operators without a derivative: backward through them raises NotImplementedError.
class NotDifferentiableKernel final : public c10::OperatorKernel {
 public:
  NotDifferentiableKernel(std::string message, bool inplace)
      : message_(std::move(message)), inplace_(inplace) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    check_no_forward_gradient(op, arguments);
    if (!any_requires_grad(arguments)) {
      at::AutoDispatchBelowAutograd guard;
      op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
      return;
    }
    const at::Tensor changed = inplace_ ? arguments[0].toTensor() : at::Tensor();
    if (inplace_) {
      torch::autograd::check_inplace(changed, /*requires_grad=*/true);
    }
    auto node = c10::make_intrusive<NotDifferentiableNode>(message_);
    for (const auto& argument : arguments) {
      if (argument.isTensor()) {
        node->add_next_edge(torch::autograd::impl::gradient_edge(argument.toTensor()));
      }
    }
    run_recorded(op, keys, stack, changed, std::move(node));
  }

 private:
  const std::string message_;
  const bool inplace_;
};

// Kernel of the out overload, which is never differentiable.
class OutKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    check_no_forward_gradient(op, arguments);
    if (any_requires_grad(arguments)) {
      const auto& name = op.schema().name();
      torch::autograd::throw_error_out_requires_grad(std::string(unqualified(name)).c_str());
    }
    at::AutoDispatchBelowAutograd guard;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
};

}  // namespace

void implement_differentiable(torch::Library& m, const std::string& overload,
                              const c10::OperatorHandle& functional,
                              const c10::OperatorHandle& backward, bool inplace) {
  implement_boxed<DifferentiableKernel>(
      m, overload, c10::DispatchKey::Autograd,
      std::make_shared<const BackwardCall>(functional.schema(), backward), inplace);
}

void implement_not_differentiable(torch::Library& m, const std::string& overload,
                                  const std::string& message, bool inplace) {
  implement_boxed<NotDifferentiableKernel>(m, overload, c10::DispatchKey::Autograd, message,
                                           inplace);
}

void implement_out(torch::Library& m, const std::string& overload) {
  implement_boxed<OutKernel>(m, overload, c10::DispatchKey::Autograd);
}

void implement_in_place_or_view(torch::Library& m, const std::string& overload) {
  m.impl(overload.c_str(),
         torch::dispatch(c10::DispatchKey::ADInplaceOrView,
                         torch::autograd::autogradNotImplementedInplaceOrViewFallback()));
}

}  // namespace metalops::autograd
