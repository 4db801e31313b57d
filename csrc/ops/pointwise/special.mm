// Host side of kernels/pointwise/special.metal: special functions of one variable that stock MPS
// lacks.
#include <ATen/ops/special_airy_ai_meta.h>
#include <ATen/ops/special_log_ndtr_meta.h>
#include <ATen/ops/special_ndtri_meta.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

namespace {

template <class Meta>
at::Tensor& special_function_out(const char* name, const at::Tensor& x, at::Tensor& out) {
  metalops::check_same_device(name, {{out, "out"}, {x, "x"}});
  metalops::check_not_complex(name, x.scalar_type());
  metalops::StructuredOut<Meta> iter(out);
  iter.meta(x);
  metalops::library("special").exec_unary_kernel(iter, name);
  return out;
}

at::Tensor& airy_ai_out(const at::Tensor& x, at::Tensor& out) {
  return special_function_out<at::meta::structured_special_airy_ai>("special_airy_ai", x, out);
}

at::Tensor& ndtri_out(const at::Tensor& self, at::Tensor& out) {
  return special_function_out<at::meta::structured_special_ndtri>("special_ndtri", self, out);
}

at::Tensor& log_ndtr_out(const at::Tensor& self, at::Tensor& out) {
  return special_function_out<at::meta::structured_special_log_ndtr>("special_log_ndtr", self, out);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("special_airy_ai.out", airy_ai_out);
  m.impl("special_ndtri.out", ndtri_out);
  m.impl("special_log_ndtr.out", log_ndtr_out);
}

}  // namespace
