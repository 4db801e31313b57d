// Random numbers. The generator is torch's own at::MPSGeneratorImpl: a Philox seed and offset.
//
// Kernels use it as on a Mac: lock the generator, read current_seed() and get_offset(), and advance
// with set_offset(offset + how many groups of four 32-bit numbers the kernel takes). A CPU kernel
// that stands in for a stock operator needs a CPU generator instead; RandomStream makes one whose
// numbers depend on seed and offset alone, so that restoring the state repeats them.
#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

namespace metalops::device {

class RandomStream {
 public:
  // Takes the numbers from `generator`, or from the device's default one.
  explicit RandomStream(const std::optional<at::Generator>& generator);

  // A CPU generator for the kernel that stands in.
  const at::Generator& cpu() const { return cpu_; }

  // Advances the mps generator past the numbers that `elements` outputs take; the constructor has
  // advanced it by one group of four.
  void advance(int64_t elements);

 private:
  at::Generator mps_;
  at::Generator cpu_;
};

// While it lives, the default CPU generator is in the state of a RandomStream's: for kernels
// without a generator argument (native_dropout).
class DefaultCpuGeneratorSwap {
 public:
  explicit DefaultCpuGeneratorSwap(const RandomStream& stream);
  ~DefaultCpuGeneratorSwap();
  DefaultCpuGeneratorSwap(const DefaultCpuGeneratorSwap&) = delete;
  DefaultCpuGeneratorSwap& operator=(const DefaultCpuGeneratorSwap&) = delete;

 private:
  at::Generator saved_;
};

}  // namespace metalops::device
