// Memory of the software mps device: host memory, accounted for as on a Mac.
#pragma once
#include <ATen/mps/MPSAllocatorInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

namespace metalops::device {

at::mps::IMPSAllocator& allocator();
c10::Allocator& pinned_allocator();

// RAII: allocations of CPU kernels on this thread are for the device.
class ServesDevice {
 public:
  ServesDevice();
  ~ServesDevice();
  ServesDevice(const ServesDevice&) = delete;

 private:
  const bool before_;
};

// Returns a CPU storage over the memory of an mps storage, which it keeps alive.
c10::Storage cpu_alias(const c10::Storage& mps_storage);

// Turns the memory of a CPU storage into device memory, without a copy if it is aligned as device
// memory is. It counts as allocated until it is freed; raises torch.OutOfMemoryError if it exceeds
// the limit.
c10::DataPtr adopt(c10::Storage cpu_storage);

// Returns an mps storage over adopted memory.
c10::Storage adopt_storage(c10::Storage cpu_storage);

// Resizes an mps storage; contents that fit are kept.
void resize(const c10::Storage& mps_storage, size_t bytes);

// Zeroes device memory. Whole pages of a large allocation are given back to the system, which
// supplies zeroed pages on the next access: zeroing 16 GiB commits no memory.
void zero(void* begin, size_t bytes, const c10::DataPtr& owner);

}  // namespace metalops::device
