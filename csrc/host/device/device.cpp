#include <device/device.h>

#include <c10/util/Exception.h>

namespace metalops {
void raise_reported_errors() __attribute__((weak));
}  // namespace metalops

namespace metalops::device {

namespace {
constexpr size_t kMaxDimensions = 16;
}  // namespace

void check_dtype(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(dtype != c10::kDouble && dtype != c10::kComplexDouble,
                   "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
                   "Please use float32 instead.");
}

void check_dimensions(size_t dimensions) {
  TORCH_CHECK(dimensions <= kMaxDimensions, "MPS supports tensors with dimensions <= ", kMaxDimensions, ", but got ",
              dimensions, ".");
}

void before_host_read() {
  if (metalops::raise_reported_errors != nullptr) metalops::raise_reported_errors();
}

}  // namespace metalops::device
