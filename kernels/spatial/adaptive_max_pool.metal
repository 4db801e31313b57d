// Adaptive max pooling and its gradient: maxima of windows that divide the input into as many parts
// as the output has elements. Tensors are contiguous; one thread per element of the result.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>

#include <metal_stdlib>

#include <kernels/spatial/adaptive_windows.h>
#include <kernels/spatial/max_pooling.h>
using namespace metal;
using namespace metalops;
using c10::metal::ErrorMessages;

template <typename T>
kernel void adaptive_max_pool(device T* output [[buffer(0)]], device long* indices [[buffer(1)]],
                              constant T* input [[buffer(2)]], constant uint2* table [[buffer(3)]],
                              constant PoolingSizes& sizes [[buffer(4)]],
                              uint3 position [[thread_position_in_grid]]) {
  const PlanePosition at(position, sizes.result);
  const Windows windows(table, sizes.result);
  write_maximum(output, indices, input, windows.depth[at.coordinates.z],
                windows.height[at.coordinates.y], windows.width[at.coordinates.x], at,
                sizes.source);
}

// Reports indices that max_pool_backward would miss. One thread per element of the output.
kernel void adaptive_max_pool_check_indices(constant long* indices [[buffer(0)]],
                                            constant uint2* table [[buffer(1)]],
                                            constant PoolingSizes& sizes [[buffer(2)]],
                                            device ErrorMessages* errors [[buffer(3)]],
                                            uint3 position [[thread_position_in_grid]]) {
  const PlanePosition at(position, sizes.source);
  const int64_t index = indices[at.element];
  if (!is_found(index, at, table, sizes)) {
    TORCH_REPORT_ERROR(errors,
                       "adaptive_max_pool3d_backward(): found an invalid max index: ", index,
                       ", which is not in the window of its element");
  }
}

#define REGISTER_ADAPTIVE_MAX_POOL(T)                             \
  REGISTER_KERNEL("adaptive_max_pool_" #T, adaptive_max_pool, T); \
  REGISTER_MAX_POOL_BACKWARD(T)

REGISTER_ADAPTIVE_MAX_POOL(float);
REGISTER_ADAPTIVE_MAX_POOL(half);
REGISTER_ADAPTIVE_MAX_POOL(bfloat);
