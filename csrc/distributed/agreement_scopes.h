// Selects the calls that are compared in a group, and how long ranks wait for each other.
#pragma once
#include <csrc/distributed/agreement.h>

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace metalops::distributed {

// Longer than the second after which a waiting rank looks into the store. A rank that is later than
// that, or has been killed, is left to Gloo, which notices closed connections. An asynchronous call
// waits as briefly as that allows, and only the first time.
constexpr std::chrono::milliseconds kPatience{10'000}, kPatienceOfAsync{2'000};

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// Returns the agreement on the collectives of a group; null if nothing is to be compared.
std::shared_ptr<Agreement> agreement_on_collectives(const Group& group);

// Returns the agreement on the messages from one rank to another with one tag; source -1 stands for
// any rank. Null if they are not compared: programs may use any number of tags, and messages from
// any rank have no order.
std::shared_ptr<Agreement> agreement_on_messages(const Group& group, int64_t source,
                                                 int64_t destination, int64_t tag);

}  // namespace metalops::distributed
