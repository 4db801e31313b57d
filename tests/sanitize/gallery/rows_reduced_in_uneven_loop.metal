// mode: address, thread
// launch: kernel(floats(1024), floats(16), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 32, 16);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

kernel void reduce(device float* in, device float* out, uint lane [[thread_index_in_simdgroup]]) {
  Matrix a(in, dextents<int, 2>(16, 16)), b(in, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
  auto product = op.get_destination_cooperative_tensor<Matrix, Matrix, float>();
  auto sums = op.get_row_reduction_destination_cooperative_tensor<Matrix, Matrix, float>();
  op.run(a, b, product);
#ifdef CORRECTED
  const uint steps = 2;
#else
  const uint steps = 1 + lane / 31;
#endif
  for (uint i = 0; i < steps; ++i) {
    reduce_rows(product, sums);
//  ^~~~~~~~~~~~ scope-divergence
  }
  sums.store(tensor<device float, extents<int, 16>, tensor_inline>(out, extents<int, 16>()));
}
