// Torch's CPU threads, as launches use them. What the engines need of torch beyond its c10 library
// is here, so that their own test for races brings threads that ThreadSanitizer understands.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace metalops::exec {

// How many CPU threads to use, at most `threads` (0: as many as torch uses).
int threads_to_use(int threads);

// Whether this thread works for others already, beside which it takes none.
bool is_one_of_several();

// Calls do_shares(first, last) for parts of the range [0, shares), each on another CPU thread, this
// one among them. Throws what one of the calls throws, when all are done.
void on_cpu_threads(int64_t shares, c10::function_ref<void(int64_t, int64_t)> do_shares);

}  // namespace metalops::exec
