// torch's hooks into the MPS backend: the queries of torch.mps, torch.backends.mps and
// torch.accelerator.
#include <ATen/Context.h>
#include <device/allocator.h>
#include <device/device.h>
#include <device/events.h>
#include <device/imports.h>
#include <device/objective_c.h>
#include <torch_internals.h>

namespace metalops::device {

ObjectiveC objective_c;

// Has no data members: see internals::install_hooks.
struct HostHooks final : at::MPSHooksInterface {
  void init() const override {}
  bool hasMPS() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  // The device follows the newest macOS version that torch checks for.
  bool isOnMacOSorNewer(unsigned, unsigned) const override { return true; }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return internals::getDefaultMPSGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<at::MPSGeneratorImpl>();
  }

  c10::Allocator* getMPSDeviceAllocator() const override { return &allocator(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return at::mps::isMPSPinnedPtr(data); }
  c10::Device getDeviceFromPtr(void*) const override { return kDevice; }
  void emptyCache() const override { allocator().freeInactiveBuffers(); }
  size_t getCurrentAllocatedMemory() const override {
    return allocator().getCurrentAllocatedMemory();
  }
  size_t getDriverAllocatedMemory() const override {
    return allocator().getDriverAllocatedMemory();
  }
  size_t getRecommendedMaxMemory() const override { return allocator().getRecommendedMaxMemory(); }
  size_t getMaxBufferLength() const override { return allocator().getRecommendedMaxMemory(); }
  void setMemoryFraction(double ratio) const override { allocator().setHighWatermarkRatio(ratio); }

  void deviceSynchronize() const override {
    if (objective_c.synchronize != nullptr) objective_c.synchronize();
    synchronize();
  }
  void commitStream() const override {
    if (objective_c.commit != nullptr) objective_c.commit();
  }
  void* getCommandBuffer() const override {
    return objective_c.command_buffer != nullptr ? objective_c.command_buffer() : nullptr;
  }
  void* getDispatchQueue() const override {
    return objective_c.dispatch_queue != nullptr ? objective_c.dispatch_queue() : nullptr;
  }
  void profilerStartTrace(const std::string& mode, bool) const override {
    TORCH_CHECK(mode == "interval" || mode == "event" || mode == "interval,event" ||
                    mode == "event,interval",
                "Invalid Signpost trace mode: ", mode,
                ". Supported modes are: 'interval', 'event', and "
                "'interval,event'.");
  }
  void profilerStopTrace() const override {}

  uint32_t acquireEvent(bool timed) const override { return event_pool::acquire(timed); }
  void releaseEvent(uint32_t id) const override { event_pool::release(id); }
  void recordEvent(uint32_t id) const override { event_pool::record(id); }
  void waitForEvent(uint32_t id) const override { event_pool::wait(id); }
  void synchronizeEvent(uint32_t id) const override { event_pool::synchronize(id); }
  bool queryEvent(uint32_t id) const override { return event_pool::query(id); }
  double elapsedTimeOfEvents(uint32_t start, uint32_t end) const override {
    return event_pool::elapsed(start, end);
  }

  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    TORCH_CHECK(device <= 0, "invalid mps device index ", static_cast<int>(device));
  }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
};

}  // namespace metalops::device

namespace at {
using metalops_HostHooks = metalops::device::HostHooks;
C10_REGISTER_CLASS(MPSHooksRegistry, MPSHooks, metalops_HostHooks)
}  // namespace at

namespace metalops::device {
namespace {

const bool installed = (internals::install_hooks<HostHooks>(), true);

// torch knows one accelerator. Its CUDA builds take CUDA for it even where there is no GPU, and
// raise an error if there is another one. Here it is the CUDA GPU if there is one, else this
// device.
std::optional<c10::DeviceType> accelerator(bool) {
  return at::hasCUDA() ? c10::DeviceType::CUDA : c10::DeviceType::MPS;
}

// The entries may be missing where torch was linked in another way.
const bool is_replaced = [] {
  bool all = true;
  for (const char* library : {"libtorch_cpu.so", "libtorch_python.so"}) {
    all &= replace_import(library, "_ZN2at11accelerator14getAcceleratorE",
                          reinterpret_cast<void*>(&accelerator), nullptr);
  }
  return all;
}();

}  // namespace
}  // namespace metalops::device
