// Layouts that torch does not make on mps: sparse compressed, quantized, strided nested. Every
// operator on them raises the same one-sentence error.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace metalops::device {
namespace {

template <c10::DispatchKey key>
void no_such_tensors(const c10::OperatorHandle& op, torch::jit::Stack*) {
  constexpr const char* kind = key == c10::DispatchKey::QuantizedMPS      ? "quantized"
                               : key == c10::DispatchKey::NestedTensorMPS ? "nested"
                                                                          : "sparse compressed";
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The operator '", op.schema().operator_name(), "' is not currently implemented for ",
      kind,
      " tensors on the MPS device, which metalops provides in software here. Use strided "
      "tensors, sparse ones in COO, or the CPU.");
}

template <c10::DispatchKey key>
void refuse(torch::Library& m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&no_such_tensors<key>>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrMPS, m) { refuse<c10::DispatchKey::SparseCsrMPS>(m); }
TORCH_LIBRARY_IMPL(_, QuantizedMPS, m) { refuse<c10::DispatchKey::QuantizedMPS>(m); }
TORCH_LIBRARY_IMPL(_, NestedTensorMPS, m) { refuse<c10::DispatchKey::NestedTensorMPS>(m); }

}  // namespace
}  // namespace metalops::device
