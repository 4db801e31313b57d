// Whether all ranks call the same collective. Where they do not, Gloo ends processes, mixes up
// results or waits: it sends no sizes ahead. Here ranks compare through the group's store what they
// are about to do, the first time that it is done in the group. As long as they agree they have
// seen the same, so they know it together when nothing is left to compare, and repeated collectives
// cost nothing. A rank that waits for one where others compare looks there after a second.
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

// The collectives of one group.
class Agreement {
 public:
  Agreement(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  // One call of a rank.
  struct Call {
    int64_t number;     // of the collectives of the group
    bool told = false;  // to the other ranks
  };
  // What a call does, equal on all ranks that do the same; for people to read, and asked for only
  // where it is compared.
  using Signature = std::function<std::string()>;

  Call begin();
  // Compares with the other ranks what is new; key: equal for equal signatures. RuntimeError says
  // what they call instead, DistStoreError that not all have called within the timeout.
  void compare(Call& call, std::string key, const Signature& signature,
               std::chrono::milliseconds timeout);
  // For a rank that waits: RuntimeError if another has said by now that it calls something else.
  void look(Call& call, const Signature& signature);

 private:
  void tell(Call& call, const Signature& signature);
  static std::string key_of(const Call& call, const char* name);

  const c10::intrusive_ptr<c10d::Store> shared_;
  const int rank_;
  const int size_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> store_;
  int64_t calls_ = 0;
  std::unordered_set<std::string> known_;
};

}  // namespace metalops::distributed
