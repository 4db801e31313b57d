// Pointwise operators in a namespace of one's own. One call of define() makes the functional, the
// out= and the in-place overload, with the broadcasting, type promotion and checks of torch's
// pointwise operators (TensorIterator) and with autograd. The operator file only supplies the
// launch of its kernel:
//
//   TORCH_LIBRARY_FRAGMENT(mylib, m) {
//     metalops::pointwise::define(m, "mylib::cube(Tensor self) -> Tensor",
//                                 {.launch = [](auto& iter, auto) {
//                                   metalops::library("cube").exec_unary_kernel(iter, "cube");
//                                 }});
//   }
//
// Without .backward the operator cannot be differentiated and raises an error that says so. With
// it, gradients and tangents (forward mode) are computed; second derivatives need the backward
// operator's .formula. An operator may have several results, "-> (Tensor, Tensor)"; it then has no
// in-place overload, and its out= overload takes out0, out1 and so on. The fake kernels for
// torch.compile and torch.export are derived from the definition; torch.library.register_fake
// replaces them.
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
// schema's order. scalars are the arguments that are not tensors, in the schema's order. A backward
// operator with several outputs has one more, the last, whose bit i is set if output i is wanted.
// Each unwanted output is replaced by the first wanted one, and must be written with the same
// values. Inputs may have different dtypes and any of them may be broadcast; outputs have the dtype
// that the kernels naturally give: see Result.
using Launch =
    std::function<void(at::TensorIteratorBase& iter, c10::ArrayRef<c10::Scalar> scalars)>;

enum class Integers {
  kToFloat,  // integer results become floating point, as with torch.sigmoid; bool is an integer
  kStay,     // as with torch.square; bool is not supported
};

// The dtype of the results that kernels compute.
enum class Result {
  kPromoted,  // the common dtype of the inputs, or float32 if all are integers and become floating
              // point
  kBool,      // as with torch.eq
  kReal,      // as kPromoted, but real if that is complex, as with torch.abs
};

// A set of at::ScalarType.
using Dtypes = std::bitset<static_cast<size_t>(at::ScalarType::NumOptions)>;

// Operators on the two halves of the last dimension of their argument `self`, a = self[..., :d] and
// b = self[..., d:]. Instead of `self` the launch is passed two inputs or, if `self`'s gradient is
// the output, two outputs.
enum class Halves { kNone, kFirstSecond, kSecondFirst };

struct METALOPS_HIDDEN Operator {
  Launch launch;
  Integers integers = Integers::kToFloat;
  Halves halves = Halves::kNone;
  // The operator that differentiates this one; it must be defined before. See autograd.h.
  std::string backward;
  Result result = Result::kPromoted;
  // For a backward operator: its results again, by differentiable operators of ATen. With it,
  // derivatives of any order exist. Its tensors are float32, or complex64 for complex ones, one for
  // each operand, halves included; its results are the gradients that the launch would be passed as
  // outputs.
  std::function<std::vector<at::Tensor>(at::TensorList operands,
                                        c10::ArrayRef<c10::Scalar> scalars)>
      formula;
  Dtypes dtypes;         // of inputs; none set: the floats and, depending on `integers`, integers
  bool uniform = false;  // the kernels exist for inputs of equal dtypes only
};

// Defines an operator that only autograd calls: "ns::name(Tensor grad_output, ...) -> Tensor" or
// "-> (Tensor, ...)". With more than one result all operands have the same dtype (see
// elementwise_launch.h), and the schema gets an argument output_mask, all true by default:
// gradients that are not wanted are undefined, neither allocated nor written. Its own derivative
// needs op.formula. Without one, differentiating it raises an error that names the operator and the
// reason, without_formula.
METALOPS_HIDDEN void define_backward(
    torch::Library& m, const std::string& schema, const Operator& op,
    const std::string& without_formula = "it was defined without a formula");

// Defines an operator. schema: that of the functional overload, with the namespace:
// "ns::name(Tensor self, ...) -> Tensor". All its tensors are operands; the other arguments are
// numbers. Operators on halves have no in-place overload, as the shape changes, nor do operators
// with several results or with results of another kind of dtype.
METALOPS_HIDDEN void define(torch::Library& m, const std::string& schema, const Operator& op);

}  // namespace metalops::pointwise
