// Host side of kernels/reduction/unique.metal: unique and unique_consecutive of all elements, while
// the fix "unique" is on. The number of results is known once the device has counted them.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/unique_dim_consecutive.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/reduction/sort.h>
#include <kernels/reduction/unique.h>
#include <metalops/checks.h>
#include <metalops/launch.h>

#include <optional>
#include <tuple>

namespace {

using at::Tensor;

using Unique = std::tuple<Tensor, Tensor, Tensor>;  // values, inverse indices, counts

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("unique"); }

metalops::KernelName unique_kernel(const char* prefix, const Tensor& elements) {
  return metalops::KernelName(prefix) + metalops::key_type(elements.scalar_type());
}

// Returns the first elements of runs, for a tensor of these sizes. elements: contiguous, at least
// one; order: where in the tensor they come from, undefined if from the same positions.
Unique first_of_runs(const char* name, const Tensor& elements, const Tensor& order,
                     at::IntArrayRef sizes, bool return_inverse, bool return_counts) {
  const auto count = elements.numel();
  const auto longs = elements.options().dtype(at::kLong);
  const metalops::UniqueParameters p{
      .infinity = metalops::infinity_bits(elements.scalar_type()),
      .elements = metalops::checked_int32(count, metalops::kInt32Max - metalops::kUniqueBlock, name,
                                          ": a tensor of size"),
      .blocks = static_cast<int32_t>(c10::metal::ceil_div<int64_t>(count, metalops::kUniqueBlock)),
      .is_float = at::isFloatingType(elements.scalar_type()) ? 1 : 0,
      .has_order = order.defined() ? 1 : 0,
      .returns_inverse = return_inverse ? 1 : 0,
      .unused = 0};
  const auto offsets = at::empty({int64_t{p.blocks} + 1}, elements.options().dtype(at::kInt));
  metalops::launch_threadgroups(kernels(), unique_kernel("unique_count_", elements), p.blocks,
                                metalops::kUniqueThreads, offsets, elements, p);
  metalops::launch_threadgroups(kernels(), "unique_offsets", 1, metalops::kUniqueThreads, offsets,
                                p);
  const int64_t runs = offsets[p.blocks].item<int32_t>();
  auto unique = at::empty({runs}, elements.options());
  auto begins = at::empty({runs}, longs);
  auto inverse = return_inverse ? at::empty(sizes, longs) : at::empty({0}, longs);
  metalops::launch_threadgroups(kernels(), unique_kernel("unique_write_", elements), p.blocks,
                                metalops::kUniqueThreads, unique, begins,
                                return_inverse ? inverse : begins, elements,
                                order.defined() ? order : begins, offsets, p);
  auto counts = at::empty({return_counts ? runs : 0}, longs);
  if (return_counts) {
    metalops::launch_threads(kernels(), "unique_lengths", static_cast<uint64_t>(runs), counts,
                             begins, runs, count);
  }
  return {unique, inverse, counts};
}

Unique none_of(const Tensor& self) {
  const auto longs = self.options().dtype(at::kLong);
  return {at::empty({0}, self.options()), at::empty(self.sizes(), longs), at::empty({0}, longs)};
}

Unique unique2(const Tensor& self, bool /*sorted*/, bool return_inverse, bool return_counts) {
  metalops::check_sortable("unique", self.scalar_type());
  if (self.numel() == 0) {
    return none_of(self);
  }
  const auto elements = self.contiguous().view({-1});
  const auto values = at::empty_like(elements);
  const auto order = at::empty(elements.sizes(), self.options().dtype(at::kLong));
  metalops::write_sorted("unique", elements, 0, {.count = elements.numel()}, values, order);
  return first_of_runs("unique", values, order, self.sizes(), return_inverse, return_counts);
}

std::tuple<Tensor, Tensor> unique(const Tensor& self, bool sorted, bool return_inverse) {
  auto [values, inverse, counts] = unique2(self, sorted, return_inverse, false);
  return {values, inverse};
}

Unique unique_consecutive(const Tensor& self, bool return_inverse, bool return_counts,
                          std::optional<int64_t> dim) {
  metalops::check_sortable("unique", self.scalar_type());
  if (dim && !(*dim == 0 && self.dim() == 1)) {
    return at::unique_dim_consecutive(self, *dim, return_inverse, return_counts);
  }
  if (self.numel() == 0) {
    return none_of(self);
  }
  return first_of_runs("unique_consecutive", self.contiguous().view({-1}), {}, self.sizes(),
                       return_inverse, return_counts);
}

const metalops::Fix kUnique("unique", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("_unique", unique, reason);
  m.replace("_unique2", unique2, reason);
  m.replace("unique_consecutive", unique_consecutive, reason);
});

}  // namespace
