// mode: address, thread
// launch: kernel(floats(1024), floats(512), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto plain = matmul2d_descriptor(16, 32, 16);
constant constexpr auto transposed = matmul2d_descriptor(16, 32, 16, true);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

// The left matrix stands in memory column by column.
kernel void multiply(device float* in, device float* out) {
  Matrix b(in, dextents<int, 2>(32, 16)), c(out, dextents<int, 2>(32, 16));
#ifdef CORRECTED
  Matrix a(in, dextents<int, 2>(16, 16));
  matmul2d<transposed, execution_simdgroup> op;
#else
  Matrix a(in, dextents<int, 2>(16, 16), array<int, 2>{16, 1});
  matmul2d<plain, execution_simdgroup> op;
#endif
  op.run(a, b, c);
//^~~~~~~ innermost-stride
}
