// Operators on streams: those that can be queued, and what they access, for the check of the order.
#pragma once
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <device/aliases.h>
#include <metal/streams.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace metalops::device {

// Returns true if operators have to do more than run: their stream queues them, or the order of
// streams is checked.
inline bool is_stream_work() {
  return C10_UNLIKELY(streams::in_use()) &&
         (!streams::is_current_default() || exec::checks_stream_order());
}

// Returns true if calls of an operator can be queued: it makes new tensors of a size that does not
// depend on values, or writes arguments.
bool is_queueable(const c10::OperatorHandle& op);

// A call on meta tensors like the arguments.
struct MetaCall {
  torch::jit::Stack arguments;  // after the call, which may have resized those of `out`
  torch::jit::Stack results;
};

// Returns nothing if the call cannot be queued, or raises on the meta device.
std::optional<MetaCall> call_on_meta(const c10::OperatorHandle& op,
                                     c10::ArrayRef<c10::IValue> arguments);

// Gives the arguments of `out` the sizes and strides that the call gives them.
void resize_outputs(const std::string& name, const c10::FunctionSchema& schema,
                    c10::ArrayRef<c10::IValue> arguments, const MetaCall& meta);

// Returns new mps tensors like `metas`, and queues `compute`, whose results are copied into them;
// undefined ones remain so. `compute` owns the CPU tensors that it uses.
std::vector<at::Tensor> queue_results(const std::string& name, Aliases& aliases,
                                      const std::vector<at::Tensor>& metas,
                                      std::function<std::vector<at::Tensor>()> compute);

// Calls `visit` for each tensor of an argument or result.
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

// The accesses of an operator, if the order is checked: those of its arguments, and those of
// tensors that it has made. Raise findings.
void check_arguments(const std::string& name, const c10::FunctionSchema& schema,
                     c10::ArrayRef<c10::IValue> arguments);
void check_results(const std::string& name, c10::ArrayRef<c10::IValue> results);
void check_copy(const at::Tensor& to, const at::Tensor& from);
// Checks the accesses of a kernel of one of torch's DispatchStubs.
void check_iterator(const std::string& name, const at::TensorIteratorBase& iterator);

}  // namespace metalops::device
