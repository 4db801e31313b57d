// The variables of the threads of a threadgroup that are shuffled where lanes may have diverged: a
// lane that takes no part in a shuffle gives the last value of its variable, as on a GPU.
#pragma once

#include <cstring>
#include <vector>

#include <exec/fiber/stacks.h>
#include <msl/abi.h>

namespace metalops::exec {

class LastValues {
 public:
  static constexpr uint32_t kMaxBytes = 64;

  struct Type {
    uint32_t variable;  // its number in the source
    uint32_t kind;      // equal for equal types
    uint32_t bytes;
  };

  // Forgets all variables.
  void clear() {
    if (!used_) return;
    for (std::vector<Variable>& variables : of_threads_) variables.clear();
    used_ = false;
  }
  // A thread enters the scope of a variable; `path`: of the thread.
  void declare(uint32_t thread, const Type& type, const void* address, const msl::abi::Path& path) {
    if (type.bytes > kMaxBytes) return;
    used_ = true;
    Variable& variable = place_for(thread, type.variable);
    variable.type = type;
    variable.address = address;
    variable.path.assign(path.steps, path.steps + path.depth);
  }
  // A thread leaves the scope: the value stays.
  void leave_scope(uint32_t thread, uint32_t number) {
    Variable* const found = in_scope(thread, number);
    if (found == nullptr) return;
    std::memcpy(found->last, found->address, found->type.bytes);
    found->address = nullptr;
    found->left = waits_[thread];
  }
  // A thread has waited: the others have passed what it has run before.
  void has_waited(uint32_t thread) { ++waits_[thread]; }
  // Returns the last value of a thread's variable, or null if the thread did not declare it
  // together with the thread `reader`. Valid until the thread runs again.
  const void* find(uint32_t thread, uint32_t reader, uint32_t number) {
    const Variable* const own = in_scope(reader, number);
    if (own == nullptr) return nullptr;
    for (Variable& variable : of_threads_[thread]) {
      const Type& type = variable.type;
      if (type.variable != number || type.kind != own->type.kind || variable.path != own->path) {
        continue;
      }
      if (variable.address != nullptr) {
        std::memcpy(variable.last, variable.address, type.bytes);
      }
      return variable.last;
    }
    return nullptr;
  }

 private:
  struct Variable {
    Type type;
    const void* address;         // null outside of its scope
    uint32_t left;               // how often the thread had waited when it left the scope
    std::vector<uint32_t> path;  // of its thread, at the declaration
    alignas(kMaxBytes) unsigned char last[kMaxBytes];
  };

  Variable* in_scope(uint32_t thread, uint32_t number) {
    for (Variable& variable : of_threads_[thread]) {
      if (variable.type.variable == number && variable.address != nullptr) return &variable;
    }
    return nullptr;
  }
  // A thread may run through a scope several times before the others come to it: some of its
  // variables are kept until it waits for them.
  Variable& place_for(uint32_t thread, uint32_t number) {
    Variable* replaced = nullptr;
    uint32_t kept = 0;
    for (Variable& variable : of_threads_[thread]) {
      if (variable.type.variable != number || variable.address != nullptr) continue;
      if (variable.left != waits_[thread]) return variable;
      replaced = &variable;
      ++kept;
    }
    return kept < kKept ? of_threads_[thread].emplace_back() : *replaced;
  }

  static constexpr uint32_t kKept = 16;

  bool used_ = false;
  uint32_t waits_[FiberStacks::kMaxStacks] = {};
  std::vector<Variable> of_threads_[FiberStacks::kMaxStacks];
};

}  // namespace metalops::exec
