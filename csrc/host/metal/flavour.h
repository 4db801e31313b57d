// Which flavour of the elementwise kernels runs.
#pragma once
#include <string>
#include <utility>

namespace metalops {

// For dense operands torch chooses between one thread an element ("scalar") and ILP_PER_THREAD
// elements a thread
// ("ilp"). On a CPU the first is a plain loop, which compilers vectorise, and the second is not, so
// the device takes the first. For strided operands it takes dense kernels row by row where it can
// (rows.h); "strided" forbids that. "gpu" is torch's own choice.
enum class Flavour { kAutomatic, kScalar, kIlp, kStrided, kGpu };

inline bool allows_rows(Flavour flavour) {
  return flavour != Flavour::kStrided && flavour != Flavour::kGpu;
}

// torch's own switches, for tests and comparisons: PYTORCH_UNARY_FORCE_FLAVOR and
// PYTORCH_BINARY_FORCE_FLAVOR. They are read once, for speed; set_forced_flavours changes them
// later ("ilp", "scalar", "strided", "gpu", or "" for the device's own choice).
Flavour unary_flavour();
Flavour binary_flavour();
// Returns the names of those before.
std::pair<std::string, std::string> set_forced_flavours(const std::string& unary,
                                                        const std::string& binary);

}  // namespace metalops
