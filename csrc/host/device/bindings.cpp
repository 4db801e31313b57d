// What python/metalops/_device.py and metalops.debug need of the device.
#include <ATen/native/Resize.h>
#include <device/allocator.h>
#include <device/recorder.h>
#include <device/stand_in.h>
#include <torch/extension.h>
#include <torch/csrc/utils/pybind.h>

namespace metalops {

void bind_device(pybind11::module_& m) {
  namespace py = pybind11;
  m.def("register_stand_ins", &device::register_stand_ins, py::arg("overloads"),
        "Registers stand-ins for these stock MPS overloads; returns those that got one.");
  m.def("allocator_address", [] { return reinterpret_cast<uintptr_t>(static_cast<c10::Allocator*>(&device::allocator())); });
  m.def(
      "host_alias_storage",
      [](const at::Storage& storage) { return device::allocator().getHostAliasStorage(storage); }, py::arg("storage"));
  m.def(
      "resize_storage",
      [](const at::Storage& storage, size_t bytes) {
        at::native::resize_bytes_nocuda(storage, c10::SymInt(static_cast<int64_t>(bytes)));
      },
      py::arg("storage"), py::arg("bytes"));
  py::class_<device::StandInRecord, std::shared_ptr<device::StandInRecord>>(m, "StandInRecord")
      .def("counts", &device::StandInRecord::counts);
  m.def("push_stand_in_record", &device::push_stand_in_record);
  m.def("pop_stand_in_record", &device::pop_stand_in_record);
}

}  // namespace metalops
