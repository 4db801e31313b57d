// Host side of kernels/creation/range.metal: logspace.out, which stock MPS lacks. The other
// overloads call it.
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/creation/range.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/strided_launch.h>

#include <cmath>

namespace {

using metalops::LogspaceParameters;
using metalops::split;
using metalops::SplitDouble;
using Complex = c10::complex<double>;

void set_exponents(LogspaceParameters& parameters, Complex start, Complex end, Complex step) {
  const auto set = [](SplitDouble* target, Complex value) {
    target[0] = split(value.real());
    target[1] = split(value.imag());
  };
  set(parameters.start, start);
  set(parameters.end, end);
  set(parameters.step, step);
}

// Sets the exponents. As on the CPU, start and end are converted to the result's dtype before
// anything is computed from them, and the step is a double.
void set_exponents(LogspaceParameters& parameters, const c10::Scalar& start, const c10::Scalar& end,
                   at::ScalarType dtype) {
  const auto gaps = static_cast<double>(parameters.steps - 1);
  if (parameters.steps == 1) {
    const auto only = start.toComplexDouble();
    set_exponents(parameters, only, only, Complex(0));
  } else if (dtype == at::kComplexFloat) {
    const auto first = start.to<c10::complex<float>>();
    const auto last = end.to<c10::complex<float>>();
    const Complex distance(last - first);
    set_exponents(parameters, Complex(first), Complex(last), distance / gaps);
  } else {
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "logspace_mps", [&] {
      const auto first = start.to<scalar_t>();
      const auto last = end.to<scalar_t>();
      set_exponents(parameters, Complex(static_cast<double>(first)),
                    Complex(static_cast<double>(last)),
                    Complex(static_cast<double>(last - first) / gaps));
    });
  }
}

void set_base(LogspaceParameters& parameters, double base) {
  constexpr double kExactIntegers = 9007199254740992.0;  // 2^53
  parameters.base = static_cast<float>(base);
  parameters.log2_base = split(std::log2(std::abs(base)));
  if (std::abs(base) < kExactIntegers && base == std::trunc(base)) {
    parameters.integer_base = static_cast<int64_t>(base);
  }
}

at::Tensor& logspace_out(const c10::Scalar& start, const c10::Scalar& end, int64_t steps,
                         double base, at::Tensor& out) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (out.numel() != steps) {
    out.resize_({steps});
  }
  if (steps == 0) {
    return out;
  }
  const auto dtype = out.scalar_type();
  metalops::check_dtype(
      at::isFloatingType(dtype) || dtype == at::kComplexFloat ||
          (at::isIntegralType(dtype, /*includeBool=*/false) && !at::isBarebonesUnsignedType(dtype)),
      "logspace", dtype);
  LogspaceParameters parameters{};
  parameters.steps = steps;
  set_exponents(parameters, start, end, dtype);
  set_base(parameters, base);
  const auto layout = metalops::row_major_layout<1>({out});
  metalops::launch_threads(metalops::library("range"),
                           metalops::typed_kernel("range_logspace_", dtype), layout.count, out,
                           parameters, layout);
  return out;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("logspace.out", logspace_out);
}

}  // namespace
