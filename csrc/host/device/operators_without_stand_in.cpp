// Operators that have an MPS kernel of their own on a Mac and in torch's Linux build reach no CPU
// kernel by themselves, or that check their arguments first: convolution, attention, linear, ldexp;
// and native_dropout, whose CPU kernel draws from torch's default CPU generator.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_mps_convolution.h>
#include <ATen/ops/_mps_convolution_transpose.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/mps_convolution_backward.h>
#include <ATen/ops/mps_convolution_transpose_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>
#include <device/aliases.h>
#include <device/recorder.h>
#include <device/stand_in.h>
#include <device/stream_work.h>
#include <metalops/sym_ints.h>
#include <torch/library.h>

#include <array>
#include <limits>
#include <tuple>
#include <vector>

namespace metalops::device {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

void check_same_type(const Tensor& input, const Tensor& parameter, const char* name) {
  TORCH_CHECK(input.options().type_equal(parameter.options()), "Input type (", input.toString(),
              ") and ", name, " type (", parameter.toString(), ") should be the same");
}

// Returns the memory format of the results of a convolution: that of a Mac, which for some dtypes
// differs from that of the CPU's kernels.
c10::MemoryFormat format_of_convolution(const Tensor& input, const Tensor& weight) {
  if (!at::native::mps_conv_use_channels_last(input, weight)) return c10::MemoryFormat::Contiguous;
  return input.dim() == 5 ? c10::MemoryFormat::ChannelsLast3d : c10::MemoryFormat::ChannelsLast;
}

// A call of torch's composition on the memory of mps tensors.
class CpuComposition {
 public:
  // `arguments`: the operator's first ones.
  CpuComposition(const char* name, const torch::jit::Stack& arguments)
      : name_(name), aliases_(begin(name, arguments)) {}

  template <class T>
  T to_cpu(const T& tensor) {
    return aliases_.to_cpu(tensor);
  }

  // Returns the mps tensors of what `compute` returns, a vector; other streams than the default one
  // queue it. `metas` then returns meta tensors like the results.
  template <class Compute, class Metas>
  std::vector<Tensor> run(Compute compute, Metas metas) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    if (!streams::is_current_default()) return queue_results(name_, aliases_, metas(), compute);
    std::vector<Tensor> results = compute();
    for (Tensor& result : results) {
      result = aliases_.to_mps(result);
      if (is_stream_work()) check_results(name_, c10::IValue(result));
    }
    return results;
  }

 private:
  static Aliases::Call begin(const char* name, const torch::jit::Stack& arguments) {
    record_stand_in(name);
    if (is_stream_work()) check_arguments(name, find_overload(name)->schema(), arguments);
    return streams::is_current_default() ? Aliases::Call::kNow : Aliases::Call::kQueued;
  }

  const char* const name_;
  Aliases aliases_;
};

Tensor like_on_meta(const Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

optional<Tensor> like_on_meta(const optional<Tensor>& tensor) {
  return tensor && tensor->defined() ? optional<Tensor>(like_on_meta(*tensor)) : std::nullopt;
}

// One of the four operators that a Mac's convolutions end in: at::convolution on the CPU, of as
// many dimensions as its input.
struct Convolution {
  std::vector<int64_t> stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;

  Tensor result(const char* name, const Tensor& input, const Tensor& weight,
                const optional<Tensor>& bias) const {
    const c10::MemoryFormat format = format_of_convolution(input, weight);
    CpuComposition call(name, {input, weight});
    const auto compute = [=, *this, x = call.to_cpu(input), w = call.to_cpu(weight),
                          b = call.to_cpu(bias)] {
      return std::vector{
          at::convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups)
              .contiguous(format)};
    };
    return call.run(compute, [&] {
      const auto sizes = transposed
                             ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding,
                                                           output_padding, stride, dilation, groups)
                             : at::native::conv_output_size(input.sizes(), weight.sizes(), padding,
                                                            stride, dilation);
      return std::vector{at::empty(sizes, input.options().device(at::kMeta), format)};
    })[0];
  }

  // The gradients of the input and of the weight.
  std::tuple<Tensor, Tensor> gradients(const char* name, const Tensor& grad, const Tensor& input,
                                       const Tensor& weight, bool of_input, bool of_weight) const {
    const c10::MemoryFormat format = format_of_convolution(input, weight);
    CpuComposition call(name, {input, grad, weight});
    const auto compute = [=, *this, g = call.to_cpu(grad), x = call.to_cpu(input),
                          w = call.to_cpu(weight)] {
      auto [grad_input, grad_weight, none] =
          at::convolution_backward(g, x, w, std::nullopt, stride, padding, dilation, transposed,
                                   output_padding, groups, {of_input, of_weight, false});
      if (grad_input.defined()) grad_input = grad_input.contiguous(format);
      if (grad_weight.defined()) grad_weight = grad_weight.contiguous(format);
      return std::vector{grad_input, grad_weight};
    };
    const auto results = call.run(compute, [&] {
      const at::TensorOptions meta = input.options().device(at::kMeta);
      std::vector<Tensor> metas(2);
      if (of_input) metas[0] = at::empty(input.sizes(), meta, format);
      if (of_weight) metas[1] = at::empty(weight.sizes(), meta, format);
      return metas;
    });
    return {results[0], results[1]};
  }
};

Convolution forward_of(IntArrayRef padding, IntArrayRef stride, IntArrayRef dilation,
                       int64_t groups) {
  return {stride.vec(), padding.vec(), dilation.vec(), std::vector<int64_t>(stride.size()),
          false,        groups};
}

Convolution transposed_of(IntArrayRef padding, IntArrayRef output_padding, IntArrayRef stride,
                          IntArrayRef dilation, int64_t groups) {
  return {stride.vec(), padding.vec(), dilation.vec(), output_padding.vec(), true, groups};
}

Tensor mps_convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias,
                       IntArrayRef padding, IntArrayRef stride, IntArrayRef dilation,
                       int64_t groups) {
  return forward_of(padding, stride, dilation, groups)
      .result("aten::_mps_convolution", input, weight, bias);
}

Tensor mps_convolution_transpose(const Tensor& self, const Tensor& weight, IntArrayRef padding,
                                 IntArrayRef output_padding, IntArrayRef stride,
                                 IntArrayRef dilation, int64_t groups) {
  return transposed_of(padding, output_padding, stride, dilation, groups)
      .result("aten::_mps_convolution_transpose", self, weight, std::nullopt);
}

std::tuple<Tensor, Tensor, Tensor> mps_convolution_backward(const Tensor& self, const Tensor& grad,
                                                            const Tensor& weight,
                                                            IntArrayRef padding, IntArrayRef stride,
                                                            IntArrayRef dilation, int64_t groups,
                                                            std::array<bool, 3> mask) {
  const auto [grad_input, grad_weight] =
      forward_of(padding, stride, dilation, groups)
          .gradients("aten::mps_convolution_backward", grad, self, weight, mask[0], mask[1]);
  return {grad_input, grad_weight, Tensor()};
}

std::tuple<Tensor, Tensor> mps_convolution_transpose_backward(
    const Tensor& self, const Tensor& grad, const Tensor& weight, IntArrayRef padding,
    IntArrayRef output_padding, IntArrayRef stride, IntArrayRef dilation, int64_t groups,
    std::array<bool, 2> mask) {
  return transposed_of(padding, output_padding, stride, dilation, groups)
      .gradients("aten::mps_convolution_transpose_backward", grad, self, weight, mask[0], mask[1]);
}

// torch's Linux build knows no backend for mps, and calls this operator where its build for Macs
// calls those above.
Tensor convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  check_same_type(input, weight, "weight");
  const bool has_bias = bias && bias->defined();
  if (has_bias) check_same_type(input, *bias, "bias");
  TORCH_CHECK(input.is_floating_point() || input.is_complex(),
              "Convolution is supported only for Floating types");
  TORCH_CHECK(!transposed || input.dim() != 5 || !at::isReducedFloatingType(input.scalar_type()),
              "ConvTranspose 3D with BF16 or FP16 types is not supported on MPS");
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (!transposed) {
    return at::_mps_convolution(input, weight, bias, padding, stride, dilation, groups);
  }
  Tensor result = at::_mps_convolution_transpose(input, weight, padding, output_padding, stride,
                                                 dilation, groups);
  if (has_bias) {
    std::vector<int64_t> of_channels(input.dim(), 1);
    of_channels[1] = -1;
    result.add_(bias->view(of_channels));
  }
  return result;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input,
                                                        const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding,
                                                        int64_t groups,
                                                        std::array<bool, 3> output_mask) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  Tensor grad_input, grad_weight, grad_bias;
  if (transposed) {
    std::tie(grad_input, grad_weight) =
        at::mps_convolution_transpose_backward(input, grad, weight, padding, output_padding, stride,
                                               dilation, groups, {output_mask[0], output_mask[1]});
  } else {
    std::tie(grad_input, grad_weight, grad_bias) = at::mps_convolution_backward(
        input, grad, weight, padding, stride, dilation, groups, output_mask);
  }
  if (output_mask[2]) {
    std::vector<int64_t> dims{0};
    for (int64_t d = 2; d < grad.dim(); ++d) dims.push_back(d);
    grad_bias = grad.sum(dims);
  }
  return {grad_input, grad_weight, grad_bias};
}

std::tuple<Tensor, Tensor> attention_math(const Tensor& query, const Tensor& key,
                                          const Tensor& value, const optional<Tensor>& mask,
                                          double dropout, bool causal,
                                          const optional<Tensor>& dropout_mask,
                                          optional<double> scale, bool enable_gqa) {
  if (dropout > 0) {  // composed here, so that it draws from the mps generator
    return at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, causal,
                                                  dropout_mask, scale, enable_gqa);
  }
  CpuComposition call("aten::_scaled_dot_product_attention_math_for_mps",
                      {query, key, value, mask});
  const auto attend = [=](const Tensor& q, const Tensor& k, const Tensor& v,
                          const optional<Tensor>& m, const optional<Tensor>& d) {
    auto [output, weights] =
        at::_scaled_dot_product_attention_math(q, k, v, m, dropout, causal, d, scale, enable_gqa);
    return std::vector{output, weights};
  };
  const auto compute = [=, q = call.to_cpu(query), k = call.to_cpu(key), v = call.to_cpu(value),
                        m = call.to_cpu(mask),
                        d = call.to_cpu(dropout_mask)] { return attend(q, k, v, m, d); };
  const auto results = call.run(compute, [&] {
    return attend(like_on_meta(query), like_on_meta(key), like_on_meta(value), like_on_meta(mask),
                  like_on_meta(dropout_mask));
  });
  return {results[0], results[1]};
}

// Makes the checks of torch's own composition.
void check_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                     const optional<Tensor>& mask) {
  TORCH_CHECK(
      query.dtype() == key.dtype() && query.dtype() == value.dtype(),
      "Expected query, key, and value to have the same dtype, but got query.dtype: ", query.dtype(),
      " key.dtype: ", key.dtype(), " and value.dtype: ", value.dtype(), " instead.");
  TORCH_CHECK(query.device() == key.device() && query.device() == value.device(),
              "Expected query, key, and value to have the same device type, but got query.device: ",
              query.device(), " key.device: ", key.device(), " and value.device: ", value.device(),
              " instead.");
  TORCH_CHECK(query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2,
              "Expected query, key, and value to all be  at least 2 dimensional, but got "
              "query.dim: ",
              query.dim(), " key.dim: ", key.dim(), " and value.dim: ", value.dim(), " instead.");
  if (mask && mask->defined()) {
    TORCH_CHECK(mask->scalar_type() == at::kBool || mask->scalar_type() == at::kFloat ||
                    mask->dtype() == query.dtype(),
                "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
                "attn_mask.dtype: ",
                mask->dtype(), " and  query.dtype: ", query.dtype(), " instead.");
  }
}

// Computes attention as a differentiable composition: torch's own chooses a kernel through a table
// without an entry for MPS.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const optional<Tensor>& mask, double dropout, bool causal, optional<double> scale,
                 bool enable_gqa) {
  check_attention(query, key, value, mask);
  optional<Tensor> bias = mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool) {
    bias = at::zeros_like(*mask, query.options())
               .masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, bias, dropout, causal, std::nullopt, scale, enable_gqa));
}

// Returns 2 ** exponent, in the dtype of `self` if that is a reduced-precision one.
Tensor power_of_two(const Tensor& self, const Tensor& exponent) {
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/true) ||
      self.scalar_type() == at::kFloat) {
    return at::pow(2.0, exponent);
  }
  return at::full({}, 2.0, self.options()).pow(exponent);
}

// Multiplies by a power of two for every exponent, as a Mac does; for integral ones torch's Linux
// build calls a kernel that MPS does not have.
Tensor ldexp(const Tensor& self, const Tensor& exponent) {
  return at::mul(self, power_of_two(self, exponent));
}

Tensor& ldexp_out(const Tensor& self, const Tensor& exponent, Tensor& out) {
  return at::mul_out(out, self, power_of_two(self, exponent));
}

Tensor& ldexp_(Tensor& self, const Tensor& exponent) {
  return self.mul_(power_of_two(self, exponent));
}

// torch's own composition, with the device's generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, optional<bool> train) {
  const auto mask_options = input.options().dtype(at::kBool);
  if (input.numel() == 0) return {input, at::empty_like(input, mask_options)};
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, mask_options)};
  const double kept = 1 - p;
  Tensor mask = at::empty_like(input, mask_options).bernoulli_(kept);
  Tensor output = input.mul(mask).mul_(kept == 0 ? 0.0 : 1 / kept);
  return {std::move(output), std::move(mask)};
}

void check_linear_argument(const Tensor& tensor, const char* name, const char* plural) {
  TORCH_CHECK(tensor.is_floating_point() || tensor.is_complex(),
              "MPS device does not support linear for non-float ", plural);
  TORCH_CHECK(tensor.is_mps(), "Tensor for argument ", name, " is on ", tensor.device(),
              " but expected on mps");
}

// torch's own composition, after the checks that the MPS kernel makes.
Tensor linear(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias) {
  check_linear_argument(input, "input", "inputs");
  check_linear_argument(weight, "weight", "weights");
  if (bias && bias->defined()) check_linear_argument(*bias, "bias", "bias");
  return at::native::linear(input, weight, bias);
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("_mps_convolution", with_sym_ints<mps_convolution>);
  m.impl("_mps_convolution_transpose", with_sym_ints<mps_convolution_transpose>);
  m.impl("mps_convolution_backward", with_sym_ints<mps_convolution_backward>);
  m.impl("mps_convolution_transpose_backward", with_sym_ints<mps_convolution_transpose_backward>);
  m.impl("convolution_overrideable", with_sym_ints<convolution>);
  m.impl("convolution_backward_overrideable", with_sym_ints<convolution_backward>);
  m.impl("_scaled_dot_product_attention_math_for_mps", attention_math);
  m.impl("scaled_dot_product_attention", attention);
  m.impl("native_dropout", native_dropout);
  m.impl("linear", linear);
  m.impl("ldexp.Tensor", ldexp);
  m.impl("ldexp.out", ldexp_out);
  m.impl("ldexp_", ldexp_);
}

// Compositions of differentiable operators are registered above autograd too.
TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
  m.impl("scaled_dot_product_attention", attention);
  m.impl("linear", linear);
}

}  // namespace
}  // namespace metalops::device
