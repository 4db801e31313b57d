// Boxed autograd kernels: the graph node that calls a backward operator, forward-mode tangents, and
// the nodes of operators without a derivative.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros_like.h>
#include <metalops/autograd.h>
#include <metalops/boxed.h>
#include <metalops/checks.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace metalops::autograd {
namespace {

using torch::autograd::variable_list;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::SwapSavedVariables;

// Calls the backward operator of an operator.
struct BackwardCall {
  BackwardCall(const c10::FunctionSchema& forward, const c10::OperatorHandle& backward,
               bool is_halved)
      : op(backward), name(forward.name()), is_halved(is_halved) {
    const auto& arguments = backward.schema().arguments();
    has_mask = arguments.back().name() == kOutputMask;
    // Positions of the arguments after grad_output.
    for (size_t i = forward.returns().size(); i < arguments.size() - has_mask; ++i) {
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

  // Runs the backward operator. arguments: those after grad_output. wanted: which gradients are
  // wanted; the others are undefined if the operator has a mask.
  variable_list operator()(const variable_list& grad_outputs, c10::ArrayRef<c10::IValue> arguments,
                           const std::vector<bool>& wanted) const {
    torch::jit::Stack stack(grad_outputs.begin(), grad_outputs.end());
    stack.insert(stack.end(), arguments.begin(), arguments.end());
    const auto returned = op.schema().returns().size();
    if (has_mask) {
      c10::List<bool> mask;
      for (size_t i = 0; i < returned; ++i) {
        mask.push_back(wanted[i]);
      }
      stack.emplace_back(std::move(mask));
    }
    op.callBoxed(stack);
    variable_list gradients;
    for (auto& gradient : stack) {
      gradients.push_back(std::move(gradient).toTensor());
    }
    return gradients;
  }

  // Returns the operands of an argument: its halves, or the argument itself.
  std::vector<at::Tensor> parts(const at::Tensor& argument) const {
    return is_halved ? argument.chunk(2, /*dim=*/-1) : std::vector<at::Tensor>{argument};
  }

  c10::OperatorHandle op;
  std::string name;  // of the forward operator
  bool is_halved;
  bool has_mask;
  std::vector<size_t> positions;  // in the forward operator, of the arguments after grad_output
  size_t gradients = 0;
};

// Computes the gradients of an operator's tensor arguments, undefined where `wanted` is false.
// gradients: one for each result, at least one of them defined. arguments: the backward operator's
// arguments after these. is_complex: for each of the operator's tensor arguments. zeros(i) replaces
// gradient i if that is undefined.
template <class Zeros>
variable_list run_backward(const BackwardCall& call, const variable_list& gradients,
                           c10::ArrayRef<c10::IValue> arguments, const std::vector<bool>& wanted,
                           const std::vector<bool>& is_complex, const Zeros& zeros) {
  variable_list result(call.gradients);
  const auto computed = call.op.schema().returns().size();
  if (std::any_of(wanted.begin(), wanted.begin() + static_cast<int64_t>(computed),
                  [](bool is_wanted) { return is_wanted; })) {
    variable_list grad_outputs;
    for (size_t i = 0; i < gradients.size(); ++i) {
      grad_outputs.push_back(gradients[i].defined() ? gradients[i] : zeros(i));
    }
    auto returned = call(grad_outputs, arguments, wanted);
    std::move(returned.begin(), returned.end(), result.begin());
  }
  for (size_t i = 0; i < result.size(); ++i) {
    if (!wanted[i]) {
      result[i].reset();
      continue;
    }
    if (i >= computed) {
      result[i] = gradients[0];
    }
    if (result[i].is_complex() && !is_complex[i]) {
      result[i] = at::real(result[i]);
    }
  }
  return result;
}

bool any_defined(const variable_list& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined(); });
}

class BackwardNode final : public torch::autograd::Node {
 public:
  explicit BackwardNode(std::shared_ptr<const BackwardCall> call) : call_(std::move(call)) {}

  // Saves the arguments. arguments: the forward operator's; changed: the tensor among them that it
  // overwrites, or null.
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

  variable_list apply(variable_list&& gradients) override {
    if (!any_defined(gradients)) {
      return variable_list(call_->gradients);
    }
    return run_backward(*call_, gradients, saved_arguments(), wanted(), is_complex_,
                        [this](size_t i) { return metadata(i).zeros_like(); });
  }

  // Collects what identifies the graph: compiled autograd keeps one graph for all nodes that
  // collect the same.
  void compiled_args(CompiledNodeArgs& args) const override {
    TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
    args.collect(call_->op.schema().name());
    args.collect(tensors_, /*is_output=*/false);
    for (const auto& other : others_) {
      if (!other.isNone()) {
        args.collect(other.toScalar());
      }
    }
    args.collect(is_complex_);
    args.collect(wanted());
  }

  // Adds a call of run_backward() to the graph.
  variable_list apply_with_saved(const variable_list& gradients,
                                 SwapSavedVariables& saved) override {
    namespace dynamo = torch::dynamo::autograd;
    using Metadata = std::vector<std::optional<torch::autograd::InputMetadata>>;
    saved.before(tensors_);
    Metadata results;
    for (size_t i = 0; i < gradients.size(); ++i) {
      results.emplace_back(metadata(i));
    }
    auto arguments = saved_arguments();
    arguments.push_back(dynamo::IValuePacker<Metadata>::pack(results));
    std::vector<at::TypePtr> types;
    for (const auto& argument : arguments) {
      types.push_back(argument.isTensor() ? at::TensorType::get() : argument.type());
    }
    const auto& compiler = dynamo::getPyCompilerInterface();
    const auto function = compiler->bind_function(
        saved.get_py_compiler(), name(),
        [call = call_, wanted = wanted(), is_complex = is_complex_](
            const variable_list& gradients, const std::vector<c10::IValue>& arguments) {
          if (!any_defined(gradients)) {
            return variable_list(call->gradients);
          }
          const auto results = dynamo::IValuePacker<Metadata>::unpack(arguments.back());
          return run_backward(*call, gradients,
                              c10::ArrayRef(arguments).slice(0, arguments.size() - 1), wanted,
                              is_complex, [&](size_t i) { return results[i]->zeros_like(); });
        },
        types, /*is_custom_function=*/true, /*is_traceable=*/true);
    auto result = compiler->call_function(
        saved.get_py_compiler(), "apply_functional", function, gradients, arguments,
        dynamo::IValuePacker<Metadata>::pack(dynamo::get_input_metadata(next_edges())));
    saved.after(tensors_);
    return result;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
    for (auto& tensor : tensors_) {
      tensor.reset_data();
    }
  }

  // Returns the node's name: GeluNewBackward for gelu_new_backward.
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
  // Returns the backward operator's arguments after the gradients.
  std::vector<c10::IValue> saved_arguments() {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
    std::vector<c10::IValue> result;
    auto tensor = tensors_.begin();
    for (const auto& other : others_) {
      result.push_back(other.isNone() ? c10::IValue((tensor++)->unpack()) : other);
    }
    return result;
  }

  std::vector<bool> wanted() const {
    std::vector<bool> result;
    for (size_t i = 0; i < call_->gradients; ++i) {
      result.push_back(task_should_compute_output(i));
    }
    return result;
  }

  const torch::autograd::InputMetadata& metadata(size_t result) const {
    return input_metadata(static_cast<uint32_t>(result));
  }

  std::shared_ptr<const BackwardCall> call_;
  std::vector<torch::autograd::SavedVariable> tensors_;
  std::vector<c10::IValue> others_;  // None: the argument is the next of tensors_
  std::vector<bool> is_complex_;     // for each of the forward operator's tensors
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

bool has_tangent(c10::ArrayRef<c10::IValue> arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& argument) {
    return argument.isTensor() && torch::autograd::isFwGradDefined(argument.toTensor());
  });
}

void check_no_forward_gradient(const c10::OperatorHandle& op,
                               c10::ArrayRef<c10::IValue> arguments) {
  TORCH_CHECK_NOT_IMPLEMENTED(!has_tangent(arguments), "Trying to use forward AD with ",
                              op.schema().name(),
                              " that does not support it because it has not been implemented yet.");
}

void run_below_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack) {
  at::AutoDispatchBelowAutograd guard;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// Runs an operator. If its arguments require gradients, the node that make_node(arguments, changed)
// returns becomes the grad_fn of its results. changed: the argument that it overwrites, or null.
template <class MakeNode>
void run_recorded(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                  bool inplace, const MakeNode& make_node) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  if (!any_requires_grad(arguments)) {
    run_below_autograd(op, keys, stack);
    return;
  }
  const at::Tensor changed = inplace ? arguments[0].toTensor() : at::Tensor();
  if (inplace) {
    torch::autograd::check_inplace(changed, /*requires_grad=*/true);
  }
  c10::intrusive_ptr<torch::autograd::Node> node =
      make_node(arguments, inplace ? changed.unsafeGetTensorImpl() : nullptr);
  run_below_autograd(op, keys, stack);
  if (inplace) {
    torch::autograd::rebase_history(stack->back().toTensor(), std::move(node));
    return;
  }
  for (const auto& result : torch::jit::last(*stack, op.schema().returns().size())) {
    torch::autograd::set_history(result.toTensor(), node);
  }
}

// Computes the tangents of an operator's results (forward mode). The backward operator does this
// too, because gradients are linear in grad_output and elementwise: gradient i, with argument i's
// tangent in place of grad_output, is that argument's contribution.
class Tangents {
 public:
  // arguments: the forward operator's, with their values from before the call.
  Tangents(const BackwardCall& call, c10::ArrayRef<c10::IValue> arguments) : call_(call) {
    for (const auto& argument : arguments) {
      if (argument.isTensor()) {
        const auto& tensor = argument.toTensor();
        TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_complex(), "Trying to use forward AD with ",
                                    call.name, " of complex tensors, which it does not support.");
        tangents_.push_back(tensor._fw_grad(/*level=*/0));
      }
    }
    for (const auto position : call.positions) {
      const auto& argument = arguments[position];
      const bool has_primal = has_tangent(argument);
      arguments_.push_back(has_primal ? c10::IValue(argument.toTensor()._fw_primal(/*level=*/0))
                                      : argument);
    }
  }

  // Returns the tangent of a result. results: the forward operator's.
  at::Tensor operator()(c10::ArrayRef<c10::IValue> results, size_t index) const {
    const auto& result = results[index].toTensor();
    const auto computed = call_.op.schema().returns().size();
    at::Tensor sum;
    for (size_t i = 0; i < tangents_.size(); ++i) {
      if (!tangents_[i].defined()) {
        continue;
      }
      const auto share = i < computed ? this->share(i, results.size(), index) : tangents_[i];
      sum = sum.defined() ? sum + share : share;
    }
    return sum.to(result.scalar_type()).expand_as(result);
  }

 private:
  at::Tensor share(size_t argument, size_t results, size_t index) const {
    const auto parts = call_.parts(tangents_[argument]);
    at::Tensor sum;
    std::vector<bool> wanted(call_.gradients);
    wanted[argument] = true;
    for (size_t part = 0; part < parts.size(); ++part) {
      variable_list grad_outputs;
      for (size_t i = 0; i < results; ++i) {
        grad_outputs.push_back(i == index ? parts[part] : at::zeros_like(parts[part]));
      }
      const auto term = call_.parts(call_(grad_outputs, arguments_, wanted)[argument])[part];
      sum = sum.defined() ? sum + term : term;
    }
    return sum;
  }

  const BackwardCall& call_;
  variable_list tangents_;              // of the tensor arguments; undefined if they have none
  std::vector<c10::IValue> arguments_;  // of the backward operator, after the gradients
};

// The Autograd kernel of the functional and the in-place overload.
class DifferentiableKernel final : public c10::OperatorKernel {
 public:
  DifferentiableKernel(std::shared_ptr<const BackwardCall> call, bool inplace)
      : call_(std::move(call)), inplace_(inplace) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    std::optional<Tangents> tangents;
    if (has_tangent(arguments)) {
      auto originals = arguments.vec();
      if (inplace_) {
        originals[0] = originals[0].toTensor().clone();  // including its tangent
      }
      tangents.emplace(*call_, originals);
    }
    run_recorded(op, keys, stack, inplace_,
                 [this](c10::ArrayRef<c10::IValue> inputs, const c10::TensorImpl* changed) {
                   auto node = c10::make_intrusive<BackwardNode>(call_);
                   node->save(inputs, changed);
                   return node;
                 });
    if (tangents) {
      const auto results = torch::jit::last(*stack, op.schema().returns().size());
      for (size_t i = 0; i < results.size(); ++i) {
        const auto& result = results[i].toTensor();
        const auto tangent = (*tangents)(results, i);
        if (inplace_ && torch::autograd::isFwGradDefined(result)) {
          result._fw_grad(/*level=*/0).copy_(tangent);
        } else {
          result._set_fw_grad(tangent, /*level=*/0, inplace_);
        }
      }
    }
  }

 private:
  const std::shared_ptr<const BackwardCall> call_;
  const bool inplace_;
};

// The Autograd kernel of a backward operator: runs its own kernel if nothing has to be recorded.
class FormulaKernel final : public c10::OperatorKernel {
 public:
  explicit FormulaKernel(Formula formula) : formula_(std::move(formula)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto count = op.schema().arguments().size();
    const auto arguments = torch::jit::last(*stack, count);
    if (!any_requires_grad(arguments) && !has_tangent(arguments)) {
      run_below_autograd(op, keys, stack);
      return;
    }
    std::vector<at::Tensor> tensors;
    std::vector<c10::Scalar> scalars;
    for (const auto& argument : arguments) {
      if (argument.isTensor()) {
        tensors.push_back(argument.toTensor());
      } else {
        scalars.push_back(as_scalar(argument));
      }
    }
    auto results = formula_(tensors, scalars);
    const auto& last = arguments.back();
    for (size_t i = 0; i < results.size() && last.isBoolList(); ++i) {
      if (!last.toBoolList()[i]) {
        results[i].reset();
      }
    }
    torch::jit::drop(*stack, count);
    for (auto& result : results) {
      stack->emplace_back(std::move(result));
    }
  }

 private:
  const Formula formula_;
};

// A node that raises when gradients arrive.
class NotDifferentiableNode final : public torch::autograd::Node {
 public:
  explicit NotDifferentiableNode(std::string message) : message_(std::move(message)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, message_);
  }

 private:
  const std::string message_;
};

// The Autograd kernel of operators without a derivative: backward through them raises
// NotImplementedError.
class NotDifferentiableKernel final : public c10::OperatorKernel {
 public:
  NotDifferentiableKernel(std::string message, bool inplace)
      : message_(std::move(message)), inplace_(inplace) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    check_no_forward_gradient(op, arguments);
    run_recorded(op, keys, stack, inplace_,
                 [this](c10::ArrayRef<c10::IValue> inputs, const c10::TensorImpl*) {
                   auto node = c10::make_intrusive<NotDifferentiableNode>(message_);
                   for (const auto& input : inputs) {
                     if (input.isTensor()) {
                       node->add_next_edge(torch::autograd::impl::gradient_edge(input.toTensor()));
                     }
                   }
                   return node;
                 });
  }

 private:
  const std::string message_;
  const bool inplace_;
};

// The Autograd kernel of the out= overload, which is never differentiable.
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
    run_below_autograd(op, keys, stack);
  }
};

}  // namespace

c10::Scalar as_scalar(const c10::IValue& argument) {
  if (!argument.isBoolList()) {
    return argument.toScalar();
  }
  int64_t bits = 0;
  const auto flags = argument.toBoolList();
  for (size_t i = 0; i < flags.size(); ++i) {
    bits |= static_cast<int64_t>(flags[i]) << i;
  }
  return bits;
}

void implement_differentiable(torch::Library& m, const std::string& overload,
                              const c10::OperatorHandle& functional,
                              const c10::OperatorHandle& backward, bool is_halved, bool inplace) {
  implement_boxed<DifferentiableKernel>(
      m, overload, c10::DispatchKey::Autograd,
      std::make_shared<const BackwardCall>(functional.schema(), backward, is_halved), inplace);
}

void implement_formula(torch::Library& m, const std::string& overload, const Formula& formula) {
  implement_boxed<FormulaKernel>(m, overload, c10::DispatchKey::Autograd, formula);
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
