// mode: address, thread
// launch: kernel(floats(1024), floats(512), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

#ifdef CORRECTED
constant constexpr auto d = matmul2d_descriptor(16, 32, static_cast<int>(dynamic_extent));
#else
constant constexpr auto d = matmul2d_descriptor(16, 32, 32);
#endif

kernel void multiply(device float* in, device float* out) {
  tensor<device float, extents<int, 24, 16>, tensor_inline> a(in, extents<int, 24, 16>());
  tensor<device float, extents<int, 32, 24>, tensor_inline> b(in, extents<int, 32, 24>());
  tensor<device float, extents<int, 32, 16>, tensor_inline> c(out, extents<int, 32, 16>());
  matmul2d<d, execution_simdgroup> op;
  op.run(a, b, c);
//^~~~~~~ operand-too-small
}
