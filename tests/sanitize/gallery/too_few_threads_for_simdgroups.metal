// mode: address, thread
// launch: kernel(floats(1024), floats(1024), threads=64, group_size=64)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

#ifdef CORRECTED
constant constexpr int simdgroups = 2;
#else
constant constexpr int simdgroups = 4;
#endif
constant constexpr auto d = matmul2d_descriptor(32, 32, 16);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

kernel void multiply(device float* in, device float* out) {
  Matrix a(in, dextents<int, 2>(16, 32)), b(in, dextents<int, 2>(32, 16));
  Matrix c(out, dextents<int, 2>(32, 32));
  matmul2d<d, execution_simdgroups<simdgroups>> op;
  op.run(a, b, c);
//^~~~~~~ wrong-number-of-threads
}
