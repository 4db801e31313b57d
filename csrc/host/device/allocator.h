// Memory of the software mps device: host memory, counted as a Mac counts it.
#pragma once
#include <ATen/mps/MPSAllocatorInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

namespace metalops::device {

at::mps::IMPSAllocator& allocator();
c10::Allocator& pinned_allocator();

// As long as it lives, what CPU kernels allocate on this thread is for the device.
class ServesDevice {
 public:
  ServesDevice();
  ~ServesDevice();
  ServesDevice(const ServesDevice&) = delete;

 private:
  const bool before_;
};

// A CPU storage over the memory of an mps storage, which it keeps alive.
c10::Storage cpu_alias(const c10::Storage& mps_storage);

// Device memory made of what a CPU storage holds, without a copy: counted as allocated until it is
// freed, refused with torch.OutOfMemoryError when it does not fit in the limit.
c10::DataPtr adopt(c10::Storage cpu_storage);

// An mps storage over adopted memory.
c10::Storage adopt_storage(c10::Storage cpu_storage);

// Gives an mps storage another size; what fits of its contents stays.
void resize(const c10::Storage& mps_storage, size_t bytes);

// Zeroes device memory. Whole pages of a large allocation are given back to the system, which
// supplies zeroes on the next access: zeroing 16 GiB commits no memory.
void zero(void* begin, size_t bytes, const c10::DataPtr& owner);

}  // namespace metalops::device
