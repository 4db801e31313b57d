// run(): checks a launch and passes it to an engine.
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <exec/in_kernel.h>
#include <exec/runtime.h>
#include <exec/sanitize/address_reports.h>
#include <exec/sanitize/findings.h>
#include <exec/sanitize/source_positions.h>
#include <exec/sanitize/stream_order.h>
#include <exec/sanitize/wild_access.h>
#include <exec/share_out.h>
#include <exec/unbound.h>
#include <locks.h>

namespace metalops::exec {

using msl::abi::kMaxBuffers;
using msl::abi::kMaxThreadgroupBytes;

void (*launch_hook)(const Kernel&, Launch&, int, const BoundBuffers*) = nullptr;

namespace {

ForkSafeMutex& noting = *new ForkSafeMutex;
auto& noted = *new std::vector<std::pair<const void*, uint64_t>>;

}  // namespace

void note_address_taken(const void* begin, uint64_t bytes) {
  if (launch_hook == nullptr) return;
  std::lock_guard<ForkSafeMutex> lock(noting);
  noted.emplace_back(begin, bytes);
}

std::vector<std::pair<const void*, uint64_t>> take_noted_addresses() {
  std::lock_guard<ForkSafeMutex> lock(noting);
  return std::exchange(noted, {});
}

bool describes_buffers() {
  return launch_hook != nullptr || sanitize_mode() != SanitizeMode::kOff || checks_stream_order();
}

namespace {

// Returns the engine of METALOPS_ENGINE=loop|group|fiber|auto, for launches that leave it open; for
// tests and debugging.
Engine engine_of_environment() {
  const char* value = std::getenv("METALOPS_ENGINE");
  if (value == nullptr || *value == 0 || std::strcmp(value, "auto") == 0) return Engine::kAutomatic;
  if (std::strcmp(value, "loop") == 0) return Engine::kLoop;
  if (std::strcmp(value, "group") == 0) return Engine::kGroup;
  if (std::strcmp(value, "fiber") == 0) return Engine::kFiber;
  TORCH_CHECK_VALUE(false, "METALOPS_ENGINE is '", value,
                    "'; it must be auto, loop, group or fiber");
}

// The environment is read once: searching it takes a tenth of the time of a small launch.
std::atomic<Engine>& preferred_engine() {
  static std::atomic<Engine> engine = engine_of_environment();
  return engine;
}

// Reports references that are bound to less memory than what they refer to takes: a uint3, for
// example, takes 16 bytes, and three numbers have 12.
void find_short_arguments(const Kernel& kernel, const Launch& launch,
                          const SanitizedLaunch& sanitized) {
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const msl::abi::Argument& argument = kernel.arguments[i];
    const std::string_view type = argument.type;
    if (argument.kind != msl::abi::ArgumentKind::kBuffer || type.empty() || type.back() != '&') {
      continue;
    }
    const uint64_t bytes = launch.buffer_bytes[argument.index];
    if (launch.buffers[argument.index] == nullptr || bytes >= argument.element_bytes) continue;
    add_finding({"short-argument",
                 c10::str("short-argument in kernel '", kernel.name, "': ", type, " ",
                          argument.name, " needs ", argument.element_bytes, " bytes, and ",
                          sanitized.describe_buffer(unsigned(argument.index)), " has ", bytes),
                 false,
                 {}});
  }
}

// Runs every thread as a fiber, whichever engine was requested: the checks are per thread.
void run_sanitized(const Kernel& kernel, const Launch& launch, const BoundBuffers* bound) {
  SanitizedLaunch sanitized(kernel, launch, bound);
  find_short_arguments(kernel, launch, sanitized);
  catch_wild_accesses();
  try {
    std::optional<AddressReports> reports;
    if (sanitize_mode() == SanitizeMode::kAddress) reports.emplace();
    run_sanitizing(kernel, launch);
  } catch (const WildAccess&) {
    // Reported as a finding; the launch ends here.
  } catch (const c10::Error&) {
    sanitized.finish();  // a finding may be the reason
    throw;
  }
  sanitized.finish();
}

// Returns true if the kernel may write to memory that overlaps another of its buffers.
bool buffers_share_memory(const Kernel& kernel, const Launch& launch) {
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const auto& written = kernel.arguments[i];
    if (written.kind != msl::abi::ArgumentKind::kBuffer || !written.writable) continue;
    const auto* begin = static_cast<const char*>(launch.buffers[written.index]);
    const auto* end = begin + launch.buffer_bytes[written.index];
    for (uint32_t j = 0; j < kernel.argument_count; ++j) {
      const auto& other = kernel.arguments[j];
      if (other.kind != msl::abi::ArgumentKind::kBuffer || j == i) continue;
      const auto* other_begin = static_cast<const char*>(launch.buffers[other.index]);
      if (begin < other_begin + launch.buffer_bytes[other.index] && other_begin < end) return true;
    }
  }
  return false;
}

void check_memory(const Kernel& kernel, const Launch& launch) {
  uint64_t bytes = kernel.static_threadgroup_bytes;
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const auto& argument = kernel.arguments[i];
    if (argument.kind == msl::abi::ArgumentKind::kThreadgroup) {
      bytes += launch.threadgroup_bytes[argument.index];
    }
  }
  TORCH_CHECK(bytes <= kMaxThreadgroupBytes, "kernel '", kernel.name, "' needs ", bytes,
              " bytes of threadgroup memory (", kernel.static_threadgroup_bytes,
              " declared in the kernel, ", bytes - kernel.static_threadgroup_bytes,
              " set for its arguments); the device has ", kMaxThreadgroupBytes);
}

bool is_handle(const msl::abi::Argument& argument) {
  return argument.kind == msl::abi::ArgumentKind::kTexture ||
         argument.kind == msl::abi::ArgumentKind::kSampler;
}

}  // namespace

void check_launch(const Kernel& kernel, const Launch& launch) {
  if (launch.textures == nullptr) {
    for (uint32_t i = 0; i < kernel.argument_count; ++i) {
      if (!is_handle(kernel.arguments[i])) continue;
      const KernelNotes* notes = notes_of(kernel);
      const bool is_off = notes != nullptr && !notes->is_on(i);
      TORCH_CHECK(is_off || !is_used(kernel.arguments[i]), "kernel '", kernel.name,
                  "' takes textures or samplers, which were not given");
    }
  }
  uint64_t threads = 1;
  for (const uint32_t& size : launch.group) {
    TORCH_CHECK_VALUE(size != 0, "the threadgroup size of kernel '", kernel.name,
                      "' is zero along axis ", &size - launch.group);
    threads *= size;
  }
  TORCH_CHECK_VALUE(threads <= kernel.max_threads_per_threadgroup, "a threadgroup of ",
                    launch.group[0], " x ", launch.group[1], " x ", launch.group[2],
                    " threads is too large for kernel '", kernel.name, "', which allows ",
                    kernel.max_threads_per_threadgroup);
  check_memory(kernel, launch);
}

Engine prefer_engine(Engine engine) { return preferred_engine().exchange(engine); }

void place_group(const Launch& launch, uint64_t index, msl::abi::Group& group) {
  uint64_t rest = index;
  for (int axis = 0; axis < 3; ++axis) {
    group.position[axis] = uint32_t(rest % launch.groups[axis]);
    rest /= launch.groups[axis];
    const uint32_t begin = group.position[axis] * launch.group[axis];
    group.size[axis] = std::min(launch.group[axis], launch.grid[axis] - begin);
  }
  group.static_used = 0;
  std::fill(std::begin(group.offsets), std::end(group.offsets), ~0u);
}

uint32_t place_variable(msl::abi::Group& group, uint32_t bytes, uint32_t alignment) {
  const uint32_t start = (group.static_used + alignment - 1) / alignment * alignment;
  TORCH_INTERNAL_ASSERT(start + bytes <= group.static_bytes,
                        "the threadgroup variables need more memory than the kernel declares");
  group.static_used = start + bytes;
  return start;
}

void report_different_barriers(const Kernel& kernel, const msl::abi::Group& group,
                               uint32_t simdgroup, msl::abi::Site site, uint32_t other_simdgroup,
                               msl::abi::Site other_site) {
  const bool is_one = simdgroup == other_simdgroup;
  TORCH_CHECK(false, "deadlock in kernel '", kernel.name, "', threadgroup (", group.position[0],
              ", ", group.position[1], ", ", group.position[2], "): threads of simdgroup ",
              simdgroup, is_one ? "" : c10::str(" and of simdgroup ", other_simdgroup), " wait at ",
              site.id == other_site.id
                  ? c10::str("the barrier at ", describe(kernel, site), " in different iterations")
                  : c10::str("different barriers, ", describe(kernel, site), " and ",
                             describe(kernel, other_site)),
              ". All threads of a threadgroup must reach the same threadgroup_barrier.");
}

uint64_t threads_in_grid(const Launch& launch) {
  return uint64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2];
}

namespace {

// Returns true if a launch has no memory or texture for some argument that its kernel does not use.
bool leaves_unused_out(const Kernel& kernel, const Launch& launch) {
  if (kernel.may_have_unused == 0) return false;
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const msl::abi::Argument& argument = kernel.arguments[i];
    if (is_used(argument)) continue;
    if (is_handle(argument)) return true;
    if (argument.kind == msl::abi::ArgumentKind::kBuffer &&
        launch.buffers[argument.index] == nullptr) {
      return true;
    }
  }
  return false;
}

// Returns the names of the arguments of a kernel for which is_one(position) is true.
template <class F>
std::string named_arguments(const Kernel& kernel, const F& is_one) {
  std::string names;
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    if (is_one(i)) names += c10::str(names.empty() ? "" : ", ", kernel.arguments[i].name);
  }
  return names;
}

// Raises what the handler of Ctrl-C raises, if this is the thread that runs it, or an error that
// tells what did not end.
[[noreturn]] void report_end(const Kernel& kernel, const Launch& launch,
                             const EndedFromOutside& ended) {
  if (ended.reason == EndReason::kSwitchedOff) {
    const KernelNotes* notes = notes_of(kernel);
    const std::string arguments =
        named_arguments(kernel, [&](uint32_t i) { return notes != nullptr && !notes->is_on(i); });
    TORCH_CHECK(false, "kernel '", kernel.name,
                "' was ended because it writes to an argument that a function constant switches "
                "off (",
                arguments, ")");
  }
  if (ended.reason == EndReason::kUnbound) {
    const std::string arguments = named_arguments(kernel, [&](uint32_t i) {
      const msl::abi::Argument& argument = kernel.arguments[i];
      if (argument.kind != msl::abi::ArgumentKind::kBuffer) return false;
      const void* memory = launch.buffers[argument.index];
      return memory == nullptr || memory == memory_of_nothing();
    });
    TORCH_CHECK(false, "kernel '", kernel.name,
                "' was ended because it accesses a buffer to which nothing is bound (", arguments,
                ")");
  }
  if (ended.reason == EndReason::kInterrupt) {
    if (check_interrupt != nullptr) check_interrupt();
    TORCH_CHECK(false, "kernel '", kernel.name, "' was ended by Ctrl-C");
  }
  const bool has_line = sanitize_mode() != SanitizeMode::kOff;
  const std::string line = describe(Stack{static_cast<const char*>(ended.at) + 1});
  TORCH_CHECK(false, "kernel '", kernel.name, "' was ended", has_line ? " at " + line : "",
              " because it made no progress for ", time_limit(),
              " s: it waits for what never comes, or one of its threads takes too long",
              ended.waiting.empty() ? "" : " (" + ended.waiting + ")",
              ". METALOPS_TIME_LIMIT sets the limit",
              has_line ? "" : ", and `python -m metalops sanitize PROGRAM` tells the line");
}

}  // namespace

namespace {

void run_bound(const Kernel& kernel, Launch& launch, Engine engine, int threads,
               const BoundBuffers* bound) {
  for (const uint32_t size : launch.grid) {
    if (size == 0) return;
  }
  check_launch(kernel, launch);
  for (int axis = 0; axis < 3; ++axis) {
    launch.groups[axis] =
        uint32_t((uint64_t(launch.grid[axis]) + launch.group[axis] - 1) / launch.group[axis]);
  }
  threads = threads_to_use(threads);

  TORCH_CHECK_VALUE(engine != Engine::kLoop || kernel.loop != nullptr, "kernel '", kernel.name,
                    "' synchronises its threads and cannot run as a plain loop");
  TORCH_CHECK_VALUE(engine != Engine::kGroup || kernel.group != nullptr, "kernel '", kernel.name,
                    "' has no group loop; `python -m metalops compile --explain` says why");
  if (C10_UNLIKELY(sanitize_mode() != SanitizeMode::kOff)) {
    run_sanitized(kernel, launch, bound);
    return;
  }
  if (engine == Engine::kAutomatic) {
    engine = kernel.loop != nullptr    ? Engine::kLoop
             : kernel.group != nullptr ? Engine::kGroup
                                       : Engine::kFiber;
  }
  switch (engine) {
    case Engine::kLoop:
      return run_loop(kernel, launch, threads,
                      kernel.needs_separate_buffers && buffers_share_memory(kernel, launch));
    case Engine::kGroup:
      return run_groups(kernel, launch, threads);
    default:
      return run_fibers(kernel, launch, threads);
  }
}

void run_on(const Kernel& kernel, Launch& launch, Engine engine, int threads,
            const BoundBuffers* bound) try {
  const KernelNotes* const notes = notes_of(kernel);
  if (C10_UNLIKELY(notes != nullptr || leaves_unused_out(kernel, launch))) {
    WithUnbound with(kernel, notes, launch);
    return run_bound(kernel, with.launch, engine, threads, bound);
  }
  run_bound(kernel, launch, engine, threads, bound);
} catch (const EndedFromOutside& ended) {
  report_end(kernel, launch, ended);
}

}  // namespace

void run(const Kernel& kernel, Launch& launch, Engine engine, int threads,
         const BoundBuffers* bound) {
  if (C10_UNLIKELY(launch_hook != nullptr) && engine == Engine::kAutomatic) {
    launch_hook(kernel, launch, threads, bound);
    return;
  }
  if (engine == Engine::kAutomatic) engine = preferred_engine().load(std::memory_order_relaxed);
  run_on(engine == Engine::kFiber ? on_fibers(kernel) : kernel, launch, engine, threads, bound);
}

}  // namespace metalops::exec
