// Overloads of reductions that stock MPS lacks although it has the reductions themselves: _aminmax,
// torch.min and torch.max of all elements with out=, torch.std and torch.var with out=.
#include <ATen/Dispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/std.h>
#include <ATen/ops/var.h>
#include <csrc/ops/common/outputs.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <limits>
#include <tuple>

namespace {

using at::OptionalIntArrayRef;
using at::Tensor;

void check_cast(at::ScalarType from, at::ScalarType to) {
  TORCH_CHECK(c10::canCast(from, to), "result type ", from,
              " can't be cast to the desired output type ", to);
}

// ---- _aminmax -----------------------------------------------------------------------------------

void warn_of_aminmax() {
  TORCH_WARN_ONCE(
      "_aminmax is deprecated as of PyTorch 1.11 and will be removed in a future release. Use "
      "aminmax instead.");
}

std::tuple<Tensor, Tensor> aminmax_of_all(const Tensor& self) {
  warn_of_aminmax();
  return at::aminmax(self);
}

std::tuple<Tensor, Tensor> aminmax_of_dim(const Tensor& self, int64_t dim, bool keepdim) {
  warn_of_aminmax();
  return at::aminmax(self, dim, keepdim);
}

// ---- min and max --------------------------------------------------------------------------------

// Returns the largest number of a dtype, or the smallest.
at::Scalar limit_of(at::ScalarType type, bool largest) {
  return AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, type, "min_max", [&] {
    using Limits = std::numeric_limits<scalar_t>;
    if constexpr (Limits::has_infinity) {
      return at::Scalar(largest ? Limits::infinity() : -Limits::infinity());
    }
    return at::Scalar(largest ? Limits::max() : Limits::lowest());
  });
}

// Unlike torch.min(x), torch.min(x, out=y) accepts an empty x, on every device: the result is the
// largest number of the dtype.
template <Tensor (*kReduce)(const Tensor&), bool kLargestIfEmpty>
Tensor& extremum_out(const Tensor& self, Tensor& out) {
  metalops::check_same_device(kLargestIfEmpty ? "min" : "max", {{out, "out"}, {self, "self"}});
  check_cast(self.scalar_type(), out.scalar_type());
  at::native::resize_output(out, {});
  return self.numel() == 0 ? out.fill_(limit_of(self.scalar_type(), kLargestIfEmpty))
                           : out.copy_(kReduce(self));
}

// ---- std and var --------------------------------------------------------------------------------

using Deviation = Tensor (*)(const Tensor&, OptionalIntArrayRef, const std::optional<at::Scalar>&,
                             bool);

// Computes in the wider dtype of input and output, so that the result is rounded once.
template <Deviation kReduce>
Tensor& deviation_out(const Tensor& self, OptionalIntArrayRef dim,
                      const std::optional<at::Scalar>& correction, bool keepdim, Tensor& out) {
  metalops::check_same_device("var", {{out, "out"}, {self, "self"}});
  const auto type = self.scalar_type();
  if (!at::isFloatingType(type) && !at::isComplexType(type)) {
    // torch's own error, whose type depends on its version.
    kReduce(at::empty({0}, self.options().device(at::kCPU)), std::nullopt, correction, keepdim);
  }
  const auto real = c10::toRealValueType(type);
  check_cast(real, out.scalar_type());
  metalops::resize_and_copy(
      kReduce(self.to(at::promoteTypes(type, out.scalar_type())), dim, correction, keepdim), out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_aminmax", aminmax_of_all);
  m.impl("_aminmax.dim", aminmax_of_dim);
  m.impl("min.unary_out", extremum_out<at::min, /*kLargestIfEmpty=*/true>);
  m.impl("max.unary_out", extremum_out<at::max, /*kLargestIfEmpty=*/false>);
  m.impl("std.correction_out", deviation_out<at::std>);
  m.impl("var.correction_out", deviation_out<at::var>);
}

}  // namespace
