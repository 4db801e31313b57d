// Finds work of two streams that accesses the same memory, at least one of them writing, without an
// event or a wait of the host that orders them. Each stream has a vector clock: for every stream,
// how many of its works precede the next work of this one. Accesses are compared when they are
// submitted, so what is found does not depend on when work runs. The command queues that programs
// in Objective-C make themselves are streams here, too.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <exec/exec.h>

namespace metalops::exec {

inline constexpr int64_t kStreams = 33;
inline constexpr int64_t kQueues = 31;  // numbered from kStreams; those beyond share numbers

using StreamClock = std::array<uint64_t, kStreams + kQueues>;

namespace detail {
extern std::atomic<bool> check_stream_order;
}
inline bool checks_stream_order() {
  return detail::check_stream_order.load(std::memory_order_relaxed);
}
// Returns the previous setting. Starting anew forgets all accesses.
bool set_check_stream_order(bool check);

// One launch or operator, with the memory that it accesses.
struct StreamWork {
  struct Access {
    const char* allocation;
    const char* begin;  // the first byte of the tensor, and the end of its last element
    const char* end;
    bool writes;
    std::string what;  // "buffer 1 ('x', float32 [30])"
  };

  // Adds an access to a tensor or to memory; other bindings are not shared by streams. `role`:
  // "buffer 1 ('x'", to which the tensor's dtype and sizes are added.
  void access(const BoundBuffer& bound, bool writes, std::string role);

  std::string name;  // "kernel 'add'"
  int64_t stream;
  std::vector<Access> accesses;
  // Said in findings about the work: how to order it, how to keep its memory, and where the program
  // has encoded it, which takes long to find. Empty for torch's streams.
  struct Advice {
    std::string order, keep;
    const void* call = nullptr;
    std::string (*place_of)(const void* call) = nullptr;
  };
  Advice advice = {};
};

// Raises, or keeps, a finding for each access that is not ordered; see set_sanitize_halt.
void check_order(StreamWork work);

// Returns the clock of the next work of a stream; zeros unless the order is checked.
StreamClock clock_of(int64_t stream);
// Later work of a stream, or of all streams, comes after what a clock counts.
void stream_waits(int64_t stream, const StreamClock& clock);
void host_waits(const StreamClock& clock);

// Says which stream an allocation was made for, and which others have been recorded for it
// (Tensor.record_stream).
void note_stream_allocation(const void* allocation, int64_t stream);
void note_stream_use(const void* allocation, int64_t stream);
// Keeps a finding if another stream may still use an allocation that is freed: on a Mac its memory
// is given to other tensors.
void note_stream_free(const void* allocation);

}  // namespace metalops::exec
