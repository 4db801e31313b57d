// The operators of c10d on mps tensors: those of the CPU, on the tensors' own memory.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <csrc/distributed/agreement.h>
#include <csrc/distributed/transfer.h>
#include <csrc/distributed/work.h>
#include <torch/library.h>
#include <torch/mps.h>

#include <cstdlib>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unordered_map>

namespace metalops::distributed {
namespace {

using at::Tensor;
using c10::IValue;
using c10d::Backend;
using c10d::ProcessGroup;
using c10d::ReduceOp;
using c10d::Work;

// Operators of c10d, and what torch.distributed calls them.
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

// A group whose backend for CPU tensors is the one that the group has for mps tensors.
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

// Unless the environment says otherwise. torch's own check of all collectives, which costs an
// exchange each, makes ours needless.
bool checks() {
  static const bool result = [] {
    const char* ours = std::getenv("METALOPS_DISTRIBUTED_CHECK");
    const char* torchs = std::getenv("TORCH_DISTRIBUTED_DEBUG");
    return std::string_view(ours ? ours : "1") != "0" &&
           std::string_view(torchs ? torchs : "") != "DETAIL";
  }();
  return result;
}

// That of a group; null if nothing is to be compared.
std::shared_ptr<Agreement> agreement_of(const c10::intrusive_ptr<ProcessGroup>& group,
                                        const c10::intrusive_ptr<Backend>& backend) {
  struct Entry {
    c10::weak_intrusive_ptr<Backend> backend;
    std::shared_ptr<Agreement> agreement;
  };
  static std::mutex mutex;
  static std::unordered_map<const Backend*, Entry> entries;
  if (!checks() || group->getSize() < 2 || !group->getStore()) return nullptr;
  const std::lock_guard lock(mutex);
  const auto found = entries.find(backend.get());
  if (found != entries.end() && !found->second.backend.expired()) return found->second.agreement;
  auto agreement =
      std::make_shared<Agreement>(group->getStore(), group->getRank(), group->getSize());
  entries.insert_or_assign(backend.get(),
                           Entry{c10::weak_intrusive_ptr<Backend>(backend), agreement});
  return agreement;
}

class Collective final : public c10::OperatorKernel {
 public:
  explicit Collective(const Operator& op)
      : name_(op.name),
        sends_(name_ == "send"),
        is_collective_(!sends_ && name_ != "recv" && name_.find("barrier") == std::string::npos) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& arguments = op.schema().arguments();
    const size_t begin = stack->size() - arguments.size();
    c10::intrusive_ptr<ProcessGroup> group;
    std::optional<ReduceOp> reduction;
    std::optional<int64_t> root;
    bool is_async = true;
    std::chrono::milliseconds timeout{0};
    size_t at_group = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const IValue& value = (*stack)[begin + i];
      if (arguments[i].name() == "process_group") {
        group = value.toCustomClass<ProcessGroup>();
        at_group = begin + i;
      } else if (arguments[i].name() == "reduce_op") {
        reduction = *value.toCustomClass<ReduceOp>();
      } else if (arguments[i].name() == "root_rank") {
        root = value.toInt();
      } else if (arguments[i].name() == "async_op") {
        is_async = value.toBool();
      } else if (arguments[i].name() == "timeout") {
        timeout = std::chrono::milliseconds(value.toInt());
      }
    }
    TORCH_CHECK(group->hasBackendForDeviceType(c10::DeviceType::MPS), name_,
                ": the process group has no backend for mps tensors; create it with "
                "init_process_group(\"gloo\") or (\"cpu:gloo,mps:gloo\")");
    const auto backend = group->getBackend(c10::DeviceType::MPS);
    (*stack)[at_group] = with_backend_on_cpu(group, backend);
    const c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
    // Other backends take mps tensors themselves.
    if (backend->getBackendName() != "gloo") return op.redispatchBoxed(cpu, stack);

    auto transfer = std::make_shared<Transfer>(name_, group->getGroupName(), group->getRank(),
                                               group->getSize(), reduction, root);
    std::optional<HostWork::Compared> compared;
    try {
      torch::mps::synchronize();
      const bool reads = sends_ || (name_ == "reduce" && root != group->getRank());
      for (size_t i = 0; i < arguments.size(); ++i) {
        IValue& value = (*stack)[begin + i];
        value = to_host(*transfer, std::move(value), role(arguments[i].name(), reads));
      }
      if (auto agreement = is_collective_ ? agreement_of(group, backend) : nullptr) {
        compared = {agreement, agreement->begin()};
        // One that returns at once must not wait for the other ranks.
        if (!is_async) {
          if (timeout.count() <= 0) timeout = backend->getBackendOptions()->timeout;
          agreement->compare(
              compared->call, transfer->key(), [&] { return transfer->signature(); }, timeout);
        }
      }
      op.redispatchBoxed(cpu, stack);
    } catch (...) {
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
  static Role role(std::string_view argument, bool reads) {
    if (reads || argument.substr(0, 5) == "input") return Role::kReads;
    return argument.substr(0, 6) == "output" ? Role::kWrites : Role::kUpdates;
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
  const bool sends_;
  const bool is_collective_;
};

TORCH_LIBRARY_IMPL(c10d, MPS, m) {
  for (const Operator& op : kOperators) {
    m.impl(op.schema, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Collective>(op)));
  }
}

}  // namespace
}  // namespace metalops::distributed
