// What AddressSanitizer and UndefinedBehaviorSanitizer report while a kernel runs, as findings.
#pragma once
#include <exec/sanitize/sanitizer_runtime.h>

namespace metalops::exec {

// The scope of a launch whose reports become findings.
class AddressReports {
 public:
  AddressReports();
  ~AddressReports();
  AddressReports(const AddressReports&) = delete;

 private:
  QuietSanitizers quiet_;
};

// An access that the CPU refused, at an address far from everything: for the handler of that
// signal, once it is back on an ordinary stack and `running_thread` still is the thread's.
void add_fault(const void* instruction, const void* frame, const void* address);

}  // namespace metalops::exec
