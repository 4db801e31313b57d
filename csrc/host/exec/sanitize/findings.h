// Findings of sanitized launches: collected while a launch runs, raised when it ends (or, without
// halting, at torch.mps.synchronize()).
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include <exec/exec.h>
#include <exec/sanitize/source_positions.h>
#include <locks.h>

namespace metalops::exec {

// The sanitizer that launches run under. Kernels must have been compiled with the compiler's
// sanitizer of the same name, and its runtime must be part of the process.
enum class SanitizeMode { kOff, kAddress, kThread };

namespace detail {
extern std::atomic<SanitizeMode> sanitize_mode;
}
inline SanitizeMode sanitize_mode() {
  return detail::sanitize_mode.load(std::memory_order_relaxed);
}
void set_sanitize_mode(SanitizeMode mode);

struct Finding {
  std::string kind;     // e.g. "heap-buffer-overflow", "missing-barrier"
  std::string message;  // what happened and where, for people; may have several lines
  bool warning = false;
  // Instructions that the message refers to: "{0}" in it is replaced by the position of stacks[0]
  // in the Metal source, and so on, once the launch is over.
  std::vector<Stack> stacks = {};
};

// The GPU thread that this CPU thread runs; set by the engine at every switch. `thread` is null
// between GPU threads.
struct RunningThread {
  const Kernel* kernel = nullptr;
  const msl::abi::Thread* thread = nullptr;
  // Return address of the call of the simdgroup operation in progress.
  const void* operation = nullptr;
};
extern thread_local RunningThread running_thread;

// Returns "thread (5, 0, 0) of the grid, threadgroup (1, 0, 0)".
std::string describe(const msl::abi::Thread& thread);

// Describes a binding: "float32 [30]", "16 bytes by value".
std::string describe(const BoundBuffer& bound);

// Adds a finding to the launch in progress, from any CPU thread, also from a sanitizer's callback.
// Findings of one kind at the same instructions, or with the same message where no instructions are
// given, count as one; the first message is kept.
void add_finding(Finding finding);

// The scope of one sanitized launch. Those of several CPU threads take turns; a nested one comes
// from a signal handler.
class SanitizedLaunch {
 public:
  SanitizedLaunch(const Kernel& kernel, const Launch& launch, const BoundBuffers* bound);
  ~SanitizedLaunch();
  SanitizedLaunch(const SanitizedLaunch&) = delete;

  const Kernel& kernel() const { return kernel_; }
  const Launch& launch() const { return launch_; }
  // Returns "buffer 1 ('in', float32 [30])".
  std::string describe_buffer(unsigned index) const;

  // Returns a description of the texture that has an address and of the place in it; empty if none
  // does.
  std::string describe_texture_at(const void* address) const;
  // Returns the memory that a kernel reaches through a buffer: its start, and its size in bytes.
  std::pair<const void*, uint64_t> memory_of(unsigned index) const;

  // Returns the launch in progress; null outside of one.
  static const SanitizedLaunch* current();

  // Issues warnings and, when launches halt, raises the errors; otherwise keeps them for
  // raise_kept_findings().
  void finish();

 private:
  friend void add_finding(Finding finding);
  std::unique_lock<GilSafeMutex> turn_;
  SanitizedLaunch* const outer_;
  const Kernel& kernel_;
  const Launch& launch_;
  const BoundBuffers* const bound_;
  ForkSafeMutex mutex_;
  struct Counted {
    Finding finding;
    uint64_t count;
  };
  std::vector<Counted> findings_;
};

// Sets whether a launch with findings raises at once (METALOPS_SANITIZE_HALT) or keeps them.
// Returns the previous setting.
bool set_sanitize_halt(bool halt);

// Raises errors when launches halt, otherwise keeps them.
void deliver(std::vector<Finding> errors);

// Raises the findings kept since the last call. Called where the host waits for the device.
void raise_kept_findings();
// Returns the kept findings without raising, at the end of the process.
std::vector<Finding> take_kept_findings();

// Deliver findings to the user. Set by the Python bindings; without them errors are c10::Error and
// warnings go through torch's warning handler.
extern void (*raise_findings)(const std::vector<Finding>& errors);
extern void (*warn_of_finding)(const Finding& warning);

}  // namespace metalops::exec
