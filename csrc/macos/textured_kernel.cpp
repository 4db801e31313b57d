#include <csrc/macos/textured_kernel.h>

#include <ATen/core/Tensor.h>
#include <ATen/mps/MPSStream.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <csrc/macos/texture.h>
#include <csrc/python/functor.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace metalops {
namespace {

namespace py = pybind11;
using at::native::mps::MetalKernelFunction;
using objective_c::Owned;
using objective_c::send;
using Buffer = std::variant<std::monostate, at::Tensor, py::bytes>;
using Bytes = std::pair<unsigned, std::string>;
using Sizes = std::vector<uint64_t>;

// The texture's tensor, and pixel format, whether it is a buffer, width, height, bytes of a row and
// of a texel, and usage.
using Described =
    std::tuple<at::Tensor, uint64_t, bool, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t>;

void* buffer_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_mps(), "a texture's tensor is on mps, but is on ",
              tensor.device());
  return const_cast<void*>(tensor.storage().data());  // an MTLBuffer
}

Owned texture_of(const Described& described) {
  const auto& [tensor, format, is_buffer, width, height, row_bytes, texel_bytes, usage] = described;
  const uint64_t offset = tensor.storage_offset() * tensor.element_size();
  return make_texture(buffer_of(tensor),
                      {format, is_buffer, width, height, row_bytes, texel_bytes, offset, usage});
}

class TexturedKernel {
 public:
  TexturedKernel(const ShaderLibrary& library, const std::string& name)
      : kernel_(const_cast<ShaderLibrary&>(library).library.getKernelFunction(name)) {}

  uint64_t max_threads() const { return kernel_->getMaxThreadsPerThreadgroup(); }
  uint64_t width() const { return kernel_->getThreadExecutionWidth(); }

  void launch(const std::vector<Buffer>& buffers, const std::vector<Described>& textures,
              const std::vector<uint64_t>& samplers, const Sizes& threads,
              const std::optional<Sizes>& group, std::optional<unsigned> error_buffer) {
    std::vector<Owned> made;
    for (const Described& texture : textures) made.push_back(texture_of(texture));
    std::vector<std::pair<unsigned, at::Tensor>> tensors;
    std::vector<Bytes> values;
    for (unsigned index = 0; index < buffers.size(); ++index) {
      if (const auto* tensor = std::get_if<at::Tensor>(&buffers[index])) {
        tensors.emplace_back(index, *tensor);
      } else if (const auto* bytes = std::get_if<py::bytes>(&buffers[index])) {
        values.emplace_back(index, std::string(*bytes));
      }
    }
    const py::gil_scoped_release release;
    kernel_->runCommandBlock([&] {
      kernel_->startEncoding();
      for (const auto& [index, tensor] : tensors) kernel_->setArg(index, tensor);
      for (const auto& [index, bytes] : values) kernel_->setArg(index, bytes.data(), bytes.size());
      if (error_buffer) kernel_->setErrorBufferIndex(*error_buffer);
      // The encoder that the lines above have written to. Its command buffer keeps what is bound.
      void* encoder = at::mps::getCurrentMPSStream()->commandEncoder();
      for (uint64_t index = 0; index < made.size(); ++index) {
        send<void>(encoder, "setTexture:atIndex:", made[index].get(), index);
      }
      void* device = send<void*>(encoder, "device");
      for (uint64_t index = 0; index < samplers.size(); ++index) {
        const Owned sampler = make_sampler(device, samplers[index]);
        send<void>(encoder, "setSamplerState:atIndex:", sampler.get(), index);
      }
      const auto sizes = c10::ArrayRef<uint64_t>(threads);
      if (group) {
        kernel_->dispatch(sizes, c10::ArrayRef<uint64_t>(*group));
      } else {
        kernel_->dispatch(sizes);
      }
    });
  }

 private:
  std::shared_ptr<MetalKernelFunction> kernel_;
};

}  // namespace

void bind_textured_kernel(py::module_& m) {
  py::class_<TexturedKernel>(m, "TexturedKernel")
      .def(py::init(torch::wrap_pybind_function(
               [](const ShaderLibrary& library, const std::string& name) {
                 return std::make_unique<TexturedKernel>(library, name);
               })),
           py::arg("library"), py::arg("name"), py::keep_alive<1, 2>())
      .def_property_readonly("max_threads_per_threadgroup", &TexturedKernel::max_threads)
      .def_property_readonly("thread_execution_width", &TexturedKernel::width)
      .def("launch", torch::wrap_pybind_function(&TexturedKernel::launch), py::arg("buffers"),
           py::arg("textures"), py::arg("samplers"), py::arg("threads"), py::arg("group_size"),
           py::arg("error_buffer"),
           "Runs the kernel. buffers: tensors, bytes, or None, by index. textures: of each the "
           "tensor, MTLPixelFormat, whether it is a texture buffer, width, height, bytes of a row, "
           "bytes of a texel and MTLTextureUsage. samplers: their bits. threads, group_size: of as "
           "many dimensions. error_buffer: the index of the buffer of reported errors, or None.");
}

}  // namespace metalops
