// The parts of attention's softmax that are where numbers have no room left: softcaps of any size,
// sinks and scores that are infinite.
#pragma once
#include <metal_stdlib>

namespace metalops {
namespace attention {

// Beyond this the digits that weights depend on are too near the end of a float: those of the
// logarithm of a sum beside the largest score, or of a score's product with log2(e).
constant constexpr float kRoomy = 4096.0f;

// softcap * tanh(score / softcap). What is small beside the softcap is the score itself, also where
// the quotient is no number that GPUs tell from zero.
inline float capped(float score, float softcap) {
  const float part = score / softcap;
  return ::metal::abs(part) < 2e-4f ? score : softcap * ::metal::precise::tanh(part);
}

// The sum of weights, relative to `top`, and what weights are multiplied by that were relative to
// another one before.
struct Total {
  float top;
  float sum;
  float relative;

  // -INFINITY where nothing is seen.
  inline float lse() const { return top + ::metal::precise::log(sum); }
  // What sums of values are multiplied by: zero where nothing is seen.
  inline float factor(float scale) const { return sum == 0.0f ? 0.0f : relative * scale / sum; }
};

// With the weight of a sink: none if it is -INFINITY, all if it is INFINITY.
inline Total with_sink(float top, float sum, float sink) {
  const float highest = ::metal::max(top, sink);
  // Differences of infinities are no numbers.
  const float relative = top == highest ? 1.0f : ::metal::precise::exp(top - highest);
  const float of_sink = sink == -INFINITY ? 0.0f
                        : sink == highest ? 1.0f
                                          : ::metal::precise::exp(sink - highest);
  return {highest, sum * relative + of_sink, relative};
}

}  // namespace attention
}  // namespace metalops
