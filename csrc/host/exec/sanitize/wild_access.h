// Accesses of kernels to addresses where there is no memory at all, such as x[i - 1] for an
// unsigned i of 0: no sanitizer survives them.
#pragma once

namespace metalops::exec {

// Thrown at the faulting instruction, after the finding has been added: the threadgroup cannot go
// on.
struct WildAccess {};

// From now on a memory fault in a kernel that was built with a sanitizer, during a sanitized
// launch, throws WildAccess.
void catch_wild_accesses();

}  // namespace metalops::exec
