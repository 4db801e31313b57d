// Chooses between the two libraries of a kernel file with matrix products: by the environment, the
// version of the system, and whether a kernel can be compiled.
#include <c10/util/Exception.h>
#include <metalops/matmul_library.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#ifdef __APPLE__
#include <sys/sysctl.h>

#include <cstdio>
#endif

namespace metalops {
namespace {

std::string_view environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns true if sources are compiled in a language version that has tensors, as far as the
// environment says.
bool language_has_tensors() {
  for (const char* name : {"METALOPS_METAL_VERSION", "PYTORCH_MPS_METAL_VERSION"}) {
    const auto version = environment(name);
    if (!version.empty()) {
      return version >= "4";
    }
  }
  return true;
}

// Returns true if the system supports tensor operations: macOS 26.0 has tensors, and 26.2 all that
// a tile GEMM needs.
bool system_has_tensors() {
#ifdef __APPLE__
  char version[32] = {};
  size_t size = sizeof(version) - 1;
  int major = 0;
  int minor = 0;
  return sysctlbyname("kern.osproductversion", version, &size, nullptr, 0) == 0 &&
         std::sscanf(version, "%d.%d", &major, &minor) >= 1 &&
         (major > 26 || (major == 26 && minor >= 2));
#else
  return true;
#endif
}

Library& with_tensors(std::string_view family) { return library(std::string(family) + ".tensors"); }

// Returns true if a kernel of the library with tensors can be made ready; tried once per family. On
// the software device it is enough that the library opens: it may compile a kernel only when that
// is used.
bool works(std::string_view family) {
  static std::mutex mutex;
  static std::map<std::string, bool, std::less<>> tried;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = tried.find(family); found != tried.end()) {
      return found->second;
    }
  }
  // The lock is not held here: compiling may take Python's lock.
  bool result = false;
  try {
    auto& tensors = with_tensors(family);
    const auto names = tensors.getFunctionNames();
    result = !names.empty();
#ifdef __APPLE__
    result = result && tensors.getCachedKernelFunctionPtr(names.front()) != nullptr;
#endif
  } catch (const std::exception&) {
    // The system, compiler or GPU does not support it.
  }
  const std::lock_guard lock(mutex);
  return tried.emplace(family, result).first->second;
}

}  // namespace

Library& matmul_library(std::string_view family) {
  constexpr const char* kVariable = "METALOPS_MATMUL";
  const auto chosen = environment(kVariable);
  if (chosen == "tensor") {
    return with_tensors(family);
  }
  TORCH_CHECK_VALUE(chosen.empty() || chosen == "simdgroup", kVariable,
                    " must be tensor or simdgroup, but is ", chosen);
  const bool tensors =
      chosen.empty() && language_has_tensors() && system_has_tensors() && works(family);
  return tensors ? with_tensors(family) : library(family);
}

}  // namespace metalops
