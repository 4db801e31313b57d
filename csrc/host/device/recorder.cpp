// Recordings of stand-ins, carried along by torch's thread-local debug info.
#include <device/recorder.h>
#include <torch_internals.h>

namespace metalops::device {
namespace {

constexpr std::string_view kName = "METALOPS_STAND_INS";
const c10::DebugInfoKind kKind(&kName);

StandInRecord* current() {
  return static_cast<StandInRecord*>(c10::ThreadLocalDebugInfo::get(kKind));
}

}  // namespace

void StandInRecord::add(const std::string& operator_name) {
  std::lock_guard<ForkSafeMutex> lock(mutex_);
  ++counts_[operator_name];
}

std::map<std::string, int64_t> StandInRecord::counts() const {
  std::lock_guard<ForkSafeMutex> lock(mutex_);
  return counts_;
}

std::shared_ptr<StandInRecord> push_stand_in_record() {
  auto record = std::make_shared<StandInRecord>();
  internals::push_debug_info(kKind, record);
  return record;
}

void pop_stand_in_record() {
  auto popped = std::static_pointer_cast<StandInRecord>(internals::pop_debug_info(kKind));
  if (StandInRecord* outer = current()) {
    for (const auto& [name, count] : popped->counts()) {
      for (int64_t i = 0; i < count; ++i) outer->add(name);
    }
  }
}

void record_stand_in(const std::string& operator_name) {
  if (StandInRecord* record = current()) record->add(operator_name);
}

}  // namespace metalops::device
