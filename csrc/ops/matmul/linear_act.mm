// Host side of kernels/matmul/linear_act.metal: a linear layer and its activation in one kernel (a
// GEMM with a fused epilogue).
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/matmul/operand.h>
#include <kernels/matmul/linear_act.h>
#include <metalops/autograd.h>
#include <metalops/checks.h>
#include <metalops/functionalize.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/matmul_library.h>
#include <metalops/metal_type.h>
#include <metalops/torch_internals.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include <csrc/ops/common/gelu.h>

namespace {

using at::Tensor;
using metalops::LinearActivation;
using metalops::MaybeTensor;
using metalops::ProductOperand;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

constexpr const char* kName = "linear_act";

metalops::Library& kernels() { return metalops::library("linear_act"); }

// ---- arguments ----------------------------------------------------------------------------------

// is_gated: the activation of the first half of the features is a gate of the second half.
struct Activation {
  LinearActivation kind;
  bool is_gated;
};

Activation parse(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Activation>, 6> kKnown{{
      {"none", {LinearActivation::kNone, false}},
      {"relu", {LinearActivation::kRelu, false}},
      {"gelu", {LinearActivation::kGelu, false}},
      {"gelu_tanh", {LinearActivation::kGeluTanh, false}},
      {"silu", {LinearActivation::kSilu, false}},
      {"silu_and_mul", {LinearActivation::kSilu, true}},
  }};
  std::string all;
  for (const auto& [known, activation] : kKnown) {
    if (name == known) {
      return activation;
    }
    all += (all.empty() ? "'" : ", '") + std::string(known) + "'";
  }
  TORCH_CHECK_VALUE(false, kName, ": activation must be one of ", all, ", but is '", name, "'");
}

void check(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, Activation activation) {
  if (bias) {
    metalops::check_same_device(kName, {{x, "x"}, {weight, "weight"}, {*bias, "bias"}});
  } else {
    metalops::check_same_device(kName, {{x, "x"}, {weight, "weight"}});
  }
  metalops::check_metal_float(kName, x.scalar_type());
  const auto check_dtype = [&](const Tensor& tensor, const char* name) {
    TORCH_CHECK(tensor.scalar_type() == x.scalar_type(), kName, ": ", name,
                " must have the dtype of x, ", x.scalar_type(), ", but has ", tensor.scalar_type());
  };
  check_dtype(weight, "weight");
  TORCH_CHECK(x.dim() > 0, kName, ": x must have at least one dimension, but has none");
  TORCH_CHECK(weight.dim() == 2, kName, ": weight must have 2 dimensions, but has sizes ",
              weight.sizes());
  TORCH_CHECK(weight.size(1) == x.size(-1), kName, ": weight must have as many columns as x, ",
              x.size(-1), ", but has sizes ", weight.sizes());
  TORCH_CHECK(!activation.is_gated || weight.size(0) % 2 == 0, kName,
              ": weight must have an even number of rows for a gate, but has sizes ",
              weight.sizes());
  if (bias) {
    check_dtype(*bias, "bias");
    TORCH_CHECK(bias->dim() == 1 && bias->size(0) == weight.size(0), kName,
                ": bias must have as many elements as weight has rows, ", weight.size(0),
                ", but has sizes ", bias->sizes());
  }
}

// ---- products -----------------------------------------------------------------------------------

// The kernel that multiplies, and the size of its threadgroup's tile of the result.
struct Way {
  metalops::Library& kernels;
  const char* name;
  int32_t rows;
  int32_t columns;
};

Way way_of(const ProductOperand& left, const ProductOperand& right) {
  if (left.lines <= 4 && !left.is_transposed && !right.is_transposed) {
    return left.lines == 1 ? Way{kernels(), "_skinny_1_", 1, 16} : Way{kernels(), "_skinny_", 4, 8};
  }
  auto& products = metalops::matmul_library("linear_act");
  return left.lines <= 32 ? Way{products, "_small_", 16, 64} : Way{products, "_large_", 64, 64};
}

// Computes result = activation(left right^T + bias). before: receives the input of the activation,
// if present. Both are contiguous.
void multiply(const Tensor& result, const Tensor& left, const Tensor& right,
              const MaybeTensor& bias, Activation activation, const MaybeTensor& before) {
  const auto a = metalops::product_operand(left);
  const auto b = metalops::product_operand(right);
  const metalops::LinearParameters parameters{
      .left_stride = a.stride,
      .right_stride = b.stride,
      .rows = metalops::product_size(kName, a.lines, "a batch"),
      .columns = metalops::product_size(kName, b.lines, "weight") / (activation.is_gated ? 2 : 1),
      .inner = metalops::product_size(kName, a.inner, "the last dimension of x"),
      .activation = activation.kind,
      .left_transposed = a.is_transposed,
      .right_transposed = b.is_transposed,
      .has_bias = bias.has_value(),
      .keeps = before.has_value()};
  const auto way = way_of(a, b);
  const auto groups = static_cast<uint64_t>(c10::metal::ceil_div(parameters.rows, way.rows)) *
                      static_cast<uint64_t>(c10::metal::ceil_div(parameters.columns, way.columns));
  metalops::launch_threadgroups(way.kernels,
                                metalops::KernelName(kName) + way.name +
                                    (activation.is_gated ? "gated_" : "") +
                                    metalops::metal_type(result.scalar_type()),
                                groups, /*size=*/128, result, before.value_or(result), a.tensor,
                                b.tensor, bias ? bias->contiguous() : b.tensor, parameters);
}

Tensor as_matrix(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Returns x as a matrix, (rows, features), also where it has no features.
Tensor rows_of(const Tensor& x) {
  return x.size(-1) == 0 ? x.reshape({c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), 0})
                         : as_matrix(x);
}

at::DimVector sizes_of_result(const Tensor& x, int64_t features) {
  at::DimVector sizes(x.sizes());
  sizes.back() = features;
  return sizes;
}

int64_t features_of(const Tensor& weight, Activation activation) {
  return activation.is_gated ? weight.size(0) / 2 : weight.size(0);
}

void run(const Tensor& result, const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
         Activation activation, const MaybeTensor& before) {
  if (result.numel() > 0) {
    multiply(result, rows_of(x), weight, bias, activation, before);
  }
}

// ---- the operators ------------------------------------------------------------------------------

Tensor linear_act(const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                  std::string_view name) {
  const auto activation = parse(name);
  check(x, weight, bias, activation);
  const auto result = at::empty(sizes_of_result(x, features_of(weight, activation)), x.options());
  run(result, x, weight, bias, activation, std::nullopt);
  return result;
}

Tensor& linear_act_out(const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                       std::string_view name, Tensor& out) {
  const auto activation = parse(name);
  check(x, weight, bias, activation);
  metalops::check_same_device(kName, {{x, "x"}, {out, "out"}});
  TORCH_CHECK(c10::canCast(x.scalar_type(), out.scalar_type()), "result type ", x.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  const auto sizes = sizes_of_result(x, features_of(weight, activation));
  at::native::resize_output(out, sizes);
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, x);
  at::assert_no_overlap(out, weight);
  if (bias) {
    at::assert_no_overlap(out, *bias);
  }
  const bool is_direct = out.is_contiguous() && out.scalar_type() == x.scalar_type();
  metalops::write_through(out, is_direct, x.scalar_type(), [&](const Tensor& result) {
    run(result, x, weight, bias, activation, std::nullopt);
  });
  return out;
}

// Returns the result and the input of the activation, which the gradient needs.
std::tuple<Tensor, Tensor> linear_act_with_input(const Tensor& x, const Tensor& weight,
                                                 const MaybeTensor& bias, std::string_view name) {
  const auto activation = parse(name);
  check(x, weight, bias, activation);
  const auto result = at::empty(sizes_of_result(x, features_of(weight, activation)), x.options());
  const auto before = at::empty(sizes_of_result(x, weight.size(0)), x.options());
  run(result, x, weight, bias, activation, before);
  return {result, before};
}

// Returns the gradient with respect to the input of the activation. saved: that input, or, for
// ReLU, the result.
Tensor activation_backward(const Tensor& grad_output, const Tensor& saved, Activation activation) {
  const auto grad = grad_output.contiguous();
  const auto before = saved.contiguous();
  const auto result = at::empty(before.sizes(), before.options());
  const auto type = metalops::metal_type(result.scalar_type());
  const auto kind = static_cast<int32_t>(activation.kind);
  const auto columns = static_cast<uint64_t>(grad.size(-1));
  const auto rows = grad.numel() == 0 ? 0 : static_cast<uint64_t>(grad.numel()) / columns;
  if (activation.is_gated) {
    metalops::launch_rows(kernels(), metalops::KernelName("linear_act_gradient_gated_") + type,
                          columns, rows, result, grad, before, kind);
  } else {
    metalops::launch_rows(kernels(), metalops::KernelName("linear_act_gradient_") + type, columns,
                          rows, result, grad, before, kind);
  }
  return result;
}

Tensor column_sums(const Tensor& matrix) {
  const auto x = matrix.contiguous();
  const auto result = at::empty({x.size(1)}, x.options());
  const metalops::LinearColumns sizes{x.size(0), x.size(1)};
  metalops::launch_threadgroups(kernels(), metalops::typed_kernel("linear_act_column_sums_", x),
                                c10::metal::ceil_div<uint64_t>(x.size(1), 32), /*size=*/256, result,
                                x, sizes);
  return result;
}

Tensor product(const Tensor& left, const Tensor& right) {
  const auto result = at::empty({left.size(0), right.size(0)}, left.options());
  if (result.numel() > 0) {
    multiply(result, left, right, std::nullopt, {LinearActivation::kNone, false}, std::nullopt);
  }
  return result;
}

// Returns the gradients of x, weight and bias, as far as output_mask asks for them. saved: see
// activation_backward(); absent for "none". bias: only second derivatives need it.
Gradients linear_act_backward(const Tensor& grad_output, const Tensor& x, const Tensor& weight,
                              const MaybeTensor& bias, const MaybeTensor& saved,
                              std::string_view name, std::array<bool, 3> output_mask) {
  const auto activation = parse(name);
  const auto type = x.scalar_type();
  const auto given = grad_output.to(type);
  const auto grad =
      rows_of(saved ? activation_backward(given, saved->to(type), activation) : given);
  Gradients result;
  if (output_mask[0]) {
    std::get<0>(result) = product(grad, weight.t()).view(x.sizes());
  }
  if (output_mask[1]) {
    std::get<1>(result) = product(grad.t(), rows_of(x).t());
  }
  if (output_mask[2]) {
    std::get<2>(result) = column_sums(grad);
  }
  return result;
}

// ---- derivatives --------------------------------------------------------------------------------

bool needs_gradient(std::initializer_list<const Tensor*> tensors) {
  return c10::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(),
                     [](const Tensor* x) { return x->defined() && x->requires_grad(); });
}

bool has_tangent(std::initializer_list<const Tensor*> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor* x) {
    return x->defined() && torch::autograd::isFwGradDefined(*x);
  });
}

// Returns true if transforms of torch.func, which do not support autograd functions written in C++,
// differentiate or batch the call.
bool is_transformed(std::initializer_list<const Tensor*> tensors) {
  constexpr c10::DispatchKeySet kTransforms(
      {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched});
  return std::any_of(tensors.begin(), tensors.end(), [&](const Tensor* x) {
    return x->defined() && x->key_set().has_any(kTransforms);
  });
}

// Returns an activation's value and derivative, computed with differentiable operators of ATen.
WithDerivative activated(const Tensor& x, LinearActivation activation) {
  switch (activation) {
    case LinearActivation::kRelu:
      return {at::relu(x), (x > 0).to(x.scalar_type())};
    case LinearActivation::kGelu:
      return gelu_erf(x);
    case LinearActivation::kGeluTanh:
      return gelu_tanh(x);
    case LinearActivation::kSilu: {
      const auto s = at::sigmoid(x);
      return {x * s, s * (1 + x * (1 - s))};
    }
    default:
      return {x, at::ones_like(x)};
  }
}

Tensor linear_formula(const Tensor& x, const Tensor& weight, const MaybeTensor& bias) {
  return at::linear(x.to(at::kFloat), weight.to(at::kFloat),
                    bias ? std::optional(bias->to(at::kFloat)) : std::nullopt);
}

Tensor formula(const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
               std::string_view name) {
  const auto activation = parse(name);
  const auto before = linear_formula(x, weight, bias);
  if (!activation.is_gated) {
    return activated(before, activation.kind).value.to(x.scalar_type());
  }
  const auto halves = before.chunk(2, -1);
  return (activated(halves[0], activation.kind).value * halves[1]).to(x.scalar_type());
}

Gradients backward_formula(const Tensor& grad_output, const Tensor& x, const Tensor& weight,
                           const MaybeTensor& bias, std::string_view name,
                           std::array<bool, 3> output_mask) {
  const auto activation = parse(name);
  auto grad = grad_output.to(at::kFloat);
  // Not computed without an activation: callers that need column sums only pass no weight.
  const auto before =
      activation.kind == LinearActivation::kNone ? Tensor() : linear_formula(x, weight, bias);
  if (activation.is_gated) {
    const auto halves = before.chunk(2, -1);
    const auto [value, derivative] = activated(halves[0], activation.kind);
    grad = at::cat({grad * halves[1] * derivative, grad * value}, -1);
  } else if (before.defined()) {
    grad = grad * activated(before, activation.kind).derivative;
  }
  const auto rows = grad.reshape({-1, grad.size(-1)});
  Gradients result;
  if (output_mask[0]) {
    std::get<0>(result) = at::matmul(grad, weight.to(at::kFloat)).to(x.scalar_type());
  }
  if (output_mask[1]) {
    const auto inputs = x.to(at::kFloat).reshape({-1, weight.size(1)});
    std::get<1>(result) = at::matmul(rows.t(), inputs).to(weight.scalar_type());
  }
  if (output_mask[2]) {
    std::get<2>(result) = rows.sum(0).to(x.scalar_type());
  }
  return result;
}

using LinearAct = Tensor(const Tensor&, const Tensor&, const MaybeTensor&, c10::string_view);
using LinearActWithInput = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&,
                                                      const MaybeTensor&, c10::string_view);
using LinearActBackward = Gradients(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&,
                                    const MaybeTensor&, c10::string_view, std::array<bool, 3>);

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

MaybeTensor if_defined(const Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

class Differentiable final : public torch::autograd::Function<Differentiable> {
 public:
  static constexpr bool is_traceable = true;  // for compiled autograd

  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& weight, const MaybeTensor& bias, const std::string& name) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto kind = parse(name).kind;
    Tensor result;
    Tensor saved;
    if (kind == LinearActivation::kNone || kind == LinearActivation::kRelu) {
      static const auto op = find<LinearAct>("metalops::linear_act");
      result = op.call(x, weight, bias, name);
      saved = kind == LinearActivation::kRelu ? result : Tensor();
    } else {
      static const auto op = find<LinearActWithInput>("metalops::linear_act_with_input");
      std::tie(result, saved) = op.call(x, weight, bias, name);
    }
    context->save_for_backward({x, weight, bias.value_or(Tensor()), saved});
    context->saved_data["activation"] = name;
    return result;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    static const auto op = find<LinearActBackward>("metalops::linear_act_backward");
    const auto saved = context->get_saved_variables();
    const auto& bias = saved[2];
    auto [x, weight, bias_gradient] =
        op.call(grads[0], saved[0], saved[1], if_defined(bias), if_defined(saved[3]),
                context->saved_data["activation"].toStringRef(),
                {context->needs_input_grad(0), context->needs_input_grad(1),
                 bias.defined() && context->needs_input_grad(2)});
    return {x, weight, bias_gradient, Tensor()};
  }
};

Tensor linear_act_autograd(const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                           std::string_view name) {
  const auto b = bias.value_or(Tensor());
  if (has_tangent({&x, &weight, &b}) || is_transformed({&x, &weight, &b})) {
    return formula(x, weight, bias, name);
  }
  if (needs_gradient({&x, &weight, &b})) {
    return Differentiable::apply(x, weight, bias, std::string(name));
  }
  at::AutoDispatchBelowAutograd guard;
  static const auto op = find<LinearAct>("metalops::linear_act");
  return op.call(x, weight, bias, name);
}

// Casts the arguments as torch's autocast does for linear layers.
template <at::DeviceType Device, c10::DispatchKey Key>
Tensor linear_act_autocast(const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                           std::string_view name) {
  using metalops::internals::cached_cast;
  const metalops::internals::ExcludeDispatchKeyGuard no_autocast(Key);
  const auto type = metalops::internals::get_autocast_dtype(Device);
  static const auto op = find<LinearAct>("metalops::linear_act");
  return op.call(cached_cast(type, x, Device), cached_cast(type, weight, Device),
                 bias ? MaybeTensor(cached_cast(type, *bias, Device)) : std::nullopt, name);
}

Gradients linear_act_backward_autograd(const Tensor& grad_output, const Tensor& x,
                                       const Tensor& weight, const MaybeTensor& bias,
                                       const MaybeTensor& saved, std::string_view name,
                                       std::array<bool, 3> output_mask) {
  const auto b = bias.value_or(Tensor());
  if (has_tangent({&grad_output, &x, &weight, &b}) ||
      needs_gradient({&grad_output, &x, &weight, &b})) {
    return backward_formula(grad_output, x, weight, bias, name, output_mask);
  }
  at::AutoDispatchBelowAutograd guard;
  static const auto op = find<LinearActBackward>("metalops::linear_act_backward");
  return op.call(grad_output, x, weight, bias, saved, name, output_mask);
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  using c10::DispatchKey;
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  const std::string arguments =
      "Tensor x, Tensor weight, Tensor? bias=None, str activation=\"none\"";
  m.def(("metalops::linear_act(" + arguments + ") -> Tensor").c_str(), tags);
  m.def(("metalops::linear_act.out(" + arguments + ", *, Tensor(a!) out) -> Tensor(a!)").c_str(),
        tags);
  m.def(("metalops::linear_act_with_input(" + arguments + ") -> (Tensor, Tensor)").c_str(), tags);
  m.def("metalops::linear_act_backward(Tensor grad_output, Tensor x, Tensor weight, Tensor? bias, "
        "Tensor? saved, str activation, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        tags);
  m.impl("linear_act", torch::dispatch(DispatchKey::MPS, TORCH_FN(linear_act)));
  m.impl("linear_act.out", torch::dispatch(DispatchKey::MPS, TORCH_FN(linear_act_out)));
  m.impl("linear_act_with_input",
         torch::dispatch(DispatchKey::MPS, TORCH_FN(linear_act_with_input)));
  m.impl("linear_act_backward", torch::dispatch(DispatchKey::MPS, TORCH_FN(linear_act_backward)));
  m.impl("linear_act", torch::dispatch(DispatchKey::Autograd, TORCH_FN(linear_act_autograd)));
  m.impl("linear_act_backward",
         torch::dispatch(DispatchKey::Autograd, TORCH_FN(linear_act_backward_autograd)));
  m.impl("linear_act",
         torch::dispatch(DispatchKey::AutocastMPS,
                         TORCH_FN((linear_act_autocast<at::kMPS, DispatchKey::AutocastMPS>))));
  m.impl("linear_act",
         torch::dispatch(DispatchKey::AutocastCPU,
                         TORCH_FN((linear_act_autocast<at::kCPU, DispatchKey::AutocastCPU>))));
  m.impl("linear_act",
         torch::dispatch(DispatchKey::AutocastCUDA,
                         TORCH_FN((linear_act_autocast<at::kCUDA, DispatchKey::AutocastCUDA>))));
  metalops::autograd::implement_not_differentiable(
      m, "metalops::linear_act_with_input",
      "derivative for metalops::linear_act_with_input is not implemented: it is what "
      "metalops::linear_act calls",
      /*inplace=*/false);
  metalops::autograd::implement_out(m, "metalops::linear_act.out");
  metalops::autograd::implement_in_place_or_view(m, "metalops::linear_act.out");
  const auto functional =
      c10::Dispatcher::singleton().findSchemaOrThrow("metalops::linear_act", "");
  metalops::implement_functionalization(m, "metalops::linear_act.out", functional, /*written=*/4,
                                        /*resizes=*/true);
}

}  // namespace
