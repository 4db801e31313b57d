// Records the operators that a stand-in served, for metalops.debug.standins(). A recording belongs
// to the thread that starts it and to the autograd threads that work for it.
#pragma once
#include <c10/util/ThreadLocalDebugInfo.h>
#include <locks.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace metalops::device {

class StandInRecord final : public c10::DebugInfoBase {
 public:
  void add(const std::string& operator_name);
  std::map<std::string, int64_t> counts() const;

 private:
  mutable ForkSafeMutex mutex_;
  std::map<std::string, int64_t> counts_;
};

// Starts a recording. Recordings nest: an inner one hides its operators from the outer one until it
// is popped, which adds them.
std::shared_ptr<StandInRecord> push_stand_in_record();
void pop_stand_in_record();

// Adds an operator to the recording of this thread, if there is one.
void record_stand_in(const std::string& operator_name);

}  // namespace metalops::device
