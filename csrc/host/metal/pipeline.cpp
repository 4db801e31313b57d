// CompiledLibrary: lookup of kernels by name and by elementwise call.
#include <metal/pipeline.h>

#include <c10/util/Exception.h>
#include <metal/streams.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace metalops {
namespace {

// Returns the edit distance (Levenshtein) of two names.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// Returns ", did you mean A, B or C?" with the names nearest to `name`; empty if none is near.
std::string suggestion(const std::string& name, const std::vector<std::string>& names) {
  std::vector<std::pair<size_t, std::string>> near;
  for (const auto& other : names) {
    const size_t changes = distance(name, other);
    if (changes <= std::max<size_t>(1, name.size() / 3)) near.emplace_back(changes, other);
  }
  std::sort(near.begin(), near.end());
  if (near.size() > 3) near.resize(3);
  std::string text;
  for (size_t i = 0; i < near.size(); ++i) {
    text += i == 0 ? ", did you mean " : i + 1 < near.size() ? ", " : " or ";
    text += near[i].second;
  }
  return near.empty() ? "" : text + "?";
}

}  // namespace

bool kernel_takes_tensors(const exec::Kernel& kernel) {
  return std::any_of(kernel.arguments, kernel.arguments + kernel.argument_count,
                     [](const msl::abi::Argument& a) { return a.tensor != nullptr; });
}

void throw_missing_kernel(const std::string& name) {
  TORCH_CHECK(false, "Failed to create function state object for: ", name);
}

std::vector<std::string> CompiledLibrary::names() const {
  std::vector<std::string> names;
  for (const auto& part : parts_) {
    for (auto& name : part->names()) names.push_back(std::move(name));
  }
  return names;
}

const std::shared_ptr<exec::Library>& CompiledLibrary::part_with(const std::string& name) const {
  const auto found =
      std::find_if(parts_.begin(), parts_.end(), [&](const auto& part) { return part->has(name); });
  return found == parts_.end() ? parts_.front() : *found;
}

const exec::Kernel& CompiledLibrary::kernel(const std::string& name) const {
  const exec::Kernel* found = find(name);
  if (!found) throw_missing_kernel(name);
  return *found;
}

const exec::Kernel& CompiledLibrary::described_kernel(const std::string& name) const {
  const exec::Kernel* found = part_with(name)->describe(name);
  if (found) return *found;
  for (const auto& part : parts_) {
    if (const std::string reason = part->why_absent(name); !reason.empty()) {
      throw_missing_kernel(name + ". The software device leaves it out because of " + reason);
    }
  }
  throw_missing_kernel(name + suggestion(name, names()));
}

const exec::Kernel& Pipeline::kernel() const {
  if (const auto* compiled = kernel_.load(std::memory_order_acquire)) return *compiled;
  const exec::Kernel* compiled = library->find(described->name);
  kernel_.store(compiled, std::memory_order_release);
  return *compiled;
}

void keep_for_queued(const std::shared_ptr<exec::Library>& library) {
  if (!streams::has_queued()) return;
  using Held = std::shared_ptr<exec::Library>;
  auto held = std::make_unique<Held>(library);
  const auto release = [](void* object) { delete static_cast<Held*>(object); };
  if (streams::keep(held.get(), release)) held.release();
}

CompiledLibrary::~CompiledLibrary() {
  for (const auto& part : parts_) keep_for_queued(part);
  for (const auto& list : elementwise_) {
    for (const Remembered* one = list; one != nullptr;) delete std::exchange(one, one->next);
  }
}

std::atomic<const CompiledLibrary::Remembered*>& CompiledLibrary::list_for(std::string_view name,
                                                                           uint64_t signature) {
  // The text is compared anyway: a few of its letters distinguish most operators of a file.
  uint64_t hash = signature ^ name.size();
  if (!name.empty()) hash = hash << 8 ^ static_cast<unsigned char>(name.back()) << 4 ^ name.front();
  hash *= 0x9E3779B97F4A7C15;
  return elementwise_[(hash >> 32) % elementwise_.size()];
}

const CompiledLibrary::Remembered* CompiledLibrary::find(std::string_view name,
                                                         std::string_view parameters,
                                                         uint64_t signature) {
  const auto& list = list_for(name, signature);
  for (const Remembered* one = list.load(std::memory_order_acquire); one != nullptr;
       one = one->next) {
    if (one->signature == signature && one->name == name && one->parameters == parameters) {
      return one;
    }
  }
  return nullptr;
}

ElementwiseKernel CompiledLibrary::remember(std::string_view name, std::string_view parameters,
                                            uint64_t signature, ElementwiseKernel kernel) {
  auto& list = list_for(name, signature);
  auto* one = new Remembered{std::string(name), std::string(parameters), signature, kernel, list};
  while (!list.compare_exchange_weak(one->next, one, std::memory_order_acq_rel)) {
  }
  return kernel;
}

}  // namespace metalops
