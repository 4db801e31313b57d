// A double for kernels: Metal has none, so the host splits it into a sum of two floats.
#pragma once
#ifndef __METAL__
#include <cmath>
#endif

namespace metalops {

struct SplitDouble {
  float hi;
  float lo;
};

#ifndef __METAL__
inline SplitDouble split(double value) {
  const auto hi = static_cast<float>(value);
  return {hi, std::isfinite(hi) ? static_cast<float>(value - hi) : 0.0f};
}
#endif

}  // namespace metalops
