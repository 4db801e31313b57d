#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>
#include <device/widen.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace metalops::device {
namespace {

using c10::IValue;
using c10::ScalarType;

// Types to try in the place of a refused one. Bool goes through integers first, so that integer
// semantics stay.
c10::ArrayRef<ScalarType> wider(ScalarType refused) {
  static constexpr std::array kFloat = {ScalarType::Float};
  static constexpr std::array kComplex = {ScalarType::ComplexFloat};
  static constexpr std::array kBool = {ScalarType::Byte, ScalarType::Float};
  static constexpr std::array kUnsigned = {ScalarType::Long, ScalarType::Float};
  static constexpr std::array kLong = {ScalarType::Double};
  switch (refused) {
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::Int:
      return kFloat;
    case ScalarType::Long:
      return kLong;
    case ScalarType::Bool:
      return kBool;
    case ScalarType::UInt16:
    case ScalarType::UInt32:
    case ScalarType::UInt64:
      return kUnsigned;
    case ScalarType::ComplexHalf:
      return kComplex;
    default:
      return {};
  }
}

// The dtype that a CPU kernel says it is not implemented for.
std::optional<ScalarType> refused_dtype(const std::string& message) {
  static const std::string kPhrase = "not implemented for '";
  const size_t at = message.find(kPhrase);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + kPhrase.size();
  const std::string name = message.substr(begin, message.find('\'', begin) - begin);
  for (ScalarType type :
       {ScalarType::Half, ScalarType::BFloat16, ScalarType::Bool, ScalarType::Byte,
        ScalarType::Char, ScalarType::Short, ScalarType::Int, ScalarType::Long, ScalarType::UInt16,
        ScalarType::UInt32, ScalarType::UInt64, ScalarType::ComplexHalf}) {
    if (name == c10::toString(type)) return type;
  }
  return std::nullopt;
}

bool may_be_refused(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() != at::kFloat &&
         tensor.scalar_type() != at::kDouble;
}

bool may_be_refused(const IValue& value) {
  if (value.isTensor()) return may_be_refused(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (may_be_refused(tensor)) return true;
    }
  }
  return false;
}

void redispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// Complex numbers of a refused float type are widened with it (polar makes them from two floats).
std::optional<std::pair<ScalarType, ScalarType>> complex_companions(ScalarType refused,
                                                                    ScalarType wide) {
  if (refused != ScalarType::Half || wide != ScalarType::Float) return std::nullopt;
  return std::make_pair(ScalarType::ComplexHalf, ScalarType::ComplexFloat);
}

// One call with every `refused` argument replaced by a `wide` copy.
class WideCall {
 public:
  WideCall(const c10::OperatorHandle& op, ScalarType refused, ScalarType wide) : op_(op) {
    pairs_.push_back({refused, wide});
    if (auto companions = complex_companions(refused, wide))
      pairs_.push_back({companions->first, companions->second});
  }

  void run(c10::ArrayRef<IValue> arguments, torch::jit::Stack* stack) {
    const auto& schema = op_.schema();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      stack->push_back(widen(arguments[i], argument));
    }
    redispatch(op_, stack);
    for (auto& [narrow, copy] : written_) {
      if (!narrow.sizes().equals(copy.sizes())) narrow.resize_(copy.sizes());
      narrow.copy_(copy);
    }
    const size_t first = stack->size() - schema.returns().size();
    for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = narrow((*stack)[i]);
  }

 private:
  struct Pair {
    ScalarType narrow;
    ScalarType wide;
    bool keep_wide = false;  // the call itself asks for results of the wide type
  };

  at::Tensor widen(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    for (const auto& [narrow, copy] : written_) {
      if (narrow.is_same(tensor)) return copy;
    }
    for (Pair& pair : pairs_) {
      if (tensor.scalar_type() == pair.narrow) {
        at::Tensor copy = tensor.to(pair.wide);
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
          copy.unsafeGetTensorImpl()->set_wrapped_number(true);
        if (written) written_.emplace_back(tensor, copy);
        return copy;
      }
      pair.keep_wide |= tensor.scalar_type() == pair.wide && tensor.dim() != 0;
    }
    if (written) unchanged_.push_back(tensor);
    return tensor;
  }

  IValue widen(const IValue& value, const c10::Argument& argument) {
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (value.isTensor()) return widen(value.toTensor(), written);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector())
        list.push_back(widen(tensor, written));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional<at::Tensor>(widen(*tensor, written)) : std::nullopt);
      }
      return list;
    }
    if (value.isInt() && is_dtype(argument)) {
      for (Pair& pair : pairs_) {
        if (value.toInt() == static_cast<int64_t>(pair.narrow))
          return static_cast<int64_t>(pair.wide);
        pair.keep_wide |= value.toInt() == static_cast<int64_t>(pair.wide);
      }
    }
    return value;
  }

  static bool is_dtype(const c10::Argument& argument) {
    c10::TypePtr type = argument.real_type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    return type->kind() == c10::TypeKind::ScalarTypeType;
  }

  at::Tensor narrow(const at::Tensor& result) const {
    if (!result.defined()) return result;
    for (const auto& [narrow, copy] : written_) {
      if (copy.is_same(result)) return narrow;
    }
    for (const at::Tensor& tensor : unchanged_) {
      if (tensor.is_same(result)) return result;
    }
    for (const Pair& pair : pairs_) {
      if (result.scalar_type() == pair.wide && !pair.keep_wide) return result.to(pair.narrow);
    }
    return result;
  }

  IValue narrow(const IValue& value) const {
    if (value.isTensor()) return narrow(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(narrow(tensor));
      return list;
    }
    return value;
  }

  const c10::OperatorHandle& op_;
  c10::SmallVector<Pair, 2> pairs_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // narrow argument, wide copy
  std::vector<at::Tensor> unchanged_;
};

}  // namespace

void call_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const size_t first = stack->size() - op.schema().arguments().size();
  bool keep = false;
  for (size_t i = first; i < stack->size() && !keep; ++i) keep = may_be_refused((*stack)[i]);
  if (!keep) return redispatch(op, stack);

  const c10::SmallVector<IValue, 8> arguments(stack->begin() + static_cast<int64_t>(first),
                                              stack->end());
  std::optional<ScalarType> refused;
  try {
    return redispatch(op, stack);
  } catch (const c10::Error& error) {
    refused = refused_dtype(error.what_without_backtrace());
    if (!refused || wider(*refused).empty()) throw;
  }
  const auto candidates = wider(*refused);
  for (size_t i = 0; i < candidates.size(); ++i) {
    stack->resize(first);
    try {
      return WideCall(op, *refused, candidates[i]).run(arguments, stack);
    } catch (const c10::Error& error) {
      const bool refused_again = refused_dtype(error.what_without_backtrace()).has_value();
      if (!refused_again || i + 1 == candidates.size()) throw;
    }
  }
}

}  // namespace metalops::device
