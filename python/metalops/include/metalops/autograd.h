// Autograd of operators outside ATen, from their schemas alone and at the cost of a built-in
// operator: operator X is differentiated by an operator that takes grad_output (one for each result
// of X) and those of X's arguments that it names, and returns the gradients of X's tensor arguments
// in order. One that returns several has a last argument `output_mask` that says which of them are
// wanted; the others are undefined. Trailing tensors for which it returns none are summands of the
// result: their gradient is grad_output. The engine itself sums gradients of broadcast arguments
// and casts them. Tangents (forward mode) come from the same operator.
//
// What is registered here is boxed, so one kernel serves every signature. <metalops/pointwise.h>
// registers it.
#pragma once
#include <metalops/library.h>
#include <torch/library.h>

#include <functional>
#include <string>
#include <vector>

namespace metalops::autograd {

inline constexpr char kOutputMask[] = "output_mask";

// The number that stands for an argument that is not a tensor: of a list of bools the one whose bit
// i is element i.
METALOPS_HIDDEN c10::Scalar as_scalar(const c10::IValue& argument);

// What a backward operator computes, in differentiable operators of ATen. Its arguments in order:
// first the tensors, then the numbers. Gradients that are not wanted are dropped.
using Formula = std::function<std::vector<at::Tensor>(at::TensorList, c10::ArrayRef<c10::Scalar>)>;

// The functional overload ("ns::name") and the in-place one ("ns::name_"), which backward
// differentiates. functional: the former's. is_halved: whether the operands are the two halves of
// each argument's last dimension, not the arguments themselves.
METALOPS_HIDDEN void implement_differentiable(torch::Library& m, const std::string& overload,
                                              const c10::OperatorHandle& functional,
                                              const c10::OperatorHandle& backward, bool is_halved,
                                              bool inplace);

// A backward operator. Where its own gradients or tangents are wanted, of whatever order, `formula`
// takes the place of its kernel.
METALOPS_HIDDEN void implement_formula(torch::Library& m, const std::string& overload,
                                       const Formula& formula);

// Overloads without a derivative: backward through them raises NotImplementedError with `message`.
METALOPS_HIDDEN void implement_not_differentiable(torch::Library& m, const std::string& overload,
                                                  const std::string& message, bool inplace);

// The out= overload, which is never differentiated.
METALOPS_HIDDEN void implement_out(torch::Library& m, const std::string& overload);

// What makes ADInplaceOrView count the versions of the tensors that an overload writes to.
METALOPS_HIDDEN void implement_in_place_or_view(torch::Library& m, const std::string& overload);

}  // namespace metalops::autograd
