// _functional_assert_async.msg and _make_dep_token, with which torch.export keeps assertions in
// order; stock MPS lacks both.
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/empty.h>
#include <metalops/stock.h>

namespace {

using at::Tensor;

Tensor make_dep_token(std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                      std::optional<at::Device> device, std::optional<bool> pin_memory,
                      std::optional<at::MemoryFormat> memory_format) {
  return at::empty({}, dtype, layout, device, pin_memory, memory_format);
}

Tensor functional_assert_async(const Tensor& self, c10::string_view message,
                               const Tensor& dep_token) {
  at::_assert_async(self, message);
  return dep_token.clone();
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_make_dep_token", make_dep_token);
  m.impl("_functional_assert_async.msg", functional_assert_async);
}

}  // namespace
