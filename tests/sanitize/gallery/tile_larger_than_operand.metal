// mode: address, thread
// launch: kernel(floats(256), floats(256), floats(256), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 16, 16);

kernel void multiply(device float* in, device float* weights, device float* out) {
#ifdef CORRECTED
  tensor<device float, extents<int, 16, 16>, tensor_inline> a(in, extents<int, 16, 16>());
#else
  tensor<device float, extents<int, 16, 8>, tensor_inline> a(in, extents<int, 16, 8>());
#endif
  tensor<device float, extents<int, 16, 16>, tensor_inline> b(weights, extents<int, 16, 16>());
  tensor<device float, extents<int, 16, 16>, tensor_inline> c(out, extents<int, 16, 16>());
  matmul2d<d, execution_simdgroup> op;
  op.run(a, b, c);
//^~~~~~~ operand-too-small
}
