// Checks a torch tensor against a kernel's tensor argument and describes it.
#include <metal/tensor_argument.h>

#include <ATen/core/TensorBase.h>
#include <c10/util/Exception.h>

#include <sstream>
#include <string_view>

#include <metal/scalar_types.h>

namespace metalops {
namespace {

using c10::ScalarType;
using msl::abi::Argument;
using msl::abi::TensorArgument;

// Returns how many elements of the argument one element of the dtype holds; 0 if it holds none.
int64_t elements_in(ScalarType dtype, const TensorArgument& argument) {
  const std::string_view element = argument.element;
  const bool is_format =
      element.find("_format") != std::string_view::npos && argument.element_bits <= 8;
  if (!is_format) return at::native::mps::scalarToMetalTypeString(dtype) == element ? 1 : 0;
  if (dtype == ScalarType::Byte || dtype == ScalarType::Char) return 8 / argument.element_bits;
  switch (dtype) {
    case ScalarType::Float8_e4m3fn:
      return element == "metal_fp8_e4m3_format";
    case ScalarType::Float8_e5m2:
      return element == "metal_fp8_e5m2_format";
    case ScalarType::Float8_e8m0fnu:
      return element == "metal_fp8_ue8m0_format";
    case ScalarType::Float4_e2m1fn_x2:
      return element == "metal_fp4_e2m1_format" ? 2 : 0;
    default:
      return 0;
  }
}

std::string name_of(const Argument& argument, const exec::Kernel& kernel) {
  std::ostringstream text;
  text << "Metal kernel '" << kernel.name << "': argument '" << argument.name << "' (buffer "
       << argument.index << ", '" << argument.type << "')";
  return text.str();
}

}  // namespace

const Argument* tensor_argument(const exec::Kernel& kernel, unsigned buffer) {
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const Argument& argument = kernel.arguments[i];
    if (argument.tensor != nullptr && argument.index == static_cast<int>(buffer)) return &argument;
  }
  return nullptr;
}

msl::abi::Tensor as_argument(const at::TensorBase& tensor, const Argument& argument,
                             const exec::Kernel& kernel) {
  const TensorArgument& wanted = *argument.tensor;
  TORCH_CHECK(tensor.defined() && tensor.device().is_mps(), name_of(argument, kernel),
              " takes a tensor on mps");
  TORCH_CHECK_NOT_IMPLEMENTED(wanted.has_scales == 0, name_of(argument, kernel),
                              " has a plane of scales, which no torch tensor has; make the tensor "
                              "in the kernel, of tensor_inline");
  const int64_t packed = elements_in(tensor.scalar_type(), wanted);
  TORCH_CHECK_TYPE(packed != 0, name_of(argument, kernel), " has elements of ", wanted.element,
                   ", but got a tensor of ", tensor.scalar_type());
  TORCH_CHECK_VALUE(tensor.dim() == wanted.rank, name_of(argument, kernel), " has ", wanted.rank,
                    " dimensions, but got a tensor of shape ", tensor.sizes());
  msl::abi::Tensor bound{const_cast<void*>(tensor.const_data_ptr()), {}, {}};
  const int64_t most =
      wanted.index_bits >= 64 ? INT64_MAX : (int64_t{1} << (wanted.index_bits - 1)) - 1;
  for (uint32_t d = 0; d < wanted.rank; ++d) {
    const int64_t from = wanted.rank - 1 - d;
    const bool is_innermost = d == 0;
    const int64_t size = tensor.size(from) * (is_innermost ? packed : 1);
    TORCH_CHECK_VALUE(!is_innermost || tensor.stride(from) == 1 || tensor.size(from) <= 1,
                      name_of(argument, kernel),
                      ": the elements of a row must follow each other, but the strides are ",
                      tensor.strides());
    const int64_t stride = is_innermost ? 1 : tensor.stride(from) * packed;
    TORCH_CHECK_VALUE(wanted.extents[d] < 0 || wanted.extents[d] == size, name_of(argument, kernel),
                      " has extent ", wanted.extents[d], " in dimension ", d,
                      ", counted from the innermost, but got a tensor of shape ", tensor.sizes());
    TORCH_CHECK_VALUE(size <= most && stride <= most, name_of(argument, kernel),
                      " counts elements in ", wanted.index_bits,
                      " bits, which do not hold the sizes and strides of a tensor of shape ",
                      tensor.sizes(), " and strides ", tensor.strides());
    bound.extents[d] = size;
    bound.strides[d] = stride;
  }
  exec::note_address_taken(tensor.storage().data(), tensor.storage().nbytes());
  return bound;
}

}  // namespace metalops
