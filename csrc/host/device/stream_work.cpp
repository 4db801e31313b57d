// Which operators can be queued, and their accesses.
#include <ATen/MemoryOverlap.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <device/device.h>
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
  at::Tensor result =
      at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  if (internals::is_wrapped_number(tensor)) internals::set_wrapped_number(result);
  return result;
}

// As meta, of an index: it may be on the CPU, but is not a mask, whose values tell the size.
std::optional<at::Tensor> meta_index(const at::Tensor& index) {
  if (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte) return std::nullopt;
  if (!index.device().is_cpu() || !is_plain(index)) return meta(index);
  return at::empty_strided(index.sizes(), index.strides(), index.options().device(at::kMeta));
}

// Converts an argument; returns false if it cannot be.
bool to_meta(c10::IValue& value) {
  if (value.isTensor()) {
    auto result = meta(value.toTensor());
    if (result) value = std::move(*result);
    return result.has_value();
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      auto result = tensor ? meta_index(*tensor) : std::nullopt;
      if (tensor && !result) return false;
      list.push_back(std::move(result));
    }
    value = std::move(list);
    return true;
  }
  if (!value.isTensorList()) return !value.isDevice();
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) {
    auto result = meta(tensor);
    if (!result) return false;
    list.push_back(std::move(*result));
  }
  value = std::move(list);
  return true;
}

bool is_tensor_or_list(const c10::Argument& result) {
  const auto& type = result.type();
  if (type->kind() == c10::TypeKind::TensorType) return true;
  const auto list = type->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::TensorType;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> result;
  visit_tensors(value, [&](const at::Tensor& tensor) { result.push_back(tensor); });
  return result;
}

bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides();
}

// Returns true if elements of a tensor share memory with each other, or with a part of another one
// of the arguments: kernels raise then, and meta kernels do not see it.
bool is_overlapped(const at::Tensor& tensor, c10::ArrayRef<c10::IValue> arguments) {
  bool overlapped = at::has_internal_overlap(tensor) != at::MemOverlap::No;
  for (const c10::IValue& value : arguments) {
    visit_tensors(value, [&](const at::Tensor& other) {
      if (!other.defined() || overlapped) return;
      const auto status = at::get_overlap_status(tensor, other);
      overlapped =
          status == at::MemOverlapStatus::Partial || status == at::MemOverlapStatus::TooHard;
    });
  }
  return overlapped;
}

// Returns true if another one of the arguments is the tensor, or may share its memory.
bool is_shared(const at::Tensor& tensor, c10::ArrayRef<c10::IValue> arguments) {
  int sharing = 0;
  for (const c10::IValue& value : arguments) {
    visit_tensors(value, [&](const at::Tensor& other) {
      if (other.defined() && other.storage().is_alias_of(tensor.storage())) ++sharing;
    });
  }
  return sharing > 1;
}

// Returns true if all tensors are contiguous but this one. Outputs that are resized are then, too;
// of others meta kernels do not know the strides.
bool others_are_contiguous(const at::Tensor& tensor, c10::ArrayRef<c10::IValue> arguments) {
  bool contiguous = true;
  for (const c10::IValue& value : arguments) {
    visit_tensors(value, [&](const at::Tensor& other) {
      if (other.defined() && !other.is_same(tensor))
        contiguous = contiguous && other.is_contiguous();
    });
  }
  return contiguous;
}

// Returns true if a call can write the argument `i` when it runs: each tensor is on the device,
// keeps its geometry, and nothing raises because of its memory. Those of `out` may be resized, at
// the call.
bool can_be_written(const c10::FunctionSchema& schema, size_t i,
                    c10::ArrayRef<c10::IValue> arguments, const c10::IValue& meta) {
  const std::vector<at::Tensor> tensors = tensors_of(arguments[i]);
  const std::vector<at::Tensor> after = tensors_of(meta);
  for (size_t k = 0; k < tensors.size(); ++k) {
    const at::Tensor& tensor = tensors[k];
    if (!tensor.defined()) continue;
    if (!tensor.device().is_mps() || is_overlapped(tensor, arguments)) return false;
    if (same_strides(tensor, after[k])) continue;
    if (!schema.arguments()[i].is_out() || is_shared(tensor, arguments) ||
        !others_are_contiguous(tensor, arguments)) {
      return false;
    }
  }
  return true;
}

exec::StreamWork work_of(const std::string& name) {
  return {"operator '" + name + "'", streams::current(), {}};
}

void add(exec::StreamWork& work, const at::Tensor& tensor, bool writes, const std::string& role) {
  if (!tensor.defined() || !tensor.device().is_mps() || !is_plain(tensor)) return;
  work.access(bound_tensor(tensor), writes, role + " (");
}

}  // namespace

bool is_queueable(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const bool takes_indices =
      std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
        return argument.type()->isSubtypeOf(
            *c10::getTypePtr<c10::List<std::optional<at::Tensor>>>());
      });
  if (op.hasTag(at::Tag::data_dependent_output)) return false;
  if (op.hasTag(at::Tag::dynamic_output_shape) && !takes_indices) return false;  // see meta_index
  const auto& returns = op.schema().returns();
  if (returns.empty()) return op.schema().is_mutable();
  return std::all_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    const bool is_view = result.alias_info() != nullptr && !writes_to(result);
    return is_tensor_or_list(result) && !is_view;
  });
}

std::optional<MetaCall> call_on_meta(const c10::OperatorHandle& op,
                                     c10::ArrayRef<c10::IValue> arguments) {
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return std::nullopt;
  MetaCall call;
  call.arguments.assign(arguments.begin(), arguments.end());
  for (c10::IValue& value : call.arguments) {
    if (!to_meta(value)) return std::nullopt;
  }
  call.results = call.arguments;
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &call.results);
  } catch (const std::exception&) {
    return std::nullopt;  // the CPU kernel raises what the call should raise, or does without
  }
  for (const c10::IValue& value : call.results) {
    bool are_meta = value.isTensor() || value.isTensorList();
    visit_tensors(
        value, [&](const at::Tensor& t) { are_meta = are_meta && (!t.defined() || t.is_meta()); });
    if (!are_meta) return std::nullopt;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (writes_to(op.schema().arguments()[i]) &&
        !can_be_written(op.schema(), i, arguments, call.arguments[i])) {
      return std::nullopt;
    }
  }
  return call;
}

void resize_outputs(const std::string& name, const c10::FunctionSchema& schema,
                    c10::ArrayRef<c10::IValue> arguments, const MetaCall& meta) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!schema.arguments()[i].is_out()) continue;
    const std::vector<at::Tensor> outputs = tensors_of(arguments[i]);
    const std::vector<at::Tensor> metas = tensors_of(meta.arguments[i]);
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (!outputs[k].defined() || same_strides(outputs[k], metas[k])) continue;
      outputs[k].resize_(metas[k].sizes());
      internals::set_geometry(outputs[k], metas[k].sizes(), metas[k].strides(),
                              outputs[k].storage_offset());
      check_results(name, c10::IValue(outputs[k]));
    }
  }
}

std::vector<at::Tensor> queue_results(const std::string& name, Aliases& aliases,
                                      const std::vector<at::Tensor>& metas,
                                      std::function<std::vector<at::Tensor>()> compute) {
  std::vector<at::Tensor> results;
  std::vector<at::Tensor> outputs;  // on the CPU
  for (const at::Tensor& meta : metas) {
    at::Tensor result;
    if (meta.defined()) {
      result = at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(kDevice));
      check_results(name, c10::IValue(result));
    }
    outputs.push_back(aliases.to_cpu(result));
    results.push_back(std::move(result));
  }
  streams::submit(name,
                  [name, outputs, compute = std::move(compute), state = at::ThreadLocalState()] {
                    const at::ThreadLocalStateGuard as_at_the_call(state);
                    const at::AutoDispatchBelowADInplaceOrView guard;
                    const std::vector<at::Tensor> computed = compute();
                    for (size_t i = 0; i < outputs.size(); ++i) {
                      TORCH_INTERNAL_ASSERT(
                          computed[i].defined() == outputs[i].defined() &&
                              (!computed[i].defined() || computed[i].sizes() == outputs[i].sizes()),
                          "the meta kernel of ", name, " differs from that of the CPU");
                      if (outputs[i].defined()) outputs[i].copy_(computed[i]);
                    }
                  });
  return results;
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
