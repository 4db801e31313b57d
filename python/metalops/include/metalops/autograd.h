// Autograd for operators outside ATen, from their schemas alone and at the cost of a built-in
// operator. Operator X is differentiated by a backward operator, which takes grad_output (one for
// each result of X) and those of X's arguments that it names, and returns the gradients of X's
// tensor arguments in order. A backward operator with several results has a last argument
// `output_mask` that says which of them are wanted; the others are undefined. Trailing tensor
// arguments without a result are summands of X's result: their gradient is grad_output. The engine
// itself sums gradients of broadcast arguments and casts them. Tangents (forward mode) are computed
// with the same operator.
//
// Kernels registered here are boxed, so one kernel serves every signature. <metalops/pointwise.h>
// registers them.
#pragma once
#include <metalops/library.h>
#include <torch/library.h>

#include <functional>
#include <string>
#include <vector>

namespace metalops::autograd {

inline constexpr char kOutputMask[] = "output_mask";

// Returns the number that stands for an argument that is not a tensor. For a list of bools it is
// the number whose bit i is element i.
METALOPS_HIDDEN c10::Scalar as_scalar(const c10::IValue& argument);

// Computes a backward operator's results by differentiable operators of ATen. The arguments in
// order: first the tensors, then the numbers. Gradients that are not wanted are dropped.
using Formula = std::function<std::vector<at::Tensor>(at::TensorList, c10::ArrayRef<c10::Scalar>)>;

// Registers autograd for the functional overload ("ns::name") or the in-place one ("ns::name_"),
// with `backward` as the derivative. functional: handle of the functional overload. is_halved: true
// if the operands are the two halves of each argument's last dimension, not the arguments
// themselves.
METALOPS_HIDDEN void implement_differentiable(torch::Library& m, const std::string& overload,
                                              const c10::OperatorHandle& functional,
                                              const c10::OperatorHandle& backward, bool is_halved,
                                              bool inplace);

// Registers autograd for a backward operator. If its own gradients or tangents are wanted, of any
// order, `formula` runs instead of its kernel.
METALOPS_HIDDEN void implement_formula(torch::Library& m, const std::string& overload,
                                       const Formula& formula);

// Registers overloads without a derivative: backward through them raises NotImplementedError with
// `message`.
METALOPS_HIDDEN void implement_not_differentiable(torch::Library& m, const std::string& overload,
                                                  const std::string& message, bool inplace);

// Registers the out= overload, which is never differentiated.
METALOPS_HIDDEN void implement_out(torch::Library& m, const std::string& overload);

// Registers an ADInplaceOrView kernel, which bumps the version counters of the tensors that an
// overload writes to.
METALOPS_HIDDEN void implement_in_place_or_view(torch::Library& m, const std::string& overload);

}  // namespace metalops::autograd
