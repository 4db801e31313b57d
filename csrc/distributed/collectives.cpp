// c10d operators on mps tensors: the CPU operators, run by Gloo on the tensors' own memory.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <csrc/distributed/agreement_scopes.h>
#include <csrc/distributed/transfer.h>
#include <csrc/distributed/work.h>
#include <torch/library.h>
#include <torch/mps.h>

#include <mutex>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace metalops::distributed {
namespace {

using at::Tensor;
using c10::IValue;
using c10d::Backend;
using c10d::ProcessGroup;
using c10d::ReduceOp;
using c10d::Work;

// c10d operators, and their names in torch.distributed.
struct Operator {
  const char* schema;
  const char* name;
};
constexpr Operator kOperators[] = {
    {"allreduce_", "all_reduce"},
    {"allreduce_coalesced_", "all_reduce_coalesced"},
    {"broadcast_", "broadcast"},
    {"allgather_", "all_gather"},
    {"_allgather_base_", "all_gather_into_tensor"},
    {"allgather_coalesced_", "all_gather_coalesced"},
    {"allgather_into_tensor_coalesced_", "all_gather_into_tensor_coalesced"},
    {"reduce_scatter_", "reduce_scatter"},
    {"_reduce_scatter_base_", "reduce_scatter_tensor"},
    {"reduce_scatter_tensor_coalesced_", "reduce_scatter_tensor_coalesced"},
    {"reduce_", "reduce"},
    {"gather_", "gather"},
    {"scatter_", "scatter"},
    {"alltoall_", "all_to_all"},
    {"alltoall_base_", "all_to_all_single"},
    {"send", "send"},
    {"recv_", "recv"},
    {"recv_any_source_", "recv"},
    {"barrier", "barrier"},
    {"monitored_barrier_", "monitored_barrier"},
};

// Returns a group whose backend for CPU tensors is the group's backend for mps tensors.
c10::intrusive_ptr<ProcessGroup> with_backend_on_cpu(const c10::intrusive_ptr<ProcessGroup>& group,
                                                     const c10::intrusive_ptr<Backend>& backend) {
  if (group->hasBackendForDeviceType(c10::DeviceType::CPU) &&
      group->getBackend(c10::DeviceType::CPU) == backend) {
    return group;
  }
  auto face = c10::make_intrusive<ProcessGroup>(group->getRank(), group->getSize());
  face->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::CUSTOM, backend);
  return face;
}

class Collective final : public c10::OperatorKernel {
 public:
  explicit Collective(const Operator& op)
      : name_(op.name),
        sends_(name_ == "send"),
        receives_(name_ == "recv"),
        takes_parts_(name_ == "all_to_all_single"),
        is_collective_(!sends_ && !receives_ && name_.find("barrier") == std::string::npos) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& arguments = op.schema().arguments();
    const size_t begin = stack->size() - arguments.size();
    c10::intrusive_ptr<ProcessGroup> group;
    std::optional<ReduceOp> reduction;
    std::optional<int64_t> root;
    bool is_async = true;
    int64_t peer = -1, tag = 0;
    at::DimVector parts;
    bool in_equal_parts = takes_parts_;
    size_t at_group = 0;
    std::call_once(read_, [&] {
      for (const auto& argument : arguments) meanings_.push_back(meaning(argument.name()));
    });
    for (size_t i = 0; i < arguments.size(); ++i) {
      const IValue& value = (*stack)[begin + i];
      switch (meanings_[i]) {
        case Meaning::kGroup:
          group = value.toCustomClass<ProcessGroup>();
          at_group = begin + i;
          break;
        case Meaning::kReduction:
          reduction = *value.toCustomClass<ReduceOp>();
          break;
        case Meaning::kRoot:
          root = value.toInt();
          break;
        case Meaning::kAsync:
          is_async = value.toBool();
          break;
        case Meaning::kPeer:
          peer = value.toInt();
          break;
        case Meaning::kTag:
          tag = value.toInt();
          break;
        case Meaning::kOutputParts:
          parts = value.toDimVector();
          in_equal_parts = in_equal_parts && parts.empty();
          break;
        case Meaning::kInputParts:
          in_equal_parts = in_equal_parts && value.toDimVector().empty();
          break;
        default:
          break;
      }
    }
    TORCH_CHECK(group->hasBackendForDeviceType(c10::DeviceType::MPS), name_,
                ": the process group has no backend for mps tensors; create it with "
                "init_process_group(\"gloo\") or (\"cpu:gloo,mps:gloo\")");
    const auto backend = group->getBackend(c10::DeviceType::MPS);
    (*stack)[at_group] = with_backend_on_cpu(group, backend);
    const c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
    // Other backends handle mps tensors themselves.
    if (backend->getBackendName() != "gloo") return op.redispatchBoxed(cpu, stack);

    auto transfer = std::make_shared<Transfer>(name_, group->getGroupName(), group->getRank(),
                                               group->getSize(), reduction, root, in_equal_parts);
    std::optional<HostWork::Compared> compared;
    try {
      torch::mps::synchronize();
      const bool reads = sends_ || (name_ == "reduce" && root != group->getRank());
      for (size_t i = 0; i < arguments.size(); ++i) {
        IValue& value = (*stack)[begin + i];
        value = to_host(*transfer, std::move(value), role(meanings_[i], reads));
      }
      // Only tensors that other ranks write; the root of a broadcast has its data already.
      if (receives_ || (name_ == "broadcast" && root != group->getRank())) {
        transfer->expect_all_bytes();
      } else if (takes_parts_) {
        if (parts.empty()) parts.assign(group->getSize(), 1);
        transfer->expect_all_bytes(parts);
      }
      if (auto agreement = agreement_on(group, peer, tag)) {
        compared = {agreement, agreement->begin()};
        // The peer may wait for a message later, and a message to oneself cannot be waited for at
        // all.
        const auto patience = !is_collective_ ? std::chrono::milliseconds(0)
                              : is_async      ? kPatienceOfAsync
                                              : kPatience;
        agreement->compare(
            compared->call, transfer->key(), [&] { return transfer->description(); }, patience);
      }
      op.redispatchBoxed(cpu, stack);
    } catch (...) {
      transfer->check_all_bytes(false);
      transfer->rethrow_with_context();
    }
    for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
      IValue& value = (*stack)[i];
      if (value.isTensor() || value.isList()) {
        value = transfer->to_device(value);
      } else if (value.isCustomClass()) {
        value = c10::intrusive_ptr<Work>(c10::make_intrusive<HostWork>(
            value.toCustomClass<Work>(), transfer, std::move(compared)));
      }
    }
  }

 private:
  std::shared_ptr<Agreement> agreement_on(const Group& group, int64_t peer, int64_t tag) const {
    if (is_collective_) return agreement_on_collectives(group);
    if (sends_) return agreement_on_messages(group, group->getRank(), peer, tag);
    if (receives_) return agreement_on_messages(group, peer, group->getRank(), tag);
    return nullptr;
  }

  // The meaning of an argument, derived from its name.
  enum class Meaning {
    kOther,
    kGroup,
    kReduction,
    kRoot,
    kAsync,
    kPeer,
    kTag,
    kOutputParts,
    kInputParts,
    kInputs,
    kOutputs,
  };
  static Meaning meaning(std::string_view argument) {
    constexpr std::pair<const char*, Meaning> kMeanings[] = {
        {"process_group", Meaning::kGroup},
        {"reduce_op", Meaning::kReduction},
        {"root_rank", Meaning::kRoot},
        {"async_op", Meaning::kAsync},
        {"src", Meaning::kPeer},
        {"dst", Meaning::kPeer},
        {"tag", Meaning::kTag},
        {"output_split_sizes", Meaning::kOutputParts},
        {"input_split_sizes", Meaning::kInputParts},
    };
    for (const auto& [name, meaning] : kMeanings) {
      if (argument == name) return meaning;
    }
    if (argument.substr(0, 5) == "input") return Meaning::kInputs;
    return argument.substr(0, 6) == "output" ? Meaning::kOutputs : Meaning::kOther;
  }

  static Role role(Meaning meaning, bool reads) {
    if (reads || meaning == Meaning::kInputs) return Role::kReads;
    return meaning == Meaning::kOutputs ? Role::kWrites : Role::kUpdates;
  }

  static IValue to_host(Transfer& transfer, IValue value, Role role) {
    if (value.isTensor()) return transfer.to_host(value.toTensor(), role);
    if (value.isTensorList()) {
      c10::List<Tensor> result;
      for (const Tensor& tensor : value.toTensorVector())
        result.push_back(transfer.to_host(tensor, role));
      return result;
    }
    if (value.isList()) {
      const auto list = value.toList();
      if (!list.elementType()->isSubtypeOf(*c10::ListType::ofTensors())) return value;
      auto result = list.copy();
      for (size_t i = 0; i < list.size(); ++i) result.set(i, to_host(transfer, list.get(i), role));
      return result;
    }
    return value;
  }

  const std::string name_;
  const bool sends_, receives_, takes_parts_;
  const bool is_collective_;
  std::once_flag read_;
  std::vector<Meaning> meanings_;
};

TORCH_LIBRARY_IMPL(c10d, MPS, m) {
  for (const Operator& op : kOperators) {
    m.impl(op.schema, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Collective>(op)));
  }
}

}  // namespace
}  // namespace metalops::distributed
