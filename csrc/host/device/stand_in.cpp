// StandIn: calls CPU kernels on the memory of mps arguments, boxed and unboxed.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <device/aliases.h>
#include <device/device.h>
#include <device/generator.h>
#include <device/mac_refusals.h>
#include <device/recorder.h>
#include <device/stand_in.h>
#include <device/stream_work.h>
#include <device/widen.h>
#include <torch/library.h>
#include <torch_internals.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace metalops::device {
namespace {

// Returns true for operators whose tensor list holds indices, which may be on the CPU.
bool takes_indices(const std::string& name) {
  static const std::set<std::string> kNames = {"aten::index",         "aten::_index_put_impl_",
                                               "aten::index_put_",    "aten::index_put",
                                               "aten::_unsafe_index", "aten::_unsafe_index_put"};
  return kNames.count(name) != 0;
}

// Returns true for operators that torch registers on the MPS key by hand (MPSFallback.mm). A Mac
// runs their CPU composition on copies, which autograd differentiates; a stand-in would hide it.
bool forced_to_cpu(const std::string& overload) {
  return overload == "aten::linalg_svd" || overload == "aten::linalg_svd.U";
}

bool is_generator(const c10::Argument& argument) {
  const auto& type = argument.type();
  if (type->kind() == c10::TypeKind::GeneratorType) return true;
  auto optional = type->cast<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// Calls one operator's CPU kernel on the memory of its mps arguments.
class StandIn final : public c10::OperatorKernel {
 public:
  explicit StandIn(const c10::OperatorHandle& op, c10::DispatchKey cpu_key = c10::DispatchKey::CPU)
      : name_(c10::toString(op.operator_name())),
        takes_indices_(takes_indices(op.schema().name())),
        refusal_(cpu_key == c10::DispatchKey::CPU ? find_refusal(op.schema().name()) : nullptr),
        mutable_(op.schema().is_mutable()),
        queueable_(cpu_key == c10::DispatchKey::CPU && is_queueable(op)),
        kernel_(op, cpu_key) {
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (is_generator(arguments[i])) generator_at_ = i;
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    record_stand_in(name_);
    const size_t arguments = op.schema().arguments().size();
    const size_t first = stack->size() - arguments;
    if (refusal_ != nullptr) refusal_(c10::ArrayRef<c10::IValue>(stack->data() + first, arguments));
    if (takes_indices_) check_indexed((*stack)[first].toTensor());
    std::optional<MetaCall> queued;
    if (is_stream_work()) {
      const c10::ArrayRef<c10::IValue> given(stack->data() + first, arguments);
      check_arguments(name_, op.schema(), given);
      if (queueable_ && !streams::is_current_default()) queued = call_on_meta(op, given);
      if (queued) resize_outputs(name_, op.schema(), given, *queued);
    }
    Aliases aliases(queued ? Aliases::Call::kQueued : Aliases::Call::kNow);
    std::optional<bool> to_mps;  // requested by a device argument
    for (size_t i = first; i < stack->size(); ++i) to_cpu((*stack)[i], aliases, to_mps);
    aliases.check_same_device();
    const bool wrap = to_mps.value_or(aliases.saw_mps());
    std::optional<RandomStream> random;
    // An mps generator also dispatches here with CPU tensors. They get the CPU kernel, which
    // rejects the generator.
    if (generator_at_ && wrap) {
      c10::IValue& generator = (*stack)[first + *generator_at_];
      random.emplace(generator.isGenerator() ? std::optional<at::Generator>(generator.toGenerator())
                                             : std::nullopt);
      generator = random->cpu();
    }
    if (C10_UNLIKELY(queued.has_value())) {
      queue(op, stack, aliases, queued->results, random);
      return;
    }
    kernel_.call(op, stack);
    if (mutable_) aliases.write_back();
    const size_t returns = op.schema().returns().size();
    const size_t first_return = stack->size() - returns;
    if (random) advance(*random, returns == 0 ? c10::IValue() : (*stack)[first_return]);
    for (size_t i = first_return; i < stack->size(); ++i) from_cpu((*stack)[i], aliases, wrap);
    if (is_stream_work()) {
      check_results(name_, c10::ArrayRef<c10::IValue>(stack->data() + first_return, returns));
    }
  }

  // Unboxed variant, for an operator that takes tensors and numbers and returns a tensor.
  template <class... Args>
  at::Tensor call(const c10::TypedOperatorHandle<at::Tensor(Args...)>& op, Args... args) {
    if ((may_refuse(args) || ...) || is_stream_work()) {
      torch::jit::Stack stack;
      (stack.emplace_back(args), ...);
      (*this)(op, c10::DispatchKeySet(c10::DispatchKey::MPS), &stack);
      return std::move(stack[0]).toTensor();
    }
    record_stand_in(name_);
    Aliases aliases;
    const std::tuple<std::decay_t<Args>...> arguments{to_cpu(args, aliases)...};
    aliases.check_same_device();
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor result = std::apply(
        [&](const auto&... cpu) {
          return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), cpu...);
        },
        arguments);
    return aliases.saw_mps() ? aliases.to_mps(result) : result;
  }

 private:
  static bool may_refuse(const at::Tensor& tensor) { return CpuKernel::may_refuse(tensor); }
  static bool may_refuse(const c10::Scalar&) { return false; }

  template <class Tensor>
  static at::Tensor to_cpu(Tensor&& tensor, Aliases& aliases) {
    if (tensor.defined()) check_computable(tensor.scalar_type());
    return aliases.to_cpu(std::forward<Tensor>(tensor));
  }
  static const c10::Scalar& to_cpu(const c10::Scalar& number, Aliases&) { return number; }

  static void check_indexed(const at::Tensor& self) {
    TORCH_CHECK(self.device().is_mps(),
                "indices should be either on cpu or on the same device as the indexed tensor (",
                self.device(), ")");
  }

  // `result`: the first one, if any.
  static void advance(RandomStream& random, const c10::IValue& result) {
    random.advance(result.isTensor() ? result.toTensor().numel() : 1);
  }

  // Queues a call whose arguments on the stack are those of the CPU kernel; results take their
  // place. `metas`: like the results.
  void queue(const c10::OperatorHandle& op, torch::jit::Stack* stack, Aliases& aliases,
             const torch::jit::Stack& metas, std::optional<RandomStream>& random) {
    const auto& schema = op.schema();
    const size_t first = stack->size() - schema.arguments().size();
    if (random) advance(*random, metas.empty() ? c10::IValue() : metas[0]);
    torch::jit::Stack arguments;
    for (size_t i = first; i < stack->size(); ++i) arguments.push_back(own((*stack)[i], aliases));

    std::vector<at::Tensor> made;
    for (size_t i = 0; i < metas.size(); ++i) {
      if (is_made(schema.returns()[i])) add_tensors(metas[i], made);
    }
    made =
        queue_results(name_, aliases, made, [this, op, arguments = std::move(arguments)]() mutable {
          kernel_.call(op, &arguments);
          std::vector<at::Tensor> computed;
          for (size_t i = 0; i < arguments.size(); ++i) {
            if (is_made(op.schema().returns()[i])) add_tensors(arguments[i], computed);
          }
          return computed;
        });

    torch::jit::Stack results;
    auto next = made.begin();
    for (size_t i = 0; i < metas.size(); ++i) {
      if (!is_made(schema.returns()[i])) {
        results.push_back((*stack)[first + written_argument(schema, schema.returns()[i])]);
        from_cpu(results.back(), aliases, true);
      } else if (metas[i].isTensor()) {
        results.emplace_back(*next++);
      } else {
        c10::List<at::Tensor> list;
        for (size_t k = metas[i].toListRef().size(); k != 0; --k) list.push_back(*next++);
        results.emplace_back(std::move(list));
      }
    }
    torch::jit::drop(*stack, schema.arguments().size());
    for (c10::IValue& result : results) stack->push_back(std::move(result));
  }

  // Returns true for a result that is not one of the arguments.
  static bool is_made(const c10::Argument& result) { return result.alias_info() == nullptr; }

  // Returns the position of the argument that a result is.
  static size_t written_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
    const auto& arguments = schema.arguments();
    const auto found =
        std::find_if(arguments.begin(), arguments.end(), [&](const c10::Argument& argument) {
          return argument.alias_info() != nullptr && *argument.alias_info() == *result.alias_info();
        });
    TORCH_INTERNAL_ASSERT(found != arguments.end());
    return static_cast<size_t>(found - arguments.begin());
  }

  static void add_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
    visit_tensors(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  }

  // Copies what the host may change before the call runs: numbers and indices on the CPU.
  static c10::IValue own(const c10::IValue& value, const Aliases& aliases) {
    if (value.isTensor()) return own(value.toTensor(), aliases);
    if (!value.isOptionalTensorList()) return value;
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional<at::Tensor>(own(*tensor, aliases)) : std::nullopt);
    }
    return list;
  }

  static at::Tensor own(const at::Tensor& tensor, const Aliases& aliases) {
    const bool is_kept =
        !tensor.defined() || internals::is_wrapped_number(tensor) || aliases.is_alias(tensor);
    return is_kept ? tensor : tensor.clone();
  }

  void to_cpu(c10::IValue& value, Aliases& aliases, std::optional<bool>& to_mps) const {
    if (value.isTensor()) {
      value = to_cpu(std::move(value).toTensor(), aliases);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (at::Tensor& tensor : value.toTensorVector())
        list.push_back(list_item(std::move(tensor), aliases));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional<at::Tensor>(list_item(*tensor, aliases))
                              : std::nullopt);
      }
      value = std::move(list);
    } else if (value.isDevice()) {
      to_mps = value.toDevice().is_mps();
      value = c10::Device(c10::kCPU);
    }
  }

  at::Tensor list_item(at::Tensor tensor, Aliases& aliases) const {
    if (tensor.defined()) check_computable(tensor.scalar_type());
    const bool index_on_cpu = takes_indices_ && tensor.defined() && tensor.device().is_cpu();
    return index_on_cpu ? tensor : aliases.to_cpu(std::move(tensor));
  }

  static void from_cpu(c10::IValue& value, Aliases& aliases, bool wrap) {
    if (!wrap) return;
    if (value.isTensor()) {
      value = aliases.to_mps(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector())
        list.push_back(aliases.to_mps(tensor));
      value = std::move(list);
    }
  }

  const std::string name_;
  const bool takes_indices_;
  const Refusal refusal_;
  const bool mutable_;
  const bool queueable_;
  CpuKernel kernel_;
  std::optional<size_t> generator_at_;
};

template <class... Args>
torch::CppFunction unboxed_stand_in(const c10::OperatorHandle& op) {
  return torch::CppFunction([stand_in = std::make_shared<StandIn>(op),
                             cpu = op.typed<at::Tensor(Args...)>()](Args... args) {
    return stand_in->call<Args...>(cpu, args...);
  });
}

// Returns the signature of an operator, 'T' per tensor and 'S' per number; empty if it takes
// anything else, writes an argument or does not return one tensor.
std::string tensors_and_numbers(const c10::FunctionSchema& schema) {
  if (schema.is_mutable() || schema.returns().size() != 1) return {};
  if (schema.returns()[0].type()->kind() != c10::TypeKind::TensorType) return {};
  std::string kinds;
  for (const c10::Argument& argument : schema.arguments()) {
    const auto kind = argument.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::NumberType) return {};
    kinds += kind == c10::TypeKind::TensorType ? 'T' : 'S';
  }
  return kinds;
}

// Returns the kernel of an operator. Operators that are called often for little work have few
// signatures; their arguments are not boxed. Boxing takes half the time of such a call, and the GIL
// for tensors of Python's.
torch::CppFunction stand_in(const c10::OperatorHandle& op) {
  using T = const at::Tensor&;
  using S = const c10::Scalar&;
  if (find_refusal(op.schema().name()) == nullptr) {
    const std::string kinds = tensors_and_numbers(op.schema());
    if (kinds == "T") return unboxed_stand_in<T>(op);
    if (kinds == "TT") return unboxed_stand_in<T, T>(op);
    if (kinds == "TS") return unboxed_stand_in<T, S>(op);
    if (kinds == "TTS") return unboxed_stand_in<T, T, S>(op);
    if (kinds == "TSS") return unboxed_stand_in<T, S, S>(op);
    if (kinds == "TTT") return unboxed_stand_in<T, T, T>(op);
  }
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<StandIn>(op));
}

void forced_cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  record_stand_in(c10::toString(op.operator_name()));
  at::native::cpu_fallback(op, stack);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  allocator().recordStream(self.storage().data_ptr(), stream);
}

// Raises for a stock operator for which torch's Linux build has no kernel at all.
void no_software_kernel(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The operator '", op.schema().operator_name(),
      "' runs on the MPS device of a Mac, but the software mps device of metalops has no kernel "
      "for it, because torch's CPU backend has none.");
}

bool fallback_enabled() {
  static const bool enabled = [] {
    const char* text = std::getenv("PYTORCH_ENABLE_MPS_FALLBACK");
    if (text == nullptr) return false;
    int value = 0;
    const char* const end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, value);
    TORCH_CHECK(error == std::errc() && stop == end,
                "PYTORCH_ENABLE_MPS_FALLBACK: expected an integer, but got '", text, "'");
    return value != 0;
  }();
  return enabled;
}

// Handles operators without a kernel on the MPS key, which stock MPS lacks.
void missing_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (fallback_enabled()) {
    TORCH_WARN_ONCE("The operator '", op.schema().operator_name(),
                    "' is not currently supported on the MPS backend and will fall back to run on "
                    "the CPU. This may have "
                    "performance implications.");
    StandIn stand_in(op);
    stand_in(op, c10::DispatchKeySet(c10::DispatchKey::MPS), stack);
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "The operator '", op.schema().operator_name(),
                              "' is not currently implemented for the MPS device. If you want this "
                              "op to be considered for addition please "
                              "comment on https://github.com/pytorch/pytorch/issues/141287 and "
                              "mention use-case, that resulted in missing op as "
                              "well as commit hash ",
                              internals::torch_commit(),
                              ". As a temporary fix, you can set the environment variable "
                              "`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for "
                              "this op. WARNING: this will be slower than "
                              "running natively on MPS.");
}

TORCH_LIBRARY_IMPL(_, MPS, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&missing_operator>());
}

}  // namespace

BoxedKernel stand_in_for(const c10::OperatorHandle& op, c10::DispatchKey cpu_key) {
  return [stand_in = std::make_shared<StandIn>(op, cpu_key)](const c10::OperatorHandle& op,
                                                             torch::jit::Stack* stack) {
    (*stand_in)(op, c10::DispatchKeySet(), stack);
  };
}

std::optional<c10::OperatorHandle> find_overload(const std::string& overload) {
  const size_t dot = overload.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {overload.substr(0, dot), dot == std::string::npos ? "" : overload.substr(dot + 1)});
}

StockOperators register_stock_operators(const std::vector<std::string>& overloads) {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::MPS, __FILE__,
                                __LINE__);
  StockOperators result;
  for (const std::string& overload : overloads) {
    const auto op = find_overload(overload);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::MPS)) continue;
    if (overload == "aten::record_stream") {
      library.impl(overload.c_str(), TORCH_FN(record_stream));
    } else if (forced_to_cpu(overload)) {
      library.impl(overload.c_str(),
                   torch::CppFunction::makeFromBoxedFunction<&forced_cpu_fallback>());
      result.stand_ins.push_back(overload);
    } else if (op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
      library.impl(overload.c_str(), stand_in(*op));
      result.stand_ins.push_back(overload);
    } else if (!op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
      library.impl(overload.c_str(),
                   torch::CppFunction::makeFromBoxedFunction<&no_software_kernel>());
      result.without_kernel.push_back(overload);
    }
  }
  return result;
}

}  // namespace metalops::device
