// What is compared in which group, and how long ranks give each other.
#pragma once
#include <csrc/distributed/agreement.h>

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace metalops::distributed {

// Longer than the second after which a rank that waits looks what others told. Who is later than
// that, or has been killed, is left to Gloo, which notices closed connections. A call that is to
// return at once waits as short as that allows, and only the first time.
constexpr std::chrono::milliseconds kPatience{10'000}, kPatienceOfAsync{2'000};

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The collectives of a group; null if nothing is to be compared.
std::shared_ptr<Agreement> agreement_on_collectives(const Group& group);

// The messages of one rank to another with one tag; source -1: of any. Null if they are not to be
// compared: programs may use any number of tags, and what comes from any rank has no order.
std::shared_ptr<Agreement> agreement_on_messages(const Group& group, int64_t source,
                                                 int64_t destination, int64_t tag);

}  // namespace metalops::distributed
