// See findings.h.
#include "findings.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

namespace metalops::exec {

namespace detail {
std::atomic<SanitizeMode> sanitize_mode{SanitizeMode::kOff};
}

thread_local RunningThread running_thread;
void (*raise_findings)(const std::vector<Finding>&) = nullptr;
void (*warn_of_finding)(const Finding&) = nullptr;

namespace {

std::atomic<bool> halt{true};
std::atomic<SanitizedLaunch*> launch_in_progress{nullptr};

std::mutex& turn() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

// Findings of launches that did not raise them.
class Kept {
 public:
  void add(std::vector<Finding> findings) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::move(findings.begin(), findings.end(), std::back_inserter(findings_));
  }
  std::vector<Finding> take() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(findings_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Finding> findings_;
};
Kept& kept() {
  static auto* const the_kept = new Kept;
  return *the_kept;
}

void raise(const std::vector<Finding>& errors) {
  if (errors.empty()) return;
  if (raise_findings != nullptr) raise_findings(errors);
  std::string text;
  for (const Finding& error : errors) text += (text.empty() ? "" : "\n\n") + error.message;
  TORCH_CHECK(false, text);
}

void warn(const Finding& warning) {
  if (warn_of_finding != nullptr) {
    warn_of_finding(warning);
  } else {
    TORCH_WARN(warning.message);
  }
}

}  // namespace

void set_sanitize_mode(SanitizeMode mode) { detail::sanitize_mode = mode; }

void set_sanitize_halt(bool value) { halt = value; }

std::string describe(const msl::abi::Thread& thread) {
  const msl::abi::Group& group = *thread.group;
  std::ostringstream text;
  text << "thread (";
  for (int axis = 0; axis < 3; ++axis) {
    text << (axis ? ", " : "")
         << uint64_t(group.position[axis]) * group.launch->group[axis] + thread.position[axis];
  }
  text << ") of the grid, threadgroup (" << group.position[0] << ", " << group.position[1] << ", "
       << group.position[2] << ")";
  return std::move(text).str();
}

SanitizedLaunch::SanitizedLaunch(const Kernel& kernel, const Launch& launch)
    : turn_(turn()), kernel_(kernel), launch_(launch) {
  launch_in_progress = this;
}

SanitizedLaunch::~SanitizedLaunch() {
  if (turn_.owns_lock()) launch_in_progress = nullptr;
}

const SanitizedLaunch* SanitizedLaunch::current() { return launch_in_progress; }

void add_finding(Finding finding) {
  SanitizedLaunch* const launch = launch_in_progress;
  if (launch == nullptr) {
    kept().add({std::move(finding)});
    return;
  }
  std::lock_guard<std::mutex> lock(launch->mutex_);
  const bool known = std::any_of(
      launch->findings_.begin(), launch->findings_.end(), [&](const Finding& other) {
        return other.kind == finding.kind && other.message == finding.message;
      });
  if (!known) launch->findings_.push_back(std::move(finding));
}

void SanitizedLaunch::finish() {
  // Python takes over below, and may let another thread launch.
  launch_in_progress = nullptr;
  turn_.unlock();
  std::vector<Finding> errors;
  for (Finding& finding : findings_) {
    if (finding.warning) {
      warn(finding);
    } else {
      errors.push_back(std::move(finding));
    }
  }
  if (halt) {
    raise(errors);
  } else {
    kept().add(std::move(errors));
  }
}

std::vector<Finding> take_kept_findings() { return kept().take(); }

void raise_kept_findings() { raise(take_kept_findings()); }

}  // namespace metalops::exec
