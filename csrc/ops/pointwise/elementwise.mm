// Host side of kernels/pointwise/elementwise.metal: heaviside, logit_ and frexp, which stock MPS
// lacks (it has logit and logit.out), and conj_physical_, for which torch calls a kernel that other
// devices have.
#include <ATen/TensorIterator.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/heaviside_meta.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/strided_launch.h>
#include <metalops/structured.h>

#include <tuple>

namespace {

metalops::Library& kernels() { return metalops::library("elementwise"); }

at::Tensor& heaviside_out(const at::Tensor& self, const at::Tensor& values, at::Tensor& out) {
  metalops::StructuredOut<at::meta::structured_heaviside> iter(out);
  iter.meta(self, values);
  metalops::check_dtype(!at::isBarebonesUnsignedType(self.scalar_type()), "heaviside",
                        self.scalar_type());
  kernels().exec_binary_kernel(iter, "heaviside");
  return out;
}

at::Tensor& logit_(at::Tensor& self, std::optional<double> eps) {
  metalops::check_not_complex("logit_", self.scalar_type());
  auto iter = at::TensorIterator::unary_float_op(self, self);
  kernels().exec_unary_kernel(iter, "logit", c10::Scalar(eps.value_or(-1.0)), at::kFloat);
  return self;
}

at::Tensor& conj_physical_(at::Tensor& self) {
  return self.is_complex() ? at::conj_physical_out(self, self) : self;
}

std::tuple<at::Tensor&, at::Tensor&> frexp_out(const at::Tensor& self, at::Tensor& mantissa,
                                               at::Tensor& exponent) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "torch.frexp() only supports floating-point dtypes");
  TORCH_CHECK(mantissa.dtype() == self.dtype(), "torch.frexp() expects mantissa to have dtype ",
              self.dtype(), " but got ", mantissa.dtype());
  TORCH_CHECK(exponent.dtype() == at::kInt,
              "torch.frexp() expects exponent to have int dtype but got ", exponent.dtype());
  const auto iter = at::TensorIteratorConfig()
                        .add_output(mantissa)
                        .add_output(exponent)
                        .add_const_input(self)
                        .check_all_same_dtype(false)
                        .set_check_mem_overlap(true)
                        .build();
  const auto type = metalops::KernelName(metalops::metal_type(self.scalar_type()));
  if (iter.is_contiguous() && iter.numel() % metalops::kPack == 0 &&
      metalops::begins_with_pack(mantissa) && metalops::begins_with_pack(exponent) &&
      metalops::begins_with_pack(self)) {
    const auto packs = iter.numel() / metalops::kPack;
    metalops::launch_threads(kernels(), metalops::KernelName("elementwise_frexp_packs_") + type,
                             packs, mantissa, exponent, self, packs);
  } else {
    const auto layout = metalops::layout_of<3>(iter);
    metalops::launch_threads(kernels(), metalops::KernelName("elementwise_frexp_") + type,
                             layout.count, mantissa, exponent, self, layout);
  }
  return {mantissa, exponent};
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("heaviside.out", heaviside_out);
  m.impl("logit_", logit_);
  m.impl("conj_physical_", conj_physical_);
  m.impl("frexp.Tensor_out", frexp_out);
}

}  // namespace
