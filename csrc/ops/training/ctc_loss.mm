// Host side of kernels/training/ctc_loss.metal: _ctc_loss and _ctc_loss_backward, which
// torch.nn.functional.ctc_loss calls. Stock MPS lacks them up to torch 2.13; why ours replace those
// of later versions is below.
//
// Inputs of half precision, which stock MPS takes and the CPU does not, are computed in float.
// log_alpha stays float then: the sums of logarithms in it have too few digits in half precision
// for a gradient.
#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>
#include <kernels/training/ctc_loss.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <algorithm>
#include <string>
#include <tuple>

namespace {

using at::IntArrayRef;
using at::Tensor;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("ctc_loss"); }

// The arguments of a call, as the kernels take them.
struct Batch {
  Tensor log_probs;
  Tensor targets;  // int64
  Tensor lengths;  // of the inputs, of the targets, and the begin of each target
  metalops::CtcLossParameters parameters{};

  // Returns the size of a threadgroup: one thread for each state, as far as possible, since the
  // states of a step wait for those of the previous one.
  uint64_t threads() const {
    const auto width = static_cast<int64_t>(c10::metal::simdgroup_size);
    const auto enough = c10::metal::ceil_div(parameters.states, width) * width;
    return static_cast<uint64_t>(std::min<int64_t>(enough, 512));
  }

  at::DimVector alpha_sizes() const {
    return {parameters.batch, parameters.steps, parameters.states};
  }
};

bool computes_in_float(const Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == at::kFloat || c10::isReducedFloatingType(dtype);
}

// Checks the arguments as torch's CPU operator does, with its messages.
Batch check(const Tensor& log_probs, const Tensor& targets, IntArrayRef input_lengths,
            IntArrayRef target_lengths, int64_t blank) {
  constexpr at::CheckedFrom kName = "ctc_loss_allocate_outputs";
  const at::TensorArg log_probs_arg(log_probs, "log_probs", 1);
  const at::TensorArg targets_arg(targets, "targets", 2);
  metalops::check_same_device("_ctc_loss", {{log_probs, "log_probs"}, {targets, "targets"}});
  metalops::check_dtype(computes_in_float(log_probs), "ctc_loss", log_probs.scalar_type());
  TORCH_CHECK(log_probs.numel() > 0, "log_probs tensor must not be empty");
  at::checkScalarType(kName, targets_arg,
                      targets.scalar_type() == at::kLong ? at::kLong : at::kInt);
  at::checkDim(kName, log_probs_arg, 3);
  at::checkDimRange(kName, targets_arg, 1, 3);
  const auto batch = log_probs.size(1);
  TORCH_CHECK(0 <= blank && blank < log_probs.size(2), "blank must be in label range");
  TORCH_CHECK(static_cast<int64_t>(input_lengths.size()) == batch,
              "input_lengths must be of size batch_size");
  TORCH_CHECK(static_cast<int64_t>(target_lengths.size()) == batch,
              "target_lengths must be of size batch_size");

  const auto wide_targets = targets.to(at::kLong);
  const bool concatenated = targets.dim() == 1;
  const auto target_stride = wide_targets.stride(-1);
  const auto lengths = at::empty({3, batch}, at::TensorOptions(at::kLong));
  auto rows = lengths.accessor<int64_t, 2>();
  int64_t longest = 0;
  int64_t total = 0;
  for (int64_t i = 0; i < batch; ++i) {
    const auto length = target_lengths[i];
    TORCH_CHECK(length >= 0, "Expected target_lengths to have value at least ", 0,
                ", but got value ", length, " (while checking arguments for ", kName, ")");
    rows[0][i] = input_lengths[i];
    rows[1][i] = length;
    rows[2][i] = concatenated ? total * target_stride : i * wide_targets.stride(0);
    longest = std::max(longest, length);
    total += length;
  }
  at::checkSize(kName, targets_arg, 0, concatenated ? total : batch);
  TORCH_CHECK(concatenated || targets.size(1) >= longest, "Expected tensor to have size at least ",
              longest, " at dimension 1, but got size ", targets.size(1), " for ", targets_arg,
              " (while checking arguments for ", kName, ")");
  for (const auto length : input_lengths) {
    TORCH_CHECK(length >= 0, "Expected input_lengths to have value at least ", 0,
                ", but got value ", length, " (while checking arguments for ", kName, ")");
    TORCH_CHECK(length <= log_probs.size(0), "Expected input_lengths to have value at most ",
                log_probs.size(0), ", but got value ", length, " (while checking arguments for ",
                kName, ")");
  }
  Batch result{log_probs.to(at::kFloat), wide_targets, lengths.to(log_probs.device())};
  auto& parameters = result.parameters;
  parameters.steps = log_probs.size(0);
  parameters.batch = batch;
  parameters.labels = log_probs.size(2);
  parameters.states = 2 * longest + 1;
  parameters.blank = blank;
  std::copy_n(result.log_probs.strides().begin(), 3, parameters.log_probs_strides);
  parameters.target_stride = target_stride;
  return result;
}

// zero_infinity matters to the backward function only; ctc_loss handles it in the forward
// direction.
std::tuple<Tensor, Tensor> ctc_loss(const Tensor& log_probs, const Tensor& targets,
                                    IntArrayRef input_lengths, IntArrayRef target_lengths,
                                    int64_t blank, bool /*zero_infinity*/) {
  const auto batch = check(log_probs, targets, input_lengths, target_lengths, blank);
  const auto& parameters = batch.parameters;
  const auto options = batch.log_probs.options();
  auto losses = at::empty({parameters.batch}, options);
  auto log_alpha = at::empty(batch.alpha_sizes(), options);
  metalops::launch_threadgroups(kernels(), "ctc_loss_alpha", parameters.batch, batch.threads(),
                                losses, log_alpha, batch.log_probs, batch.targets, batch.lengths,
                                parameters, metalops::kErrorBuffer);
  return {losses.to(log_probs.scalar_type()), log_alpha};
}

Tensor ctc_loss_backward(const Tensor& grad, const Tensor& log_probs, const Tensor& targets,
                         IntArrayRef input_lengths, IntArrayRef target_lengths,
                         const Tensor& neg_log_likelihood, const Tensor& log_alpha, int64_t blank,
                         bool zero_infinity) {
  metalops::check_same_device("_ctc_loss_backward", {{grad, "grad"},
                                                     {log_probs, "log_probs"},
                                                     {targets, "targets"},
                                                     {neg_log_likelihood, "neg_log_likelihood"},
                                                     {log_alpha, "log_alpha"}});
  auto batch = check(log_probs, targets, input_lengths, target_lengths, blank);
  auto& parameters = batch.parameters;
  parameters.zero_infinity = zero_infinity;
  for (const auto& tensor : {grad, neg_log_likelihood, log_alpha}) {
    TORCH_CHECK(computes_in_float(tensor), "expected scalar type Float but found ",
                tensor.scalar_type());
  }
  for (const auto& tensor : {grad, neg_log_likelihood}) {
    TORCH_CHECK(tensor.dim() == 1 && tensor.numel() == parameters.batch,
                "_ctc_loss_backward expects one element for each of ", parameters.batch,
                " samples, but got a tensor of size ", tensor.sizes());
  }
  TORCH_CHECK(log_alpha.sizes() == IntArrayRef(batch.alpha_sizes()),
              "_ctc_loss_backward expects log_alpha of size ", batch.alpha_sizes(), ", but got ",
              log_alpha.sizes());
  const auto weights = grad.to(at::kFloat);
  parameters.grad_stride = weights.stride(0);

  const auto log_beta = at::empty(log_alpha.sizes(), batch.log_probs.options());
  const auto losses = at::empty({parameters.batch}, batch.log_probs.options());
  const auto alpha = log_alpha.to(at::kFloat).contiguous();
  const auto places = log_probs.options().dtype(at::kInt);
  const auto last = at::empty({parameters.batch, parameters.labels}, places);
  const auto previous = at::empty({parameters.batch, parameters.states / 2}, places);
  metalops::launch_threadgroups(kernels(), "ctc_loss_backward_beta", parameters.batch,
                                batch.threads(), log_beta, last, previous, losses, alpha,
                                batch.log_probs, batch.targets, batch.lengths, parameters,
                                metalops::kErrorBuffer);
  const auto grad_input =
      at::empty(log_probs.sizes(), batch.log_probs.options(), at::MemoryFormat::Contiguous);
  metalops::launch_threads(kernels(), "ctc_loss_backward", log_probs.numel(), grad_input, weights,
                           losses, alpha, log_beta, last, previous, batch.log_probs, batch.targets,
                           batch.lengths, parameters);
  return grad_input.to(log_probs.scalar_type());
}

// ---- lengths as tensors -------------------------------------------------------------------------
//
// The host needs the lengths to know the size of log_alpha. It copies them from whatever device
// they are on, as torch's own kernels do.

class Lengths {
 public:
  Lengths(const Tensor& lengths, const char* name) {
    TORCH_CHECK(at::isIntegralType(lengths.scalar_type(), /*includeBool=*/false), name,
                " must be integral");
    on_host_ = lengths.to(at::Device(at::kCPU), at::kLong).contiguous();
  }

  operator IntArrayRef() const {
    return {on_host_.const_data_ptr<int64_t>(), static_cast<size_t>(on_host_.numel())};
  }

 private:
  Tensor on_host_;
};

std::tuple<Tensor, Tensor> ctc_loss_tensor(const Tensor& log_probs, const Tensor& targets,
                                           const Tensor& input_lengths,
                                           const Tensor& target_lengths, int64_t blank,
                                           bool zero_infinity) {
  return ctc_loss(log_probs, targets, Lengths(input_lengths, "input_lengths"),
                  Lengths(target_lengths, "target_lengths"), blank, zero_infinity);
}

Tensor ctc_loss_backward_tensor(const Tensor& grad, const Tensor& log_probs, const Tensor& targets,
                                const Tensor& input_lengths, const Tensor& target_lengths,
                                const Tensor& neg_log_likelihood, const Tensor& log_alpha,
                                int64_t blank, bool zero_infinity) {
  return ctc_loss_backward(grad, log_probs, targets, Lengths(input_lengths, "input_lengths"),
                           Lengths(target_lengths, "target_lengths"), neg_log_likelihood, log_alpha,
                           blank, zero_infinity);
}

// torch 2.14 and 2.15 compute beta for 1024 states at a time, beginning with the first ones, which
// need those after them. And their gradient has one thread for each time step of a sample, which
// goes through all labels.
constexpr auto kReason = "gradients of targets with more than 511 labels are wrong";

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.replace("_ctc_loss", ctc_loss, kReason);
  m.replace("_ctc_loss.Tensor", ctc_loss_tensor, kReason);
  m.replace("_ctc_loss_backward", ctc_loss_backward, kReason);
  m.replace("_ctc_loss_backward.Tensor", ctc_loss_backward_tensor, kReason);
}

}  // namespace
