// Calls of ATen operators with C values: arguments and results are converted as the schema says,
// and the dispatcher chooses the kernel. On a Mac these functions call the kernels of `mps`
// directly; here a kernel may be ours or a stand-in.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <aoti/aten_call.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch_internals.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace metalops::aoti {
namespace {

using c10::IValue;
using c10::TypeKind;

// Returns the operator `base.overload` for one of the ways to cut `base_overload` in two, or for
// the whole name without an overload.
std::optional<c10::OperatorHandle> find_by_joined_name(const std::string& name) {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto found = dispatcher.findSchema({"aten::" + name, ""});
  for (size_t cut = name.rfind('_'); !found && cut != std::string::npos && cut > 0;
       cut = name.rfind('_', cut - 1)) {
    found = dispatcher.findSchema({"aten::" + name.substr(0, cut), name.substr(cut + 1)});
  }
  return found;
}

c10::OperatorHandle find(std::string name) {
  auto found = find_by_joined_name(name);
  if (!found) {
    const size_t version = name.rfind("_v");
    if (version != std::string::npos) found = find_by_joined_name(name.substr(0, version));
  }
  TORCH_CHECK_NOT_IMPLEMENTED(found, "this torch has no operator aten::", name);
  return *found;
}

template <class T>
const T& value_at(const void* address) {
  return *static_cast<const T*>(address);
}

// Returns the number of bytes of a C value of this type.
size_t size_in_c(const c10::Type& type) {
  switch (type.kind()) {
    case TypeKind::BoolType:
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType:
      return sizeof(int32_t);
    default:
      return sizeof(void*);  // also that of int64_t and double
  }
}

// Returns the type by which the dispatcher knows the elements of a list.
c10::TypePtr element_type(const c10::TypePtr& type) {
  return type->kind() == TypeKind::SymIntType ? c10::IntType::get() : type;
}

// Converts the C value at an address; `second` is the length of a list or the index of a device.
IValue load(const c10::Type& type, const void* address, int64_t second) {
  switch (type.kind()) {
    case TypeKind::TensorType:
      return *torch::aot_inductor::tensor_handle_to_tensor_pointer(
          value_at<AtenTensorHandle>(address));
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return value_at<int64_t>(address);
    case TypeKind::FloatType:
      return value_at<double>(address);
    case TypeKind::NumberType:
      return c10::Scalar(value_at<double>(address));
    case TypeKind::BoolType:
      return value_at<int32_t>(address) != 0;
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType:
      return static_cast<int64_t>(value_at<int32_t>(address));
    case TypeKind::StringType:
      return value_at<const char*>(address);
    case TypeKind::DeviceObjType:
      return c10::Device(static_cast<c10::DeviceType>(value_at<int32_t>(address)),
                         static_cast<c10::DeviceIndex>(second));
    case TypeKind::GeneratorType:
      return *torch::aot_inductor::generator_handle_to_generator_pointer(
          value_at<AtenGeneratorHandle>(address));
    case TypeKind::OptionalType: {
      const void* const value = value_at<const void*>(address);
      const c10::Type& contained = *type.containedType(0);
      return value == nullptr ? IValue() : load(contained, value, second);
    }
    case TypeKind::ListType: {
      const c10::TypePtr& contained = type.containedType(0);
      const char* const elements = value_at<const char*>(address);
      internals::GenericList list(element_type(contained));
      list.reserve(second);
      for (int64_t i = 0; i < second; ++i) {
        list.push_back(load(*contained, elements + i * size_in_c(*contained), 0));
      }
      return list;
    }
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "no C value for an argument of type ", type.str());
  }
}

void store(const IValue& value, void* address) {
  if (value.isTensor()) {
    *static_cast<AtenTensorHandle*>(address) =
        torch::aot_inductor::new_tensor_handle(at::Tensor(value.toTensor()));
  } else if (value.isBool()) {
    *static_cast<int32_t*>(address) = value.toBool();
  } else if (value.isInt() || value.isSymInt()) {
    *static_cast<int64_t*>(address) = value.toSymInt().expect_int();
  } else {
    *static_cast<double*>(address) = value.toScalar().toDouble();
  }
}

}  // namespace

AOTITorchError call(const char* name, std::initializer_list<Argument> arguments,
                    std::initializer_list<void*> results) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    const c10::OperatorHandle op = find(name);
    torch::jit::Stack stack;
    for (const c10::Argument& parameter : op.schema().arguments()) {
      const auto given = std::ranges::find(arguments, parameter.name(), &Argument::name);
      if (given != arguments.end()) {
        stack.push_back(load(*parameter.real_type(), given->address(), given->second()));
      } else {
        stack.push_back(parameter.default_value().value_or(IValue()));
      }
    }
    {
      // The caller differentiates nothing.
      at::AutoDispatchBelowADInplaceOrView without_autograd;
      op.callBoxed(stack);
    }
    const IValue* value = stack.data();
    for (void* const result : results) {
      if (result != nullptr) store(*value, result);
      ++value;
    }
  })
}

}  // namespace metalops::aoti
