// Those of torch's headers that take longest to read, compiled once for all sources that include
// one of them. No source includes this file: each names what it needs.
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>
