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
  threadgroup float tile[512];
  for (uint i = t; i < 512; i += 64) tile[i] = in[i];
#ifdef CORRECTED
  threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
  tensor<threadgroup float, dextents<int, 2>, tensor_inline> a(tile, dextents<int, 2>(16, 32));
  Matrix b(in, dextents<int, 2>(32, 16)), c(out, dextents<int, 2>(32, 32));
  matmul2d<d, execution_simdgroups<2>> op;
  op.run(a, b, c);
//^~~~~~~ data-race
}
