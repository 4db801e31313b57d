// Launch and checks shared by elementwise kernels.
#include <metal/elementwise.h>

#include <c10/metal/common.h>

namespace metalops {

void set_operands(Encoder& encoder, at::TensorIteratorBase& iter) {
  for (int operand = 0; operand < iter.ntensors(); ++operand) encoder.set_operand(iter, operand);
}

void dispatch_1d(Encoder& encoder, const exec::Kernel& kernel, uint64_t length) {
  encoder.dispatch(kernel, {length, 1, 1}, group_for_1d(kernel, length));
}

void dispatch_ilp(Encoder& encoder, const exec::Kernel& kernel, uint64_t length) {
  dispatch_1d(encoder, kernel, c10::metal::ceil_div<uint64_t>(length, c10::metal::ILP_PER_THREAD));
}

void dispatch_strided_2d(Encoder& encoder, const exec::Kernel& kernel,
                         const at::TensorIteratorBase& iter) {
  const uint64_t inner = iter.shape()[0];
  const uint64_t outer = iter.numel() / inner;
  encoder.dispatch(kernel, {inner, outer, 1}, group_for_2d(kernel, inner, outer));
}

bool is_inner_contiguous(const at::TensorIteratorBase& iter) {
  if (iter.ndim() < 2) return false;
  for (int operand = 0; operand < iter.ntensors(); ++operand) {
    if (iter.strides(operand)[0] != iter.element_size(operand)) return false;
  }
  return true;
}

void dispatch_inner_contiguous(Encoder& encoder, const exec::Kernel& kernel,
                               const at::TensorIteratorBase& iter) {
  const uint64_t inner = iter.shape()[0];
  const uint64_t tiles = c10::metal::ceil_div<uint64_t>(inner, c10::metal::ILP_PER_THREAD);
  const uint64_t outer = iter.numel() / inner;
  encoder.dispatch(kernel, {tiles, outer, 1}, group_for_2d(kernel, tiles, outer));
}

void dispatch_strided_3d(Encoder& encoder, const exec::Kernel& kernel,
                         const at::TensorIteratorBase& iter) {
  const uint64_t x = iter.ndim() > 0 ? iter.shape()[0] : 1;
  const uint64_t y = iter.ndim() > 1 ? iter.shape()[1] : 1;
  encoder.dispatch(kernel, {x, y, iter.numel() / (x * y)}, group_for_2d(kernel, x, y));
}

void check_dimensions(const at::TensorIteratorBase& iter) {
  TORCH_CHECK(iter.ndim() <= static_cast<int>(c10::metal::max_ndim),
              "MPS supports tensors with dimensions <= ", c10::metal::max_ndim, ", but got ",
              iter.ndim(), ".");
}

void check_no_float64_output(const at::TensorIteratorBase& iter) {
  TORCH_CHECK(iter.dtype(0) != at::kDouble, "float64 is not supported on MPS");
}

}  // namespace metalops
