// Random numbers. The generator is torch's own at::MPSGeneratorImpl: a Philox seed and offset.
//
// Kernels use it as on a Mac: lock the generator, read current_seed() and get_offset(), and advance
// with set_offset(offset + how many groups of four 32-bit numbers the kernel takes). A CPU kernel
// that stands in for a stock operator needs a CPU generator instead; RandomStream makes one, for
// one call, whose numbers depend on seed and offset alone, so that restoring the state repeats
// them. torch's default CPU generator is left alone: it belongs to the program's CPU tensors and
// its other threads. So an operator that draws without a generator argument has no stand-in
// (operators_without_stand_in.cpp).
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
  // advanced it by one group of four. A generator that was seeded anew meanwhile stays as it is.
  void advance(int64_t elements);

 private:
  at::Generator mps_;
  at::Generator cpu_;
  uint64_t seed_;
  uint64_t after_;  // the offset after this stream's first group
};

}  // namespace metalops::device
