// The functionalization kernel: runs the functional overload on the tensors inside the functional
// wrappers, and replaces the values of the arguments that are written.
#include <ATen/core/LegacyTypeDispatch.h>
#include <metalops/boxed.h>
#include <metalops/functionalize.h>
#include <metalops/torch_internals.h>

#include <utility>

namespace metalops {
namespace {

class FunctionalizeKernel final : public c10::OperatorKernel {
 public:
  FunctionalizeKernel(c10::OperatorHandle functional, size_t written, bool resizes)
      : functional_(std::move(functional)), written_(written), resizes_(resizes) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto count = op.schema().arguments().size();
    const auto arguments = torch::jit::last(*stack, count);
    const auto results = op.schema().returns().size();
    const auto written = arguments.slice(written_, results);
    if (!internals::isFunctionalTensor(written[0].toTensor())) {
      for (const auto& argument : arguments) {
        TORCH_CHECK(!argument.isTensor() || !internals::isFunctionalTensor(argument.toTensor()),
                    "mutating a non-functional tensor with a functional tensor is not allowed.");
      }
      at::AutoDispatchSkipFunctionalize guard;
      op.callBoxed(stack);
      return;
    }
    torch::jit::Stack inner;
    for (size_t i = 0; i < functional_.schema().arguments().size(); ++i) {
      inner.push_back(arguments[i]);
      if (arguments[i].isTensor() && internals::isFunctionalTensor(arguments[i].toTensor())) {
        internals::sync(arguments[i].toTensor());
        inner.back() = internals::from_functional_tensor(arguments[i].toTensor());
      }
    }
    {
      at::AutoDispatchSkipFunctionalize guard;
      functional_.callBoxed(inner);
    }
    torch::jit::Stack outputs;
    for (size_t i = 0; i < results; ++i) {
      const auto& output = written[i].toTensor();
      replace(output, inner[i].toTensor());
      outputs.emplace_back(output);
    }
    torch::jit::drop(*stack, count);
    stack->insert(stack->end(), outputs.begin(), outputs.end());
  }

 private:
  void replace(const at::Tensor& output, const at::Tensor& result) const {
    TORCH_CHECK(c10::canCast(result.scalar_type(), output.scalar_type()), "result type ",
                result.scalar_type(), " can't be cast to the desired output type ",
                output.scalar_type());
    TORCH_CHECK(resizes_ || result.sym_sizes() == output.sym_sizes(), "output with shape ",
                output.sym_sizes(), " doesn't match the broadcast shape ", result.sym_sizes());
    internals::replace_(output, result);
    internals::commit_update(output);
    internals::sync(output);
  }

  const c10::OperatorHandle functional_;
  const size_t written_;
  const bool resizes_;
};

}  // namespace

void implement_functionalization(torch::Library& m, const std::string& overload,
                                 const c10::OperatorHandle& functional, size_t written,
                                 bool resizes) {
  implement_boxed<FunctionalizeKernel>(m, overload, c10::DispatchKey::Functionalize, functional,
                                       written, resizes);
}

}  // namespace metalops
