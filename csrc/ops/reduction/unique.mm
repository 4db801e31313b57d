// Host side of kernels/reduction/unique.metal: unique and unique_consecutive, of all elements and
// of the slices along a dimension, while the fix "unique" is on. The number of results is known
// once the device has counted them.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/reduction/sort.h>
#include <kernels/reduction/unique.h>
#include <metalops/checks.h>
#include <metalops/launch.h>

#include <algorithm>
#include <optional>
#include <tuple>

namespace {

using at::Tensor;

using Unique = std::tuple<Tensor, Tensor, Tensor>;  // values, inverse indices, counts

// Runs of equal elements: their values, where they begin, the run of each element, and their
// lengths.
struct Runs {
  Tensor values, begins, inverse, counts;
};

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("unique"); }

metalops::KernelName unique_kernel(const char* prefix, const Tensor& elements) {
  return metalops::KernelName(prefix) + metalops::key_type(elements.scalar_type());
}

// Returns the runs of a tensor of these sizes. elements: contiguous, at least one; order: where in
// the tensor they come from, undefined if from the same positions.
Runs runs_of(const char* name, const Tensor& elements, const Tensor& order, at::IntArrayRef sizes,
             bool return_inverse, bool return_counts) {
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
  return {unique, begins, inverse, counts};
}

Unique none_of(const Tensor& self) {
  const auto longs = self.options().dtype(at::kLong);
  return {at::empty({0}, self.options()), at::empty(self.sizes(), longs), at::empty({0}, longs)};
}

// The runs of a tensor's sorted elements, and where in the tensor these are.
std::tuple<Runs, Tensor> sorted_runs(const Tensor& self, bool return_inverse, bool return_counts) {
  const auto elements = self.contiguous().view({-1});
  const auto values = at::empty_like(elements);
  const auto order = at::empty(elements.sizes(), self.options().dtype(at::kLong));
  metalops::write_sorted("unique", elements, 0, {.count = elements.numel()}, values, order);
  return {runs_of("unique", values, order, self.sizes(), return_inverse, return_counts), order};
}

Unique unique2(const Tensor& self, bool /*sorted*/, bool return_inverse, bool return_counts) {
  metalops::check_sortable("unique", self.scalar_type());
  if (self.numel() == 0) {
    return none_of(self);
  }
  const auto [runs, order] = sorted_runs(self, return_inverse, return_counts);
  return {runs.values, runs.inverse, runs.counts};
}

std::tuple<Tensor, Tensor> unique(const Tensor& self, bool sorted, bool return_inverse) {
  auto [values, inverse, counts] = unique2(self, sorted, return_inverse, false);
  return {values, inverse};
}

// ---- slices -------------------------------------------------------------------------------------

// Returns the number of each row, which has at least one element, among the different rows in
// lexicographic order. Numbers of adjacent columns become those of pairs of them, until one column
// is left.
Tensor row_numbers(const Tensor& rows) {
  auto numbers = std::get<0>(sorted_runs(rows, /*return_inverse=*/true, false)).inverse;
  while (numbers.size(1) > 1) {
    const auto columns = numbers.size(1);
    const auto pairs = columns / 2;
    // At most as many as there are elements, which are less than 2^31.
    const auto bound = numbers.numel();
    auto paired = numbers.slice(1, 0, 2 * pairs, 2) * bound + numbers.slice(1, 1, 2 * pairs, 2);
    if (columns % 2 != 0) {
      const auto wide = at::empty({numbers.size(0), pairs + 1}, numbers.options());
      wide.slice(1, 0, pairs).copy_(paired);
      wide.select(1, pairs).copy_(numbers.select(1, columns - 1));
      paired = wide;
    }
    numbers = std::get<0>(sorted_runs(paired, /*return_inverse=*/true, false)).inverse;
  }
  return numbers.select(1, 0).contiguous();
}

// Inverse indices and counts are always returned, as by torch's other devices.
Unique unique_slices(const Tensor& self, int64_t dim, bool is_consecutive) {
  metalops::check_sortable("unique_dim", self.scalar_type());
  TORCH_CHECK_INDEX(self.dim() > 0, "Dimension specified as ", dim,
                    " but tensor has no dimensions");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const auto zeros = std::count(self.sizes().begin(), self.sizes().end(), 0);
  if (self.size(dim) == 0) {
    TORCH_CHECK(zeros == 1,
                "Number of zero sized dimensions is more than one, so unique cannot be applied ");
    const auto longs = self.options().dtype(at::kLong);
    return {at::empty(self.sizes(), self.options()), at::empty({0}, longs), at::empty({0}, longs)};
  }
  TORCH_CHECK(
      zeros == 0,
      "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  const auto slices = self.movedim(dim, 0);
  const auto numbers = row_numbers(slices.reshape({slices.size(0), -1}));
  Tensor order;
  Runs runs;
  if (is_consecutive) {
    runs = runs_of("unique_dim_consecutive", numbers, {}, numbers.sizes(), true, true);
  } else {
    std::tie(runs, order) = sorted_runs(numbers, true, true);
  }
  const auto first = is_consecutive ? runs.begins : order.index_select(0, runs.begins);
  return {slices.index_select(0, first).movedim(0, dim), runs.inverse, runs.counts};
}

Unique unique_dim(const Tensor& self, int64_t dim, bool /*sorted*/, bool /*return_inverse*/,
                  bool /*return_counts*/) {
  return unique_slices(self, dim, /*is_consecutive=*/false);
}

Unique unique_dim_consecutive(const Tensor& self, int64_t dim, bool /*return_inverse*/,
                              bool /*return_counts*/) {
  return unique_slices(self, dim, /*is_consecutive=*/true);
}

Unique unique_consecutive(const Tensor& self, bool return_inverse, bool return_counts,
                          std::optional<int64_t> dim) {
  if (dim && !(*dim == 0 && self.dim() == 1)) {
    return unique_slices(self, *dim, /*is_consecutive=*/true);
  }
  metalops::check_sortable("unique", self.scalar_type());
  if (self.numel() == 0) {
    return none_of(self);
  }
  const auto runs = runs_of("unique_consecutive", self.contiguous().view({-1}), {}, self.sizes(),
                            return_inverse, return_counts);
  return {runs.values, runs.inverse, runs.counts};
}

const metalops::Fix kUnique("unique", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("_unique", unique, reason);
  m.replace("_unique2", unique2, reason);
  m.replace("unique_consecutive", unique_consecutive, reason);
  m.replace("unique_dim", unique_dim, reason);
  m.replace("unique_dim_consecutive", unique_dim_consecutive, reason);
});

}  // namespace
