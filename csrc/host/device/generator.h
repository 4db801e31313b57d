// Random numbers. The generator is torch's own at::MPSGeneratorImpl: a Philox seed and offset.
//
// Kernels use it as on a Mac: lock the generator, read current_seed() and get_offset(), and advance
// with set_offset(offset + the number of groups of four 32-bit numbers that the kernel takes). A
// CPU kernel that stands in for a stock operator needs a CPU generator instead; RandomStream makes
// one for one call. Its numbers depend on seed and offset alone, so restoring the state repeats
// them. torch's default CPU generator is not used: it belongs to the program's CPU tensors and its
// other threads. An operator that draws without a generator argument therefore has no stand-in
// (operators_without_stand_in.cpp).
#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

namespace metalops::device {

class RandomStream {
 public:
  // Takes numbers from `generator`, or from the device's default generator.
  explicit RandomStream(const std::optional<at::Generator>& generator);

  // Returns a CPU generator for the kernel that stands in.
  const at::Generator& cpu() const { return cpu_; }

  // Advances the mps generator past the numbers that `elements` outputs take; the constructor has
  // advanced it by one group of four. A generator that was reseeded in the meantime stays as it is.
  void advance(int64_t elements);

 private:
  at::Generator mps_;
  at::Generator cpu_;
  uint64_t seed_;
  uint64_t after_;  // the offset after this stream's first group
};

}  // namespace metalops::device
