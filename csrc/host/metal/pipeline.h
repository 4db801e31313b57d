// The objects behind torch's opaque Metal handles on this device: MTLLibrary_t is a
// CompiledLibrary*, and both MTLComputePipelineState_t and MTLFunction_t are a Pipeline*.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <exec/exec.h>

namespace metalops {

// Returns true if the kernel takes tensors by a handle.
bool kernel_takes_tensors(const exec::Kernel& kernel);

// Keeps a library loaded until the launches that are queued now have run.
void keep_for_queued(const std::shared_ptr<exec::Library>& library);

// One kernel, and the library that must stay loaded for it. Reference counted, as Metal's pipeline
// states are: a kernel object in Python may outlive the shader library it came from.
struct Pipeline : c10::intrusive_ptr_target {
  using ThreadgroupBytes = std::array<uint32_t, msl::abi::kMaxBuffers>;
  Pipeline(std::shared_ptr<exec::Library> library, const exec::Kernel* described,
           const ThreadgroupBytes& threadgroup_bytes = {})
      : library(std::move(library)), described(described), threadgroup_bytes(threadgroup_bytes) {}
  ~Pipeline() override { keep_for_queued(library); }

  // Returns the kernel to launch, which may be compiled now; throws what Library::find throws.
  const exec::Kernel& kernel() const;

  const std::shared_ptr<exec::Library> library;
  const exec::Kernel* const described;  // its name, arguments and limits
  // The lengths of threadgroup arguments, 0 where none was given. On a Mac they belong to the
  // encoder.
  const ThreadgroupBytes threadgroup_bytes;
  const bool takes_tensors = kernel_takes_tensors(*described);

 private:
  mutable std::atomic<const exec::Kernel*> kernel_{nullptr};
};

// The kernel of an elementwise call, looked up once per (operator name, signature).
struct ElementwiseKernel {
  const exec::Kernel* kernel = nullptr;
  int flavour = 0;  // one of the caller's flavours
  // For a strided kernel: the dense kernel that computes the same for one row, if there is one (see
  // rows.h).
  const exec::Kernel* row = nullptr;
};

// A loaded Metal library, of one kernel library or several (see metallib.h), with caches for the
// lookups of every call.
class CompiledLibrary {
 public:
  using Parts = std::vector<std::shared_ptr<exec::Library>>;
  explicit CompiledLibrary(std::shared_ptr<exec::Library> library) : parts_{std::move(library)} {}
  explicit CompiledLibrary(Parts parts) : parts_(std::move(parts)) {}
  ~CompiledLibrary();
  CompiledLibrary(const CompiledLibrary&) = delete;

  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return part_with(name)->has(name); }
  // Returns null when there is no such kernel (see exec::Library::find).
  const exec::Kernel* find(const std::string& name) const { return part_with(name)->find(name); }
  // Returns the library that has a kernel; any of them if none has.
  const std::shared_ptr<exec::Library>& part_with(const std::string& name) const;

  // Returns the kernel of that name; raises torch's RuntimeError when there is none.
  const exec::Kernel& kernel(const std::string& name) const;
  // Returns what describes a kernel (see exec::Library::describe), for a name that a person wrote:
  // the error suggests similar names.
  const exec::Kernel& described_kernel(const std::string& name) const;

  // Caches the result of `resolve()` for (operator name, name of a parameter type or nothing,
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

  // Lists that grow only at their heads, so that reading takes no lock.
  std::atomic<const Remembered*>& list_for(std::string_view name, uint64_t signature);
  const Remembered* find(std::string_view name, std::string_view parameters, uint64_t signature);
  ElementwiseKernel remember(std::string_view name, std::string_view parameters, uint64_t signature,
                             ElementwiseKernel kernel);

  const Parts parts_;
  std::array<std::atomic<const Remembered*>, 64> elementwise_{};
};

// Throws the error for a name that the library lacks, worded as torch does on a Mac.
[[noreturn]] void throw_missing_kernel(const std::string& name);

}  // namespace metalops
