// Selects the flavour of the elementwise kernels.
#pragma once
#include <string>
#include <utility>

namespace metalops {

// For dense operands torch chooses between one element per thread ("scalar") and ILP_PER_THREAD
// elements per thread ("ilp"). On a CPU the first is a plain loop, which compilers vectorise, and
// the second is not, so the device uses the first. For strided operands it uses dense kernels row
// by row where possible (rows.h); "strided" forbids that. "gpu" is torch's own choice.
enum class Flavour { kAutomatic, kScalar, kIlp, kStrided, kGpu };

inline bool allows_rows(Flavour flavour) {
  return flavour != Flavour::kStrided && flavour != Flavour::kGpu;
}

// Return the flavours forced by torch's own switches, for tests and comparisons:
// PYTORCH_UNARY_FORCE_FLAVOR and PYTORCH_BINARY_FORCE_FLAVOR. They are read once, for speed;
// set_forced_flavours changes them later ("ilp", "scalar", "strided", "gpu", or "" for the device's
// own choice).
Flavour unary_flavour();
Flavour binary_flavour();
// Returns the names of the previous flavours.
std::pair<std::string, std::string> set_forced_flavours(const std::string& unary,
                                                        const std::string& binary);

}  // namespace metalops
