// Calls a Metal kernel from Python: lib.kernel(*args, threads=, group_size=, arg_casts=,
// error_buf_idx=).
#pragma once
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <pybind11/pybind11.h>

namespace metalops {

// Binds the arguments, except textures and samplers, to the buffers 0, 1, ...:
//   - a tensor: its storage at its offset, strides ignored; a 0-d CPU tensor is passed by value
//   - an int (or bool): int64
//   - a float: float32
//   - a metalops.texture or metalops.sampler: the next free index of its own argument table, which
//     counts from 0, and no buffer
//   - a list or tuple of numbers: int64[] or float32[]; of tensors: an array of their GPU
//   addresses;
//     of names, or None, for a visible_function_table: the functions of these names
// `arg_casts` selects another element type for numbers, for all of them (str) or by index (dict).
// `threads` defaults to the number of elements of the first tensor. Raises as torch does on a Mac.
void call_kernel(at::native::mps::MetalKernelFunction& kernel, const pybind11::args& args,
                 const pybind11::object& threads, const pybind11::object& group_size,
                 const pybind11::object& arg_casts, const pybind11::object& error_buf_idx);

}  // namespace metalops
