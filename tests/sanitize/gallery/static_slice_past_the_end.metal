// mode: address, thread
// launch: kernel(floats(1024), floats(512), threads=64, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 32, 16);
using Matrix = tensor<device float, dextents<int, 2>, tensor_inline>;

// 24 rows: the second tile has 8.
kernel void multiply(device float* in, device float* out,
                     uint tile [[threadgroup_position_in_grid]]) {
  Matrix a(in, dextents<int, 2>(16, 24)), b(in, dextents<int, 2>(32, 16));
  Matrix c(out, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
#ifdef CORRECTED
  auto rows = a.slice(0, tile * 16);
#else
  auto rows = a.slice<16, 16>(0, tile * 16);
//            ^~~~~~~~~~~~~~~~ slice-out-of-bounds
#endif
  auto product = op.get_destination_cooperative_tensor<decltype(rows), Matrix, float>();
  op.run(rows, b, product);
  if (tile == 0) product.store(c);
}
