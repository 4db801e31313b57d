// mode: address, thread
// launch: kernel(floats(64), floats(64), threads=32, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void square(device float* out, device const float* in,
                   uint t [[thread_index_in_threadgroup]]) {
  simdgroup_float8x8 a, product;
  simdgroup_load(a, in, 8);
#ifdef CORRECTED
  simdgroup_multiply(product, a, a);
  simdgroup_store(product, out, 8);
#else
  if (t < 16) {
    simdgroup_multiply(product, a, a);
//  ^~~~~~~~~~~~~~~~~~ undefined-simd-result
    simdgroup_store(product, out, 8);
  }
#endif
}
