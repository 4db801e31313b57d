// Precompiled header: the headers of the software device that take longest to parse, compiled once
// for all sources that include one of them. No source includes this file: each names what it needs.
// (With pybind11's headers it would take longer to load than the few sources that use them would
// save.)
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>
