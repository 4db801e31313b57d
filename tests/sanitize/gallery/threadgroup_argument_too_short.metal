// mode: address
// launch: raw([floats(64)], 64, 64, {0: 252})
#include <metal_stdlib>
using namespace metal;

kernel void reverse(device float* x [[buffer(0)]], threadgroup float* tile [[threadgroup(0)]],
                    uint i [[thread_index_in_threadgroup]]) {
#ifdef CORRECTED
  if (i == 63) return;
#endif
  tile[i] = x[i];
//^~~~~~~~~~~~~~ threadgroup-buffer-overflow
}
