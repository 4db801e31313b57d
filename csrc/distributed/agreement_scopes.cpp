// The environment variables that select the check, and the Agreement objects of each group.
#include <csrc/distributed/agreement_scopes.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace metalops::distributed {
namespace {

using c10d::Backend;

enum class Check { kNothing, kCollectives, kAll };

// Returns the check that the environment selects. torch's own check of all collectives, which costs
// an exchange per call, makes ours unnecessary.
Check checked() {
  static const Check result = [] {
    const char* ours = std::getenv("METALOPS_DISTRIBUTED_CHECK");
    const char* torchs = std::getenv("TORCH_DISTRIBUTED_DEBUG");
    const std::string_view what = ours ? ours : "1";
    if (what == "0" || std::string_view(torchs ? torchs : "") == "DETAIL") return Check::kNothing;
    return what == "collectives" ? Check::kCollectives : Check::kAll;
  }();
  return result;
}

constexpr size_t kMostOrders = 64;

// Messages are numbered by counting those from mps tensors. If one of the two ranks has a message
// on the CPU, the counts differ.
constexpr char kAdvice[] =
    "; METALOPS_DISTRIBUTED_CHECK=collectives lets ranks send with one tag from mps and from the "
    "CPU what another takes on mps";

struct Agreements {
  c10::weak_intrusive_ptr<Backend> backend;
  std::shared_ptr<Agreement> collectives;
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::shared_ptr<Agreement>> messages;
  std::set<int64_t> tags_of_any;
};

// Calls `function` with the Agreements of a group; returns null for groups that are not compared.
template <typename Function>
std::shared_ptr<Agreement> with(const Group& group, const Function& function) {
  static std::mutex mutex;
  static std::unordered_map<const Backend*, Agreements> of_backends;
  if (group->getSize() < 2 || !group->getStore()) return nullptr;
  const auto backend = group->getBackend(c10::DeviceType::MPS);
  const std::lock_guard lock(mutex);
  auto found = of_backends.find(backend.get());
  if (found == of_backends.end() || found->second.backend.expired()) {
    Agreements fresh{c10::weak_intrusive_ptr<Backend>(backend)};
    found = of_backends.insert_or_assign(backend.get(), std::move(fresh)).first;
  }
  return function(found->second);
}

}  // namespace

std::shared_ptr<Agreement> agreement_on_collectives(const Group& group) {
  if (checked() == Check::kNothing) return nullptr;
  return with(group, [&](Agreements& agreements) {
    if (!agreements.collectives) {
      agreements.collectives = std::make_shared<Agreement>(
          group->getStore(), group->getRank(),
          Agreement::Scope{"collective", "calls", static_cast<int>(group->getSize()), ""});
    }
    return agreements.collectives;
  });
}

std::shared_ptr<Agreement> agreement_on_messages(const Group& group, int64_t source,
                                                 int64_t destination, int64_t tag) {
  if (checked() != Check::kAll) return nullptr;
  return with(group, [&](Agreements& agreements) -> std::shared_ptr<Agreement> {
    const bool receives = destination == group->getRank();
    if (source < 0) agreements.tags_of_any.insert(tag);
    if (receives && agreements.tags_of_any.count(tag) != 0) return nullptr;
    const auto key = std::tuple(source, destination, tag);
    const auto found = agreements.messages.find(key);
    if (found != agreements.messages.end()) return found->second;
    if (agreements.messages.size() == kMostOrders) return nullptr;
    const std::string calls = "message from rank " + std::to_string(source) + " to rank " +
                              std::to_string(destination) + " with tag " + std::to_string(tag);
    return agreements.messages[key] = std::make_shared<Agreement>(
               group->getStore(), group->getRank(), Agreement::Scope{calls, "has", 2, kAdvice});
  });
}

}  // namespace metalops::distributed
