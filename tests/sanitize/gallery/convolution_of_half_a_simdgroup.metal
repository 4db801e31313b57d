// mode: address, thread
// launch: kernel(floats(256), floats(144), floats(256), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = convolution2d_descriptor(int4(16, 4, 4, 1), int4(4, 8, 8, 1), int2(1, 1));
using Images = tensor<device float, dextents<int, 4>, tensor_inline>;

kernel void convolve(device float* images, device float* filters, device float* out,
                     uint t [[thread_index_in_threadgroup]]) {
  Images in(images, dextents<int, 4>(4, 8, 8, 1)), weights(filters, dextents<int, 4>(16, 4, 1, 1));
  Images result(out, dextents<int, 4>(16, 4, 4, 1));
  convolution2d<d, execution_simdgroups<1>> op;
#ifdef CORRECTED
  op.run(in, weights, result);
#else
  if (t != 31) op.run(in, weights, result);
//             ^~~~~~~ scope-divergence
#endif
}
