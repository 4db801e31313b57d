// mode: address, thread
// launch: kernel(floats(1024), floats(512), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 32, 16);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

kernel void fill(device float* in, device float* out, uint lane [[thread_index_in_simdgroup]]) {
  Matrix c(out, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
  auto tile = op.get_destination_cooperative_tensor<Matrix, Matrix, float>();
  for (uint16_t i = 0; i < tile.get_capacity(); ++i) {
#ifdef CORRECTED
    tile[i] = in[i];
#else
    if (i != 3) tile[i] = in[i];
#endif
  }
  tile.store(c);
//^~~~~~~~~~~ uninitialized-cooperative-read
}
