// Accesses of kernels to unmapped addresses, such as x[i - 1] for an unsigned i of 0: a sanitizer
// alone does not survive them.
#pragma once

namespace metalops::exec {

// Thrown at the faulting instruction, after the finding has been added: the threadgroup cannot go
// on.
struct WildAccess {};

// Makes memory faults during sanitized launches, in kernels that were built with a sanitizer, throw
// WildAccess.
void catch_wild_accesses();

}  // namespace metalops::exec
