// Fixes that are turned on and off by registering their kernels and taking them back.
#include <csrc/ops/common/fixes.h>

#include <algorithm>
#include <memory>
#include <mutex>

namespace metalops {
namespace {

struct FixState {
  std::string name;
  Fix::Register add;
  std::string reason;
  std::vector<std::string> overloads;       // that are replaced
  std::unique_ptr<torch::Library> library;  // its end takes the kernels back
};

std::vector<FixState>& fix_states() {
  static std::vector<FixState> states;
  return states;
}

FixState& fix_state(const std::string& name) {
  auto& states = fix_states();
  const auto found = std::find_if(states.begin(), states.end(),
                                  [&](const FixState& state) { return state.name == name; });
  TORCH_CHECK_VALUE(found != states.end(), "metalops has no fix '", name, "'");
  return *found;
}

std::mutex& fix_mutex() {
  static std::mutex mutex;
  return mutex;
}

void turn_on(FixState& state) {
  state.library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                                   c10::DispatchKey::MPS, __FILE__, __LINE__);
  const auto shared_before = shared_overloads().size();
  const auto unknown_before = unknown_overloads().size();
  AtenKernels kernels(*state.library);
  state.add(kernels, state.reason.c_str());
  unknown_overloads().resize(unknown_before);
  const auto& shared = shared_overloads();
  for (size_t i = shared_before; i < shared.size(); ++i) {
    state.overloads.push_back(shared[i].name);
  }
}

void turn_off(FixState& state) {
  auto& shared = shared_overloads();
  shared.erase(std::remove_if(
                   shared.begin(), shared.end(),
                   [&](const SharedOverload& overload) { return overload.reason == state.reason; }),
               shared.end());
  state.overloads.clear();
  state.library.reset();
}

}  // namespace

Fix::Fix(const char* name, Register add) {
  fix_states().push_back({name, add, std::string("fix ") + name, {}, nullptr});
}

std::vector<std::string> fix_names() {
  std::vector<std::string> names;
  for (const auto& state : fix_states()) {
    names.push_back(state.name);
  }
  return names;
}

void turn_fix(const std::string& name, bool on) {
  const std::lock_guard<std::mutex> lock(fix_mutex());
  auto& state = fix_state(name);
  if (on && state.library == nullptr) {
    turn_on(state);
  } else if (!on && state.library != nullptr) {
    turn_off(state);
  }
}

std::vector<std::string> fixed_overloads(const std::string& name) {
  const std::lock_guard<std::mutex> lock(fix_mutex());
  return fix_state(name).overloads;
}

}  // namespace metalops
