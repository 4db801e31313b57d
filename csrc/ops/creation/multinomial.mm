// Host side of kernels/creation/multinomial.metal, while the fix "multinomial" is on. A call
// advances the generator's stream by one position for each four categories or draws.
#include <ATen/ops/empty.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/creation/multinomial.h>
#include <metalops/checks.h>
#include <metalops/generator.h>
#include <metalops/launch.h>
#include <metalops/views.h>

#include <algorithm>
#include <tuple>

namespace {

using at::Tensor;
using metalops::MultinomialParameters;

// Draws without replacement that are selected one after the other; for more, the keys are sorted.
constexpr int64_t kMostSelected = 64;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("multinomial"); }

void check_multinomial(const Tensor& self, int64_t draws, bool replacement, const Tensor& result) {
  metalops::check_same_device("multinomial", {{result, "out"}, {self, "self"}});
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  metalops::check_metal_float("multinomial", self.scalar_type());
  TORCH_CHECK(result.scalar_type() == at::kLong,
              "multinomial expects Long tensor out, got: ", result.scalar_type());
  TORCH_CHECK(draws > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || draws <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(self.size(-1) <= int64_t{1} << 24, "number of categories cannot exceed 2^24");
  TORCH_CHECK(draws < int64_t{1} << 31, "multinomial: ", draws, " samples are too many for MPS");
}

// Returns the distribution function at the ends of chunks, (rows, chunks). Waits for the device:
// raises RuntimeError for probabilities that are none.
Tensor distribution_of(const Tensor& probabilities, const MultinomialParameters& parameters) {
  const auto sums =
      at::empty({parameters.rows, parameters.chunks}, probabilities.options().dtype(at::kFloat));
  const auto problems = at::zeros({1}, probabilities.options().dtype(at::kInt));
  metalops::launch_simdgroups(kernels(), metalops::typed_kernel("multinomial_sums_", probabilities),
                              static_cast<uint64_t>(sums.numel()), sums, probabilities, problems,
                              parameters);
  metalops::launch_threads(kernels(), "multinomial_prefixes",
                           static_cast<uint64_t>(parameters.rows), sums, problems, parameters);
  const auto found = static_cast<unsigned>(problems.item<int32_t>());
  TORCH_CHECK((found & metalops::kInvalidProbability) == 0,
              "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK((found & metalops::kNoProbability) == 0,
              "invalid multinomial distribution (sum of probabilities <= 0)");
  return sums;
}

uint64_t threads_for(int32_t categories) {
  return std::clamp<uint64_t>(static_cast<uint64_t>((categories + 31) / 32 * 32), 32, 512);
}

void draw_by_keys(const Tensor& result, const Tensor& probabilities,
                  const MultinomialParameters& parameters) {
  const auto rows = static_cast<uint64_t>(parameters.rows);
  const auto threads = threads_for(parameters.categories);
  if (parameters.draws == 1) {
    metalops::launch_threadgroups(kernels(),
                                  metalops::typed_kernel("multinomial_first_", probabilities), rows,
                                  threads, result, probabilities, parameters);
    return;
  }
  const auto keys = at::empty({parameters.rows, parameters.categories},
                              probabilities.options().dtype(at::kFloat));
  metalops::launch_threads(kernels(), metalops::typed_kernel("multinomial_keys_", probabilities),
                           static_cast<uint64_t>(keys.numel()), keys, probabilities, parameters);
  if (parameters.draws > kMostSelected) {
    result.copy_(std::get<1>(at::topk(keys, parameters.draws, -1)).view(result.sizes()));
    return;
  }
  metalops::launch_threadgroups(kernels(), "multinomial_select", rows, threads, result, keys,
                                parameters);
}

Tensor& multinomial_out(const Tensor& self, int64_t draws, bool replacement,
                        std::optional<at::Generator> generator, Tensor& result) {
  check_multinomial(self, draws, replacement, result);
  metalops::check_generator(generator, self);
  const auto rows = self.dim() == 1 ? 1 : self.size(0);
  if (self.dim() == 1) {
    result.resize_({draws});
  } else {
    result.resize_({rows, draws});
  }
  if (result.numel() == 0) {
    return result;
  }
  const bool by_keys = !replacement || draws == 1;
  const auto categories = static_cast<int32_t>(self.size(-1));
  MultinomialParameters parameters{
      .seed = 0,
      .offset = 0,
      .row_stride = self.dim() == 1 ? 0 : self.stride(0),
      .category_stride = self.stride(-1),
      .rows = rows,
      .categories = categories,
      .chunks = c10::metal::ceil_div(categories, metalops::kMultinomialChunk),
      .draws = static_cast<int32_t>(draws)};
  const auto sums = distribution_of(self, parameters);
  const auto numbers = by_keys ? rows * categories : rows * draws;
  const auto [seed, offset] =
      metalops::take_from_stream(generator, static_cast<uint64_t>((numbers + 3) / 4));
  parameters.seed = static_cast<int64_t>(seed);
  parameters.offset = static_cast<int64_t>(offset);
  metalops::write_contiguous(result, [&](const Tensor& dense) {
    if (by_keys) {
      draw_by_keys(dense, self, parameters);
    } else {
      metalops::launch_threads(kernels(),
                               metalops::typed_kernel("multinomial_with_replacement_", self),
                               static_cast<uint64_t>(numbers), dense, self, sums, parameters);
    }
  });
  return result;
}

Tensor multinomial(const Tensor& self, int64_t draws, bool replacement,
                   std::optional<at::Generator> generator) {
  auto result = at::empty({0}, self.options().dtype(at::kLong));
  return multinomial_out(self, draws, replacement, std::move(generator), result);
}

const metalops::Fix kMultinomial("multinomial", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("multinomial", multinomial, reason);
  m.replace("multinomial.out", multinomial_out, reason);
});

}  // namespace
