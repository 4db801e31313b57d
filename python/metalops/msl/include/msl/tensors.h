// Additions of Metal 4: tensors, cooperative tensors, and Metal Performance Primitives for them.
#pragma once

#include <msl/cooperative_tensor.h>
#include <msl/tensor.h>
#include <msl/tensor_ops/convolution2d.h>
#include <msl/tensor_ops/matmul2d.h>
