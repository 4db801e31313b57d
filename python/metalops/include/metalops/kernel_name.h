// Kernel names composed at launch: metalops::KernelName("mode_rows_") + metal_type(type).
#pragma once
#include <c10/util/Exception.h>
#include <metalops/library.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <string>

namespace metalops {

// A name in parts. The parts are texts that live as long as the process and never change (literals
// and results of metal_type()), so a kernel is looked up by their addresses, and the whole text is
// composed only the first time.
class METALOPS_HIDDEN KernelName {
 public:
  KernelName(const char* text) : parts_{text}, count_(1) {}

  KernelName operator+(const KernelName& other) const {
    TORCH_INTERNAL_ASSERT(count_ + other.count_ <= kMost, "a kernel's name has at most ", kMost,
                          " parts");
    KernelName sum = *this;
    std::copy_n(other.parts_.begin(), other.count_, sum.parts_.begin() + count_);
    sum.count_ += other.count_;
    return sum;
  }

  std::string text() const {
    std::string result;
    for (size_t i = 0; i < count_; ++i) {
      result += parts_[i];
    }
    return result;
  }

  size_t hash() const {
    size_t result = count_;
    for (size_t i = 0; i < count_; ++i) {
      result = (result ^ reinterpret_cast<size_t>(parts_[i])) * size_t{0x9E3779B97F4A7C15};
    }
    return result ^ result >> 32;
  }

  bool operator==(const KernelName& other) const {
    return count_ == other.count_ &&
           std::equal(parts_.begin(), parts_.begin() + count_, other.parts_.begin());
  }

 private:
  static constexpr size_t kMost = 8;
  std::array<const char*, kMost> parts_{};
  size_t count_;
};

// Returns the kernel of that name. The library must live as long as the process. Takes a lock only
// the first time.
METALOPS_HIDDEN at::native::mps::MetalKernelFunction& kernel(
    at::native::mps::MetalShaderLibrary& library, const KernelName& name);

// Encodes one launch of the kernel: calls body() between the start and the end of the encoding.
template <class Body>
METALOPS_HIDDEN inline void encode(at::native::mps::MetalKernelFunction& kernel, const Body& body) {
  const auto block = [&] {
    kernel.startEncoding();
    body();
  };
  kernel.runCommandBlock(std::cref(block));  // a reference fits into a std::function
}

}  // namespace metalops
