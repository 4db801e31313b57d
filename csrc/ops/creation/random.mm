// Host side of kernels/creation/random.metal: poisson and binomial, which stock MPS lacks. A call
// advances the generator's stream by one position for each element.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <kernels/creation/random.h>
#include <metalops/checks.h>
#include <metalops/generator.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/strided_launch.h>

namespace {

using at::Tensor;
using MaybeGenerator = std::optional<at::Generator>;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("random"); }

metalops::KernelName kernel_name(const char* name, const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  metalops::check_metal_float(name, type);
  return metalops::KernelName("random_") + name + "_" + metalops::metal_type(type);
}

metalops::RandomParameters take_places(const MaybeGenerator& generator, const Tensor& result) {
  const auto [seed, offset] =
      metalops::take_from_stream(generator, static_cast<uint64_t>(result.numel()));
  return {static_cast<int64_t>(seed), static_cast<int64_t>(offset)};
}

// The result has the strides that torch's meta function promises: those of the rates.
Tensor poisson(const Tensor& rates, MaybeGenerator generator) {
  metalops::check_generator(generator, rates);
  const auto name = kernel_name("poisson", rates);
  const auto result = at::empty_like(rates);
  const auto parameters = take_places(generator, result);
  const auto layout = metalops::row_major_layout<2>({result, rates});
  metalops::launch_threads(kernels(), name, layout.count, result, rates, parameters, layout,
                           metalops::kErrorBuffer);
  return result;
}

Tensor binomial(const Tensor& count, const Tensor& prob, MaybeGenerator generator) {
  metalops::check_same_device("binomial", {{count, "count"}, {prob, "prob"}});
  metalops::check_generator(generator, count);
  for (const auto& [tensor, argument] : {std::pair(count, "count"), std::pair(prob, "prob")}) {
    TORCH_CHECK_VALUE(at::isFloatingType(tensor.scalar_type()),
                      "binomial only supports floating-point dtypes for ", argument,
                      ", got: ", tensor.scalar_type());
  }
  TORCH_CHECK(prob.scalar_type() == count.scalar_type(), "Found dtype ", prob.scalar_type(),
              " but expected ", count.scalar_type());
  const auto name = kernel_name("binomial", count);
  const auto [counts, probabilities] = at::expand_outplace(count, prob);
  const auto result = at::empty(counts->sizes(), count.options());
  const auto parameters = take_places(generator, result);
  const auto layout = metalops::row_major_layout<3>({result, *counts, *probabilities});
  metalops::launch_threads(kernels(), name, layout.count, result, *counts, *probabilities,
                           parameters, layout);
  return result;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.replace("poisson", poisson, "loses the digits of the probabilities of large rates");
  m.replace("binomial", binomial, "its algorithm needs double precision for large counts");
}

}  // namespace
