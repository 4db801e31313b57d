// mode: address
// launch: kernel(floats(8), [1, 2], threads=8)
#include <metal_stdlib>
using namespace metal;

// The host passes two numbers only.
struct Parameters {
  long first;
  long second;
#ifndef CORRECTED
  long third;
#endif
};

kernel void add(device float* out, constant Parameters& p, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out[i] += float(p.first + p.second);
#else
  out[i] += float(p.first + p.third);
//                          ^~~~~~~ heap-buffer-overflow
#endif
}
