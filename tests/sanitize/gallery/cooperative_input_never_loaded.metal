// mode: address, thread
// launch: kernel(bytes_of(1024, 1), ints(512), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 32, 16);
using Bytes = tensor<device uchar, dextents<int, 2>, tensor_inline>;

kernel void multiply(device uchar* in, device int* out) {
  Bytes a(in, dextents<int, 2>(16, 16)), b(in, dextents<int, 2>(32, 16));
  tensor<device int, dextents<int, 2>, tensor_inline> c(out, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
  auto loaded = op.get_left_input_cooperative_tensor<uchar, uchar, int>();
#ifdef CORRECTED
  loaded.load(a);
#endif
  auto left = loaded;
  op.run(left, b, c);
//^~~~~~~ uninitialized-cooperative-read
}
