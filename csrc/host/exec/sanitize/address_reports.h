// Turns reports of AddressSanitizer and UndefinedBehaviorSanitizer in kernels into findings.
#pragma once
#include <exec/sanitize/sanitizer_runtime.h>

namespace metalops::exec {

// RAII: during a launch, reports become findings.
class AddressReports {
 public:
  AddressReports();
  ~AddressReports();
  AddressReports(const AddressReports&) = delete;

 private:
  QuietSanitizers quiet_;
};

// Adds a finding for an access fault at an address far from all memory. Called by the signal
// handler once it is back on an ordinary stack, while `running_thread` is still that of the
// faulting thread.
void add_fault(const void* instruction, const void* frame, const void* address);

}  // namespace metalops::exec
