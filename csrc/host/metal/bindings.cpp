// Python bindings of the Metal runtime: those that torch._C has on a Mac for
// torch.mps.compile_shader and load_metallib.
#include <ATen/core/Tensor.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <metal/compile.h>
#include <metal/flavour.h>
#include <metal/pipeline.h>
#include <metal/python_call.h>

namespace metalops {
namespace py = pybind11;
namespace {

using at::native::mps::DynamicMetalShaderLibrary;
using at::native::mps::MetalKernelFunction;
using at::native::mps::MetalShaderLibrary;
using at::native::mps::PrecompiledMetalShaderLibrary;

// Attributes of a library are its kernels. An unknown name raises RuntimeError, as on a Mac.
template <typename Library>
void bind_library(py::module_& m, const char* name) {
  py::class_<Library, std::shared_ptr<Library>>(m, name)
      .def("__getattr__", torch::wrap_pybind_function([](Library& self, const std::string& kernel) {
             return self.getKernelFunction(kernel);
           }))
      .def("__dir__",
           torch::wrap_pybind_function([](Library& self) { return self.getFunctionNames(); }));
}

}  // namespace

void bind_metal(py::module_& host) {
  exec::compile_left_out = &compile_left_out;
  exec::begin_left_out = &begin_left_out;
  py::module_ m = py::module_::import("torch._C");
  bind_library<DynamicMetalShaderLibrary>(m, "_mps_ShaderLibrary");
  bind_library<PrecompiledMetalShaderLibrary>(m, "_mps_PrecompiledShaderLibrary");

  py::class_<MetalKernelFunction, std::shared_ptr<MetalKernelFunction>>(m, "_mps_MetalKernel")
      .def("__call__", torch::wrap_pybind_function(&call_kernel), py::kw_only(),
           py::arg("threads") = py::none(), py::arg("group_size") = py::none(),
           py::arg("arg_casts") = py::none(), py::arg("error_buf_idx") = py::none())
      .def_property_readonly("max_threads_per_threadgroup",
                             &MetalKernelFunction::getMaxThreadsPerThreadgroup)
      .def_property_readonly("thread_execution_width",
                             &MetalKernelFunction::getThreadExecutionWidth)
      .def_property_readonly("static_thread_group_memory_length",
                             &MetalKernelFunction::getStaticThreadGroupMemoryLength);

  host.def(
      "kernel_function",
      [](std::shared_ptr<exec::Library> library, const std::string& name,
         const std::map<unsigned, uint32_t>& threadgroup_bytes) {
        Pipeline::ThreadgroupBytes bytes{};
        for (const auto& [index, length] : threadgroup_bytes) bytes.at(index) = length;
        const exec::Kernel& described = CompiledLibrary(library).described_kernel(name);
        library->begin(name);
        auto pipeline = c10::make_intrusive<Pipeline>(std::move(library), &described, bytes);
        return std::make_shared<MetalKernelFunction>(pipeline.get(), pipeline.get());
      },
      py::arg("library"), py::arg("name"), py::arg("threadgroup_bytes"),
      "A kernel of a Library as torch.mps.compile_shader has it; threadgroup_bytes: {index: bytes} "
      "of dynamic threadgroup arguments.");
  m.def("_mps_compileShader", torch::wrap_pybind_function([](const std::string& source) {
          try {
            return std::make_shared<DynamicMetalShaderLibrary>(source);
          } catch (const MetalSyntaxError& error) {
            throw python_error(error.raised());
          }
        }));
  // Spelt as in torch.
  m.def("_mps_loadMetalllib", torch::wrap_pybind_function([](const py::bytes& data) {
          const auto view = static_cast<std::string_view>(data);
          return std::make_shared<PrecompiledMetalShaderLibrary>(
              std::vector<uint8_t>(view.begin(), view.end()));
        }));
  m.def("_mps_loadMetallibFromPath", torch::wrap_pybind_function([](const std::string& path) {
          return std::make_shared<PrecompiledMetalShaderLibrary>(path);
        }));

  host.def("set_elementwise_flavour", torch::wrap_pybind_function(&set_forced_flavours),
           py::arg("unary"), py::arg("binary"),
           "Pins the flavour of elementwise kernels: 'ilp', 'scalar', 'strided', 'gpu' (torch's "
           "choice on a Mac) or '' (the device's choice). Returns what "
           "was before.\n"
           "PYTORCH_UNARY_FORCE_FLAVOR and PYTORCH_BINARY_FORCE_FLAVOR give the initial values.");
}

}  // namespace metalops
