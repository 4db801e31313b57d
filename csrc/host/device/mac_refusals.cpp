#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <device/mac_refusals.h>
#include <metal/scalar_types.h>

#include <map>
#include <string>

namespace metalops::device {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

const at::Tensor& tensor(Arguments arguments, size_t i) { return arguments[i].toTensor(); }

bool is_complex(Arguments arguments, size_t i) { return tensor(arguments, i).is_complex(); }

// The Metal type of an element as it stands in the names of torch's kernels.
std::string metal_type(const at::Tensor& tensor) {
  return at::native::mps::scalarToMetalTypeString(tensor.scalar_type());
}

void index_reduce(Arguments arguments) {
  const auto type = tensor(arguments, 0).scalar_type();
  TORCH_CHECK(type != at::kLong, "index_reduce for MPS does not support torch.long dtype");
  TORCH_CHECK(type != at::kComplexFloat,
              "index_reduce for MPS does not support torch.cfloat dtype");
}

// Raises for factors with an imaginary part: the MPS kernel takes double.
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

// round.decimals; the other overload takes no number.
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

}  // namespace

Refusal find_refusal(const std::string& operator_name) {
  static const std::map<std::string, Refusal> kRefusals = {
      {"aten::index_reduce", &index_reduce},
      {"aten::index_reduce_", &index_reduce},
      {"aten::addmm", &addmm},
      {"aten::addmm_", &addmm},
      {"aten::addr", &addr},
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
