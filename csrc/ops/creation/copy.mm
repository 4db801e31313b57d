// Copies from the CPU to the device, while the fix "copy" is on. They are torch's own, which wait
// where the source is memory that the device's driver does not keep alive.
#include <csrc/ops/common/fixes.h>

#include <atomic>

namespace {

using at::Tensor;

// torch's kernel of copy_, as it was when the fix was turned on. Objects are never freed: another
// thread may be in a call when the fix is turned off.
std::atomic<const metalops::StockKernel*> stock_copy{nullptr};

// Returns true if nobody keeps the source until the device has read it: pinned memory belongs to
// the device.
bool is_pageable(const Tensor& self, const Tensor& source) {
  return self.device().is_mps() && source.device().is_cpu() && source.numel() != 0 &&
         !source.is_pinned();
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  (*stock_copy.load())(self, source, non_blocking && !is_pageable(self, source));
  return self;
}

const metalops::Fix kCopy("copy", [](metalops::AtenKernels& m, const char* reason) {
  stock_copy = new metalops::StockKernel("aten::copy_", "");
  m.replace("copy_", copy_, reason);
});

}  // namespace
