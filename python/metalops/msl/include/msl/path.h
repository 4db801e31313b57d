// Emitted around loops, calls and declarations that may contain a simdgroup operation: keeps the
// thread's Path up to date.
#pragma once

#include <msl/config.h>

namespace msl::msl_support {

// Returns the running thread's path. A call of a kernel belongs to one thread from beginning to
// end, however often it waits, so that one query is enough for all positions in it.
__attribute__((const, noinline)) inline abi::Path* current_path() { return msl_runtime->path(); }

// RAII: a call or loop that the thread is in, from the constructor to leave().
class Inside {
 public:
  MSL_INLINE explicit Inside(abi::u32 id) : path_(current_path()), depth_(path_->depth) {
    if (depth_ == abi::Path::kMaxDepth) {
      msl_runtime->fail("calls and loops around simdgroup operations are nested too deeply");
    }
    path_->steps[depth_] = id;
    path_->steps[depth_ + 1] = 0;
    path_->depth = depth_ + 2;
  }
  Inside(const Inside&) = delete;
  MSL_INLINE ~Inside() { leave(); }

  MSL_INLINE void leave() {
    if (path_ != nullptr) path_->depth = depth_;
    path_ = nullptr;
  }

 protected:
  abi::Path* path_;
  const abi::u32 depth_;
};

class Loop : public Inside {
 public:
  using Inside::Inside;
  // Counts a completed iteration.
  MSL_INLINE void next() { ++path_->steps[depth_ + 1]; }
  MSL_INLINE bool next(bool again) {
    next();
    return again;
  }
};

// `(Call(id), f((Operand(), x), (Operand(), y)))` is f(x, y), inside. If f returns nothing, C++'s
// own comma leaves the call at the end of the whole expression.
class Call : public Inside {
 public:
  using Inside::Inside;
};

template <class T>
MSL_INLINE T operator,(Call&& call, T&& value) {
  call.leave();
  return static_cast<T&&>(value);
}

// Counts operands as they are evaluated, because the order depends on the compiler.
struct Operand {};

template <class T>
MSL_INLINE T operator,(Operand&&, T&& value) {
  abi::Path* const path = current_path();
  ++path->steps[path->depth - 1];
  return static_cast<T&&>(value);
}

}  // namespace msl::msl_support
