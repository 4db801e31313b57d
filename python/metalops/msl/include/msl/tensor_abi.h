// Tensors that kernels take by handles: what a kernel says of an argument, and what a launch passes
// for it. The same on every target (64-bit Linux: a long has 64 bits).
#pragma once

namespace msl::abi {

// Elements, and how they lie. The first dimension is the innermost.
struct Tensor {
  static constexpr int kMaxRank = 16;
  void* elements;
  long extents[kMaxRank];
  long strides[kMaxRank];  // in elements
};

struct TensorArgument {
  char element[24];       // its Metal type or format, e.g. "half", "int4b_format"
  unsigned element_bits;  // of a format less than 8, perhaps
  unsigned rank;
  unsigned index_bits;             // of an extent
  unsigned has_scales;             // 1 for small floats with a plane of scales
  long extents[Tensor::kMaxRank];  // -1: dynamic
};

}  // namespace msl::abi
