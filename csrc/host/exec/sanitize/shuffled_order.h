// The order in which a sanitized launch runs its threadgroups and their threads: shuffled, and
// reproducible for the same seed.
#pragma once

#include <cstdint>

namespace metalops::exec {

// Returns the seed, METALOPS_SANITIZE_SEED or chosen when the process starts. Setting it restarts
// the sequence of launches.
uint64_t shuffle_seed();
void set_shuffle_seed(uint64_t seed);

// The random numbers of one launch.
class Shuffle {
 public:
  // Starts the next launch of the sequence.
  Shuffle();

  uint32_t below(uint32_t bound) {
    return uint32_t((uint64_t(uint32_t(next() >> 32)) * bound) >> 32);
  }
  // Returns one of the bits that are set in the mask, which must not be 0.
  uint32_t bit_of(uint32_t mask);

 private:
  uint64_t next();
  uint64_t state_;
};

// A random permutation of [0, count) that takes no memory.
class Permutation {
 public:
  Permutation(uint64_t count, Shuffle& shuffle);
  uint64_t operator[](uint64_t index) const;

 private:
  static constexpr int kRounds = 4;
  uint64_t count_;
  unsigned half_bits_;
  uint64_t keys_[kRounds];
};

}  // namespace metalops::exec
