// torch's C interface to Metal kernels, which its library for macOS defines and its library for
// Linux does not: AOTInductor's code and extensions for torch's stable ABI are written against it.
#include <ATen/core/Tensor.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/inductor/aoti_torch/c/shim_mps.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch/csrc/python_headers.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

#include <locks.h>

namespace metalops {
namespace {

using at::native::mps::DynamicMetalShaderLibrary;
using at::native::mps::MetalKernelFunction;

// A handle is a plain pointer: a library belongs to its caller, a function to its library.
DynamicMetalShaderLibrary* library_of(AOTIMetalShaderLibraryHandle handle) {
  return reinterpret_cast<DynamicMetalShaderLibrary*>(handle);
}
MetalKernelFunction& function_of(AOTIMetalKernelFunctionHandle handle) {
  return *reinterpret_cast<MetalKernelFunction*>(handle);
}

// Metal's own limit for setBytes.
constexpr uint64_t kMaxBytes = 4096;

// Memory that callers hold by its address. Not destroyed: models free theirs at exit.
struct Blobs {
  ForkSafeMutex mutex;
  std::unordered_map<void*, c10::DataPtr> by_address;
};
Blobs& blobs() {
  static Blobs& all = *new Blobs;
  return all;
}

void* allocate_blob(size_t bytes) {
  if (bytes == 0) return nullptr;
  c10::DataPtr blob = c10::GetAllocator(c10::kMPS)->allocate(bytes);
  void* const address = blob.get();
  std::lock_guard<ForkSafeMutex> lock(blobs().mutex);
  blobs().by_address.emplace(address, std::move(blob));
  return address;
}

void free_blob(void* address) {
  if (address == nullptr) return;
  c10::DataPtr blob;  // freed without the lock
  std::lock_guard<ForkSafeMutex> lock(blobs().mutex);
  const auto found = blobs().by_address.find(address);
  TORCH_CHECK(found != blobs().by_address.end(), "aoti_torch_mps_free: ", address,
              " is not memory of aoti_torch_mps_malloc");
  blob = std::move(found->second);
  blobs().by_address.erase(found);
}

}  // namespace
}  // namespace metalops

using metalops::function_of;
using metalops::library_of;

// ---- libraries and their kernels ----------------------------------------------------------------

AOTITorchError aoti_torch_mps_create_shader_library(const char* metal_shader_source,
                                                    AOTIMetalShaderLibraryHandle* library_handle){
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
      *library_handle = reinterpret_cast<AOTIMetalShaderLibraryHandle>(
          new at::native::mps::DynamicMetalShaderLibrary(metal_shader_source));
    })}

AOTITorchError aoti_torch_mps_delete_shader_library(AOTIMetalShaderLibraryHandle library_handle) {
  // At exit models delete the libraries in their static variables. That would close libraries of
  // kernels, at which the dynamic linker also unmaps other closed libraries: that of the model,
  // which it kept for thread-local variables until then, and whose code is calling here.
  if (!Py_IsInitialized()) return AOTI_TORCH_SUCCESS;
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ delete library_of(library_handle); })
}

AOTITorchError aoti_torch_mps_get_kernel_function(AOTIMetalShaderLibraryHandle library_handle,
                                                  const char* kernel_name,
                                                  AOTIMetalKernelFunctionHandle* function_handle){
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
      *function_handle = reinterpret_cast<AOTIMetalKernelFunctionHandle>(
          library_of(library_handle)->getCachedKernelFunctionPtr(kernel_name));
    })}

// ---- arguments and launches ---------------------------------------------------------------------

AOTITorchError aoti_torch_mps_start_encoding(AOTIMetalKernelFunctionHandle func){
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ function_of(func).startEncoding(); })}

AOTITorchError aoti_torch_mps_set_arg_tensor(AOTIMetalKernelFunctionHandle func, unsigned idx,
                                             AtenTensorHandle tensor){
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
      const at::Tensor* t = torch::aot_inductor::tensor_handle_to_tensor_pointer(tensor);
      if (t == nullptr) throw std::runtime_error("Tensor is null.");
      function_of(func).setArg(idx, *t);
    })}

AOTITorchError
    aoti_torch_mps_set_arg_int(AOTIMetalKernelFunctionHandle func, unsigned idx, int64_t val) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ function_of(func).setArg(idx, val); })
}

// <torch/csrc/stable/c/shim.h> declares it, since torch 2.14.
extern "C" AOTI_TORCH_EXPORT AOTITorchError
torch_mps_set_arg_bytes(AOTIMetalKernelFunctionHandle func, unsigned idx, const void* ptr,
                        uint64_t size){AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
  TORCH_CHECK(ptr != nullptr, "Pointer is null.");
  TORCH_CHECK(size > 0 && size <= metalops::kMaxBytes, "size must be in (0, ", metalops::kMaxBytes,
              "], got ", size,
              ". Metal setBytes takes at most 4 KB; pass larger data as a tensor.");
  function_of(func).setArg(idx, ptr, size);
})}

AOTITorchError aoti_torch_mps_dispatch_single(AOTIMetalKernelFunctionHandle func, uint64_t length){
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ function_of(func).dispatch(length); })}

AOTITorchError aoti_torch_mps_dispatch_single_with_group_size(AOTIMetalKernelFunctionHandle func,
                                                              uint64_t length, uint64_t group_size){
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ function_of(func).dispatch(length, group_size); })}

AOTITorchError
    aoti_torch_mps_dispatch_array(AOTIMetalKernelFunctionHandle func, const uint64_t* length,
                                  size_t length_size){AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
      function_of(func).dispatch(c10::ArrayRef<uint64_t>(length, length_size));
    })}

AOTITorchError aoti_torch_mps_dispatch_array_with_group_size(
    AOTIMetalKernelFunctionHandle func, const uint64_t* length, size_t length_size,
    const uint64_t* group_size, size_t group_size_size){AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
  function_of(func).dispatch(c10::ArrayRef<uint64_t>(length, length_size),
                             c10::ArrayRef<uint64_t>(group_size, group_size_size));
})}

AOTITorchError aoti_torch_mps_run_command_block(AOTIMetalKernelFunctionHandle func,
                                                aoti_torch_mps_command_block_callback_t callback,
                                                void* user_data) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { function_of(func).runCommandBlock([=] { callback(func, user_data); }); })
}

void aoti_torch_mps_shared_callback(AOTIMetalKernelFunctionHandle func, void* user_data) {
  (*static_cast<std::function<void(AOTIMetalKernelFunctionHandle)>*>(user_data))(func);
}

// ---- memory -------------------------------------------------------------------------------------

AOTITorchError aoti_torch_mps_malloc(void** buffer, size_t num_bytes){
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ *buffer = metalops::allocate_blob(num_bytes); })}

AOTITorchError aoti_torch_mps_free(void* ptr){
    AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ metalops::free_blob(ptr); })}

AOTITorchError
    aoti_torch_mps_memcpy(void* buffer, size_t constant_offset, size_t bytes_read, size_t data_size,
                          uint8_t* constants_start){AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
      std::memcpy(static_cast<char*>(buffer) + constant_offset, constants_start + bytes_read,
                  data_size);
    })}

AOTITorchError aoti_torch_mps_copy_buffer(void* src_buffer, void* dst_buffer, size_t data_size,
                                          size_t src_offset, size_t dst_offset) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    std::memmove(static_cast<char*>(dst_buffer) + dst_offset,
                 static_cast<const char*>(src_buffer) + src_offset, data_size);
  })
}
