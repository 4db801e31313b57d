// mode: address, thread
// launch: kernel(floats(1024), floats(32), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

// A tile of 8 rows: where a thread has 16 slots for 16 x 32 elements, half of them hold nothing.
constant constexpr auto d = matmul2d_descriptor(8, 32, 16);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

kernel void sum_of_squares(device float* in, device float* out,
                           uint lane [[thread_index_in_simdgroup]]) {
  Matrix a(in, dextents<int, 2>(16, 8)), b(in, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
  auto product = op.get_destination_cooperative_tensor<Matrix, Matrix, float>();
  op.run(a, b, product);
  float sum = 0;
  for (auto it = product.begin(); it != product.end(); ++it) {
#ifdef CORRECTED
    if (!it.is_valid_element()) continue;
#endif
    sum += *it * *it;
//         ^~~~~~~~~ invalid-cooperative-read
  }
  out[lane] = sum;
}
