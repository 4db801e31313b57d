// Memory and textures for arguments to which nothing is bound.
#include <exec/unbound.h>

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>

#include <exec/in_kernel.h>
#include <exec/sanitize/findings.h>

namespace metalops::exec {
namespace {

using msl::abi::ArgumentKind;

constexpr size_t kMostBytes = size_t{1} << 37;  // 2^32 float4 forwards, and as many backwards
constexpr size_t kLeastBytes = size_t{1} << 20;

// Memory that nothing can write, as much as there is address space for.
class Reserved {
 public:
  // Only pages that are read take memory: that of their page tables.
  void* map(int protection) {
    for (size_t bytes = kMostBytes; bytes >= kLeastBytes; bytes /= 2) {
      void* const start =
          ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (start == MAP_FAILED) continue;
      past_ = uintptr_t(start) + bytes;
      first_ = uintptr_t(start);
      return static_cast<char*>(start) + bytes / 2;
    }
    return nullptr;
  }

  bool has(const void* address) const {
    const auto at = uintptr_t(address);
    return at >= first_.load(std::memory_order_relaxed) &&
           at < past_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<uintptr_t> first_{0};
  std::atomic<uintptr_t> past_{0};
};
constinit Reserved zeros;
constinit Reserved nothing;

}  // namespace

void* memory_of_zeros() {
  static void* const address = zeros.map(PROT_READ);
  return address;
}

void* memory_of_nothing() {
  static void* const address = nothing.map(PROT_NONE);
  return address;
}

bool is_memory_of_zeros(const void* address) { return zeros.has(address); }
bool is_memory_of_nothing(const void* address) { return nothing.has(address); }

WithUnbound::WithUnbound(const Kernel& kernel, const KernelNotes* notes, const Launch& from)
    : launch(from) {
  const bool is_sanitized = sanitize_mode() != SanitizeMode::kOff;
  catch_faults();  // of accesses
  if (from.textures != nullptr) std::copy_n(from.textures, std::size(textures_), textures_);
  if (from.samplers != nullptr) std::copy_n(from.samplers, std::size(samplers_), samplers_);
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const msl::abi::Argument& argument = kernel.arguments[i];
    const bool is_on = notes == nullptr || notes->is_on(i);
    if (is_on && is_used(argument)) continue;
    if (argument.kind == ArgumentKind::kTexture || argument.kind == ArgumentKind::kSampler) {
      launch.textures = textures_;
      launch.samplers = samplers_;
      if (argument.kind == ArgumentKind::kTexture && !is_sanitized) bind_textures(argument);
    } else if (argument.kind == ArgumentKind::kBuffer &&
               (notes == nullptr || notes->tables[i] == nullptr)) {
      void* const memory = is_sanitized ? nullptr : is_on ? memory_of_nothing() : memory_of_zeros();
      bind_buffer(argument, memory);
    }
  }
}

void WithUnbound::bind_buffer(const msl::abi::Argument& argument, void* memory) {
  void*& buffer = launch.buffers[argument.index];
  if (buffer != nullptr) return;
  buffer = memory;
  if (argument.tensor == nullptr) return;
  buffer = &tensors_.emplace_back();
  tensors_.back().elements = memory;
}

// Binds textures of one texel.
void WithUnbound::bind_textures(const msl::abi::Argument& argument) {
  using msl::abi::TexelEncoding;
  using msl::abi::TextureComponent;
  const msl::abi::TextureArgument& declared = *argument.texture;
  const TextureComponent component = declared.component;
  const TexelEncoding encoding = component == TextureComponent::kUint  ? TexelEncoding::kUint32
                                 : component == TextureComponent::kInt ? TexelEncoding::kSint32
                                                                       : TexelEncoding::kFloat;
  for (uint32_t t = argument.index; t < argument.index + declared.count; ++t) {
    if (t >= std::size(textures_) || textures_[t] != nullptr) continue;
    msl::abi::Texture& made = made_.emplace_back();
    made.kind = declared.kind;
    made.format = {encoding, 4, msl::abi::TexelOrder::kRgba, 16};
    made.layers = 6;
    made.is_null = 1;
    made.level_count = 1;
    made.levels[0] = {static_cast<unsigned char*>(memory_of_zeros()), 16, 16, 1, 1, 1, 0};
    textures_[t] = &made;
  }
}

}  // namespace metalops::exec
