// Bindings of the device for python/metalops/_torch/software_device.py and metalops.debug.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/zeros.h>
#include <device/allocator.h>
#include <device/copy.h>
#include <device/device.h>
#include <device/dispatch_stubs.h>
#include <device/recorder.h>
#include <device/sparse.h>
#include <device/stand_in.h>
#include <exec/sanitize/stream_order.h>
#include <metal/streams.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/utils/pybind.h>

namespace metalops {
namespace {

// Waits until the device's autograd thread has finished all earlier backward passes. That thread
// drops its last references to Python tensors after backward() has returned; a thread that asks for
// the GIL once the interpreter is being finalized ends the process (CPython before 3.14).
void drain_autograd_thread() {
  pybind11::gil_scoped_release no_gil;
  const at::AutoGradMode enable(true);
  const at::Tensor leaf =
      at::zeros({}, at::TensorOptions().device(device::kDevice)).requires_grad_();
  torch::autograd::backward({leaf.neg()}, {});
}

}  // namespace

void bind_device(pybind11::module_& m) {
  namespace py = pybind11;
  m.def(
      "register_stock_operators",
      [](const std::vector<std::string>& overloads) {
        auto result = device::register_stock_operators(overloads);
        return std::make_pair(result.stand_ins, result.without_kernel);
      },
      py::arg("overloads"),
      "Registers these stock MPS overloads; returns those that a CPU kernel serves and those that "
      "nothing can serve.");
  m.def("register_sparse_operators", &device::register_sparse_operators, py::arg("common"),
        py::arg("others"),
        "Registers these overloads on the SparseMPS key: those whose kernel is torch's for every "
        "device, and others, which that of SparseCPU stands in for.");
  m.def("allocator_address", [] {
    return reinterpret_cast<uintptr_t>(static_cast<c10::Allocator*>(&device::allocator()));
  });
  m.def(
      "host_alias_storage",
      [](const at::Storage& storage) { return device::allocator().getHostAliasStorage(storage); },
      py::arg("storage"));
  m.def(
      "resize_storage",
      [](const at::Storage& storage, int64_t bytes) {
        TORCH_CHECK(bytes >= 0, "UntypedStorage.resize_: expected a non-negative size, but got ",
                    bytes);
        device::resize(storage, static_cast<size_t>(bytes));
      },
      py::arg("storage"), py::arg("bytes"));
  py::class_<device::StandInRecord, std::shared_ptr<device::StandInRecord>>(m, "StandInRecord")
      .def("counts", &device::StandInRecord::counts);
  m.def("push_stand_in_record", &device::push_stand_in_record);
  m.def("pop_stand_in_record", &device::pop_stand_in_record);
  m.def("refuse_host_copies", &device::refuse_host_copies, py::arg("refuse"));
  m.attr("DEVICE_TYPE") = static_cast<int>(device::kDevice.type());
  m.def("make_stream_pool", &streams::make_pool,
        "Lets new streams be others than the default one, as torch's are that have "
        "torch.mps.Stream.");
  m.def("stream_from_pool", &streams::from_pool, "The number of the pool's next stream.");
  m.def("check_stream", &streams::check, py::arg("stream"));
  m.def("current_stream", &streams::current, "The number of this thread's stream.");
  m.def(
      "set_current_stream",
      [](streams::Id stream) {
        streams::check(stream);
        streams::set_current(stream);
      },
      py::arg("stream"));
  m.def(
      "synchronize_stream", [](streams::Id stream) { device::synchronize(stream); },
      py::arg("stream"), py::call_guard<py::gil_scoped_release>());
  m.def(
      "check_stream_order",
      [](bool check) {
        if (check) streams::set_in_use();
        return exec::set_check_stream_order(check);
      },
      py::arg("check"),
      "Whether work of streams that nothing orders raises; returns what was before.");
  m.def("dispatch_stubs", &device::dispatch_stubs);
  m.def("drain_autograd_thread", &drain_autograd_thread);
}

}  // namespace metalops
