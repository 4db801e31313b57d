// Registering kernels where torch has some already, which the dispatcher warns of.
#pragma once
#include <c10/util/Exception.h>
#include <metalops/library.h>

namespace metalops {

// As long as one lives, this thread registers kernels without that warning.
class METALOPS_HIDDEN Override {
 public:
  Override() : guard_(&silent_) {}

 private:
  class Silent final : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };

  Silent silent_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace metalops
