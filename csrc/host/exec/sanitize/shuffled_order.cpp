// Pseudorandom numbers and permutations.
#include <exec/sanitize/shuffled_order.h>

#include <c10/util/Exception.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <random>

namespace metalops::exec {
namespace {

// The output function of SplitMix64.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t seed_from_environment() {
  const char* text = std::getenv("METALOPS_SANITIZE_SEED");
  if (text == nullptr || *text == 0) return std::random_device()();
  char* end = nullptr;
  errno = 0;
  const uint64_t seed = std::strtoull(text, &end, 0);
  TORCH_CHECK_VALUE(*end == 0 && errno == 0 && *text != '-', "METALOPS_SANITIZE_SEED is '", text,
                    "'; it must be an integer of 64 bits, not negative");
  return seed;
}

std::atomic<uint64_t>& seed() {
  static std::atomic<uint64_t> the_seed{seed_from_environment()};
  return the_seed;
}
std::atomic<uint64_t> launches{0};

}  // namespace

uint64_t shuffle_seed() { return seed(); }

void set_shuffle_seed(uint64_t value) {
  seed() = value;
  launches = 0;
}

Shuffle::Shuffle() : state_(mix(seed() + mix(launches++))) {}

uint64_t Shuffle::next() { return mix(state_ += 0x9e3779b97f4a7c15); }

uint32_t Shuffle::bit_of(uint32_t mask) {
  for (uint32_t skip = below(uint32_t(__builtin_popcount(mask))); skip != 0; --skip) {
    mask &= mask - 1;
  }
  return uint32_t(__builtin_ctz(mask));
}

// A Feistel network permutes the next larger even power of two; numbers beyond `count` are permuted
// again until they fall below it, at most four times on average.
Permutation::Permutation(uint64_t count, Shuffle& shuffle) : count_(count), half_bits_(1) {
  while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < count) ++half_bits_;
  for (uint64_t& key : keys_) key = shuffle.below(~0u);
}

uint64_t Permutation::operator[](uint64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_, right = index & mask;
    for (const uint64_t key : keys_) {
      const uint64_t before = right;
      right = left ^ (mix(right ^ (key << 32)) & mask);
      left = before;
    }
    index = (left << half_bits_) | right;
  } while (index >= count_);
  return index;
}

}  // namespace metalops::exec
