// Whether ranks that take part in something call the same. Where they do not, Gloo ends processes,
// mixes up results or waits: it sends no sizes ahead. So a rank tells the others through the
// group's store what it is about to do, the first time that it does it. Whoever comes second to
// tell sees whether both do the same, and if not it raises instead of beginning. As long as ranks
// agree they have seen the same, so they know it together when nothing is left to compare, and
// repeated calls cost nothing. A rank that waits for one where others compare looks there after a
// second.
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

// Calls that some ranks make in the same order: the collectives of a group, or what one rank sends
// to another with one tag.
class Agreement {
 public:
  // What the calls are; its words are those of the errors.
  struct Scope {
    std::string calls;  // "collective"; with that, keys of the store begin
    std::string verb;   // what a rank does with one
    int size;           // how many ranks take part
    std::string advice;
  };
  Agreement(c10::intrusive_ptr<c10d::Store> store, int rank, Scope scope);

  // One call of a rank.
  struct Call {
    int64_t number;     // among those of the scope
    bool told = false;  // to the other ranks
  };
  // What a call does, equal on all ranks that do the same; for people to read. What only some ranks
  // know of it is compared with those that know it too.
  struct Description {
    std::string call;
    std::string known_to_some{};
  };
  using Describe = std::function<Description()>;

  // RuntimeError after ranks disagreed: they have not begun the same calls since.
  Call begin();
  // Tells the other ranks what is new, and gives them some time to tell it too; key: equal for
  // equal descriptions. RuntimeError says what they call instead. A rank that has not come by then
  // will see itself what was told.
  void compare(Call& call, std::string key, const Describe& describe,
               std::chrono::milliseconds patience);
  // For a rank that waits: RuntimeError if ranks are known to disagree by now. tells: even if no
  // other has told what it calls.
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
