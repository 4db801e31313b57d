// Window functions missing from stock MPS: the Kaiser window.
#include <c10/metal/special_math.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>

#include <metal_stdlib>

#include <kernels/creation/window.h>
using namespace metal;
using namespace metalops;

// Kaiser window: I0(beta sqrt(1 - r^2)) / I0(beta), where r runs from -1 to 1. The exponential
// growth of the Bessel functions, exp(beta sqrt(1 - r^2) - beta), is factored out so that they do
// not overflow, and the difference in its exponent is computed without cancellation.
template <typename T>
kernel void window_kaiser(device T* output [[buffer(0)]],
                          constant KaiserWindowParameters& parameters [[buffer(1)]],
                          uint2 position [[thread_position_in_grid]],
                          uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index >= parameters.count) {
    return;
  }
  const float beta = abs(parameters.beta);
  const float length = static_cast<float>(parameters.last);
  const float from_start = 2.0f * static_cast<float>(index) / length;                  // 1 + r
  const float from_end = 2.0f * static_cast<float>(parameters.last - index) / length;  // 1 - r
  const float r = static_cast<float>(2 * index - parameters.last) / length;
  const float root = precise::sqrt(from_start * from_end);
  const float growth = precise::exp(-beta * (r * r) / (1.0f + root));
  const float bessel = c10::metal::i0e(beta * root) / c10::metal::i0e(beta);
  output[index] = static_cast<T>(bessel * growth);
}

#define REGISTER_KAISER_WINDOW(T) REGISTER_KERNEL("window_kaiser_" #T, window_kaiser, T)

REGISTER_KAISER_WINDOW(float);
REGISTER_KAISER_WINDOW(half);
REGISTER_KAISER_WINDOW(bfloat);
