// torch's CPU threads, as launches use them. Everything that the engines need of torch beyond its
// c10 library is here, so that their own race test can supply threads that ThreadSanitizer
// understands.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace metalops::exec {

// Returns the number of CPU threads to use, at most `threads` (0: as many as torch uses).
int threads_to_use(int threads);

// Returns true if this thread already works in a parallel region; such a thread starts no others.
bool is_one_of_several();

// Calls do_shares(first, last) for parts of the range [0, shares), each on another CPU thread,
// including this one. When all calls are done, throws what one of them threw.
void on_cpu_threads(int64_t shares, c10::function_ref<void(int64_t, int64_t)> do_shares);

}  // namespace metalops::exec
