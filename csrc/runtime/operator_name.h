// Names of operators in messages.
#pragma once
#include <metalops/library.h>

#include <string_view>

namespace metalops {

// Without the namespace: "add" of "aten::add".
METALOPS_HIDDEN inline std::string_view unqualified(std::string_view name) {
  return name.substr(name.rfind(':') + 1);
}

}  // namespace metalops
