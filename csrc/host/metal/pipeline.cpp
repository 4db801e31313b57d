// See pipeline.h.
#include "metal/pipeline.h"

#include <c10/util/Exception.h>

namespace metalops {

void throw_missing_kernel(const std::string& name) {
  TORCH_CHECK(false, "Failed to create function state object for: ", name);
}

const exec::Kernel& CompiledLibrary::kernel(const std::string& name) const {
  const exec::Kernel* found = library_->find(name);
  if (!found) throw_missing_kernel(name);
  return *found;
}

ElementwiseKernel CompiledLibrary::find(const std::string& name, uint64_t signature) {
  std::lock_guard<ForkSafeMutex> lock(mutex_);
  auto entry = elementwise_.find(name);
  if (entry == elementwise_.end()) return {};
  // An operator is called with few different signatures: a short scan is faster than a second hash.
  for (const auto& [known, kernel] : entry->second) {
    if (known == signature) return kernel;
  }
  return {};
}

void CompiledLibrary::remember(const std::string& name, uint64_t signature,
                               ElementwiseKernel kernel) {
  std::lock_guard<ForkSafeMutex> lock(mutex_);
  elementwise_[name].emplace_back(signature, kernel);
}

}  // namespace metalops
