// Environment variables and setters of the flavours.
#include <metal/flavour.h>

#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <atomic>

namespace metalops {
namespace {

Flavour flavour_named(const std::string& name) {
  if (name == "ilp") return Flavour::kIlp;
  if (name == "scalar") return Flavour::kScalar;
  if (name == "strided") return Flavour::kStrided;
  if (name == "gpu") return Flavour::kGpu;
  TORCH_CHECK_VALUE(name.empty(), "Unknown flavour '", name,
                    "'; use 'ilp', 'scalar', 'strided', 'gpu' or ''");
  return Flavour::kAutomatic;
}

const char* name_of(Flavour flavour) {
  switch (flavour) {
    case Flavour::kIlp:
      return "ilp";
    case Flavour::kScalar:
      return "scalar";
    case Flavour::kStrided:
      return "strided";
    case Flavour::kGpu:
      return "gpu";
    default:
      return "";
  }
}

// Values that torch does not know are ignored, as torch ignores them.
Flavour flavour_from_environment(const char* variable) {
  const std::string value = c10::utils::get_env(variable).value_or("");
  return value == "ilp" || value == "scalar" || value == "strided" ? flavour_named(value)
                                                                   : Flavour::kAutomatic;
}

std::atomic<Flavour> unary{flavour_from_environment("PYTORCH_UNARY_FORCE_FLAVOR")};
std::atomic<Flavour> binary{flavour_from_environment("PYTORCH_BINARY_FORCE_FLAVOR")};

}  // namespace

Flavour unary_flavour() { return unary.load(std::memory_order_relaxed); }

Flavour binary_flavour() { return binary.load(std::memory_order_relaxed); }

bool a_thread_for_each_element() {
  const Flavour flavour = unary_flavour();
  return flavour != Flavour::kGpu && flavour != Flavour::kIlp;
}

std::pair<std::string, std::string> set_forced_flavours(const std::string& unary_name,
                                                        const std::string& binary_name) {
  const Flavour new_unary = flavour_named(unary_name);
  const Flavour new_binary = flavour_named(binary_name);
  return {name_of(unary.exchange(new_unary)), name_of(binary.exchange(new_binary))};
}

}  // namespace metalops
