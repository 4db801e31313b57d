// mode: address, thread
// launch: kernel(floats(1024), floats(512), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 32, 16);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

kernel void multiply(device float* in, device float* out, uint t [[thread_index_in_threadgroup]]) {
  Matrix a(in, dextents<int, 2>(16, 16)), b(in, dextents<int, 2>(32, 16));
  Matrix c(out, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
#ifdef CORRECTED
  op.run(a, b, c);
#else
  if (t < 16) op.run(a, b, c);
//            ^~~~~~~ scope-divergence
#endif
}
