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
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

// Some implementations take zeros for what the operands lack, others read on. This is a warning.
kernel void multiply(device float* in, device float* out) {
  Matrix a(in, dextents<int, 2>(24, 16)), b(in, dextents<int, 2>(32, 24));
  Matrix c(out, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
  op.run(a, b, c);
//^~~~~~~ operand-too-small
}
