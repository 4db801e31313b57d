// The device guard: one device, its streams, generic events (torch.Event).
#include <ATen/Parallel.h>
#include <device/allocator.h>
#include <device/device.h>
#include <device/events.h>
#include <torch_internals.h>

namespace metalops::device {
namespace {

c10::Stream stream_of(streams::Id id) {
  return c10::Stream(c10::Stream::UNSAFE, kDevice, static_cast<c10::StreamId>(id));
}

// Returns the number of a stream, which may come from Python as any number.
streams::Id id_of(const c10::Stream& stream) {
  streams::check(stream.id());
  return stream.id();
}

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

  c10::Stream getStream(c10::Device) const override { return stream_of(streams::current()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(streams::kDefault); }
  c10::Stream getNewStream(c10::Device, int) const override {
    return stream_of(streams::from_pool());
  }
  // Autograd calls this in its own thread before each step of a backward pass. The number of CPU
  // threads is a setting of each thread, and that thread is not told when torch.set_num_threads
  // changes it.
  c10::Stream exchangeStream(c10::Stream stream) const override {
    at::init_num_threads();
    const c10::Stream before = stream_of(streams::current());
    streams::set_current(id_of(stream));
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return streams::query(id_of(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    device::synchronize(id_of(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex) const override { synchronize(); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    allocator().recordStream(memory, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    if (*event == nullptr) *event = new Event{.timed = flag == c10::EventFlag::BACKEND_DEFAULT};
    static_cast<Event*>(*event)->record(id_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) static_cast<Event*>(event)->wait(id_of(stream));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_reached(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) device::synchronize(*static_cast<Event*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    return elapsed_milliseconds(*static_cast<Event*>(start), *static_cast<Event*>(end));
  }
};

C10_REGISTER_GUARD_IMPL(MPS, HostGuard)

}  // namespace
}  // namespace metalops::device
