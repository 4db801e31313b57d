// Copies to, from and within the device. Every transfer of device memory to the host passes here.
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <device/aliases.h>
#include <device/copy.h>
#include <device/device.h>
#include <device/stream_work.h>
#include <torch/library.h>

#include <atomic>

namespace metalops::device {
namespace {

std::atomic<bool> refuses_host_copies{false};

// Returns true if a Mac copies between these tensors of one dtype with a kernel: bytes in the same
// order are copied as they are, and data from the CPU is reordered there.
bool is_reordered(const at::Tensor& self, const at::Tensor& source) {
  if (!source.device().is_mps() && self.is_contiguous()) return false;
  return !self.is_non_overlapping_and_dense() || self.sizes() != source.sizes() ||
         self.strides() != source.strides();
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  if (source.device().is_mps() && !self.device().is_mps()) before_copy_to_host();
  if (source.scalar_type() != self.scalar_type() || is_reordered(self, source)) {
    check_computable(source.scalar_type());
    check_computable(self.scalar_type());
  }
  const bool is_within = self.device().is_mps() && source.device().is_mps();
  const bool queue = is_within && !streams::is_current_default() && self.layout() == at::kStrided &&
                     source.layout() == at::kStrided &&
                     at::is_expandable_to(source.sizes(), self.sizes());
  if (is_stream_work()) check_copy(self, source);
  Aliases aliases(queue ? Aliases::Call::kQueued : Aliases::Call::kNow);
  at::Tensor to = aliases.to_cpu(self);
  const at::Tensor from = aliases.to_cpu(source);
  if (queue) {
    streams::submit("aten::copy_", [to, from] {
      const at::AutoDispatchBelowADInplaceOrView guard;
      to.copy_(from);
    });
    return self;
  }
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    to.copy_(from, non_blocking);
  }
  if (!is_within) streams::follow(streams::Followers::Work::kWait);
  // A Mac waits for a copy from the host, which may change the source afterwards.
  if (!is_within && !non_blocking) streams::synchronize(streams::current());
  return self;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  at::Tensor to = destination;
  to.copy_(source, non_blocking);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& destination) {
  at::Tensor to = destination;
  to.resize_(source.sizes());
  to.copy_(source);
  return destination;
}

at::Scalar local_scalar(const at::Tensor& self) {
  before_copy_to_host();
  return at::native::_local_scalar_dense_cpu(self);
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
}

}  // namespace

void before_copy_to_host() {
  TORCH_CHECK(!refuses_host_copies,
              "an mps tensor was copied to the host inside metalops.testing.no_host_copies()");
  before_host_read();
}

bool refuse_host_copies(bool refuse) { return refuses_host_copies.exchange(refuse); }

}  // namespace metalops::device
