// Which operators can be queued, and their accesses.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <device/stream_work.h>
#include <metal/encoder.h>
#include <torch_internals.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace metalops::device {
namespace {

bool writes_to(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor.key_set().has(c10::DispatchKey::ZeroTensor);
}

// Returns a meta tensor like an mps tensor; a number on the CPU passes unchanged. Nothing for other
// tensors.
std::optional<at::Tensor> meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (!is_plain(tensor)) return std::nullopt;
  if (tensor.device().is_cpu() && tensor.dim() == 0) return tensor;
  if (!tensor.device().is_mps()) return std::nullopt;
  at::Tensor result = at::empty_strided(tensor.sizes(), tensor.strides(),
                                        at::TensorOptions(at::kMeta).dtype(tensor.dtype()));
  if (internals::is_wrapped_number(tensor)) internals::set_wrapped_number(result);
  return result;
}

// Converts an argument; returns false if it cannot be.
bool to_meta(c10::IValue& value) {
  if (value.isTensor()) {
    const auto result = meta(value.toTensor());
    if (result) value = *result;
    return result.has_value();
  }
  if (!value.isTensorList()) return !value.isOptionalTensorList() && !value.isDevice();
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) {
    const auto result = meta(tensor);
    if (!result) return false;
    list.push_back(*result);
  }
  value = std::move(list);
  return true;
}

template <class Visit>
void visit_tensors(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) {
      if (tensor) visit(*tensor);
    }
  }
}

exec::StreamWork work_of(const std::string& name) {
  return {"operator '" + name + "'", streams::current(), {}};
}

void add(exec::StreamWork& work, const at::Tensor& tensor, bool writes, const std::string& role) {
  if (!tensor.defined() || !tensor.device().is_mps() || !is_plain(tensor)) return;
  work.access(bound_tensor(tensor), writes, role + " (");
}

}  // namespace

bool is_queueable(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const auto& returns = schema.returns();
  for (const c10::Argument& result : returns) {
    if (result.type()->kind() != c10::TypeKind::TensorType) return false;
  }
  if (returns.empty()) return false;
  const auto written = std::count_if(arguments.begin(), arguments.end(), writes_to);
  if (written != 0) {
    return written == 1 && writes_to(arguments[0]) && returns.size() == 1 &&
           writes_to(returns[0]) && arguments[0].type()->kind() == c10::TypeKind::TensorType;
  }
  return std::none_of(returns.begin(), returns.end(),
                      [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

std::optional<std::vector<at::Tensor>> meta_results(const c10::OperatorHandle& op,
                                                    c10::ArrayRef<c10::IValue> arguments) {
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return std::nullopt;
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  for (c10::IValue& value : stack) {
    if (!to_meta(value)) return std::nullopt;
  }
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const std::exception&) {
    return std::nullopt;  // the CPU kernel raises what the call should raise, or does without
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) {
    if (!value.isTensor() || !value.toTensor().is_meta()) return std::nullopt;
    results.push_back(value.toTensor());
  }
  const bool in_place = op.schema().is_mutable();
  const bool same = !in_place || results[0].sizes() == arguments[0].toTensor().sizes();
  return same ? std::optional(std::move(results)) : std::nullopt;
}

void check_arguments(const std::string& name, const c10::FunctionSchema& schema,
                     c10::ArrayRef<c10::IValue> arguments) {
  if (!exec::checks_stream_order()) return;
  exec::StreamWork work = work_of(name);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    visit_tensors(arguments[i], [&](const at::Tensor& tensor) {
      add(work, tensor, writes_to(argument), "'" + argument.name() + "'");
    });
  }
  exec::check_order(std::move(work));
}

void check_results(const std::string& name, c10::ArrayRef<c10::IValue> results) {
  if (!exec::checks_stream_order()) return;
  exec::StreamWork work = work_of(name);
  for (const c10::IValue& value : results) {
    visit_tensors(value, [&](const at::Tensor& tensor) { add(work, tensor, true, "its result"); });
  }
  exec::check_order(std::move(work));
}

void check_iterator(const std::string& name, const at::TensorIteratorBase& iterator) {
  if (!exec::checks_stream_order()) return;
  exec::StreamWork work = work_of(name);
  for (int i = 0; i < iterator.ntensors(); ++i) {
    const bool writes = i < iterator.noutputs();
    const int number = writes ? i : i - iterator.noutputs();
    add(work, iterator.tensor(i), writes, (writes ? "output " : "input ") + std::to_string(number));
  }
  exec::check_order(std::move(work));
}

void check_copy(const at::Tensor& to, const at::Tensor& from) {
  if (!exec::checks_stream_order()) return;
  exec::StreamWork work = work_of("aten::copy_");
  add(work, from, false, "'src'");
  add(work, to, true, "'self'");
  exec::check_order(std::move(work));
}

}  // namespace metalops::device
