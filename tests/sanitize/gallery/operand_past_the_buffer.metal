// mode: address
// launch: kernel(floats(512), floats(512), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 32, static_cast<int>(dynamic_extent));
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

// A matrix of 16 rows of 32 elements, of which 17 are told.
kernel void multiply(device float* in, device float* out) {
#ifdef CORRECTED
  Matrix b(in, dextents<int, 2>(32, 16));
#else
  Matrix b(in, dextents<int, 2>(32, 17));
#endif
  Matrix a(in, dextents<int, 2>(17, 16)), c(out, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
  op.run(a, b, c);
//^~~~~~~ heap-buffer-overflow
}
