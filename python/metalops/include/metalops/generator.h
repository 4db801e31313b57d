// Random numbers for kernels: the generator's Philox stream, each of whose positions holds four
// 32-bit numbers (c10::metal::philox4::rand(seed, place)).
#pragma once
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/TensorBase.h>
#include <metalops/library.h>

#include <cstdint>
#include <mutex>
#include <optional>

namespace metalops {

// Raises RuntimeError, as torch does, if the generator's device is not the tensor's. An mps
// generator selects the kernel for mps even if the tensors are on the CPU.
METALOPS_HIDDEN inline void check_generator(const std::optional<at::Generator>& generator,
                                            const at::TensorBase& tensor) {
  if (!generator.has_value() || !generator->defined()) {
    return;
  }
  const auto own = generator->device().type();
  TORCH_CHECK(own == tensor.device().type(), "Expected a '", tensor.device().type(),
              "' device type for generator but found '", own, "'");
}

struct StreamPlace {
  uint64_t seed;
  uint64_t offset;
};

// Reserves `count` positions of the generator's stream, or of the default generator's stream if
// there is none, and returns where they begin.
METALOPS_HIDDEN inline StreamPlace take_from_stream(const std::optional<at::Generator>& generator,
                                                    uint64_t count) {
  auto chosen = generator.has_value() && generator->defined()
                    ? *generator
                    : at::globalContext().defaultGenerator(at::Device(at::kMPS));
  TORCH_CHECK(chosen.device().type() == at::kMPS,
              "Expected a 'mps' device type for generator but found '", chosen.device().type(),
              "'");
  std::lock_guard<std::mutex> lock(chosen.mutex());
  const auto offset = chosen.get_offset();
  chosen.set_offset(offset + count);
  return {chosen.current_seed(), offset};
}

}  // namespace metalops
