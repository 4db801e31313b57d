// _compute_linear_combination: output[i] += sum over j of coefficients[i, j] * input[j]. A row of
// the grid is one output[i]. Sums are accumulated in the widest type of their kind and rounded
// once.
#include <c10/metal/utils.h>
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/linalg/linear_combination.h>
using namespace metal;
using namespace metalops;

template <typename T>
inline c10::metal::opmath_t<T> product(T a, T b) {
  using W = c10::metal::opmath_t<T>;
  return static_cast<W>(c10::metal::mul(static_cast<W>(a), static_cast<W>(b)));
}

// A sum of bools is true if any of them is.
inline bool sum_of(bool a, bool b) { return a || b; }
template <typename T>
inline T sum_of(T a, T b) {
  return a + b;
}

template <typename T>
kernel void linear_combination(device T* output [[buffer(0)]], constant T* input [[buffer(1)]],
                               constant T* coefficients [[buffer(2)]],
                               constant LinearCombinationParameters& parameters [[buffer(3)]],
                               uint2 position [[thread_position_in_grid]]) {
  device T& result = output[position.y * parameters.elements + position.x];
  auto sum = static_cast<c10::metal::opmath_t<T>>(result);
  for (int64_t j = 0; j < parameters.terms; ++j) {
    sum = sum_of(sum, product(coefficients[position.y * parameters.terms + j],
                              input[j * parameters.elements + position.x]));
  }
  result = static_cast<T>(sum);
}

#define REGISTER_LINEAR_COMBINATION(T) \
  REGISTER_KERNEL("linear_combination_" #T, linear_combination, T)

REGISTER_LINEAR_COMBINATION(float);
REGISTER_LINEAR_COMBINATION(half);
REGISTER_LINEAR_COMBINATION(bfloat);
REGISTER_LINEAR_COMBINATION(float2);
REGISTER_LINEAR_COMBINATION(long);
REGISTER_LINEAR_COMBINATION(int);
REGISTER_LINEAR_COMBINATION(short);
REGISTER_LINEAR_COMBINATION(char);
REGISTER_LINEAR_COMBINATION(uchar);
REGISTER_LINEAR_COMBINATION(bool);
