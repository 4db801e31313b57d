// mode: thread
// launch: kernel(floats(512), floats(1024), threads=64, group_size=64)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(32, 32, 16);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

kernel void multiply(device float* in, device float* out, uint t [[thread_index_in_threadgroup]]) {
  threadgroup float tile[1024];
  tensor<threadgroup float, dextents<int, 2>, tensor_inline> c(tile, dextents<int, 2>(32, 32));
  Matrix a(in, dextents<int, 2>(16, 32)), b(in, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroups<2>> op;
  op.run(a, b, c);
//^~~~~~~ data-race
#ifdef CORRECTED
  threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
  for (uint i = t; i < 1024; i += 64) out[i] = max(tile[i], 0.0f);
}
