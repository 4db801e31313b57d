// Parameters of the kernels of window.metal.
#pragma once
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct KaiserWindowParameters {
  int64_t count;
  int64_t last;  // index at which the window ends; past the elements if it is periodic
  float beta;
};

}  // namespace metalops
