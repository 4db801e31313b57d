// Retries CPU kernels in a wider dtype, and remembers per signature which dtype they take.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <device/widen.h>
#include <torch_internals.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace metalops::device {
namespace {

using c10::IValue;
using c10::ScalarType;

// Returns the dtypes to try in place of a rejected one. Bool is widened to integers first, which
// preserves integer semantics; integers to double, which represents all 32-bit values, unless they
// are combined with float32 tensors.
c10::ArrayRef<ScalarType> wider(ScalarType refused) {
  static constexpr std::array kFloat = {ScalarType::Float};
  static constexpr std::array kComplex = {ScalarType::ComplexFloat};
  static constexpr std::array kInteger = {ScalarType::Double, ScalarType::Float};
  static constexpr std::array kBool = {ScalarType::Byte, ScalarType::Float};
  static constexpr std::array kUnsigned = {ScalarType::Long, ScalarType::Double};
  switch (refused) {
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return kFloat;
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::Int:
    case ScalarType::Long:
      return kInteger;
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

// Returns the dtype that a CPU kernel reports as not implemented.
std::optional<ScalarType> refused_dtype(const std::string& message) {
  static const std::string kPhrase = internals::kNotImplementedFor;
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

// Returns true for operators whose CPU kernel accepts 16-bit floats but computes wrong results with
// them; the reason is given for each.
bool is_wrong_in_halves(const std::string& operator_name) {
  static const std::array kNames = {
      "aten::_fused_sgd_",  // in each 16 elements its vector path uses gradients of other ones
  };
  return std::find(kNames.begin(), kNames.end(), operator_name) != kNames.end();
}

bool is_half(const at::Tensor& tensor) {
  return tensor.defined() && at::isReducedFloatingType(tensor.scalar_type());
}

bool has_halves(const IValue& value) {
  if (value.isTensor()) return is_half(value.toTensor());
  if (!value.isTensorList()) return false;
  const auto tensors = value.toTensorVector();
  return std::any_of(tensors.begin(), tensors.end(), is_half);
}

bool may_be_refused(const IValue& value) {
  if (value.isTensor()) return CpuKernel::may_refuse(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (CpuKernel::may_refuse(tensor)) return true;
    }
  }
  return false;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_dtype(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::ScalarTypeType;
}

// Returns the complex dtypes of a rejected float dtype and of its wider one: they are widened
// together (polar makes complex numbers from two floats).
std::optional<std::pair<ScalarType, ScalarType>> complex_companions(ScalarType refused,
                                                                    ScalarType wide) {
  if (refused != ScalarType::Half || wide != ScalarType::Float) return std::nullopt;
  return std::make_pair(ScalarType::ComplexHalf, ScalarType::ComplexFloat);
}

// One call with every `refused` argument replaced by a `wide` copy.
class WideCall {
 public:
  // A call with all 16-bit floats replaced.
  static WideCall of_halves(const c10::OperatorHandle& op, c10::DispatchKeySet key) {
    WideCall call(op, key, ScalarType::BFloat16, ScalarType::Float);
    call.pairs_.push_back({ScalarType::Half, ScalarType::Float});
    return call;
  }

  WideCall(const c10::OperatorHandle& op, c10::DispatchKeySet key, ScalarType refused,
           ScalarType wide)
      : op_(op), key_(key) {
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
    op_.redispatchBoxed(key_, stack);
    for (auto& [narrow, copy] : written_) {
      const bool grows_by_copy = narrow.is_sparse();
      if (!grows_by_copy && !narrow.sizes().equals(copy.sizes())) narrow.resize_(copy.sizes());
      narrow.copy_(copy);
    }
    const size_t first = stack->size() - schema.returns().size();
    for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = narrow((*stack)[i]);
  }

 private:
  struct Pair {
    ScalarType narrow;
    ScalarType wide;
    bool keep_wide = false;  // the call itself requests results of the wide dtype
  };

  at::Tensor widen(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    for (const auto& [narrow, copy] : written_) {
      if (narrow.is_same(tensor)) return copy;
    }
    for (Pair& pair : pairs_) {
      if (tensor.scalar_type() == pair.narrow) {
        at::Tensor copy = tensor.to(pair.wide);
        if (internals::is_wrapped_number(tensor)) internals::set_wrapped_number(copy);
        if (written) written_.emplace_back(tensor, copy);
        return copy;
      }
      pair.keep_wide |= tensor.scalar_type() == pair.wide && tensor.dim() != 0;
    }
    if (written) unchanged_.push_back(tensor);
    return tensor;
  }

  IValue widen(const IValue& value, const c10::Argument& argument) {
    const bool written = is_written(argument);
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
  const c10::DispatchKeySet key_;
  c10::SmallVector<Pair, 2> pairs_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // (narrow argument, wide copy)
  std::vector<at::Tensor> unchanged_;
};

// Saved contents of the operands that an operator writes, restored after a kernel has written part
// of them and then rejected a dtype.
class WrittenOperands {
 public:
  WrittenOperands(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_written(op.schema().arguments()[i])) continue;
      if (arguments[i].isTensor()) add(arguments[i].toTensor());
      if (arguments[i].isTensorList()) {
        for (const at::Tensor& tensor : arguments[i].toTensorVector()) add(tensor);
      }
    }
    if (bytes_ > kMostBytes) return;
    for (Saved& saved : saved_) saved.copy = saved.tensor.clone();
  }

  bool can_restore() const { return bytes_ <= kMostBytes; }

  void restore() const {
    for (const Saved& saved : saved_) {
      if (!saved.tensor.is_sparse())
        internals::set_geometry(saved.tensor, saved.sizes, saved.strides);
      saved.tensor.copy_(saved.copy);
    }
  }

 private:
  // Filling a tensor of many gigabytes must not take twice its memory.
  static constexpr size_t kMostBytes = size_t{1} << 30;

  struct Saved {
    at::Tensor tensor;
    at::Tensor copy;
    c10::DimVector sizes;
    c10::DimVector strides;
  };

  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const at::Tensor memory =
        tensor.is_sparse() ? internals::sparse_impl(tensor)->values() : tensor;
    saved_.push_back(Saved{tensor, at::Tensor(), c10::DimVector(memory.sizes()),
                           c10::DimVector(memory.strides())});
    bytes_ += memory.nbytes();
  }

  c10::SmallVector<Saved, 2> saved_;
  size_t bytes_ = 0;
};

// Larger integers are taken for sizes, smaller ones for modes (reductions, dimensions).
constexpr int64_t kLargestMode = 16;

// Encodes the properties of a tensor that may decide a kernel's code path.
uint64_t code(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  return 1 | static_cast<uint64_t>(tensor.scalar_type()) << 1 |
         static_cast<uint64_t>(std::min<int64_t>(tensor.dim(), 31)) << 8 |
         static_cast<uint64_t>(tensor.numel() == 0) << 13 |
         static_cast<uint64_t>(!tensor.is_sparse() && tensor.is_contiguous()) << 14 |
         // Wrapped numbers are contiguous: only sparse tensors have bit 15 without bit 14.
         static_cast<uint64_t>(tensor.is_sparse() || internals::is_wrapped_number(tensor)) << 15;
}

// Appends each kind of tensor in a list once, so that lists of all lengths have few signatures.
template <typename Tensors>
void append_list(c10::SmallVectorImpl<uint8_t>& out, const Tensors& tensors) {
  c10::SmallVector<uint64_t, 4> codes;
  for (const auto& tensor : tensors) {
    const uint64_t one = code(tensor);
    if (std::find(codes.begin(), codes.end(), one) != codes.end()) continue;
    codes.push_back(one);
    out.push_back(static_cast<uint8_t>(one));
    out.push_back(static_cast<uint8_t>(one >> 8));
  }
}

}  // namespace

bool CpuKernel::may_refuse(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() != at::kFloat &&
         tensor.scalar_type() != at::kDouble;
}

CpuKernel::CpuKernel(const c10::OperatorHandle& op, c10::DispatchKey key) : key_(key) {
  for (const c10::Argument& argument : op.schema().arguments()) {
    is_dtype_.push_back(is_dtype(argument));
    in_place_ |= is_written(argument) && !argument.is_out();
  }
  wrong_in_halves_ = is_wrong_in_halves(op.schema().name());
}

CpuKernel::~CpuKernel() {
  for (const Remembered* one = remembered_; one != nullptr;) {
    delete std::exchange(one, one->next);
  }
}

CpuKernel::Signature CpuKernel::signature(c10::ArrayRef<IValue> arguments) const {
  Signature out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const IValue& value = arguments[i];
    if (value.isTensor()) {
      const uint64_t one = code(value.toTensor());
      out.push_back(static_cast<uint8_t>(one));
      out.push_back(static_cast<uint8_t>(one >> 8));
    } else if (value.isTensorList()) {
      append_list(out, value.toTensorVector());
      out.push_back(0);
    } else if (value.isOptionalTensorList()) {
      c10::SmallVector<at::Tensor, 4> tensors;
      for (const auto& tensor : value.toOptionalTensorVector())
        tensors.push_back(tensor.value_or(at::Tensor()));
      append_list(out, tensors);
      out.push_back(0);
    } else if (value.isBool()) {
      out.push_back(value.toBool());
    } else if (value.isInt()) {
      const int64_t number = value.toInt();
      const bool counts = is_dtype_[i] || std::abs(number) <= kLargestMode;
      out.push_back(counts ? static_cast<uint8_t>(number) : 0x80);
    } else if (value.isString()) {
      for (const char letter : value.toStringView()) out.push_back(static_cast<uint8_t>(letter));
      out.push_back(0);
    } else {
      out.push_back(value.isNone() ? 0 : value.isComplexDouble() ? 2 : 1);
    }
  }
  return out;
}

const CpuKernel::Remembered* CpuKernel::find(const Signature& signature) const {
  for (const Remembered* one = remembered_.load(std::memory_order_acquire); one != nullptr;
       one = one->next) {
    if (one->signature == signature) return one;
  }
  return nullptr;
}

void CpuKernel::remember(Signature signature, std::optional<Widening> widening) {
  auto* one = new Remembered{std::move(signature), widening, remembered_};
  while (!remembered_.compare_exchange_weak(one->next, one, std::memory_order_acq_rel)) {
  }
}

void CpuKernel::call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const size_t first = stack->size() - op.schema().arguments().size();
  bool keep = false;
  for (size_t i = first; i < stack->size() && !keep; ++i) keep = may_be_refused((*stack)[i]);
  if (!keep) return op.redispatchBoxed(key_, stack);

  const c10::SmallVector<IValue, 8> arguments(stack->begin() + static_cast<int64_t>(first),
                                              stack->end());
  if (wrong_in_halves_ && std::any_of(arguments.begin(), arguments.end(), has_halves)) {
    stack->resize(first);
    return WideCall::of_halves(op, key_).run(arguments, stack);
  }
  Signature this_one = signature(arguments);
  const Remembered* known = find(this_one);
  if (known != nullptr && known->widening) {
    const auto [narrow, wide] = *known->widening;
    const auto candidates = wider(narrow);
    for (const ScalarType* type = std::find(candidates.begin(), candidates.end(), wide);; ++type) {
      stack->resize(first);
      try {
        return WideCall(op, key_, narrow, *type).run(arguments, stack);
      } catch (const std::exception&) {
        // Other values may need the next dtype: negative ones of a bool do not fit in a byte.
        if (in_place_ || type + 1 == candidates.end()) throw;
      }
    }
  }

  std::optional<WrittenOperands> written;
  if (known == nullptr) written.emplace(op, arguments);
  std::optional<ScalarType> refused;
  std::exception_ptr refusal;
  try {
    op.redispatchBoxed(key_, stack);
    if (known == nullptr) remember(std::move(this_one), std::nullopt);
    return;
  } catch (const c10::Error& error) {
    refused = refused_dtype(error.what_without_backtrace());
    if (!refused || wider(*refused).empty()) throw;
    // The kernel may have written operands that another run would read.
    if (written ? !written->can_restore() : in_place_) throw;
    refusal = std::current_exception();
  }
  const auto candidates = wider(*refused);
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (written) written->restore();
    stack->resize(first);
    try {
      WideCall(op, key_, *refused, candidates[i]).run(arguments, stack);
      return remember(std::move(this_one), Widening{*refused, candidates[i]});
    } catch (const std::exception& error) {
      if (i + 1 != candidates.size()) continue;
      // Integers may also be indices or targets: an error about them as floating-point numbers is
      // not the caller's.
      if (at::isIntegralType(*refused, /*includeBool=*/true) || refused_dtype(error.what())) {
        std::rethrow_exception(refusal);
      }
      throw;
    }
  }
}

}  // namespace metalops::device
