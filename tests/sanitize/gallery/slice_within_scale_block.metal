// mode: address, thread
// launch: kernel(bytes_of(2048, 0), bytes_of(64, 127), floats(512), threads=32, group_size=32)
// language: 4.1
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 32, 32, false, true);
using scales = tensor_blockwise<tensor_plane_scales, device metal_fp8_ue8m0_format, 32, 1>;
using Matrix = tensor<device metal_fp8_e4m3_format, dextents<int, 2>, tensor_inline, scales>;

kernel void multiply(device uchar* in, device uchar* exponents, device float* out) {
  Matrix a(in, dextents<int, 2>(64, 16), array<int, 2>{1, 64}, scales(exponents));
  Matrix b(in, dextents<int, 2>(64, 32), array<int, 2>{1, 64}, scales(exponents));
  tensor<device float, dextents<int, 2>, tensor_inline> c(out, dextents<int, 2>(32, 16));
  matmul2d<d, execution_simdgroup> op;
#ifdef CORRECTED
  auto left = a.slice(32, 0), right = b.slice(32, 0);
#else
  auto left = a.slice(16, 0), right = b.slice(32, 0);
//            ^~~~~~~~ slice-within-scale-block
#endif
  op.run(left, right, c);
}
