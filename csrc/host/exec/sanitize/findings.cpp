// Collects findings, merges equal ones, completes their messages and raises them.
#include <exec/sanitize/findings.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include <exec/sanitize/shuffled_order.h>

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

GilSafeMutex& turn = *new GilSafeMutex;

// Findings kept by launches that do not raise.
class Kept {
 public:
  void add(std::vector<Finding> findings) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    std::move(findings.begin(), findings.end(), std::back_inserter(findings_));
  }
  std::vector<Finding> take() {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    return std::exchange(findings_, {});
  }

 private:
  ForkSafeMutex mutex_;
  std::vector<Finding> findings_;
};
Kept& kept = *new Kept;

bool same(const Finding& a, const Finding& b) {
  if (a.kind != b.kind || a.stacks.size() != b.stacks.size()) return false;
  if (a.stacks.empty()) return a.message == b.message;
  return std::equal(a.stacks.begin(), a.stacks.end(), b.stacks.begin(),
                    [](const Stack& x, const Stack& y) { return x.front() == y.front(); });
}

// Inserts the source positions into the message. Returns them, as the key that distinguishes
// findings of one kind.
std::string complete(Finding& finding) {
  std::string places;
  for (size_t i = 0; i < finding.stacks.size(); ++i) {
    const std::string name = "{" + std::to_string(i) + "}";
    const size_t at = finding.message.find(name);
    if (at == std::string::npos) continue;
    const std::string place = describe(finding.stacks[i]);
    finding.message.replace(at, name.size(), place);
    places += place + "\n";
  }
  return places.empty() ? finding.message : places;
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

bool set_sanitize_halt(bool value) { return halt.exchange(value); }

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

namespace {

void write_list(std::ostream& text, const std::vector<int64_t>& numbers) {
  text << '[';
  for (size_t i = 0; i < numbers.size(); ++i) text << (i ? ", " : "") << numbers[i];
  text << ']';
}

}  // namespace

std::string describe(const BoundBuffer& bound) {
  std::ostringstream text;
  if (bound.kind == BoundBuffer::Kind::kValue) text << bound.bytes << " bytes by value";
  if (bound.kind == BoundBuffer::Kind::kTensor || bound.kind == BoundBuffer::Kind::kHandle) {
    text << bound.dtype << ' ';
    write_list(text, bound.sizes);
    if (!bound.is_contiguous) {
      text << " of strides ";
      write_list(text, bound.strides);
    }
    if (bound.offset != 0) text << " at offset " << bound.offset;
  }
  return std::move(text).str();
}

SanitizedLaunch::SanitizedLaunch(const Kernel& kernel, const Launch& launch,
                                 const BoundBuffers* bound)
    : turn_(turn), outer_(launch_in_progress), kernel_(kernel), launch_(launch), bound_(bound) {
  launch_in_progress = this;
}

SanitizedLaunch::~SanitizedLaunch() {
  if (turn_.owns_lock()) launch_in_progress = outer_;
}

std::string SanitizedLaunch::describe_buffer(unsigned index) const {
  std::ostringstream text;
  text << "buffer " << index;
  const auto* end = kernel_.arguments + kernel_.argument_count;
  const auto* argument = std::find_if(kernel_.arguments, end, [&](const auto& a) {
    return a.kind == msl::abi::ArgumentKind::kBuffer && unsigned(a.index) == index;
  });
  const std::string name = argument != end ? argument->name : "";
  const std::string bound = bound_ != nullptr ? describe((*bound_)[index]) : "";
  if (name.empty() && bound.empty()) return std::move(text).str();
  text << " (";
  if (!name.empty()) text << '\'' << name << '\'' << (bound.empty() ? "" : ", ");
  text << bound << ')';
  return std::move(text).str();
}

std::string SanitizedLaunch::describe_texture_at(const void* address) const {
  if (bound_ == nullptr) return "";
  for (const auto& [index, level] : bound_->textures) {
    const uint64_t offset =
        uint64_t(static_cast<const char*>(address) - static_cast<const char*>(level.begin));
    if (offset >= level.bytes) continue;
    std::ostringstream text;
    text << "texture " << index << " (" << describe(level) << "), at byte "
         << offset - uint64_t(level.offset) * level.element_bytes;
    return std::move(text).str();
  }
  return "";
}

std::pair<const void*, uint64_t> SanitizedLaunch::memory_of(unsigned index) const {
  const void* const address = launch_.buffers[index];
  if (address == nullptr || bound_ == nullptr) return {address, launch_.buffer_bytes[index]};
  const BoundBuffer& bound = (*bound_)[index];
  if (bound.kind != BoundBuffer::Kind::kHandle) return {address, launch_.buffer_bytes[index]};
  const auto* elements =
      static_cast<const char*>(static_cast<const msl::abi::Tensor*>(address)->elements);
  return {elements, bound.bytes - (elements - static_cast<const char*>(bound.begin))};
}

const SanitizedLaunch* SanitizedLaunch::current() { return launch_in_progress; }

void add_finding(Finding finding) {
  SanitizedLaunch* const launch = launch_in_progress;
  if (launch == nullptr) {
    kept.add({std::move(finding)});
    return;
  }
  std::lock_guard<ForkSafeMutex> lock(launch->mutex_);
  const auto known = std::find_if(launch->findings_.begin(), launch->findings_.end(),
                                  [&](const auto& other) { return same(other.finding, finding); });
  if (known != launch->findings_.end()) {
    ++known->count;
  } else {
    launch->findings_.push_back({std::move(finding), 1});
  }
}

void SanitizedLaunch::finish() {
  // Python takes over below, and may let another thread launch.
  launch_in_progress = outer_;
  turn_.unlock();
  // Compilers duplicate code: one place in the source may be several instructions.
  std::map<std::pair<std::string, std::string>, size_t> known;
  std::vector<Counted> found;
  for (auto& [finding, count] : findings_) {
    const auto [entry, is_new] =
        known.emplace(std::pair(finding.kind, complete(finding)), found.size());
    if (is_new) {
      found.push_back({std::move(finding), count});
    } else {
      found[entry->second].count += count;
    }
  }
  std::vector<Finding> errors;
  for (auto& [finding, count] : found) {
    if (count > 1) finding.message += "\n  and " + std::to_string(count - 1) + " more like this";
    finding.message +=
        "\n  (threads in the order of METALOPS_SANITIZE_SEED=" + std::to_string(shuffle_seed()) +
        ")";
    if (finding.warning) {
      warn(finding);
    } else {
      errors.push_back(std::move(finding));
    }
  }
  deliver(std::move(errors));
}

void deliver(std::vector<Finding> errors) {
  if (halt) {
    raise(errors);
  } else {
    kept.add(std::move(errors));
  }
}

std::vector<Finding> take_kept_findings() { return kept.take(); }

void raise_kept_findings() { raise(take_kept_findings()); }

}  // namespace metalops::exec
