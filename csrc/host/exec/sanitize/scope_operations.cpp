// Compares the sequences of tensor operations of threads.
#include <exec/sanitize/scope_operations.h>

#include <algorithm>
#include <iterator>

namespace metalops::exec {

void ScopeOperations::clear() {
  if (is_empty_) return;
  for (Operations& operations : operations_) operations.clear();
  is_empty_ = true;
}

ScopeOperations::Difference ScopeOperations::compare(uint32_t a, const Operations& of_a, uint32_t b,
                                                     const Operations& of_b) {
  const size_t common = std::min(of_a.size(), of_b.size());
  size_t i = 0;
  while (i < common && of_a[i].kind == of_b[i].kind) ++i;
  if (i < of_a.size()) return {a, b, &of_a[i], i < of_b.size() ? &of_b[i] : nullptr};
  if (i < of_b.size()) return {b, a, &of_b[i], nullptr};
  return {};
}

ScopeOperations::Difference ScopeOperations::find(uint32_t threads) const {
  using msl::abi::kSimdWidth;
  for (uint32_t thread = 0; thread < threads; ++thread) {
    const uint32_t first = thread / kSimdWidth * kSimdWidth;
    const Difference found = compare(first, operations_[first], thread, operations_[thread]);
    if (found.operation != nullptr) return found;
  }
  // The lanes of each simdgroup agree; compare simdgroups with each other.
  const auto of_group = [&](uint32_t thread) {
    Operations result;
    std::copy_if(operations_[thread].begin(), operations_[thread].end(), std::back_inserter(result),
                 [](const auto& o) { return o.simdgroups > 1; });
    return result;
  };
  static thread_local Operations first, other;  // the result points into them
  first = of_group(0);
  for (uint32_t thread = kSimdWidth; thread < threads; thread += kSimdWidth) {
    other = of_group(thread);
    const Difference found = compare(0, first, thread, other);
    if (found.operation != nullptr) return found;
  }
  return {};
}

}  // namespace metalops::exec
