#include <csrc/macos/command_time.h>

#include <ATen/mps/MPSStream.h>
#include <csrc/macos/objective_c.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

namespace metalops {
namespace {

namespace py = pybind11;
using objective_c::send;

// Returns the Metal command buffer of the stream's MPSCommandBuffer, which the caller releases.
objective_c::Owned current_command_buffer(at::mps::MPSStream& stream) {
  void* const buffer = reinterpret_cast<void*>(stream.commandBuffer());
  return objective_c::Owned(send<void*>(send<void*>(buffer, "rootCommandBuffer"), "retain"));
}

// Waits for the device, and returns when it began and ended what was encoded since the last wait,
// in seconds of the system's uptime. What the stream has committed itself in the meantime is not
// contained; both are equal if nothing was encoded.
std::pair<double, double> finish_commands() {
  auto& stream = *at::mps::getCurrentMPSStream();
  const auto buffer = current_command_buffer(stream);
  stream.synchronize(at::mps::SyncType::COMMIT_AND_WAIT);
  return {send<double>(buffer.get(), "GPUStartTime"), send<double>(buffer.get(), "GPUEndTime")};
}

}  // namespace

void bind_command_time(py::module_& m) {
  m.def("finish_commands", torch::wrap_pybind_function_no_gil(&finish_commands),
        "Waits for the device. Returns when it began and ended the work that was encoded since it "
        "was waited for, in seconds.");
}

}  // namespace metalops
