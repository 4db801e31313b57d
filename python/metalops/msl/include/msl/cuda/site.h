// The active mask: which lanes of a simdgroup run a piece of code together.
//
// In programs in which operators and similar functions contain simdgroup operations
// (MSL_NOTED_SITES, which emitted code defines), a thread records the Site that it is in.
#pragma once

namespace msl::abi {

struct Site {
  u32 mask = 0xffffffffu;  // lanes of the warp

  // Diverges: splits the lanes by the condition. Called by all lanes of the site.
  MSL_INLINE bool part(bool condition, Site& yes, Site& no) const {
    yes.mask = ::__ballot_sync(mask, condition);
    no.mask = mask & ~yes.mask;
    (condition ? yes : no).enter();
    return condition;
  }
  // For a loop: removes the lanes for which the condition does not hold.
  MSL_INLINE bool stay(bool condition) {
    mask = ::__ballot_sync(mask, condition);
    enter();
    return condition;
  }
  // Reconverges after code that lanes may have left early: by continue (1), break (2) or return
  // (3).
  MSL_INLINE void join(u32 left) {
    mask = ::__ballot_sync(mask, left == 0);
    enter();
  }
  // At the end of a loop's body: returns true if this lane leaves the loop.
  MSL_INLINE bool leave(u32& left) {
    const bool leaves = left > 1;
    mask = ::__ballot_sync(mask, !leaves);
    enter();
    if (!leaves) left = 0;
    return leaves;
  }

#if MSL_NOTED_SITES
  MSL_INLINE void enter() const { note() = mask; }
  template <class T>
  MSL_INLINE T&& after(T&& value) const {
    enter();
    return static_cast<T&&>(value);
  }
  static MSL_INLINE Site noted() { return {note()}; }

 private:
  static MSL_INLINE u32& note() {
    __shared__ u32 notes[1024];
    return notes[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
  }
#else
  MSL_INLINE void enter() const {}
#endif
};

#if MSL_NOTED_SITES
// RAII for a function call: records the function's Site, and restores that of the caller.
struct Noted {
  Site before;
  MSL_INLINE explicit Noted(Site site) : before(site) { site.enter(); }
  MSL_INLINE ~Noted() { before.enter(); }
};
#endif

}  // namespace msl::abi
