// Metal source to a loaded kernel library, through the Python front end.
#pragma once
#include <memory>
#include <string>

#include "exec/exec.h"

namespace metalops {

// Calls metalops.msl.compile_source, which keeps a cache on disk. A Python exception (SyntaxError
// with the user's line for wrong source) comes back as torch's python_error, so that it reaches a
// Python caller as it was raised.
std::shared_ptr<exec::Library> compile_metal(const std::string& source);

}  // namespace metalops
