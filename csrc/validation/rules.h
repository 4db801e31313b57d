// The rules for programs that use Metal from Objective-C: what a Mac ends the process for, what it
// checks under Metal's API validation, what torch asks of extensions, and what goes wrong on a Mac
// without a word. This folder knows neither the software device nor torch, so that a Mac can check
// the same. Whoever uses it says how violations are raised.
#pragma once
#include <atomic>
#include <string>

namespace metalops::validation {

// In the order of the table in rules.cpp.
enum class Rule {
  kSecondEncoder,
  kEncoderAfterEnd,
  kEncoderAfterCommit,
  kEncoderNotEnded,
  kEncoderOffQueue,
  kCommandBufferOffQueue,
  kCommandBufferAfterCommit,
  kNotCommitted,
  kWaitBeforeCommit,
  kDispatchSyncOnOwnQueue,
  kBytesTooLong,
  kIndexTooLarge,
  kOutOfBounds,
  kUnalignedOffset,
  kUnalignedCopy,
  kUnboundBuffer,
  kThreadgroupTooLarge,
  kThreadgroupMemory,
  kThreadgroupMemoryAlignment,
  kFreedInFlight,
  kContentsInFlight,
  kUnsynchronisedQueue,
};
inline constexpr int kRules = static_cast<int>(Rule::kUnsynchronisedQueue) + 1;

enum class Severity { kError, kWarning };

// The kind of an exception that a violation is raised as.
enum class Kind { kRuntime, kValue, kIndex };

struct Description {
  Rule rule;
  const char* name;
  Severity severity;
  Kind kind;
  bool is_always_on;  // a Mac ends the process, blocks forever, or does something undefined
  const char* sentence;
  const char* source;
};
const Description& describe(Rule rule);

// Turns all rules on, as METALOPS_VALIDATE=1 does. Off, those that are always on remain.
void set_enabled(bool enabled);
namespace detail {
extern std::atomic<bool> enabled;
}
inline bool is_enabled() { return detail::enabled.load(std::memory_order_relaxed); }
inline bool is_on(Rule rule) { return is_enabled() || describe(rule).is_always_on; }

// A message that the program has sent, whose text is only made when it is needed.
struct Call {
  const void* receiver;
  const void* selector;
  std::string (*text)(const void* receiver, const void* selector);
  std::string written() const { return text(receiver, selector); }
};

// The sentence on a violation: its place in the program, what happened, the rule and its source.
// `address`: of the program's call, which otherwise is found on the stack.
std::string message(Rule rule, const std::string& happened, const void* address = nullptr);

// "[name] sentence (source)", for messages of others.
std::string text_of(Rule rule);

// Reports a violation of a rule, if it is on: raises an error, or warns, once for each place.
void report(Rule rule, const std::string& happened, const void* address = nullptr);
// Warns in any case, where nothing may be raised: from a destructor.
void warn(Rule rule, const std::string& happened, const void* address);

// How violations are told of. `raise` does not return. By default a line on standard error, after
// which an error ends the process as Metal's own validation does.
struct Outlet {
  void (*raise)(Kind kind, const std::string& message) = nullptr;
  void (*warn)(const std::string& message) = nullptr;
};
void set_outlet(Outlet outlet);

}  // namespace metalops::validation
