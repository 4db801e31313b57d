// Which lanes of a simdgroup run some code together.
#pragma once

namespace msl::abi {

struct Site {
  u32 mask = 0xffffffffu;

  // The lanes for which the condition holds, and the others. Every lane of the site calls it.
  MSL_INLINE bool part(bool condition, Site& yes, Site& no) const {
    yes.mask = ::__ballot_sync(mask, condition);
    no.mask = mask & ~yes.mask;
    return condition;
  }
  // Of a loop: those for which the condition does not hold are no longer in it.
  MSL_INLINE bool stay(bool condition) {
    mask = ::__ballot_sync(mask, condition);
    return condition;
  }
  // At the end of what lanes may have left early: by continue (1), break (2) or return (3).
  MSL_INLINE void join(u32 left) { mask = ::__ballot_sync(mask, left == 0); }
  // At the end of a loop's body: whether this lane leaves the loop.
  MSL_INLINE bool leave(u32& left) {
    const bool leaves = left > 1;
    mask = ::__ballot_sync(mask, !leaves);
    if (!leaves) left = 0;
    return leaves;
  }
};

}  // namespace msl::abi
