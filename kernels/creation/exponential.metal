// Exponentially distributed random numbers, which are positive and finite. Four adjacent elements
// are drawn from one position of the Philox stream, whatever the grid.
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/creation/exponential.h>
#include <kernels/creation/random_bits.h>
using namespace metal;
using namespace metalops;

// The smallest and the largest number that a result is rounded to.
template <typename T>
struct Positive {  // float and bfloat
  static constant constexpr float least = 1.17549435e-38f;
  static constant constexpr float most = 3.38953139e38f;
};
template <>
struct Positive<half> {
  static constant constexpr float least = 5.96046448e-8f;
  static constant constexpr float most = 65504.0f;
};

template <typename T>
kernel void exponential(device T* output [[buffer(0)]],
                        constant ExponentialParameters& p [[buffer(1)]],
                        uint2 position [[thread_position_in_grid]],
                        uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index * 4 >= p.count) {
    return;
  }
  const uint4 bits = random_bits(p.seed, p.offset + index);
  for (int i = 0; i < 4; ++i) {
    const int64_t element = index * 4 + i;
    if (element < p.count) {
      const float value = exponential_of(bits[i]) * p.scale;
      output[element] = static_cast<T>(clamp(value, Positive<T>::least, Positive<T>::most));
    }
  }
}

REGISTER_KERNEL("exponential_float", exponential, float);
REGISTER_KERNEL("exponential_half", exponential, half);
REGISTER_KERNEL("exponential_bfloat", exponential, bfloat);
