// mode: address, thread
// launch: kernel(floats(1024), floats(512), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 32, 16);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

kernel void scale(device float* in, device float* out) {
  Matrix a(in, dextents<int, 2>(16, 16)), b(in, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
  auto product = op.get_destination_cooperative_tensor<Matrix, Matrix, float>();
  auto factor = op.get_destination_cooperative_tensor<Matrix, Matrix, float>();
  op.run(a, b, product);
#ifdef CORRECTED
  factor.load(b);
#endif
  for (uint16_t i = 0; i < product.get_capacity(); ++i) {
    if (!product.is_valid_element(i)) continue;
    auto at = product.get_multidimensional_index(i);
    out[at[1] * 32 + at[0]] = product[i] * factor[i];
//                              ^~~~~~~~~~~~~~~~~~~~~~ uninitialized-cooperative-read
  }
}
