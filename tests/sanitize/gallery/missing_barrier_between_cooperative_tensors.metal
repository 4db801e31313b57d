// mode: thread
// layout: scramble
// launch: kernel(floats(16, 16).half(), threads=32, group_size=32)
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

constant constexpr auto d = matmul2d_descriptor(16, 16, 16);
using Halves = tensor<device half, dextents<int, 2>, tensor_inline>;

// A left operand need not have its elements in the threads in which the result of a product has them.
kernel void hand_on(device half* out, uint lane [[thread_index_in_simdgroup]]) {
  matmul2d<d, execution_simdgroup> op;
  auto result = op.get_destination_cooperative_tensor<Halves, Halves, half>();
  for (uint16_t i = 0; i < result.get_capacity(); ++i) {
    if (result.is_valid_element(i)) result[i] = lane;
  }
  threadgroup half shared[16 * 16];
  tensor<threadgroup half, dextents<int, 2>, tensor_inline> stored(shared, dextents<int, 2>(16, 16));
  for (uint i = lane; i < 16 * 16; i += 32) shared[i] = 0;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  result.store(stored);
//^~~~~~~~~~~~~~~~~~~~ data-race
#ifdef CORRECTED
  simdgroup_barrier(mem_flags::mem_threadgroup);
#endif
  auto left = op.get_left_input_cooperative_tensor<half, half, half>();
  left.load(stored);
  left.store(Halves(out, dextents<int, 2>(16, 16)));
}
