// Operators on streams: those that can be queued, and what they access, for the check of the order.
#pragma once
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <metal/streams.h>

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

// Returns true if calls of an operator can be queued: it makes new tensors or writes its first
// argument in place, and needs nothing from the host.
bool is_queueable(const c10::FunctionSchema& schema);

// Returns the results of an operator as meta tensors, from those of its arguments. Returns nothing
// if the call cannot be queued, or raises on the meta device.
std::optional<std::vector<at::Tensor>> meta_results(const c10::OperatorHandle& op,
                                                    c10::ArrayRef<c10::IValue> arguments);

// The accesses of an operator, if the order is checked: those of its arguments, and those of
// tensors that it has made. Raise findings.
void check_arguments(const std::string& name, const c10::FunctionSchema& schema,
                     c10::ArrayRef<c10::IValue> arguments);
void check_results(const std::string& name, c10::ArrayRef<c10::IValue> results);
void check_copy(const at::Tensor& to, const at::Tensor& from);
// Checks the accesses of a kernel of one of torch's DispatchStubs.
void check_iterator(const std::string& name, const at::TensorIteratorBase& iterator);

}  // namespace metalops::device
