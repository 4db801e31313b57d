// Host side of kernels/creation/exponential.metal, while the fix "exponential" is on.
#include <ATen/ops/empty.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/creation/exponential.h>
#include <metalops/checks.h>
#include <metalops/generator.h>
#include <metalops/launch.h>
#include <metalops/views.h>

#include <cmath>

namespace {

using at::Tensor;

Tensor& exponential_(Tensor& self, double lambd, std::optional<at::Generator> generator) {
  metalops::check_generator(generator, self);
  TORCH_CHECK(lambd > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", lambd);
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "Exponential distribution is a continuous probability distribution. dtype must be a "
              "floating point but you specified ",
              self.dtype());
  metalops::check_metal_float("exponential_", self.scalar_type());
  if (self.numel() == 0) {
    return self;
  }
  if (std::isinf(lambd)) {
    return self.zero_();
  }
  const auto packs = static_cast<uint64_t>((self.numel() + 3) / 4);
  const auto [seed, offset] = metalops::take_from_stream(generator, packs);
  const metalops::ExponentialParameters parameters{.seed = static_cast<int64_t>(seed),
                                                   .offset = static_cast<int64_t>(offset),
                                                   .count = self.numel(),
                                                   .scale = static_cast<float>(1.0 / lambd)};
  metalops::write_contiguous(self, [&](const Tensor& result) {
    metalops::launch_threads(metalops::library("exponential"),
                             metalops::typed_kernel("exponential_", result), packs, result,
                             parameters);
  });
  return self;
}

const metalops::Fix kExponential("exponential", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("exponential_", exponential_, reason);
});

}  // namespace
