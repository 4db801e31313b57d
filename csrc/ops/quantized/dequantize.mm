// dequantize of tensors that are not quantised, the only ones on mps, as on the CPU: the same code
// then works for quantised and for other tensors.
#include <ATen/core/Tensor.h>
#include <metalops/stock.h>

namespace {

at::Tensor dequantize(const at::Tensor& self) { return self.to(at::kFloat); }

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("dequantize.self", dequantize);
}

}  // namespace
