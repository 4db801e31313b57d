// Forward-mode derivatives (jvp) of glu(x) = a * sigmoid(b), where a and b are the halves of x. All
// tensors are contiguous; a row of the grid is one contiguous half.
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/common/activations.h>
#include <kernels/pointwise/glu.h>
using namespace metal;
using namespace metalops;

// Computes the tangent of glu(x) from the tangent of x.
template <typename T>
kernel void glu_jvp(device T* tangent [[buffer(0)]], constant T* result [[buffer(1)]],
                    constant T* x [[buffer(2)]], constant T* dx [[buffer(3)]],
                    constant GluParameters& parameters [[buffer(4)]],
                    uint2 position [[thread_position_in_grid]]) {
  const int64_t element = position.y * parameters.half_size + position.x;
  const int64_t first = 2 * position.y * parameters.half_size + position.x;
  const int64_t second = first + parameters.half_size;
  const float gate = sigmoid(static_cast<float>(x[second]));
  const float da = static_cast<float>(dx[first]);
  const float db = static_cast<float>(dx[second]);
  const float y = static_cast<float>(result[element]);
  tangent[element] = static_cast<T>(fma(da, gate, y * (db - gate * db)));
}

// Computes the tangent of glu's gradient, (grad s, grad s a (1 - s)) with s = sigmoid(b), from the
// tangents of grad and x.
template <typename T>
kernel void glu_backward_jvp(device T* tangent [[buffer(0)]], constant T* grad [[buffer(1)]],
                             constant T* x [[buffer(2)]], constant T* dgrad [[buffer(3)]],
                             constant T* dx [[buffer(4)]],
                             constant GluParameters& parameters [[buffer(5)]],
                             uint2 position [[thread_position_in_grid]]) {
  const int64_t element = position.y * parameters.half_size + position.x;
  const int64_t first = 2 * position.y * parameters.half_size + position.x;
  const int64_t second = first + parameters.half_size;
  const float a = static_cast<float>(x[first]);
  const float da = static_cast<float>(dx[first]);
  const float db = static_cast<float>(dx[second]);
  const float g = static_cast<float>(grad[element]);
  const float dg = static_cast<float>(dgrad[element]);
  const float gate = sigmoid(static_cast<float>(x[second]));
  const float rest = 1.0f - gate;
  const float dgate = gate * rest * db;
  const float dfirst = fma(dg, gate, g * dgate);
  tangent[first] = static_cast<T>(dfirst);
  tangent[second] = static_cast<T>(dfirst * a * rest + g * gate * (da * rest - a * dgate));
}

#define REGISTER_GLU(T)                       \
  REGISTER_KERNEL("glu_jvp_" #T, glu_jvp, T); \
  REGISTER_KERNEL("glu_backward_jvp_" #T, glu_backward_jvp, T)

REGISTER_GLU(float);
REGISTER_GLU(half);
REGISTER_GLU(bfloat);
