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
// Without .backward the operator cannot be differentiated and says so. Fake kernels, which
// torch.compile needs, are written in Python: see metalops.ops.fake.
#pragma once
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <metalops/autograd.h>
#include <metalops/functionalize.h>
#include <metalops/library.h>
#include <metalops/tensor_view.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>

namespace metalops::pointwise {

// Runs the kernel of an operator. The iterator has the outputs first, then the inputs in the
// schema's order; scalars are the arguments that are not tensors, in the schema's order. Inputs may
// be of different dtypes and any of them a broadcast one; the (first) output has the dtype that the
// kernels naturally give: the common dtype, or float32 if all inputs are integers and become
// floating point.
using Launch = void (*)(at::TensorIteratorBase& iter, c10::ArrayRef<c10::Scalar> scalars);

enum class Integers {
  kToFloat,  // integer results become floating point, as with torch.sigmoid; bool is an integer
  kStay,     // as with torch.square; bool is not supported
};

// Operators on the two halves of the last dimension of their argument `self`, a = self[..., :d] and
// b = self[..., d:]. The launch finds two inputs in its place, or, if `self`'s gradient is the
// output, two outputs.
enum class Halves { kNone, kFirstSecond, kSecondFirst };

struct METALOPS_HIDDEN Operator {
  Launch launch;
  Integers integers = Integers::kToFloat;
  Halves halves = Halves::kNone;
  const char* backward =
      nullptr;  // the operator that differentiates this one, defined before; see autograd.h
};

namespace detail {

METALOPS_HIDDEN inline void check_dtype(const std::string& name, at::ScalarType type,
                                        Integers integers) {
  const bool supported = type == at::kFloat || type == at::kHalf || type == at::kBFloat16 ||
                         type == at::kLong || type == at::kInt || type == at::kShort ||
                         type == at::kChar || type == at::kByte ||
                         (type == at::kBool && integers == Integers::kToFloat);
  TORCH_CHECK_NOT_IMPLEMENTED(supported, "\"", name.substr(name.rfind(':') + 1),
                              "\" not implemented for '", type, "'");
}

// Tensors of a CPU with no dimensions may stand among device tensors, as everywhere in torch.
METALOPS_HIDDEN inline void move_cpu_scalars(const at::Tensor& out,
                                             c10::SmallVectorImpl<at::Tensor>& inputs) {
  const auto is_cpu_scalar = [](const at::Tensor& t) { return t.is_cpu() && t.dim() == 0; };
  if (std::none_of(inputs.begin(), inputs.end(), is_cpu_scalar)) {
    return;
  }
  std::optional<at::Device> device;
  if (out.defined() && !out.is_cpu()) {
    device = out.device();
  }
  for (const auto& input : inputs) {
    if (!input.is_cpu()) {
      device = input.device();
    }
  }
  for (auto& input : inputs) {
    if (device && is_cpu_scalar(input)) {
      // The device has no float64; a tensor without dimensions does not make its result one either.
      input =
          input.to(*device, input.scalar_type() == at::kDouble ? at::kFloat : input.scalar_type());
    }
  }
}

METALOPS_HIDDEN inline at::TensorIterator build_iterator(at::TensorList outputs,
                                                         at::TensorList inputs, Integers integers) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(true)
      .allow_cpu_scalars(true)
      .promote_inputs_to_common_dtype(true)
      .promote_integer_inputs_to_float(integers == Integers::kToFloat)
      .cast_common_dtype_to_outputs(true)
      .enforce_safe_casting_to_output(true);
  for (const auto& output : outputs) {
    config.add_output(output);
  }
  for (const auto& input : inputs) {
    config.add_const_input(input);
  }
  return config.build();
}

// The dtype in which the kernels deliver, whatever the output's is.
METALOPS_HIDDEN inline at::ScalarType natural_dtype(const at::TensorIteratorBase& iter,
                                                    at::TensorList inputs, Integers integers) {
  const bool all_integers = std::all_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) {
    return at::isIntegralType(t.scalar_type(), /*includeBool=*/true);
  });
  return all_integers && integers == Integers::kToFloat ? at::kFloat : iter.common_dtype();
}

METALOPS_HIDDEN inline void check_halves(const std::string& name, const at::Tensor& self) {
  TORCH_CHECK(self.dim() > 0, name.substr(name.rfind(':') + 1),
              " does not support 0-dimensional tensors");
  TORCH_CHECK(self.size(-1) % 2 == 0, "Halving dimension must be even, but dimension ",
              self.dim() - 1, " is size ", self.size(-1));
}

template <class Tensors>
METALOPS_HIDDEN inline void push_halves(Tensors& tensors, const at::Tensor& whole, Halves halves) {
  const int first = halves == Halves::kFirstSecond ? 0 : 1;
  tensors.push_back(half_of_last_dimension(whole, first));
  tensors.push_back(half_of_last_dimension(whole, 1 - first));
}

using Tensors = c10::SmallVector<at::Tensor, 4>;

// The kernel of every overload for device tensors.
class METALOPS_HIDDEN Kernel final : public c10::OperatorKernel {
 public:
  enum class Form { kFunctional, kOut, kInplace, kBackward };

  Kernel(const Operator& op, Form form) : op_(op), form_(form) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet,
                  torch::jit::Stack* stack) {
    const auto& schema = handle.schema();
    const auto arguments = torch::jit::last(*stack, schema.arguments().size());
    Tensors inputs;
    c10::SmallVector<c10::Scalar, 2> scalars;
    for (const auto& argument : arguments) {
      if (argument.isTensor()) {
        inputs.push_back(argument.toTensor());
      } else {
        scalars.push_back(argument.toScalar());
      }
    }
    at::Tensor out;
    if (form_ == Form::kOut) {
      out = inputs.pop_back_val();
    } else if (form_ == Form::kInplace) {
      out = inputs[0];
    }
    move_cpu_scalars(out, inputs);
    for (const auto& input : inputs) {
      check_dtype(schema.name(), input.scalar_type(), op_.integers);
    }
    if (form_ == Form::kBackward) {
      auto results = run_backward(schema, std::move(inputs), scalars);
      torch::jit::drop(*stack, arguments.size());
      for (auto& result : results) {
        stack->emplace_back(std::move(result));
      }
      return;
    }
    if (op_.halves != Halves::kNone) {
      check_halves(schema.name(), inputs[0]);
      if (out.defined()) {
        // The iterator compares it with the halves, of which it cannot tell in general.
        at::assert_no_overlap(out, inputs[0]);
      }
      const auto self = inputs.pop_back_val();
      push_halves(inputs, self, op_.halves);
    }
    out = run(std::move(out), std::move(inputs), scalars);
    torch::jit::drop(*stack, arguments.size());
    stack->emplace_back(std::move(out));
  }

 private:
  at::Tensor run(at::Tensor out, Tensors inputs, c10::ArrayRef<c10::Scalar> scalars) const {
    auto iter = build_iterator(out, inputs, op_.integers);
    const auto natural = natural_dtype(iter, inputs, op_.integers);
    auto& result = iter.output();
    if (result.scalar_type() == natural) {
      op_.launch(iter, scalars);
    } else {
      const auto computed = at::empty(result.sizes(), result.options().dtype(natural));
      auto natural_iter = build_iterator(computed, inputs, op_.integers);
      op_.launch(natural_iter, scalars);
      result.copy_(computed);
    }
    return out.defined() ? out : result;
  }

  // All operands of a backward kernel have the same dtype.
  Tensors run_backward(const c10::FunctionSchema& schema, Tensors inputs,
                       c10::ArrayRef<c10::Scalar> scalars) const {
    auto common = inputs[0].scalar_type();
    for (const auto& input : inputs) {
      common = c10::promoteTypes(common, input.scalar_type());
    }
    for (auto& input : inputs) {
      input = input.to(common);
    }
    Tensors results;
    if (op_.halves == Halves::kNone) {
      const Tensors outputs(schema.returns().size());
      auto iter = build_iterator(outputs, inputs, op_.integers);
      op_.launch(iter, scalars);
      for (size_t i = 0; i < outputs.size(); ++i) {
        results.push_back(iter.output(i));
      }
    } else {
      check_halves(schema.name(), inputs[1]);
      results.push_back(at::empty_like(inputs[1]));
      const auto self = inputs.pop_back_val();
      Tensors outputs;
      push_halves(outputs, results[0], op_.halves);
      push_halves(inputs, self, op_.halves);
      auto iter = build_iterator(outputs, inputs, op_.integers);
      op_.launch(iter, scalars);
    }
    return results;
  }

  const Operator op_;
  const Form form_;
};

template <class Functor, class... Arguments>
METALOPS_HIDDEN inline void implement(torch::Library& m, const std::string& name,
                                      c10::DispatchKey key, Arguments&&... arguments) {
  m.impl(name.c_str(),
         torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Functor>(
                                  std::forward<Arguments>(arguments)...))));
}

METALOPS_HIDDEN inline void define_overload(torch::Library& m, const std::string& schema,
                                            bool pointwise) {
  using at::Tag;
  const auto tags = pointwise ? std::vector<Tag>{Tag::pt2_compliant_tag, Tag::pointwise}
                              : std::vector<Tag>{Tag::pt2_compliant_tag};
  m.def(schema.c_str(), tags);
}

}  // namespace detail

// Defines an operator that only autograd calls: "ns::name(Tensor grad_output, ...) -> Tensor" or
// "-> (Tensor, ...)". With more than one result all operands have the same dtype (see
// backward_launch.h). Differentiating it in turn raises an error that names it.
METALOPS_HIDDEN inline void define_backward(torch::Library& m, const std::string& schema,
                                            const Operator& op) {
  detail::define_overload(m, schema, op.halves == Halves::kNone);
  const auto name = schema.substr(0, schema.find('('));
  detail::implement<detail::Kernel>(m, name, c10::DispatchKey::MPS, op,
                                    detail::Kernel::Form::kBackward);
  m.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Autograd,
                                       torch::autograd::autogradNotImplementedFallback()));
}

// schema: of the functional overload, with the namespace: "ns::name(Tensor self, ...) -> Tensor".
// All its tensors are operands; the other arguments are numbers. Operators on halves have no
// in-place overload, as the shape changes.
METALOPS_HIDDEN inline void define(torch::Library& m, const std::string& schema,
                                   const Operator& op) {
  using detail::Kernel;
  const auto open = schema.find('(');
  const auto name = schema.substr(0, open);
  const auto arguments = schema.substr(open + 1, schema.rfind(") ->") - open - 1);
  const bool pointwise = op.halves == Halves::kNone;
  detail::define_overload(m, schema, pointwise);
  detail::define_overload(m, name + ".out(" + arguments + ", *, Tensor(a!) out) -> Tensor(a!)",
                          pointwise);
  if (pointwise) {
    const auto first = arguments.substr(arguments.find(' '));  // without its type, Tensor
    detail::define_overload(m, name + "_(Tensor(a!)" + first + ") -> Tensor(a!)", pointwise);
  }

  using c10::DispatchKey;
  const auto in_place_or_view = [&](const std::string& overload) {
    m.impl(overload.c_str(),
           torch::dispatch(DispatchKey::ADInplaceOrView,
                           torch::autograd::autogradNotImplementedInplaceOrViewFallback()));
  };
  detail::implement<Kernel>(m, name, DispatchKey::MPS, op, Kernel::Form::kFunctional);
  detail::implement<Kernel>(m, name + ".out", DispatchKey::MPS, op, Kernel::Form::kOut);
  detail::implement<autograd::OutKernel>(m, name + ".out", DispatchKey::Autograd);
  in_place_or_view(name + ".out");
  if (pointwise) {
    detail::implement<Kernel>(m, name + "_", DispatchKey::MPS, op, Kernel::Form::kInplace);
    in_place_or_view(name + "_");
  }

  const auto functional = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  detail::implement<FunctionalizeKernel>(m, name + ".out", DispatchKey::Functionalize, functional,
                                         functional.schema().arguments().size(), /*resizes=*/true);
  if (pointwise) {
    detail::implement<FunctionalizeKernel>(m, name + "_", DispatchKey::Functionalize, functional,
                                           /*written=*/size_t{0}, /*resizes=*/false);
  }

  if (op.backward == nullptr) {
    const auto not_differentiable = [&](const std::string& overload) {
      m.impl(overload.c_str(), torch::dispatch(DispatchKey::Autograd,
                                               torch::autograd::autogradNotImplementedFallback()));
    };
    not_differentiable(name);
    if (pointwise) {
      not_differentiable(name + "_");
    }
    return;
  }
  const auto ns = name.substr(0, name.find(':'));
  const auto backward =
      c10::Dispatcher::singleton().findSchemaOrThrow((ns + "::" + op.backward).c_str(), "");
  const auto call = std::make_shared<const autograd::BackwardCall>(functional.schema(), backward);
  detail::implement<autograd::DifferentiableKernel>(m, name, DispatchKey::Autograd, call,
                                                    /*inplace=*/false);
  if (pointwise) {
    detail::implement<autograd::DifferentiableKernel>(m, name + "_", DispatchKey::Autograd, call,
                                                      /*inplace=*/true);
  }
}

}  // namespace metalops::pointwise
