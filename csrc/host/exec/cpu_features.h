// The instruction set extensions of this CPU, in the terms of kernel libraries.
#pragma once

#include <cstdint>
#include <string>

namespace metalops::exec {

// Returns the msl::abi::CpuFeature bits that this CPU and operating system support.
uint32_t cpu_features();

// Names the extensions in a bit set for messages: "AVX2, FMA".
std::string describe_cpu_features(uint32_t features);

}  // namespace metalops::exec
