// Kernels of operators that stock MPS has, and that fail on some machines: they replace stock's
// while their fix is on. metalops.fixes says what is wrong, and turns fixes on.
//
//   const metalops::Fix kMatmul("matmul", [](metalops::AtenKernels& m, const char* reason) {
//     m.replace("mm", mm, reason);
//   });
#pragma once
#include <metalops/library.h>
#include <metalops/stock.h>

#include <string>
#include <vector>

namespace metalops {

// A fix, which is off at first. It is made before main(), as operators are registered.
class METALOPS_HIDDEN Fix {
 public:
  using Register = void (*)(AtenKernels& kernels, const char* reason);

  Fix(const char* name, Register add);
};

// Returns the names of all fixes.
METALOPS_HIDDEN std::vector<std::string> fix_names();

// Turns a fix on or off, for the whole process. shared_overloads() has its overloads while it is
// on. Raises ValueError for an unknown name.
METALOPS_HIDDEN void turn_fix(const std::string& name, bool on);

// Returns the overloads that a fix which is on replaces; those of one that is off are none.
METALOPS_HIDDEN std::vector<std::string> fixed_overloads(const std::string& name);

}  // namespace metalops
