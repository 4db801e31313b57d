// Vector clocks of streams, and the accesses that they are compared with.
#include <exec/sanitize/stream_order.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include <exec/sanitize/findings.h>
#include <locks.h>

namespace metalops::exec {

namespace detail {
std::atomic<bool> check_stream_order{false};
}

namespace {

// An allocation remembers this many accesses; the oldest are forgotten.
constexpr size_t kMostAccesses = 256;

struct Past {
  StreamWork::Access access;
  std::string name;
  int64_t stream;
  uint64_t time;  // of its stream's clock
  StreamWork::Advice advice;
};

struct Allocation {
  std::vector<Past> past;
  int64_t stream = 0;          // that it was made for
  std::set<int64_t> recorded;  // by record_stream
};

void join(StreamClock& clock, const StreamClock& other) {
  for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

uint64_t& at(StreamClock& clock, int64_t stream) { return clock[static_cast<size_t>(stream)]; }

bool is_before(const Past& past, const StreamClock& clock) {
  return clock[static_cast<size_t>(past.stream)] >= past.time;
}

bool contains(const StreamWork::Access& outer, const StreamWork::Access& inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

// "kernel 'add' at ops.mm:12".
std::string name_of(const std::string& name, const StreamWork::Advice& advice) {
  if (advice.place_of == nullptr) return name;
  const std::string place = advice.place_of(advice.call);
  return place.empty() ? name : name + " at " + place;
}

std::string stream_name(int64_t stream) {
  if (stream >= kStreams) return "command queue " + std::to_string(stream - kStreams + 1);
  return stream == 0 ? "the default stream" : "stream " + std::to_string(stream);
}

class StreamOrder {
 public:
  void clear() {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    allocations_.clear();
  }

  std::vector<Finding> add(const StreamWork& work) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    StreamClock& clock = at_stream(work.stream);
    join(clock, host_);
    const uint64_t time = ++at(clock, work.stream);
    std::vector<Finding> findings;
    for (const auto& access : work.accesses) {
      auto& past = allocations_[access.allocation].past;
      const auto conflict = std::find_if(past.begin(), past.end(), [&](const Past& other) {
        return (access.writes || other.access.writes) && other.access.begin < access.end &&
               access.begin < other.access.end && !is_before(other, clock);
      });
      if (conflict != past.end()) findings.push_back(unordered(work, access, *conflict));
    }
    for (const auto& access : work.accesses) remember(work, access, time, clock);
    return findings;
  }

  StreamClock clock_of(int64_t stream) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    return at_stream(stream);
  }
  void stream_waits(int64_t stream, const StreamClock& clock) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    join(at_stream(stream), clock);
  }
  // All threads of the host share one clock: how they order themselves is not known.
  void host_waits(const StreamClock& clock) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    join(host_, clock);
  }

  void allocated(const char* allocation, int64_t stream) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    allocations_[allocation] = {{}, stream, {}};
  }
  void recorded(const char* allocation, int64_t stream) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    allocations_[allocation].recorded.insert(stream);
  }
  std::vector<Finding> freed(const char* allocation) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto found = allocations_.find(allocation);
    if (found == allocations_.end()) return {};
    const Allocation freed = std::move(found->second);
    allocations_.erase(found);
    StreamClock clock = at_stream(freed.stream);
    join(clock, host_);
    for (const Past& past : freed.past) {
      if (past.stream == freed.stream || is_before(past, clock)) continue;
      if (freed.recorded.count(past.stream) != 0) continue;
      return {in_use(past, freed.stream)};
    }
    return {};
  }

 private:
  StreamClock& at_stream(int64_t stream) { return streams_[static_cast<size_t>(stream)]; }

  static Finding unordered(const StreamWork& work, const StreamWork::Access& access,
                           const Past& past) {
    const std::string& advice = work.advice.order.empty() ? past.advice.order : work.advice.order;
    std::ostringstream text;
    text << "stream-race: " << name_of(work.name, work.advice) << " on " << stream_name(work.stream)
         << (access.writes ? " writes " : " reads ") << access.what << ", which "
         << name_of(past.name, past.advice) << " on " << stream_name(past.stream)
         << (past.access.writes ? " writes" : " reads") << " as " << past.access.what
         << "\n  Nothing orders the two: "
         << (advice.empty() ? "the first stream waits for no event that the second one recorded "
                              "later (wait_stream, wait_event), and the host has not waited "
                              "between them."
                            : advice);
    return {"stream-race", std::move(text).str()};
  }

  static Finding in_use(const Past& past, int64_t stream) {
    std::ostringstream text;
    text << "freed-in-use: memory made for " << stream_name(stream) << " was freed while "
         << name_of(past.name, past.advice) << " on " << stream_name(past.stream)
         << " may still use it as " << past.access.what
         << "\n  Its memory may be given to other tensors: ";
    if (past.advice.keep.empty()) {
      text << "call Tensor.record_stream, or let " << stream_name(stream)
           << " wait before the last reference is dropped.";
    } else {
      text << past.advice.keep;
    }
    return {"freed-in-use", std::move(text).str()};
  }

  // Also forgets what later accesses need not be compared with: they come after this one whenever
  // they come after the new access, or after the host's last wait.
  void remember(const StreamWork& work, const StreamWork::Access& access, uint64_t time,
                const StreamClock& clock) {
    auto& past = allocations_[access.allocation].past;
    std::erase_if(past, [&](const Past& other) {
      const bool replaced =
          contains(access, other.access) && is_before(other, clock) &&
          (access.writes || (!other.access.writes && other.stream == work.stream));
      return replaced || is_before(other, host_);
    });
    if (past.size() == kMostAccesses) past.erase(past.begin());
    past.push_back({access, work.name, work.stream, time, work.advice});
  }

  ForkSafeMutex mutex_;
  std::array<StreamClock, kStreams + kQueues> streams_{};
  StreamClock host_{};
  std::map<const char*, Allocation> allocations_;
};
StreamOrder& order = *new StreamOrder;

}  // namespace

bool set_check_stream_order(bool check) {
  const bool before = detail::check_stream_order.exchange(check);
  if (check && !before) order.clear();
  return before;
}

void StreamWork::access(const BoundBuffer& bound, bool writes, std::string role) {
  using Kind = BoundBuffer::Kind;
  if (bound.begin == nullptr || bound.bytes == 0) return;
  const auto* allocation = static_cast<const char*>(bound.begin);
  if (bound.kind == Kind::kTensor || bound.kind == Kind::kHandle) {
    int64_t last = 0;
    for (size_t axis = 0; axis < bound.sizes.size(); ++axis) {
      if (bound.sizes[axis] == 0) return;
      last += (bound.sizes[axis] - 1) * bound.strides[axis];
    }
    const char* first = allocation + bound.offset * static_cast<int64_t>(bound.element_bytes);
    accesses.push_back({allocation, first,
                        first + (last + 1) * static_cast<int64_t>(bound.element_bytes), writes,
                        std::move(role) + describe(bound) + ")"});
  }
}

void check_order(StreamWork work) { deliver(order.add(work)); }

StreamClock clock_of(int64_t stream) {
  return checks_stream_order() ? order.clock_of(stream) : StreamClock{};
}

void stream_waits(int64_t stream, const StreamClock& clock) {
  if (checks_stream_order()) order.stream_waits(stream, clock);
}

void host_waits(const StreamClock& clock) {
  if (checks_stream_order()) order.host_waits(clock);
}

void note_stream_allocation(const void* allocation, int64_t stream) {
  if (!checks_stream_order() || allocation == nullptr) return;
  order.allocated(static_cast<const char*>(allocation), stream);
}

void note_stream_use(const void* allocation, int64_t stream) {
  if (checks_stream_order()) order.recorded(static_cast<const char*>(allocation), stream);
}

void note_stream_free(const void* allocation) {
  if (!checks_stream_order()) return;
  for (Finding& finding : order.freed(static_cast<const char*>(allocation))) {
    add_finding(std::move(finding));
  }
}

}  // namespace metalops::exec
