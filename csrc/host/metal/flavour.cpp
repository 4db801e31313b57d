// See flavour.h.
#include "metal/flavour.h"

#include <c10/util/env.h>

#include <atomic>

namespace metalops {
namespace {

Flavour flavour_named(const std::string& name) {
  if (name == "ilp") return Flavour::kIlp;
  if (name == "scalar") return Flavour::kScalar;
  return Flavour::kAutomatic;
}

std::atomic<Flavour> unary{
    flavour_named(c10::utils::get_env("PYTORCH_UNARY_FORCE_FLAVOR").value_or(""))};
std::atomic<Flavour> binary{
    flavour_named(c10::utils::get_env("PYTORCH_BINARY_FORCE_FLAVOR").value_or(""))};

}  // namespace

Flavour unary_flavour() { return unary.load(std::memory_order_relaxed); }

Flavour binary_flavour() { return binary.load(std::memory_order_relaxed); }

void set_forced_flavours(const std::string& unary_name, const std::string& binary_name) {
  unary = flavour_named(unary_name);
  binary = flavour_named(binary_name);
}

}  // namespace metalops
