// Pointwise operators of a namespace of our own. One call of define() makes the functional, the
// out= and the in-place overload, with broadcasting, type promotion and checks as torch's pointwise
// operators have them (TensorIterator) and with autograd; what remains for the operator file is the
// launch of its kernel:
//
//   TORCH_LIBRARY_FRAGMENT(mylib, m) {
//     metalops::pointwise::define(m, "mylib::cube(Tensor self) -> Tensor",
//                                 {.launch = [](auto& iter, auto) {
//                                   metalops::library("cube").exec_unary_kernel(iter, "cube");
//                                 }});
//   }
//
// Without .backward the operator cannot be differentiated and says so. With it, gradients and
// tangents (forward mode) are computed; second derivatives need the backward operator's .formula.
// An operator may have several
// results, "-> (Tensor, Tensor)"; it then has no in-place overload, and its out= overload takes
// out0, out1 and so on. The fake kernels that torch.compile and torch.export need are made of the
// definition; torch.library.register_fake replaces them.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <metalops/library.h>
#include <torch/library.h>

#include <bitset>
#include <functional>
#include <string>
#include <vector>

namespace metalops::pointwise {

// Runs the kernel of an operator. The iterator has the outputs first, then the inputs in the
// schema's order; scalars are the arguments that are not tensors, in the schema's order, and, with
// several outputs of a backward operator, a last one whose bit i is set if output i is wanted. In
// the place of the others stands the first wanted one, to be written as such. Inputs may be of
// different dtypes and any of them a broadcast one; the outputs have the dtype that the kernels
// naturally give: see Result.
using Launch =
    std::function<void(at::TensorIteratorBase& iter, c10::ArrayRef<c10::Scalar> scalars)>;

enum class Integers {
  kToFloat,  // integer results become floating point, as with torch.sigmoid; bool is an integer
  kStay,     // as with torch.square; bool is not supported
};

// The dtype in which the kernels deliver.
enum class Result {
  kPromoted,  // the common dtype of the inputs, or float32 if all are integers and become floating
              // point
  kBool,      // as with torch.eq
  kReal,      // as kPromoted, but real where that is complex, as with torch.abs
};

// A set of at::ScalarType.
using Dtypes = std::bitset<static_cast<size_t>(at::ScalarType::NumOptions)>;

// Operators on the two halves of the last dimension of their argument `self`, a = self[..., :d] and
// b = self[..., d:]. The launch finds two inputs in its place, or, if `self`'s gradient is the
// output, two outputs.
enum class Halves { kNone, kFirstSecond, kSecondFirst };

struct METALOPS_HIDDEN Operator {
  Launch launch;
  Integers integers = Integers::kToFloat;
  Halves halves = Halves::kNone;
  // The operator that differentiates this one, defined before; see autograd.h.
  std::string backward;
  Result result = Result::kPromoted;
  // Of a backward operator: its results once more, in differentiable operators of ATen. With it,
  // derivatives of any order exist. Its tensors are float32, or complex64 for complex ones, one for
  // each operand, halves included;
  // its results are the gradients that the launch would find as outputs.
  std::function<std::vector<at::Tensor>(at::TensorList operands,
                                        c10::ArrayRef<c10::Scalar> scalars)>
      formula;
  Dtypes dtypes;         // of the inputs; none stands for the floats and, as `integers` says, those
  bool uniform = false;  // the kernels exist for inputs of equal dtypes only
};

// Defines an operator that only autograd calls: "ns::name(Tensor grad_output, ...) -> Tensor" or
// "-> (Tensor, ...)". With more than one result all operands have the same dtype (see
// elementwise_launch.h), and the schema gets an argument output_mask, by default all true:
// gradients that are not wanted are undefined, neither allocated nor written. Differentiating it in
// turn takes op.formula; without one it raises an error that names the operator and says why:
// without_formula.
METALOPS_HIDDEN void define_backward(
    torch::Library& m, const std::string& schema, const Operator& op,
    const std::string& without_formula = "it was defined without a formula");

// schema: of the functional overload, with the namespace: "ns::name(Tensor self, ...) -> Tensor".
// All its tensors are operands; the other arguments are numbers. Operators on halves have no
// in-place overload, as the shape changes; nor have those with several results or with results of
// another kind of dtype.
METALOPS_HIDDEN void define(torch::Library& m, const std::string& schema, const Operator& op);

}  // namespace metalops::pointwise
