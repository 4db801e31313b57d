// Random numbers of one position of a generator's Philox stream, for kernels that draw a known
// count of them.
#pragma once
#include <c10/metal/random.h>
#include <c10/metal/utils.h>
#include <metal_stdlib>

namespace metalops {

// Returns the four numbers of a position.
inline ::metal::uint4 random_bits(int64_t seed, int64_t place) {
  return c10::metal::philox4::multiple_rounds(
      ::metal::uint4(0, 0, c10::metal::detail::splitlong(place)),
      c10::metal::detail::splitlong(seed), 10);
}

// Returns an exponentially distributed number with mean 1, between 1.1e-10 and 22.9: never 0. It
// has full precision at both ends, for a uniform number is measured from the nearer one.
inline float exponential_of(uint bits) {
  constexpr float kStep = 2.32830644e-10f;  // 2^-32
  return (bits >> 31) == 0 ? -c10::metal::log1p(-(static_cast<float>(bits) + 0.5f) * kStep)
                           : -::metal::precise::log((static_cast<float>(~bits) + 0.5f) * kStep);
}

}  // namespace metalops
