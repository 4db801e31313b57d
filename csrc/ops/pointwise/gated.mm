// Host side of kernels/pointwise/gated.metal: gated linear units of two inputs, or of the two
// halves of one input.
#include <ATen/TensorIterator.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>
#include <kernels/pointwise/gated.h>
#include <metalops/checks.h>
#include <metalops/elementwise_launch.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/pointwise.h>
#include <metalops/tiles_launch.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <csrc/ops/common/gelu.h>

namespace {

using at::TensorIteratorBase;
using metalops::launch_backward;
using metalops::pointwise::define;
using metalops::pointwise::define_backward;
using metalops::pointwise::Halves;
using metalops::pointwise::Integers;
using metalops::pointwise::Launch;
using Scalars = c10::ArrayRef<c10::Scalar>;

metalops::Library& kernels() { return metalops::library("gated"); }

// Returns true if all operands are 2-D, of one floating dtype, with contiguous rows.
bool has_rows(const TensorIteratorBase& iter) {
  if (iter.ndim() != 2 || iter.numel() == 0 || !iter.can_use_32bit_indexing()) {
    return false;
  }
  for (int i = 0; i < iter.ntensors(); ++i) {
    const auto bytes = static_cast<int64_t>(iter.element_size(i));
    if (iter.tensor(i).scalar_type() != iter.tensor(0).scalar_type() || !iter.tensor(i).is_mps() ||
        iter.strides(i)[0] != bytes || iter.strides(i)[1] % bytes != 0) {
      return false;
    }
  }
  return metalops::is_metal_float(iter.tensor(0).scalar_type());
}

void launch_rows(const TensorIteratorBase& iter, const char* name, float scalar) {
  const auto stride = [&](int operand) {
    return iter.strides(operand)[1] / static_cast<int64_t>(iter.element_size(operand));
  };
  const metalops::GatedRows rows{stride(0), stride(1), stride(2), scalar};
  metalops::launch_rows(
      kernels(), metalops::KernelName(name) + "_rows_" + metalops::metal_type(iter.dtype(0)),
      iter.shape()[0], iter.shape()[1], iter.tensor(0), iter.tensor(1), iter.tensor(2), rows);
}

void launch_gate(TensorIteratorBase& iter, const char* name, Scalars scalars) {
  const auto scalar = scalars.empty() ? std::nullopt : std::optional(scalars[0]);
  if (!has_rows(iter)) {
    kernels().exec_binary_kernel(iter, name, scalar, at::kFloat);
  } else if (!metalops::launch_tiles(kernels(), iter, name, scalar, at::kFloat)) {
    launch_rows(iter, name, scalar ? scalar->toFloat() : 0.0f);
  }
}

using Gradients = std::vector<at::Tensor>;

// The kernels of a gate, shared by the operators of two inputs and of one halved input. formula:
// the gradients of a and b as operators of ATen.
struct Gate {
  Launch forward;
  Launch backward;
  std::function<Gradients(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b,
                          Scalars scalars)>
      formula;
  Integers integers = Integers::kToFloat;
};

const Gate kSilu{
    [](TensorIteratorBase& iter, Scalars scalars) { launch_gate(iter, "swiglu", scalars); },
    [](TensorIteratorBase& iter, Scalars scalars) {
      launch_backward(kernels(), iter, "swiglu_backward", scalars);
    },
    [](const auto& grad, const auto& a, const auto& b, Scalars) {
      const auto s = at::sigmoid(a);
      return Gradients{grad * b * s * (1 + a * (1 - s)), grad * a * s};
    }};

const Gate kGelu{
    [](TensorIteratorBase& iter, Scalars scalars) { launch_gate(iter, "geglu", scalars); },
    [](TensorIteratorBase& iter, Scalars scalars) {
      launch_backward(kernels(), iter, "geglu_backward", scalars);
    },
    [](const auto& grad, const auto& a, const auto& b, Scalars) {
      const auto [value, derivative] = gelu_erf(a);
      return Gradients{grad * b * derivative, grad * value};
    }};

const Gate kGeluTanh{
    [](TensorIteratorBase& iter, Scalars scalars) { launch_gate(iter, "geglu_tanh", scalars); },
    [](TensorIteratorBase& iter, Scalars scalars) {
      launch_backward(kernels(), iter, "geglu_tanh_backward", scalars);
    },
    [](const auto& grad, const auto& a, const auto& b, Scalars) {
      const auto [value, derivative] = gelu_tanh(a);
      return Gradients{grad * b * derivative, grad * value};
    }};

// Returns the gradients of passing(a) b, where passing(a) is a where `passes`, else 0.
Gradients passing_gradients(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b,
                            const at::Tensor& passes) {
  return {at::where(passes, grad * b, 0), at::where(passes, grad * a, 0)};
}

const Gate kRelu{
    [](TensorIteratorBase& iter, Scalars scalars) { launch_gate(iter, "reglu", scalars); },
    [](TensorIteratorBase& iter, Scalars scalars) {
      launch_backward(kernels(), iter, "reglu_backward", scalars);
    },
    [](const auto& grad, const auto& a, const auto& b, Scalars) {
      return passing_gradients(grad, a, b, a > 0);
    },
    Integers::kStay};

const Gate kFatRelu{
    [](TensorIteratorBase& iter, Scalars scalars) { launch_gate(iter, "fatreglu", scalars); },
    [](TensorIteratorBase& iter, Scalars scalars) {
      launch_backward(kernels(), iter, "fatreglu_backward", scalars);
    },
    [](const auto& grad, const auto& a, const auto& b, Scalars scalars) {
      return passing_gradients(grad, a, b, a > scalars[0].toFloat());
    },
    Integers::kStay};

const Gate kClampedSilu{
    [](TensorIteratorBase& iter, Scalars scalars) { launch_gate(iter, "swiglu_clamped", scalars); },
    [](TensorIteratorBase& iter, Scalars scalars) {
      launch_backward(kernels(), iter, "swiglu_clamped_backward", scalars);
    },
    [](const auto& grad, const auto& a, const auto& b, Scalars scalars) {
      const auto limit = scalars[0].toFloat();
      const auto gate = at::clamp_max(a, limit);
      const auto linear = at::clamp(b, -limit, limit) + 1;
      const auto s = at::sigmoid(1.702 * gate);
      const auto derivative = s + 1.702 * gate * s * (1 - s);
      const auto inside = (b >= -limit).logical_and(b <= limit);
      return Gradients{at::where(a <= limit, grad * linear * derivative, 0),
                       at::where(inside, grad * gate * s, 0)};
    }};

auto formula(const Gate& gate) {
  return
      [gate](at::TensorList x, Scalars scalars) { return gate.formula(x[0], x[1], x[2], scalars); };
}

// Defines the operators of two inputs. scalar: the declaration of a scalar argument, ", float
// threshold=0.0", or nothing.
void define_two_inputs(torch::Library& m, const std::string& name, const Gate& gate,
                       const std::string& scalar = "") {
  const auto backward = name + "_backward";
  define_backward(m,
                  "metalops::" + backward + "(Tensor grad_output, Tensor a, Tensor b" + scalar +
                      ") -> (Tensor, Tensor)",
                  {.launch = gate.backward, .formula = formula(gate)});
  define(m, "metalops::" + name + "(Tensor a, Tensor b" + scalar + ") -> Tensor",
         {.launch = gate.forward, .integers = gate.integers, .backward = backward.c_str()});
}

void define_halved_input(torch::Library& m, const std::string& name, const Gate& gate,
                         Halves halves = Halves::kFirstSecond, const std::string& scalar = "") {
  const auto backward = name + "_backward";
  define_backward(
      m, "metalops::" + backward + "(Tensor grad_output, Tensor self" + scalar + ") -> Tensor",
      {.launch = gate.backward, .halves = halves, .formula = formula(gate)});
  define(m, "metalops::" + name + "(Tensor self" + scalar + ") -> Tensor",
         {.launch = gate.forward,
          .integers = gate.integers,
          .halves = halves,
          .backward = backward.c_str()});
}

TORCH_LIBRARY_FRAGMENT(metalops, m) {
  define_two_inputs(m, "swiglu", kSilu);
  define_two_inputs(m, "geglu", kGelu);
  define_two_inputs(m, "reglu", kRelu);
  define_two_inputs(m, "swiglu_clamped", kClampedSilu, ", float limit=7.0");

  define_halved_input(m, "silu_and_mul", kSilu);
  define_halved_input(m, "mul_and_silu", kSilu, Halves::kSecondFirst);
  define_halved_input(m, "gelu_and_mul", kGelu);
  define_halved_input(m, "gelu_tanh_and_mul", kGeluTanh);
  define_halved_input(m, "fatrelu_and_mul", kFatRelu, Halves::kFirstSecond,
                      ", float threshold=0.0");
}

}  // namespace
