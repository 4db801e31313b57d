// Tensors that kernels take by handles: the kernel's declaration of an argument, and the
// description that a launch passes for it. Equal on every target (64-bit Linux: a long has 64
// bits).
#pragma once

namespace msl::abi {

// Elements and their layout. The first dimension is the innermost.
struct Tensor {
  static constexpr int kMaxRank = 16;
  void* elements;
  long extents[kMaxRank];
  long strides[kMaxRank];  // in elements
};

struct TensorArgument {
  char element[24];       // its Metal type or format, e.g. "half", "int4b_format"
  unsigned element_bits;  // may be less than 8 for a format
  unsigned rank;
  unsigned index_bits;             // of an extent
  unsigned has_scales;             // 1 for small floats with a plane of scales
  long extents[Tensor::kMaxRank];  // -1: dynamic
};

}  // namespace msl::abi
