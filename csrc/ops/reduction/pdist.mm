// Host side of kernels/reduction/pdist.metal: _pdist_forward and _pdist_backward, which stock MPS
// lacks. torch.pdist calls these.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <kernels/reduction/pdist.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <algorithm>
#include <cmath>

namespace {

using at::Tensor;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("pdist"); }

// Returns the name of a kernel for this norm. The backward function has none for p = 0.
metalops::KernelName kernel_of(const metalops::KernelName& name, double p) {
  const auto* norm = p == 0          ? "zero"
                     : p == 1        ? "one"
                     : p == 2        ? "two"
                     : std::isinf(p) ? "infinity"
                                     : "general";
  return name + "_" + norm;
}

metalops::PdistParameters check(const Tensor& self, double p) {
  metalops::check_dtype(self.scalar_type() == at::kFloat, "pdist", self.scalar_type());
  TORCH_CHECK(self.dim() == 2, "pdist only supports 2D tensors, got: ", self.dim(), "D");
  TORCH_CHECK(p >= 0, "pdist only supports non-negative p values");
  metalops::PdistParameters parameters{};
  parameters.points = self.size(0);
  parameters.columns = self.size(1);
  parameters.p = static_cast<float>(p);
  return parameters;
}

int64_t number_of_pairs(int64_t points) { return points <= 1 ? 0 : points * (points - 1) / 2; }

Tensor pdist_forward(const Tensor& self, double p) {
  TORCH_CHECK(self.is_contiguous(), "_pdist_forward requires contiguous input");
  const auto parameters = check(self, p);
  const auto n = parameters.points;
  const auto distances = at::empty({number_of_pairs(n)}, self.options());
  metalops::launch_rows(kernels(), kernel_of("pdist", p), n - 1 + n % 2, n / 2, distances, self,
                        parameters);
  return distances;
}

Tensor pdist_backward(const Tensor& grad, const Tensor& self, double p, const Tensor& pdist) {
  metalops::check_same_device("_pdist_backward",
                              {{grad, "grad"}, {self, "self"}, {pdist, "pdist"}});
  TORCH_CHECK(self.is_contiguous(), "_pdist_backward requires self to be contiguous");
  TORCH_CHECK(pdist.is_contiguous(), "_pdist_backward requires pdist to be contiguous");
  auto parameters = check(self, p);
  const auto pairs = number_of_pairs(parameters.points);
  for (const auto& tensor : {grad, pdist}) {
    TORCH_CHECK(tensor.dim() == 1 && tensor.numel() == pairs,
                "_pdist_backward expects one element for each of ", pairs,
                " pairs, but got a tensor of size ", tensor.sizes());
    TORCH_CHECK(tensor.scalar_type() == at::kFloat, "expected scalar type Float but found ",
                tensor.scalar_type());
  }
  if (p == 0 || pairs == 0) {
    return at::zeros_like(self, LEGACY_CONTIGUOUS_MEMORY_FORMAT);
  }
  parameters.grad_stride = grad.stride(0);
  const auto grad_input = at::empty_like(self, LEGACY_CONTIGUOUS_MEMORY_FORMAT);
  constexpr int64_t kNarrow = 16;
  if (parameters.columns <= kNarrow) {
    metalops::launch_threads(
        kernels(), kernel_of("pdist_backward_narrow", p),
        parameters.points * c10::metal::ceil_div<int64_t>(parameters.columns, 8), grad_input, grad,
        self, pdist, parameters);
  } else {
    constexpr int64_t kSimdgroup = c10::metal::simdgroup_size;
    const auto threads =
        std::min<int64_t>(c10::metal::ceil_div(parameters.columns, kSimdgroup) * kSimdgroup,
                          metalops::kMostCoordinates);
    metalops::launch_threadgroups(
        kernels(), kernel_of("pdist_backward", p),
        parameters.points * c10::metal::ceil_div(parameters.columns, threads), threads, grad_input,
        grad, self, pdist, parameters);
  }
  return grad_input;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_pdist_forward", pdist_forward);
  m.impl("_pdist_backward", pdist_backward);
}

}  // namespace
