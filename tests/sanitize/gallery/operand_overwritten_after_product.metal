// mode: thread
// launch: kernel(floats(1024), floats(512), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 32, 16, false, false, false,
                                                matmul2d_descriptor::mode::multiply_accumulate);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

kernel void multiply(device float* in, device float* out, uint t [[thread_index_in_threadgroup]]) {
  threadgroup float tile[256];
  tensor<threadgroup float, dextents<int, 2>, tensor_inline> a(tile, dextents<int, 2>(16, 16));
  Matrix b(in, dextents<int, 2>(32, 16)), c(out, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
  for (uint step = 0; step < 2; ++step) {
    for (uint i = t; i < 256; i += 32) tile[i] = in[step * 256 + i];
//                                     ^~~~~~~~~~~~~~~~~~~~~~~~~~~~ data-race
    simdgroup_barrier(mem_flags::mem_threadgroup);
    op.run(a, b, c);
#ifdef CORRECTED
    simdgroup_barrier(mem_flags::mem_threadgroup);
#endif
  }
}
