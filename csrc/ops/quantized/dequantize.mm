// dequantize of tensors that are not quantised, the only ones that there are on mps: as on the CPU,
// which thereby takes the same code as for quantised ones.
#include <ATen/core/Tensor.h>
#include <metalops/stock.h>

namespace {

at::Tensor dequantize(const at::Tensor& self) { return self.to(at::kFloat); }

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("dequantize.self", dequantize);
}

}  // namespace
