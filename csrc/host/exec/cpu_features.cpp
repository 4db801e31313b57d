// Detects instruction set extensions with CPUID.
#include <exec/cpu_features.h>

#include <c10/util/Exception.h>
#include <msl/abi.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace metalops::exec {
namespace {

struct Name {
  uint32_t feature;
  const char* name;
};
constexpr Name kNames[] = {
    {msl::abi::kAvx, "AVX"},
    {msl::abi::kAvx2, "AVX2"},
    {msl::abi::kFma, "FMA"},
    {msl::abi::kF16c, "F16C"},
    {msl::abi::kBmi2, "BMI2"},
    {msl::abi::kAvx512f, "AVX512F"},
    {msl::abi::kAvx512bw, "AVX512BW"},
    {msl::abi::kAvx512vl, "AVX512VL"},
    {msl::abi::kAvx512dq, "AVX512DQ"},
    {msl::abi::kAvx512vnni, "AVX512_VNNI"},
    {msl::abi::kAvx512bf16, "AVX512_BF16"},
    {msl::abi::kAvx512fp16, "AVX512_FP16"},
    {msl::abi::kAvx512vbmi, "AVX512_VBMI"},
};

#if defined(__x86_64__)
struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};
Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

// Returns the register files that the operating system saves (XCR0).
uint64_t saved_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

// Uses the CPUID instruction because __builtin_cpu_supports knows fewer names in older compilers.
uint32_t detect() {
  using namespace msl::abi;
  const Registers basic = cpuid(1, 0);
  const Registers extended = cpuid(7, 0);
  const Registers extended1 = cpuid(7, 1);
  uint32_t features = 0;
  const auto add = [&](uint32_t feature, unsigned reg, int bit) {
    if (reg >> bit & 1u) features |= feature;
  };
  add(kBmi2, extended.b, 8);
  const bool os_saves_registers = basic.c >> 27 & 1u;
  const uint64_t state = os_saves_registers ? saved_state() : 0;
  if ((state & 0x6) != 0x6) return features;  // xmm and ymm
  add(kAvx, basic.c, 28);
  add(kFma, basic.c, 12);
  add(kF16c, basic.c, 29);
  add(kAvx2, extended.b, 5);
  if ((state & 0xe6) != 0xe6) return features;  // mask registers and zmm
  add(kAvx512f, extended.b, 16);
  add(kAvx512dq, extended.b, 17);
  add(kAvx512bw, extended.b, 30);
  add(kAvx512vl, extended.b, 31);
  add(kAvx512vbmi, extended.c, 1);
  add(kAvx512vnni, extended.c, 11);
  add(kAvx512fp16, extended.d, 23);
  add(kAvx512bf16, extended1.a, 5);
  return features;
}

// Asks the system for the tile registers of AMX, which it grants to a process once and for all.
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

uint32_t detect_product_instructions() {
  using namespace msl::abi;
  constexpr uint32_t wide = kAvx512f | kAvx512bw | kAvx512vl | kAvx512dq;
  if ((cpu_features() & wide) != wide) return 0;
  uint32_t instructions = kWideFloats;
  if (cpu_features() & kAvx512vnni) instructions |= kVnniBytes;
  const unsigned d = cpuid(7, 0).d;
  const bool has_tiles = (d >> 24 & 1u) && (saved_state() & 0x60000) == 0x60000;
  if (has_tiles && (d >> 22 & 1u || d >> 25 & 1u) && may_use_tiles()) {
    if (d >> 25 & 1u) instructions |= kAmxBytes;
    if (d >> 22 & 1u) instructions |= kAmxBfloats;
  }
  return instructions;
}
#else
uint32_t detect() { return 0; }
uint32_t detect_product_instructions() { return 0; }
#endif

bool environment_wants_baseline() {
  const char* const value = std::getenv("METALOPS_INSTRUCTIONS");
  if (value == nullptr || *value == 0 || std::strcmp(value, "all") == 0) return false;
  TORCH_CHECK_VALUE(std::strcmp(value, "baseline") == 0, "METALOPS_INSTRUCTIONS is '", value,
                    "'; it must be all or baseline");
  return true;
}

uint32_t all_product_instructions() {
  static const uint32_t instructions = detect_product_instructions();
  return instructions;
}

std::atomic<uint32_t>& preferred_product_instructions() {
  static std::atomic<uint32_t> instructions =
      environment_wants_baseline() ? 0 : all_product_instructions();
  return instructions;
}

}  // namespace

uint32_t cpu_features() {
  static const uint32_t features = detect();
  return features;
}

uint32_t product_instructions() {
  return preferred_product_instructions().load(std::memory_order_relaxed);
}

uint32_t prefer_product_instructions(uint32_t instructions) {
  return preferred_product_instructions().exchange(instructions & all_product_instructions());
}

std::string describe_cpu_features(uint32_t features) {
  std::string text;
  for (const Name& name : kNames) {
    if (features & name.feature) text += (text.empty() ? "" : ", ") + std::string(name.name);
  }
  return text.empty() ? "none" : text;
}

}  // namespace metalops::exec
