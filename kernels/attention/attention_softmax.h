// The parts of attention's softmax that handle extreme numbers: softcaps of any size, attention
// sinks, and infinite scores.
#pragma once
#include <metal_stdlib>

namespace metalops {
namespace attention {

// Beyond this magnitude, rounding a float loses digits that the weights depend on: those of
// log(sum) when it is added to a running max, and those of score * log2(e).
constant constexpr float kRoomy = 4096.0f;

// Returns softcap * tanh(score / softcap). A score that is small relative to the softcap is
// returned as it is, also where the quotient is subnormal, which GPUs flush to zero.
inline float capped(float score, float softcap) {
  const float part = score / softcap;
  return ::metal::abs(part) < 2e-4f ? score : softcap * ::metal::precise::tanh(part);
}

// The softmax denominator: `sum` is relative to the running max. `relative` rescales weights that
// were relative to an earlier max.
struct Total {
  float running_max;
  float sum;
  float relative;

  // Returns the log-sum-exp: -INFINITY if no key is seen.
  inline float lse() const { return running_max + ::metal::precise::log(sum); }
  // Returns the factor that normalises the sums of values: zero if no key is seen.
  inline float factor(float scale) const { return sum == 0.0f ? 0.0f : relative * scale / sum; }
};

// Adds an attention sink's weight to the denominator: none if it is -INFINITY, all of it if it is
// INFINITY.
inline Total with_sink(float running_max, float sum, float sink) {
  const float new_max = ::metal::max(running_max, sink);
  // The comparison avoids the NaN of INFINITY - INFINITY.
  const float relative =
      running_max == new_max ? 1.0f : ::metal::precise::exp(running_max - new_max);
  const float of_sink = sink == -INFINITY ? 0.0f
                        : sink == new_max ? 1.0f
                                          : ::metal::precise::exp(sink - new_max);
  return {new_max, sum * relative + of_sink, relative};
}

}  // namespace attention
}  // namespace metalops
