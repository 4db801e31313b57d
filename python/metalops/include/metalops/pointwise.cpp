// Boxed kernels of pointwise operators: dtypes, TensorIterator and launch for all overloads, their
// fake kernels, and the registration of an operator from its schema.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <metalops/autograd.h>
#include <metalops/boxed.h>
#include <metalops/checks.h>
#include <metalops/functionalize.h>
#include <metalops/pointwise.h>
#include <metalops/torch_internals.h>
#include <metalops/views.h>

#include <algorithm>
#include <bitset>
#include <string_view>
#include <utility>

namespace metalops::pointwise {
namespace {

bool supports(const Operator& op, at::ScalarType type) {
  if (op.dtypes.any()) {
    return op.dtypes[static_cast<size_t>(type)];
  }
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kLong ||
         type == at::kInt || type == at::kShort || type == at::kChar || type == at::kByte ||
         (type == at::kBool && op.integers == Integers::kToFloat);
}

using Tensors = c10::SmallVector<at::Tensor, 4>;

// The output_mask for operators on halves, which have no such argument.
constexpr int64_t kBothHalves = 3;

// Moves zero-dimensional CPU tensors to the device; torch allows them among device tensors
// everywhere.
void move_cpu_scalars(at::TensorList outputs, Tensors& inputs) {
  const auto is_cpu_scalar = [](const at::Tensor& t) { return t.is_cpu() && t.dim() == 0; };
  if (std::none_of(inputs.begin(), inputs.end(), is_cpu_scalar)) {
    return;
  }
  std::optional<at::Device> device;
  for (const auto& output : outputs) {
    if (!output.is_cpu()) {
      device = output.device();
    }
  }
  for (const auto& input : inputs) {
    if (!input.is_cpu()) {
      device = input.device();
    }
  }
  for (auto& input : inputs) {
    if (device && is_cpu_scalar(input)) {
      // The device has no float64; a zero-dimensional tensor does not make its result float64
      // either.
      const auto type = input.scalar_type();
      const bool is_number = internals::is_wrapped_number(input);
      input = input.to(*device, type == at::kDouble          ? at::kFloat
                                : type == at::kComplexDouble ? at::kComplexFloat
                                                             : type);
      internals::set_wrapped_number(input, is_number);
    }
  }
}

// natural: the dtype of undefined outputs, if it is not the common one.
at::TensorIterator build_iterator(at::TensorList outputs, at::TensorList inputs, const Operator& op,
                                  at::ScalarType natural) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(true)
      .allow_cpu_scalars(true)
      .promote_inputs_to_common_dtype(true)
      .promote_integer_inputs_to_float(op.integers == Integers::kToFloat);
  if (op.result == Result::kPromoted) {
    config.cast_common_dtype_to_outputs(true).enforce_safe_casting_to_output(true);
  } else if (!outputs[0].defined()) {
    config.declare_static_dtype(natural);
  }
  for (const auto& output : outputs) {
    config.add_output(output);
  }
  for (const auto& input : inputs) {
    config.add_const_input(input);
  }
  return config.build();
}

bool have_one_dtype(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) {
    return t.scalar_type() == tensors[0].scalar_type();
  });
}

// Returns the dtype to which TensorIterator converts the inputs.
at::ScalarType common_dtype(at::TensorList inputs, Integers integers) {
  const auto common = at::native::result_type(inputs);
  return integers == Integers::kToFloat && at::isIntegralType(common, /*includeBool=*/true)
             ? c10::typeMetaToScalarType(c10::get_default_dtype())
             : common;
}

// Returns the dtype of the results that kernels compute, whatever the outputs' dtypes are. common:
// a function that returns the common dtype.
template <class Common>
at::ScalarType natural_dtype(const Operator& op, at::TensorList inputs, const Common& common) {
  if (op.result == Result::kBool) {
    return at::kBool;
  }
  const bool all_integers = std::all_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) {
    return at::isIntegralType(t.scalar_type(), /*includeBool=*/true);
  });
  const auto promoted = all_integers && op.integers == Integers::kToFloat ? at::kFloat : common();
  return op.result == Result::kReal ? c10::toRealValueType(promoted) : promoted;
}

void check_halves(const std::string& name, const at::Tensor& self) {
  TORCH_CHECK(self.dim() > 0, unqualified(name), " does not support 0-dimensional tensors");
  TORCH_CHECK(self.size(-1) % 2 == 0, "Halving dimension must be even, but dimension ",
              self.dim() - 1, " is size ", self.size(-1));
}

template <class Tensors>
void push_halves(Tensors& tensors, const at::Tensor& whole, Halves halves) {
  const int first = halves == Halves::kFirstSecond ? 0 : 1;
  tensors.push_back(half_of_last_dimension(whole, first));
  tensors.push_back(half_of_last_dimension(whole, 1 - first));
}

// Returns op.formula as a function of the backward operator's arguments: it computes in float32
// like the kernels, and the results have the arguments' common dtype.
autograd::Formula formula_of_arguments(const Operator& op) {
  return [formula = op.formula, halves = op.halves](at::TensorList tensors,
                                                    c10::ArrayRef<c10::Scalar> scalars) {
    auto common = tensors[0].scalar_type();
    std::vector<at::Tensor> operands;
    for (const auto& tensor : tensors) {
      common = c10::promoteTypes(common, tensor.scalar_type());
      operands.push_back(
          tensor.to(tensors[0].device(), tensor.is_complex() ? at::kComplexFloat : at::kFloat));
    }
    const bool reversed = halves == Halves::kSecondFirst;
    if (halves != Halves::kNone) {
      auto parts = operands.back().chunk(2, /*dim=*/-1);
      operands.back() = parts[reversed ? 1 : 0];
      operands.push_back(parts[reversed ? 0 : 1]);
    }
    auto gradients = formula(operands, scalars);
    if (halves != Halves::kNone) {
      if (reversed) {
        std::swap(gradients[0], gradients[1]);
      }
      gradients = {at::cat(gradients, /*dim=*/-1)};
    }
    for (auto& gradient : gradients) {
      gradient = gradient.to(common);
    }
    return gradients;
  };
}

// Runs the kernel of an operator. Its library has kernels for the dtypes that its author
// registered; others are rejected as torch rejects them.
void launch(const Operator& op, at::TensorIteratorBase& iter, c10::ArrayRef<c10::Scalar> scalars,
            at::TensorList inputs, const std::string& name) {
  try {
    op.launch(iter, scalars);
  } catch (const c10::Error& error) {
    constexpr std::string_view kMissing = "Failed to create function state object for: ";
    const std::string message = error.what_without_backtrace();
    const auto position = message.find(kMissing);
    if (position == std::string::npos) {
      throw;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, "\"", unqualified(name), "\" not implemented for '",
                                at::native::result_type(inputs), "': there is no kernel ",
                                message.substr(position + kMissing.size()));
  }
}

// The kernel of every overload for fake and meta tensors, unless Python has registered another. Its
// first call registers the fake that metalops.ops._define.fake makes of the definition, which also
// works with symbolic shapes. It is not registered for the key Meta: there, it would make
// torch.library.register_fake, which is to have precedence, fail.
class FakeKernel final : public c10::OperatorKernel {
 public:
  // functional: the name of the functional overload.
  FakeKernel(std::string functional, const Operator& op, bool is_backward)
      : functional_(std::move(functional)),
        integers_(op.integers),
        halves_(op.halves),
        result_(op.result),
        is_backward_(is_backward) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto& name = op.schema().operator_name();
    const auto backend =
        c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, keys.highestBackendKey());
    TORCH_CHECK_NOT_IMPLEMENTED(backend == c10::DispatchKey::Meta, "Could not run '", name,
                                "' with arguments from the '", backend,
                                "' backend: its kernels are for tensors on mps.");
    const auto registration =
        c10::Dispatcher::singleton().findSchema({"metalops_registration::fake", ""});
    TORCH_CHECK_NOT_IMPLEMENTED(registration.has_value(), "Could not run '", name,
                                "' with fake tensors: `import metalops` is missing.");
    const auto functional = c10::Dispatcher::singleton().findSchemaOrThrow(functional_.c_str(), "");
    const auto& arguments = functional.schema().arguments();
    c10::List<int64_t> operands;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].type()->kind() == c10::TypeKind::TensorType) {
        operands.push_back(static_cast<int64_t>(i));
      }
    }
    const char* kind = result_ == Result::kBool   ? "bool"
                       : result_ == Result::kReal ? "real"
                                                  : "promote";
    torch::jit::Stack description = {functional_,
                                     std::move(operands),
                                     static_cast<int64_t>(functional.schema().returns().size()),
                                     kind,
                                     integers_ == Integers::kToFloat,
                                     halves_ != Halves::kNone,
                                     is_backward_};
    registration->callBoxed(description);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  }

 private:
  const std::string functional_;
  const Integers integers_;
  const Halves halves_;
  const Result result_;
  const bool is_backward_;
};

// The kernel of every overload for device tensors.
class Kernel final : public c10::OperatorKernel {
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
        scalars.push_back(autograd::as_scalar(argument));
      }
    }
    Tensors outputs;
    if (form_ == Form::kOut) {
      const auto first = inputs.end() - static_cast<int64_t>(schema.returns().size());
      outputs.append(std::make_move_iterator(first), std::make_move_iterator(inputs.end()));
      inputs.erase(first, inputs.end());
    } else if (form_ == Form::kInplace) {
      outputs.push_back(inputs[0]);
    }
    move_cpu_scalars(outputs, inputs);
    for (const auto& input : inputs) {
      check_dtype(supports(op_, input.scalar_type()), schema.name(), input.scalar_type());
    }
    if (form_ == Form::kBackward) {
      outputs = run_backward(schema, std::move(inputs), std::move(scalars));
    } else {
      if (op_.halves != Halves::kNone) {
        check_halves(schema.name(), inputs[0]);
        if (!outputs.empty()) {
          // The iterator compares the output with the halves and cannot detect overlap in general.
          at::assert_no_overlap(outputs[0], inputs[0]);
        }
        const auto self = inputs.pop_back_val();
        push_halves(inputs, self, op_.halves);
      }
      outputs.resize(schema.returns().size());
      run(schema.name(), outputs, std::move(inputs), scalars);
    }
    torch::jit::drop(*stack, arguments.size());
    for (auto& output : outputs) {
      stack->emplace_back(std::move(output));
    }
  }

 private:
  // Runs the kernel. Undefined outputs are allocated.
  void run(const std::string& name, Tensors& outputs, Tensors inputs,
           c10::ArrayRef<c10::Scalar> scalars) const {
    auto natural = at::kFloat;
    if (op_.result != Result::kPromoted) {
      natural = natural_dtype(op_, inputs, [&] { return common_dtype(inputs, op_.integers); });
      for (const auto& output : outputs) {
        TORCH_CHECK(!output.defined() || c10::canCast(natural, output.scalar_type()),
                    "result type ", natural, " can't be cast to the desired output type ",
                    output.scalar_type());
      }
    }
    for (size_t i = 1; i < outputs.size() && outputs[0].defined(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        at::assert_no_overlap(outputs[i], outputs[j]);
      }
    }
    // The iterator is made of the tensors as passed, so that it recognises in-place writes.
    auto iter = build_iterator(outputs, inputs, op_, natural);
    if (op_.result == Result::kPromoted) {
      natural = natural_dtype(op_, inputs, [&] { return iter.common_dtype(); });
    }
    bool converts = false;
    for (size_t i = 0; i < outputs.size(); ++i) {
      auto& output = iter.output(static_cast<int64_t>(i));
      converts |= output.scalar_type() != natural;
      if (!outputs[i].defined()) {
        outputs[i] = output;
      }
    }
    const bool casts = op_.uniform && !have_one_dtype(inputs);
    if (!converts && !casts) {
      launch(op_, iter, scalars, inputs, name);
      return;
    }
    if (casts) {
      const auto common = common_dtype(inputs, op_.integers);
      for (auto& input : inputs) {
        input = input.to(common);
      }
    }
    Tensors computed;
    for (const auto& output : outputs) {
      computed.push_back(converts ? at::empty(output.sizes(), output.options().dtype(natural))
                                  : output);
    }
    auto natural_iter = build_iterator(computed, inputs, op_, natural);
    launch(op_, natural_iter, scalars, inputs, name);
    for (size_t i = 0; i < outputs.size() && converts; ++i) {
      outputs[i].copy_(computed[i]);
    }
  }

  // Runs a backward kernel, after converting all operands to one dtype.
  Tensors run_backward(const c10::FunctionSchema& schema, Tensors inputs,
                       c10::SmallVector<c10::Scalar, 2> scalars) const {
    auto common = inputs[0].scalar_type();
    for (const auto& input : inputs) {
      common = c10::promoteTypes(common, input.scalar_type());
    }
    for (auto& input : inputs) {
      input = input.to(common);
    }
    Tensors results;
    if (op_.halves == Halves::kNone) {
      const auto count = schema.returns().size();
      const std::bitset<64> wanted(count > 1 ? scalars.back().toLong() : 1);
      results.resize(count);
      if (wanted.none()) {
        return results;
      }
      auto iter = build_iterator(Tensors(wanted.count()), inputs, op_, common);
      int64_t next = 0;
      for (size_t i = 0; i < count; ++i) {
        if (wanted[i]) {
          results[i] = iter.output(next++);
        }
      }
      if (wanted.count() == count) {
        launch(op_, iter, scalars, inputs, schema.name());
        return results;
      }
      Tensors outputs = results;
      for (auto& output : outputs) {
        output = output.defined() ? output : iter.output(0);
      }
      auto whole_iter = build_iterator(outputs, inputs, op_, common);
      launch(op_, whole_iter, scalars, inputs, schema.name());
    } else {
      check_halves(schema.name(), inputs[1]);
      const auto self = inputs.pop_back_val();
      // Under vmap either of them may have batch dimensions, so the shapes broadcast.
      c10::DimVector half(self.sizes());
      half.back() /= 2;
      auto sizes = at::infer_size_dimvector(inputs[0].sizes(), half);
      sizes.back() *= 2;
      results.push_back(self.sizes() == sizes ? at::empty_like(self)
                                              : at::empty(sizes, self.options()));
      Tensors outputs;
      push_halves(outputs, results[0], op_.halves);
      push_halves(inputs, self, op_.halves);
      auto iter = build_iterator(outputs, inputs, op_, common);
      scalars.push_back(kBothHalves);
      launch(op_, iter, scalars, inputs, schema.name());
    }
    return results;
  }

  const Operator op_;
  const Form form_;
};

void define_overload(torch::Library& m, const std::string& schema, bool pointwise) {
  using at::Tag;
  const auto tags = pointwise ? std::vector<Tag>{Tag::pt2_compliant_tag, Tag::pointwise}
                              : std::vector<Tag>{Tag::pt2_compliant_tag};
  m.def(schema.c_str(), tags);
}

// Registers the kernels of an overload. functional: the name of the functional overload.
void implement(torch::Library& m, const std::string& overload, const std::string& functional,
               const Operator& op, Kernel::Form form) {
  implement_boxed<Kernel>(m, overload, c10::DispatchKey::MPS, op, form);
  implement_boxed<FakeKernel>(m, overload, c10::DispatchKey::CompositeExplicitAutograd, functional,
                              op, form == Kernel::Form::kBackward);
}

// Returns the schema of the out= overload. arguments: those of the functional overload, without
// parentheses.
std::string out_schema(const std::string& name, const std::string& arguments, size_t results) {
  std::string outputs;
  std::string returns;
  for (size_t i = 0; i < results; ++i) {
    const std::string type = std::string("Tensor(") + static_cast<char>('a' + i) + "!)";
    outputs += ", " + type + " out" + (results > 1 ? std::to_string(i) : "");
    returns += (i > 0 ? ", " : "") + type;
  }
  const bool keywords = arguments.find("*, ") != std::string::npos;
  return name + ".out(" + arguments + (keywords ? "" : ", *") + outputs + ") -> " +
         (results > 1 ? "(" + returns + ")" : returns);
}

// Returns the schema of a backward operator, with output_mask if it has several results.
std::string with_output_mask(const std::string& schema) {
  const auto close = schema.rfind(") ->");
  const auto commas = std::count(schema.begin() + static_cast<int64_t>(close), schema.end(), ',');
  if (commas == 0) {
    return schema;
  }
  std::string all = "True";
  for (int64_t i = 0; i < commas; ++i) {
    all += ", True";
  }
  return schema.substr(0, close) + ", bool[" + std::to_string(commas + 1) + "] " +
         autograd::kOutputMask + "=[" + all + "]" + schema.substr(close);
}

}  // namespace

void define_backward(torch::Library& m, const std::string& schema, const Operator& op,
                     const std::string& without_formula) {
  define_overload(m, with_output_mask(schema), op.halves == Halves::kNone);
  const auto name = schema.substr(0, schema.find('('));
  implement(m, name, name, op, Kernel::Form::kBackward);
  if (op.formula) {
    autograd::implement_formula(m, name, formula_of_arguments(op));
  } else {
    autograd::implement_not_differentiable(
        m, name, "derivative for " + name + " is not implemented: " + without_formula,
        /*inplace=*/false);
  }
}

void define(torch::Library& m, const std::string& schema, const Operator& op) {
  using c10::DispatchKey;
  const auto open = schema.find('(');
  const auto name = schema.substr(0, open);
  const auto arguments = schema.substr(open + 1, schema.rfind(") ->") - open - 1);
  const bool pointwise = op.halves == Halves::kNone;
  define_overload(m, schema, pointwise);
  const auto functional = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  const auto results = functional.schema().returns().size();
  const auto count = functional.schema().arguments().size();
  const bool has_inplace = pointwise && results == 1 && op.result == Result::kPromoted;
  const auto out = name + ".out";
  const auto inplace = name + "_";

  implement(m, name, name, op, Kernel::Form::kFunctional);

  define_overload(m, out_schema(name, arguments, results), pointwise);
  implement(m, out, name, op, Kernel::Form::kOut);
  autograd::implement_out(m, out);
  autograd::implement_in_place_or_view(m, out);
  implement_functionalization(m, out, functional, /*written=*/count, /*resizes=*/true);

  if (has_inplace) {
    const auto others = arguments.substr(arguments.find(' '));  // without its type, Tensor
    define_overload(m, inplace + "(Tensor(a!)" + others + ") -> Tensor(a!)", pointwise);
    implement(m, inplace, name, op, Kernel::Form::kInplace);
    autograd::implement_in_place_or_view(m, inplace);
    implement_functionalization(m, inplace, functional, /*written=*/0, /*resizes=*/false);
  }

  if (op.result == Result::kBool) {
    m.impl(name.c_str(),
           torch::dispatch(DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
    return;
  }
  if (op.backward.empty()) {
    const auto message =
        "derivative for " + name + " is not implemented: it was defined without a gradient";
    autograd::implement_not_differentiable(m, name, message, /*inplace=*/false);
    if (has_inplace) {
      autograd::implement_not_differentiable(m, inplace, message, /*inplace=*/true);
    }
    return;
  }
  const auto ns = name.substr(0, name.find(':'));
  const auto backward =
      c10::Dispatcher::singleton().findSchemaOrThrow((ns + "::" + op.backward).c_str(), "");
  const bool is_halved = op.halves != Halves::kNone;
  autograd::implement_differentiable(m, name, functional, backward, is_halved, /*inplace=*/false);
  if (has_inplace) {
    autograd::implement_differentiable(m, inplace, functional, backward, is_halved,
                                       /*inplace=*/true);
  }
}

}  // namespace metalops::pointwise
