// Work on queues, for the library's own code.
#pragma once
#include <dispatch/dispatch.h>

#include <functional>

namespace metalops::objc {

// Like dispatch_async, for a function of C++.
void submit(dispatch_queue_t queue, std::function<void()> work);

}  // namespace metalops::objc
