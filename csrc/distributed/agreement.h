// Consistency check of collectives: verifies that all ranks make the same call. Gloo does not send
// sizes ahead, so mismatched calls end processes, mix up results or hang. The first time that a
// rank makes a call, it therefore announces the call through the group's store. The rank that
// announces second sees whether both calls match, and raises instead of starting if they do not. As
// long as ranks agree they have seen the same calls, so all of them know when nothing is left to
// compare, and repeated calls cost nothing. A waiting rank looks into the store after a second.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_set>

namespace metalops::distributed {

// Calls that some ranks make in the same order: the collectives of a group, or the messages from
// one rank to another with one tag.
class Agreement {
 public:
  // The kind of calls; its words appear in error messages.
  struct Scope {
    std::string calls;  // "collective"; part of the keys in the store
    std::string verb;   // of a rank that makes such a call, as in "rank 1 calls ..."
    int size;           // number of ranks that take part
    std::string advice;
  };
  Agreement(c10::intrusive_ptr<c10d::Store> store, int rank, Scope scope);

  // One call of a rank.
  struct Call {
    int64_t number;     // among the calls of the scope
    bool told = false;  // announced to the other ranks
  };
  // A readable description of a call, equal on all ranks that make the same call. `known_to_some`
  // is empty on ranks that do not know it, and compared among those that do.
  struct Description {
    std::string call;
    std::string known_to_some{};
  };
  using Describe = std::function<Description()>;

  // Starts a call. Raises RuntimeError after ranks have disagreed: from then on they are not at the
  // same call.
  Call begin();
  // Announces a new call to the other ranks and waits up to `patience` for them to announce theirs;
  // raises RuntimeError with the mismatch. A rank that has not come by then sees the announcement
  // later. `key` is equal for equal descriptions.
  void compare(Call& call, std::string key, const Describe& describe,
               std::chrono::milliseconds patience);
  // Called by a waiting rank: raises RuntimeError if a disagreement is known by now. `tells`:
  // announces the own call even if no other rank has announced one.
  void look(Call& call, const Describe& describe, bool tells);

 private:
  void tell(Call& call, const Describe& describe);
  [[noreturn]] void disagree(const std::string& text);
  c10d::Store& store();
  std::string key_of(const Call& call, const char* name) const;
  std::string key_of_disagreement() const;

  const c10::intrusive_ptr<c10d::Store> shared_;
  const int rank_;
  const Scope scope_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> store_;
  int64_t calls_ = 0;
  std::unordered_set<std::string> known_;
  std::string disagreement_;
};

}  // namespace metalops::distributed
