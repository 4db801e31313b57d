// Checks of dtypes and dimensions, and synchronisation with the host.
#include <c10/metal/common.h>
#include <c10/util/Exception.h>
#include <device/device.h>
#include <exec/sanitize/findings.h>
#include <metal/error_buffer.h>

namespace metalops::device {

namespace {
constexpr size_t kMaxDimensions = 16;
constexpr const char* kNoSupport[] = {
    "Trying to convert ", " to the MPS backend but it does not have support for that dtype."};

// Returns true if torch's Metal kernels have a dtype, as its header for them lists it.
constexpr bool is_of_metal(c10::ScalarType dtype) {
  switch (dtype) {
#define METALOPS_CASE(name, number, type) case c10::ScalarType::name:
    C10_METAL_ALL_TYPES_FUNCTOR(METALOPS_CASE)
#undef METALOPS_CASE
    return true;
    default:
      return false;
  }
}
}  // namespace

void check_dtype(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(
      dtype != c10::kDouble,
      "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
      "Please use float32 instead.");
  TORCH_CHECK_TYPE(dtype != c10::kComplexDouble, kNoSupport[0], dtype, kNoSupport[1]);
}

void check_computable(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(!c10::isFloat8Type(dtype) || is_of_metal(dtype), kNoSupport[0], dtype,
                   kNoSupport[1]);
}

void check_dimensions(size_t dimensions) {
  TORCH_CHECK(dimensions <= kMaxDimensions,
              "MPS supports tensors with dimensions <= ", kMaxDimensions, ", but got ", dimensions,
              ".");
}

void before_host_read() {
  streams::follow(streams::Followers::Work::kWait);
  streams::synchronize(streams::current());
  metalops::raise_reported_errors();
}

void synchronize(streams::Id stream) {
  streams::synchronize(stream);
  metalops::raise_reported_errors();
  exec::raise_kept_findings();
}

void synchronize() {
  streams::synchronize_all();
  metalops::raise_reported_errors();
  exec::raise_kept_findings();
}

}  // namespace metalops::device
