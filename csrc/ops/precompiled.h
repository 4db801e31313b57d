// Headers of the operators that take longest to read, compiled once for all sources that include
// one of them. No source includes this file: each names what it needs.
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>
#include <metalops/strided_launch.h>
#include <metalops/structured.h>
#include <metalops/views.h>
#include <torch/library.h>
