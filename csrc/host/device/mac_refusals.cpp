// Argument checks of stock MPS kernels, by operator.
#include <ATen/core/Tensor.h>
#include <ATen/native/ForeachUtils.h>
#include <c10/util/Exception.h>
#include <device/mac_refusals.h>
#include <metal/scalar_types.h>

#include <map>
#include <string>
#include <vector>

namespace metalops::device {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

const at::Tensor& tensor(Arguments arguments, size_t i) { return arguments[i].toTensor(); }

bool is_complex(Arguments arguments, size_t i) { return tensor(arguments, i).is_complex(); }

// Returns the Metal type of an element as the names of torch's kernels contain it.
std::string metal_type(const at::Tensor& tensor) {
  return at::native::mps::scalarToMetalTypeString(tensor.scalar_type());
}

void index_reduce(Arguments arguments) {
  const auto type = tensor(arguments, 0).scalar_type();
  TORCH_CHECK(type != at::kLong, "index_reduce for MPS does not support torch.long dtype");
  TORCH_CHECK(type != at::kComplexFloat,
              "index_reduce for MPS does not support torch.cfloat dtype");
}

// Raises for factors with an imaginary part: the MPS kernel takes them as double.
void factors_of_sum(Arguments arguments) {
  arguments[3].toScalar().toDouble();
  arguments[4].toScalar().toDouble();
}

void addmm(Arguments arguments) {
  if (tensor(arguments, 1).numel() != 0 && tensor(arguments, 2).numel() != 0)
    factors_of_sum(arguments);
}

void addr(Arguments arguments) {
  TORCH_CHECK(tensor(arguments, 1).is_floating_point() || is_complex(arguments, 1),
              "MPS device does not support addr for non-float input");
  addmm(arguments);
}

void renorm(Arguments arguments) {
  TORCH_CHECK(!is_complex(arguments, 0), "Failed to create function state object for: renorm_",
              metal_type(tensor(arguments, 0)));
}

void silu_of_complex(Arguments arguments) {
  const auto& self = tensor(arguments, 0);
  TORCH_CHECK(!self.is_complex(), "Failed to create function state object for: silu_",
              self.is_non_overlapping_and_dense() ? "dense" : "strided", "_castout_",
              metal_type(self));
}

// Checks round.decimals; the other overload takes no number.
void round_to_decimals(Arguments arguments) {
  if (arguments.size() < 2 || !arguments[1].isInt() || arguments[1].toInt() == 0) return;
  const auto& self = tensor(arguments, 0);
  TORCH_CHECK(self.is_floating_point(),
              "Failed to create function state object for: round_decimals_",
              self.is_non_overlapping_and_dense() ? "dense" : "strided", "_", metal_type(self), "_",
              metal_type(self), "_long");
}

void bicubic(Arguments arguments) {
  TORCH_CHECK(tensor(arguments, 0).is_floating_point(),
              "Failed to create function state object for: upsample_bicubic2d_",
              metal_type(tensor(arguments, 0)));
}

void bilinear_antialiased(Arguments arguments) {
  TORCH_CHECK(tensor(arguments, 0).is_floating_point(),
              "_upsample_bilineard2d_aa_out_mps only supports floating-point dtypes");
}

void bicubic_antialiased(Arguments arguments) {
  TORCH_CHECK(tensor(arguments, 0).is_floating_point(),
              "_upsample_bicubic2d_aa_out_mps only supports floating-point dtypes");
}

// Raises for bicubic interpolation of volumes, which torch's CPU kernel has since 2.15. `mode`: the
// position of the argument.
template <size_t mode>
void sampled_volume(Arguments arguments) {
  constexpr int64_t kBicubic = 2;
  TORCH_CHECK(arguments[mode].toInt() != kBicubic, "grid_sampler_3d", mode == 3 ? "_backward" : "",
              ": Unsupported Bicubic interpolation");
}

// Returns true if corresponding tensors of these lists have the same dense layout: a fused
// optimiser treats them as flat arrays.
bool lie_alike(Arguments arguments, std::initializer_list<size_t> which) {
  std::vector<std::vector<at::Tensor>> lists;
  for (const size_t i : which) lists.push_back(arguments[i].toTensorVector());
  if (lists[0].empty()) return true;
  return at::native::check_fast_path_restrictions(
      std::vector<at::TensorList>(lists.begin(), lists.end()));
}

void fused_sgd(Arguments arguments) {
  const bool has_momentum = arguments[2].toTensorVector().size() != 0;
  const char* const lists = has_momentum ? "params, grads, momentum_buffer_list" : "params, grads";
  const bool is_taken =
      has_momentum ? lie_alike(arguments, {0, 1, 2}) : lie_alike(arguments, {0, 1});
  TORCH_CHECK(is_taken, "Expected native::check_fast_path_restrictions({", lists,
              "}) to be true, but got false.  (Could this error message be improved?  If so, "
              "please report an enhancement request to PyTorch.)");
}

void fused_adam(Arguments arguments) {
  constexpr size_t kAmsgrad = 11;
  constexpr const char* kAlike = " must have same dtype, device, and layout";
  if (arguments[kAmsgrad].toBool()) {
    TORCH_CHECK(lie_alike(arguments, {0, 1, 2, 3, 4}),
                "params, grads, exp_avgs, exp_avg_sqs, and max_exp_avg_sqs", kAlike);
  } else {
    TORCH_CHECK(lie_alike(arguments, {0, 1, 2, 3}), "params, grads, exp_avgs, and exp_avg_sqs",
                kAlike);
  }
}

}  // namespace

Refusal find_refusal(const std::string& operator_name) {
  static const std::map<std::string, Refusal> kRefusals = {
      {"aten::index_reduce", &index_reduce},
      {"aten::index_reduce_", &index_reduce},
      {"aten::addmm", &addmm},
      {"aten::addmm_", &addmm},
      {"aten::addr", &addr},
      {"aten::_fused_adam_", &fused_adam},
      {"aten::_fused_adamw_", &fused_adam},
      {"aten::_fused_sgd_", &fused_sgd},
      {"aten::grid_sampler_3d", &sampled_volume<2>},
      {"aten::grid_sampler_3d_backward", &sampled_volume<3>},
      {"aten::renorm", &renorm},
      {"aten::renorm_", &renorm},
      {"aten::silu", &silu_of_complex},
      {"aten::silu_", &silu_of_complex},
      {"aten::round", &round_to_decimals},
      {"aten::round_", &round_to_decimals},
      {"aten::upsample_bicubic2d", &bicubic},
      {"aten::_upsample_bilinear2d_aa", &bilinear_antialiased},
      {"aten::_upsample_bicubic2d_aa", &bicubic_antialiased},
  };
  const auto found = kRefusals.find(operator_name);
  return found == kRefusals.end() ? nullptr : found->second;
}

}  // namespace metalops::device
