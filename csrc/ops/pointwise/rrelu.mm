// Host side of kernels/pointwise/rrelu.metal: rrelu_with_noise, which stock MPS lacks, and its
// backward function, which torch composes of other operators. torch.nn.functional.rrelu and its
// variants call these.
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_like.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/pointwise/rrelu.h>
#include <metalops/checks.h>
#include <metalops/generator.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/strided_launch.h>

namespace {

using c10::Scalar;
using MaybeGenerator = std::optional<at::Generator>;

metalops::Library& kernels() { return metalops::library("rrelu"); }

double mean_slope(const Scalar& lower, const Scalar& upper) {
  return (lower.toDouble() + upper.toDouble()) / 2;
}

void check_dtype(const char* name, at::ScalarType type) { metalops::check_metal_float(name, type); }

void run_training(const at::Tensor& self, const at::Tensor& noise, const at::Tensor& out,
                  const Scalar& lower, const Scalar& upper, const MaybeGenerator& generator) {
  const auto groups = (static_cast<uint64_t>(self.numel()) + 3) / 4;
  const auto [seed, offset] = metalops::take_from_stream(generator, groups);
  const metalops::RreluParameters parameters{static_cast<int64_t>(seed),
                                             static_cast<int64_t>(offset), lower.to<float>(),
                                             upper.to<float>()};
  const auto layout = metalops::row_major_layout<3>({out, noise, self});
  metalops::launch_threads(kernels(), metalops::typed_kernel("rrelu_training_", self), groups, out,
                           noise, self, parameters, layout);
}

at::Tensor& rrelu_with_noise_out(const at::Tensor& self, at::Tensor& noise, const Scalar& lower,
                                 const Scalar& upper, bool training, MaybeGenerator generator,
                                 at::Tensor& out) {
  constexpr const char* kName = "rrelu_with_noise";
  metalops::check_same_device(kName, {{out, "out"}, {self, "self"}, {noise, "noise"}});
  metalops::check_generator(generator, self);
  TORCH_CHECK(self.sizes() == noise.sizes(),
              "noise tensor shape must match self tensor shape. Got self.shape = ", self.sizes(),
              " noise.shape = ", noise.sizes());
  check_dtype(kName, self.scalar_type());
  for (const auto& other : {noise, out}) {
    TORCH_CHECK(other.scalar_type() == self.scalar_type(), "expected scalar type ",
                self.scalar_type(), " but found ", other.scalar_type());
  }
  if (!training) {
    auto iter = at::TensorIterator::unary_op(out, self);
    kernels().exec_unary_kernel(iter, "rrelu", Scalar(mean_slope(lower, upper)), at::kFloat);
    return out;
  }
  at::native::resize_output(out, self.sizes());
  for (const auto& written : {noise, out}) {
    at::assert_no_internal_overlap(written);
    at::assert_no_partial_overlap(written, self);
  }
  at::assert_no_overlap(noise, out);
  run_training(self, noise, out, lower, upper, generator);
  return out;
}

at::Tensor rrelu_with_noise(const at::Tensor& self, at::Tensor& noise, const Scalar& lower,
                            const Scalar& upper, bool training, MaybeGenerator generator) {
  auto out = at::empty_like(self);
  rrelu_with_noise_out(self, noise, lower, upper, training, std::move(generator), out);
  return out;
}

at::Tensor& rrelu_with_noise_(at::Tensor& self, at::Tensor& noise, const Scalar& lower,
                              const Scalar& upper, bool training, MaybeGenerator generator) {
  return rrelu_with_noise_out(self, noise, lower, upper, training, std::move(generator), self);
}

// self: the input of the forward operator, or its result if is_result.
at::Tensor rrelu_with_noise_backward(const at::Tensor& grad_output, const at::Tensor& self,
                                     const at::Tensor& noise, const Scalar& lower,
                                     const Scalar& upper, bool training, bool is_result) {
  constexpr const char* kName = "rrelu_with_noise_backward";
  check_dtype(kName, grad_output.scalar_type());
  at::Tensor grad_input;
  if (training) {
    auto iter = at::TensorIterator::binary_op(grad_input, grad_output, noise);
    kernels().exec_binary_kernel(iter, "rrelu_training_backward");
    return iter.output();
  }
  const auto slope = mean_slope(lower, upper);
  TORCH_CHECK(!is_result || slope >= 0,
              "In-place leakyReLu backward calculation is triggered with a negative slope which is "
              "not supported. This is caused by calling in-place forward function with a negative "
              "slope, please call out-of-place version instead. File an issue at "
              "https://github.com/pytorch/pytorch if you do require supporting in-place leakRelu "
              "backward calculation with negative slope");
  auto iter = at::TensorIterator::binary_op(grad_input, grad_output, self);
  kernels().exec_binary_kernel(iter, "rrelu_backward", Scalar(slope), at::kFloat);
  return iter.output();
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("rrelu_with_noise", rrelu_with_noise);
  m.impl("rrelu_with_noise.out", rrelu_with_noise_out);
  m.impl("rrelu_with_noise_", rrelu_with_noise_);
  m.impl("rrelu_with_noise_backward", rrelu_with_noise_backward);
}

}  // namespace
