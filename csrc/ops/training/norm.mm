// Normalisation of inputs whose parameters are of another dtype, or that are not contiguous, while
// the fix "norm" is on: torch's own kernels, which are right for contiguous tensors of one dtype,
// compute in float32 where dtypes differ, and always get contiguous tensors.
#include <ATen/core/Tensor.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <csrc/ops/common/fixes.h>
#include <metalops/checks.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <initializer_list>
#include <string>
#include <string_view>

namespace {

using at::Tensor;
using torch::jit::Stack;

struct Normalisation {
  const char* name;
  const char* overload;
  // torch's kernel, as it was when the fix was turned on. Objects are never freed: another thread
  // may be in a call when the fix is turned off.
  std::atomic<const metalops::StockKernel*> stock{nullptr};
};

std::array<Normalisation, 10>& normalisations() {
  static std::array<Normalisation, 10> all{{
      {"native_batch_norm", ""},
      {"native_batch_norm_backward", ""},
      {"_native_batch_norm_legit", ""},
      {"_native_batch_norm_legit", "no_stats"},
      {"_batch_norm_with_update", ""},
      {"batch_norm_backward", ""},
      {"native_layer_norm", ""},
      {"native_layer_norm_backward", ""},
      {"native_group_norm", ""},
      {"native_group_norm_backward", ""},
  }};
  return all;
}

const metalops::StockKernel& stock_kernel(const c10::OperatorName& name) {
  const auto unqualified = metalops::unqualified(name.name);
  auto& all = normalisations();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Normalisation& each) {
    return unqualified == each.name && name.overload_name == each.overload;
  });
  TORCH_INTERNAL_ASSERT(found != all.end());
  return *found->stock.load();
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The tensors among an operator's arguments, by name.
class Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, Stack& stack)
      : schema_(schema), first_(&stack[stack.size() - schema.arguments().size()]) {}

  // Calls visit(value) for those of these names that are given.
  template <class Visit>
  void each(std::initializer_list<std::string_view> names, const Visit& visit) const {
    for (size_t i = 0; i < schema_.arguments().size(); ++i) {
      auto& value = first_[i];
      if (is_one_of(schema_.arguments()[i].name(), names) && value.isTensor() &&
          value.toTensor().defined()) {
        visit(value);
      }
    }
  }

 private:
  const c10::FunctionSchema& schema_;
  c10::IValue* first_;
};

void normalise(const c10::OperatorHandle& op, Stack* stack) {
  const Arguments arguments(op.schema(), *stack);
  Tensor input;
  arguments.each({"input"}, [&](const c10::IValue& value) { input = value.toTensor(); });
  const auto type = input.scalar_type();
  bool is_mixed = false;
  const std::initializer_list<std::string_view> kParameters = {"weight", "bias", "running_mean",
                                                               "running_var"};
  arguments.each(kParameters, [&](const c10::IValue& value) {
    is_mixed |= value.toTensor().scalar_type() != type;
  });
  if (is_mixed) {
    metalops::check_metal_float(op.schema().name(), type);
    arguments.each(kParameters, [&](const c10::IValue& value) {
      at::native::check_mixed_data_type(input, value.toTensor());
    });
    const auto widen = [](c10::IValue& value) { value = value.toTensor().to(at::kFloat); };
    arguments.each({"input", "grad_out", "mean", "rstd", "save_mean", "save_invstd", "save_var"},
                   widen);
  }
  const auto make_contiguous = [](c10::IValue& value) { value = value.toTensor().contiguous(); };
  arguments.each({"input", "grad_out"}, make_contiguous);
  const auto results = op.schema().returns().size();
  stock_kernel(op.operator_name()).call(*stack);
  auto& first = (*stack)[stack->size() - results];
  if (first.isTensor() && first.toTensor().defined()) {
    // The result, or the gradient of the input.
    first = first.toTensor().to(type).contiguous(input.suggest_memory_format());
  }
}

const metalops::Fix kNorm("norm", [](metalops::AtenKernels& m, const char* reason) {
  for (auto& each : normalisations()) {
    const auto qualified = std::string("aten::") + each.name;
    if (c10::Dispatcher::singleton().findSchema({qualified, each.overload})) {
      each.stock = new metalops::StockKernel(qualified.c_str(), each.overload);
      const auto dot = each.overload[0] == '\0' ? "" : ".";
      m.replace((std::string(each.name) + dot + each.overload).c_str(),
                torch::CppFunction::makeFromBoxedFunction<&normalise>(), reason);
    }
  }
});

}  // namespace
