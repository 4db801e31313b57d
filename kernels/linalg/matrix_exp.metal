// Sums for the matrix exponential: output[i] = coefficients[i][0] I + sum over j of
// coefficients[i][j] term[j]. A row of the grid is one output[i].
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/linalg/matrix_exp.h>
using namespace metal;
using metalops::MatrixExpParameters;

inline float of_identity(float coefficient, float) { return coefficient; }
inline float2 of_identity(float coefficient, float2) { return {coefficient, 0.0f}; }

template <typename T>
kernel void matrix_exp_sums(device T* output [[buffer(0)]], device const T* first [[buffer(1)]],
                            device const T* second [[buffer(2)]],
                            device const T* third [[buffer(3)]],
                            device const T* fourth [[buffer(4)]],
                            constant MatrixExpParameters& p [[buffer(5)]],
                            uint2 position [[thread_position_in_grid]]) {
  const uint element = position.x;
  constant float (&coefficients)[5] = p.coefficients[position.y];
  const bool is_diagonal = element % (p.size * p.size) % (p.size + 1) == 0;
  T sum = of_identity(is_diagonal ? coefficients[0] : 0.0f, T(0.0f));
  sum += coefficients[1] * first[element];
  if (p.terms > 1) {
    sum += coefficients[2] * second[element];
  }
  if (p.terms > 2) {
    sum += coefficients[3] * third[element];
  }
  if (p.terms > 3) {
    sum += coefficients[4] * fourth[element];
  }
  output[position.y * p.elements + element] = sum;
}

#define REGISTER_MATRIX_EXP(T) REGISTER_KERNEL("matrix_exp_sums_" #T, matrix_exp_sums, T)

REGISTER_MATRIX_EXP(float);
REGISTER_MATRIX_EXP(float2);
