// What torch's opaque Metal handles stand for on this device: MTLLibrary_t is a CompiledLibrary*,
// and both MTLComputePipelineState_t and MTLFunction_t are a Pipeline*.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include <exec/exec.h>

namespace metalops {

// Whether the kernel has arguments that are tensors by a handle.
bool kernel_takes_tensors(const exec::Kernel& kernel);

// One kernel, and the library that has to stay loaded for it. Reference counted, as Metal's
// pipeline states are: a kernel object in Python may outlive the shader library it came from.
struct Pipeline : c10::intrusive_ptr_target {
  using ThreadgroupBytes = std::array<uint32_t, msl::abi::kMaxBuffers>;
  Pipeline(std::shared_ptr<exec::Library> library, const exec::Kernel* kernel,
           const ThreadgroupBytes& threadgroup_bytes = {})
      : library(std::move(library)), kernel(kernel), threadgroup_bytes(threadgroup_bytes) {}

  const std::shared_ptr<exec::Library> library;
  const exec::Kernel* const kernel;
  // The lengths of threadgroup arguments, 0 where none was given. On a Mac the encoder has them.
  const ThreadgroupBytes threadgroup_bytes;
  const bool takes_tensors = kernel_takes_tensors(*kernel);
};

// The kernel that serves an elementwise call, found once for each (operator name, signature).
struct ElementwiseKernel {
  const exec::Kernel* kernel = nullptr;
  int flavour = 0;  // which of the caller's flavours it is
  // For a strided kernel: the dense kernel that computes the same for one row, if there is one (see
  // rows.h).
  const exec::Kernel* row = nullptr;
};

// A loaded kernel library with the lookups that are done at every call.
class CompiledLibrary {
 public:
  explicit CompiledLibrary(std::shared_ptr<exec::Library> library) : library_(std::move(library)) {}
  ~CompiledLibrary();
  CompiledLibrary(const CompiledLibrary&) = delete;

  const std::shared_ptr<exec::Library>& library() const { return library_; }

  // The kernel of that name; torch's RuntimeError when there is none.
  const exec::Kernel& kernel(const std::string& name) const;
  // The same for a name that somebody wrote, as the error tells which ones are like it.
  const exec::Kernel& named_kernel(const std::string& name) const;

  // Remembers what `resolve()` returns for (operator name, name of a type of parameters or nothing,
  // signature). The signature is the caller's own encoding of everything else that the choice
  // depends on.
  template <typename Resolve>
  ElementwiseKernel elementwise(std::string_view name, std::string_view parameters,
                                uint64_t signature, Resolve resolve) {
    if (const auto* found = find(name, parameters, signature)) return found->kernel;
    return remember(name, parameters, signature, resolve());
  }
  template <typename Resolve>
  ElementwiseKernel elementwise(std::string_view name, uint64_t signature, Resolve resolve) {
    return elementwise(name, {}, signature, resolve);
  }

 private:
  struct Remembered {
    std::string name;
    std::string parameters;
    uint64_t signature;
    ElementwiseKernel kernel;
    const Remembered* next;
  };

  // Lists that only ever grow at their heads, so that reading them takes no lock.
  std::atomic<const Remembered*>& list_for(std::string_view name, uint64_t signature);
  const Remembered* find(std::string_view name, std::string_view parameters, uint64_t signature);
  ElementwiseKernel remember(std::string_view name, std::string_view parameters, uint64_t signature,
                             ElementwiseKernel kernel);

  std::shared_ptr<exec::Library> library_;
  std::array<std::atomic<const Remembered*>, 64> elementwise_{};
};

// Thrown for a name that the library lacks, worded as torch does on a Mac.
[[noreturn]] void throw_missing_kernel(const std::string& name);

}  // namespace metalops
