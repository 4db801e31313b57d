// The instruction set extensions of this CPU, in the terms of kernel libraries.
#pragma once

#include <cstdint>
#include <string>

namespace metalops::exec {

// msl::abi::CpuFeature bits that this CPU and operating system support.
uint32_t cpu_features();

// "AVX2, FMA": the extensions in the bit set, for messages.
std::string describe_cpu_features(uint32_t features);

}  // namespace metalops::exec
