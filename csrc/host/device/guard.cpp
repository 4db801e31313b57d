// The device guard: one device, one stream, generic events (torch.Event).
#include <ATen/Parallel.h>
#include <device/device.h>
#include <device/events.h>
#include <torch_internals.h>

namespace metalops::device {
namespace {

c10::Stream default_stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }

struct HostGuard final : internals::DeviceGuard {
  c10::DeviceType type() const override { return c10::DeviceType::MPS; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_mps(), "Expected a MPS device, but got ", device);
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    uint64_t bits = 0;
    for (int index :
         {c10::kIndex_Byte, c10::kIndex_Char, c10::kIndex_Short, c10::kIndex_Int, c10::kIndex_Long,
          c10::kIndex_Half, c10::kIndex_Float, c10::kIndex_ComplexHalf, c10::kIndex_ComplexFloat,
          c10::kIndex_Bool, c10::kIndex_BFloat16, c10::kIndex_UInt32, c10::kIndex_UInt16,
          c10::kIndex_UInt64}) {
      bits |= uint64_t{1} << index;
    }
    capability.capability_data.capability_bits = bits;
    return capability;
  }

  c10::Stream getStream(c10::Device) const override { return default_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return default_stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return default_stream(); }
  // Autograd calls this in its own thread before each step of a backward pass. The number of CPU
  // threads is a setting of each thread, and that thread is not told when torch.set_num_threads
  // changes it.
  c10::Stream exchangeStream(c10::Stream) const override {
    at::init_num_threads();
    return default_stream();
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { synchronize(); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    if (*event == nullptr) *event = new Event{.timed = flag == c10::EventFlag::BACKEND_DEFAULT};
    static_cast<Event*>(*event)->record();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->recorded;
  }
  void synchronizeEvent(void*) const override { before_host_read(); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return elapsed_milliseconds(*static_cast<Event*>(start), *static_cast<Event*>(end));
  }
};

C10_REGISTER_GUARD_IMPL(MPS, HostGuard)

}  // namespace
}  // namespace metalops::device
