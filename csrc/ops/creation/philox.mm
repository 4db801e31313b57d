// Host side of kernels/creation/philox.metal: the operators of torch.func._random. They draw what
// torch 2.14 and 2.15 draw on the CPU, also with torch 2.13, which has them for CUDA only.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/creation/philox.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/strided_launch.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace {

using at::Tensor;
using MaybeInt = std::optional<int64_t>;

at::native::mps::MetalShaderLibrary& philox_library() { return metalops::library("philox"); }

// ---- keys ---------------------------------------------------------------------------------------

void check_uint64(const char* name, const char* argument, const Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == at::kUInt64, name, ": ", argument,
              " must have dtype uint64, got ", tensor.scalar_type());
}

void check_keys(const char* name, const Tensor& key) {
  TORCH_CHECK(key.dim() >= 1 && key.size(-1) == 2, name,
              ": key must have shape (*batch, 2), got shape ", key.sizes());
  check_uint64(name, "key", key);
}

// Fills `derived` with blocks of the keys, from block `first` on: a number or a tensor of one.
template <class First>
void derive_keys(const Tensor& derived, const Tensor& key, const First& first) {
  if (derived.numel() == 0) {
    return;
  }
  const metalops::PhiloxKeys keys{key.numel() / 2, derived.numel() / 2};
  metalops::launch_threads(philox_library(), "philox_derive_keys", keys.derived, derived, key,
                           first, keys, metalops::row_major_layout<1>({key}));
}

Tensor philox_key_split(const Tensor& key, int64_t num_splits) {
  constexpr const char* kName = "_philox_key_split";
  check_keys(kName, key);
  TORCH_CHECK(num_splits > 0, kName, ": num_splits must be positive, got ", num_splits);
  std::vector<int64_t> sizes = key.sizes().vec();
  sizes.insert(sizes.begin(), num_splits);
  const auto derived = at::empty(sizes, key.options());
  derive_keys(derived, key, uint64_t{0});
  return derived;
}

Tensor empty_keys(const Tensor& key) {
  return at::empty_like(key, at::TensorOptions(), at::MemoryFormat::Contiguous);
}

Tensor philox_key_fold_in(const Tensor& key, int64_t data) {
  check_keys("_philox_key_fold_in", key);
  const auto derived = empty_keys(key);
  derive_keys(derived, key, static_cast<uint64_t>(data));
  return derived;
}

Tensor philox_key_fold_in_tensor(const Tensor& key, const Tensor& data) {
  constexpr const char* kName = "_philox_key_fold_in";
  metalops::check_same_device(kName, {{key, "key"}, {data, "data"}});
  check_keys(kName, key);
  check_uint64(kName, "data", data);
  TORCH_CHECK(data.numel() == 1, kName, ": data must be a single value, got ", data.numel(),
              " elements");
  const auto derived = empty_keys(key);
  derive_keys(derived, key, data);
  return derived;
}

// ---- distributions ------------------------------------------------------------------------------

void check_fill(const char* name, const Tensor& self, const Tensor& key) {
  check_uint64(name, "key", key);
  TORCH_CHECK(self.device() == key.device(), name,
              ": self and key must be on the same device, got ", self.device(), " and ",
              key.device());
  TORCH_CHECK(key.dim() >= 1 && key.size(-1) == 2, name,
              ": key must have shape (2,) or (*batch, 2), got shape ", key.sizes());
  if (key.dim() > 1) {
    TORCH_CHECK(key.dim() == self.dim() + 1, name,
                ": batched key must have ndim == output ndim + 1, got key shape ", key.sizes(),
                " with output shape ", self.sizes());
    for (int64_t i = 0; i < self.dim(); ++i) {
      TORCH_CHECK(key.size(i) == 1 || key.size(i) == self.size(i), name, ": key batch shape ",
                  key.sizes().slice(0, self.dim()), " is not broadcastable with output shape ",
                  self.sizes());
    }
  }
  at::assert_no_internal_overlap(self);
}

// Returns the number of leading dimensions of `self` in which each index has a key of its own, or a
// repetition of one. A key fills what the dimensions after them hold.
int64_t batch_dimensions(const Tensor& key) {
  int64_t dimensions = key.dim() - 1;
  while (dimensions > 0 && key.size(dimensions - 1) == 1) {
    --dimensions;
  }
  return dimensions;
}

template <class Distribution>
Tensor& fill(Tensor& self, const Tensor& key, const metalops::KernelName& kernel,
             const Distribution& distribution) {
  if (self.numel() == 0) {
    return self;
  }
  auto batch = self.sizes().slice(0, batch_dimensions(key)).vec();
  const auto keys = c10::multiply_integers(batch);
  batch.push_back(2);
  const auto expanded = key.flatten(static_cast<int64_t>(batch.size()) - 1).expand(batch);
  const int64_t samples = self.element_size() == 8 ? 2 : 4;
  const int64_t elements = self.numel() / keys;
  const int64_t blocks = (elements + samples - 1) / samples;
  const bool vectors =
      self.is_contiguous() && elements % samples == 0 && self.storage_offset() % samples == 0;
  const metalops::PhiloxFill filling{elements, blocks, keys * blocks, vectors};
  metalops::launch_threads(philox_library(), kernel, filling.threads, self, expanded, distribution,
                           filling, metalops::row_major_layout<1>({self}),
                           metalops::row_major_layout<1>({expanded}));
  return self;
}

// Returns the number as the result's dtype has it: bounds are rounded before the samples.
float rounded(double number, at::ScalarType type) {
  const auto single = static_cast<float>(number);
  switch (type) {
    case at::kHalf:
      return static_cast<float>(at::Half(single));
    case at::kBFloat16:
      return static_cast<float>(at::BFloat16(single));
    default:
      return single;
  }
}

Tensor& philox_uniform_(Tensor& self, const Tensor& key, double low, double high) {
  constexpr const char* kName = "_philox_uniform_";
  const auto type = self.scalar_type();
  metalops::check_metal_float(kName, type);
  check_fill(kName, self, key);
  const metalops::PhiloxUniform distribution{rounded(low, type), rounded(high, type)};
  return fill(self, key, metalops::typed_kernel("philox_uniform_", type), distribution);
}

Tensor& philox_normal_(Tensor& self, const Tensor& key, double mean, double std) {
  constexpr const char* kName = "_philox_normal_";
  const auto type = self.scalar_type();
  metalops::check_metal_float(kName, type);
  check_fill(kName, self, key);
  const metalops::PhiloxNormal distribution{static_cast<float>(mean), static_cast<float>(std)};
  return fill(self, key, metalops::typed_kernel("philox_normal_", type), distribution);
}

// Returns the bounds, where None is the limit of the dtype, in the arithmetic of a sample: modulo
// 2^64 for 8-byte dtypes, modulo 2^32 for the others. The full range leaves a sample's bits as they
// are.
metalops::PhiloxRandint randint_bounds(const Tensor& self, MaybeInt low, MaybeInt high) {
  const auto type = self.scalar_type();
  const auto bits = 8 * self.element_size();
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : 0xffffffff;
  const uint64_t lowest = at::isSignedType(type) ? (~uint64_t{0} << (bits - 1)) & mask : 0;
  const uint64_t values = bits == 64 ? 0 : uint64_t{1} << bits;
  const uint64_t from = low ? static_cast<uint64_t>(*low) & mask : lowest;
  if (!high && from == lowest) {
    return {0, 0};
  }
  const uint64_t range = ((high ? static_cast<uint64_t>(*high) : lowest + values) - from) & mask;
  TORCH_CHECK(range != 0,
              "_philox_randint_: [low, high) must be non-empty; pass high=None for the dtype's "
              "full range");
  return {from, range};
}

Tensor& philox_randint_(Tensor& self, const Tensor& key, MaybeInt low, MaybeInt high) {
  constexpr const char* kName = "_philox_randint_";
  const auto type = self.scalar_type();
  const auto size = self.element_size();
  TORCH_CHECK(at::isIntegralType(type, /*includeBool=*/false), kName,
              ": self must have an integer dtype, got ", type);
  const auto distribution = randint_bounds(self, low, high);
  if (size < 8 && distribution.range != 0) {
    constexpr uint64_t kSamples = uint64_t{1} << 32;
    constexpr uint64_t kLargestBiased = uint64_t{1} << 28;
    TORCH_CHECK(
        kSamples % distribution.range == 0 || distribution.range < kLargestBiased, kName,
        ": range (high - low = ", distribution.range,
        ") does not divide 2^32 evenly and is too large for the output dtype ", type,
        ". Each element draws only 32 random bits, so a non-dividing range >= 2^28 gives a "
        "significantly biased distribution. Use a range that divides 2^32 (a power of two), "
        "or a 64-bit dtype (torch.int64 or torch.uint64).");
  }
  check_fill(kName, self, key);
  const char* kernel_type = size == 8   ? "ulong"
                            : size == 4 ? "uint"
                            : size == 2 ? "ushort"
                                        : "uchar";
  return fill(self, key, metalops::KernelName("philox_randint_") + kernel_type, distribution);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("_philox_key_split", philox_key_split);
  m.impl("_philox_key_fold_in", philox_key_fold_in);
  m.impl("_philox_key_fold_in.Tensor", philox_key_fold_in_tensor);
  m.impl("_philox_uniform_", philox_uniform_);
  m.impl("_philox_normal_", philox_normal_);
  m.impl("_philox_randint_", philox_randint_);
}

}  // namespace
