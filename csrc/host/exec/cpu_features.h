// The instruction set extensions of this CPU, in the terms of kernel libraries.
#pragma once

#include <cstdint>
#include <string>

namespace metalops::exec {

// Returns the msl::abi::CpuFeature bits that this CPU and operating system support.
uint32_t cpu_features();

// Returns the msl::abi::ProductInstruction bits that kernels use: those of this CPU unless
// METALOPS_INSTRUCTIONS is "baseline".
uint32_t product_instructions();
// Sets the bits that kernels use, among those of this CPU, and returns the ones before.
uint32_t prefer_product_instructions(uint32_t instructions);

// Names the extensions in a bit set for messages: "AVX2, FMA".
std::string describe_cpu_features(uint32_t features);

}  // namespace metalops::exec
