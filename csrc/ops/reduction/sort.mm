// Host side of kernels/reduction/sort.metal: sort, topk and kthvalue, while the fix "sort" is on.
// argsort, msort and the quantiles call these.
#include <csrc/ops/reduction/sort.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort_meta.h>
#include <ATen/ops/topk_meta.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/int32.h>
#include <csrc/ops/common/outputs.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/strided_launch.h>
#include <metalops/structured.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace metalops {
namespace {

using at::Tensor;

constexpr int64_t kBlock = kSortBlock;

at::native::mps::MetalShaderLibrary& kernels() { return library("sort"); }

KernelName sort_kernel(const char* prefix, const Tensor& self) {
  return KernelName(prefix) + key_type(self.scalar_type());
}

int32_t key_kind(at::ScalarType type) {
  if (at::isFloatingType(type)) {
    return kSortFloat;
  }
  return type != at::kBool && at::isSignedType(type) ? kSortSigned : kSortUnsigned;
}

// Rows of several blocks: sorts the blocks, and merges them in pairs until one is left.
void write_long_rows(const Tensor& self, const Tensor& values, const Tensor& indices,
                     SortParameters& p, const StridedLayout<3>& layout) {
  const auto rows = p.rows;
  p.blocks = static_cast<int32_t>(c10::metal::ceil_div<int64_t>(p.columns, kBlock));
  // A median is known by the number of elements that are not NaN, which the whole row tells.
  const auto needed = p.choice == kSortColumns ? int64_t{p.first} + p.written : int64_t{p.columns};
  p.kept = static_cast<int32_t>(std::min(needed, kBlock));
  const auto bits = self.element_size() == 1   ? at::kByte
                    : self.element_size() == 2 ? at::kShort
                    : self.element_size() == 4 ? at::kInt
                                               : at::kLong;
  int64_t last = std::min<int64_t>(p.columns - int64_t{p.blocks - 1} * kBlock, p.kept);
  // Elements from row to row: the runs are adjacent, and all of them but the last are full.
  int64_t stride = int64_t{p.blocks - 1} * p.kept + last;
  const auto row_of_keys = [&](int64_t elements) {
    return std::pair(at::empty({rows, elements}, self.options().dtype(bits)),
                     at::empty({rows, elements}, self.options().dtype(at::kInt)));
  };
  auto from = row_of_keys(stride);
  launch_threadgroups(kernels(), sort_kernel("sort_blocks_", self), rows * p.blocks, kSortThreads,
                      from.first, from.second, self, stride, p, layout);
  int64_t run = p.kept;
  for (int64_t runs = p.blocks; runs > 1; runs = (runs + 1) / 2) {
    const auto kept = std::min(2 * run, needed);
    const auto last_run = last;
    const auto tiles = c10::metal::ceil_div(kept, kBlock);
    last = std::min(runs % 2 == 0 ? run + last : last, kept);
    const auto merged_stride = ((runs + 1) / 2 - 1) * kept + last;
    const SortMergeParameters merge{
        .stride = stride,
        .merged_stride = merged_stride,
        .run = static_cast<int32_t>(run),
        .runs = static_cast<int32_t>(runs),
        .last = static_cast<int32_t>(last_run),
        .kept = static_cast<int32_t>(std::min<int64_t>(kept, kInt32Max)),
        .tiles = static_cast<int32_t>(tiles),
        .unused = 0};
    auto to = row_of_keys(merged_stride);
    launch_threadgroups(kernels(), sort_kernel("sort_merge_", self),
                        rows * ((runs + 1) / 2) * tiles, kSortThreads, to.first, to.second,
                        from.first, from.second, merge);
    run = kept;
    stride = merged_stride;
    from = std::move(to);
  }
  launch_rows(kernels(), sort_kernel("sort_write_", self), p.written, rows, values, indices, self,
              from.first, from.second, stride, p, layout);
}

void write_rows(const Tensor& self, const Tensor& values, const Tensor& indices, SortParameters& p,
                const StridedLayout<3>& layout) {
  if (p.columns > kBlock) {
    write_long_rows(self, values, indices, p, layout);
    return;
  }
  constexpr int32_t kLeastLog2 = 3;  // the elements of a thread
  p.width_log2 = kLeastLog2;
  while ((int32_t{1} << p.width_log2) < p.columns) {
    ++p.width_log2;
  }
  launch_threadgroups(kernels(), sort_kernel("sort_rows_", self),
                      c10::metal::ceil_div(p.rows, kBlock >> p.width_log2), kSortThreads, values,
                      indices, self, p, layout);
}

bool share_memory(const Tensor& a, const Tensor& b) {
  return at::get_overlap_status(a, b) != at::MemOverlapStatus::No;
}

}  // namespace

void write_sorted(const char* name, const Tensor& self, int64_t dim, const SortedColumns& columns,
                  const Tensor& values, const Tensor& indices) {
  if (values.numel() == 0) {
    return;
  }
  if (self.dim() == 0) {
    write_sorted(name, self.unsqueeze(0), 0, {}, values.unsqueeze(0), indices.unsqueeze(0));
    return;
  }
  // Threads that load adjacent elements of one row need them adjacent in memory; of short rows,
  // adjacent threads can load elements of adjacent rows.
  constexpr int64_t kMostAcross = 256;
  const bool moves = self.size(dim) > kMostAcross && self.stride(dim) != 1;
  if (moves || share_memory(self, values) || share_memory(self, indices)) {
    const auto rows = self.movedim(dim, -1).contiguous();
    auto sizes = rows.sizes().vec();
    sizes.back() = columns.count;
    const auto row_values = at::empty(sizes, values.options());
    const auto row_indices = at::empty(sizes, indices.options());
    write_sorted(name, rows, rows.dim() - 1, columns, row_values, row_indices);
    values.copy_(row_values.movedim(-1, dim));
    indices.copy_(row_indices.movedim(-1, dim));
    return;
  }
  const auto layout =
      row_major_layout<3>({self.select(dim, 0), values.select(dim, 0), indices.select(dim, 0)});
  const auto bytes = [&](const Tensor& x) { return x.stride(dim) * x.element_size(); };
  SortParameters p{.rows = layout.count,
                   .strides = {bytes(self), bytes(values), bytes(indices)},
                   .infinity = infinity_bits(self.scalar_type()),
                   .columns = checked_int32(self.size(dim), kInt32Max, name, ": a row of size"),
                   .first = static_cast<int32_t>(columns.first),
                   .written = static_cast<int32_t>(columns.count),
                   .choice = columns.choice,
                   .kind = key_kind(self.scalar_type()),
                   .descending = columns.descending ? 1 : 0,
                   .width_log2 = 0,
                   .is_across = layout.count > 1 && layout.strides[0][0] < bytes(self) ? 1 : 0,
                   .blocks = 1,
                   .kept = 0};
  write_rows(self, values, indices, p, layout);
}

void write_choice(const char* name, const Tensor& self, int64_t dim, bool keepdim,
                  const SortedColumns& columns, const Tensor& values, const Tensor& indices) {
  TORCH_CHECK(values.scalar_type() == self.scalar_type(), "expected scalar type '",
              self.scalar_type(), "' but got '", values.scalar_type(), "' for values output");
  TORCH_CHECK(indices.scalar_type() == at::kLong, "expected scalar type '", at::kLong,
              "' but got '", indices.scalar_type(), "' for indices output");
  auto sizes = self.sizes().vec();
  if (self.dim() > 0) {
    sizes[dim] = 1;
  }
  const bool removes = !keepdim && self.dim() > 0;
  if (removes) {
    sizes.erase(sizes.begin() + dim);
  }
  at::assert_no_overlap(self, values);
  at::native::resize_output(values, sizes);
  at::native::resize_output(indices, sizes);
  at::assert_no_internal_overlap(values);
  at::assert_no_internal_overlap(indices);
  const auto with_dim = [&](const Tensor& x) { return removes ? x.unsqueeze(dim) : x; };
  write_sorted(name, self, dim, columns, with_dim(values), with_dim(indices));
}

const char* key_type(at::ScalarType type) {
  switch (c10::elementSize(type)) {
    case 1:
      return "uchar";
    case 2:
      return "ushort";
    case 4:
      return "uint";
    default:
      return "ulong";
  }
}

int64_t infinity_bits(at::ScalarType type) {
  return type == at::kHalf ? 0x7c00 : type == at::kBFloat16 ? 0x7f80 : 0x7f800000;
}

void check_sortable(const char* name, at::ScalarType type) {
  check_dtype(is_metal_float(type) || at::isIntegralType(type, /*includeBool=*/true), name, type);
}

}  // namespace metalops

namespace {

using at::Tensor;
using metalops::write_sorted;

// ---- sort ---------------------------------------------------------------------------------------

std::tuple<Tensor&, Tensor&> sort_out(const Tensor& self, std::optional<bool> stable, int64_t dim,
                                      bool descending, Tensor& values, Tensor& indices) {
  metalops::check_same_device("sort", {{values, "values"}, {indices, "indices"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_sort_stable> call(values, indices);
  call.meta(self, stable, dim, descending);
  metalops::check_sortable("sort", self.scalar_type());
  const auto wrapped = at::maybe_wrap_dim(dim, self.dim());
  write_sorted("sort", self, wrapped,
               {.count = self.dim() == 0 ? 1 : self.size(wrapped), .descending = descending},
               values, indices);
  return {values, indices};
}

std::tuple<Tensor, Tensor> sort(const Tensor& self, std::optional<bool> stable, int64_t dim,
                                bool descending) {
  auto values = at::empty({0}, self.options());
  auto indices = at::empty({0}, self.options().dtype(at::kLong));
  sort_out(self, stable, dim, descending, values, indices);
  return {values, indices};
}

// ---- topk ---------------------------------------------------------------------------------------

std::tuple<Tensor&, Tensor&> topk_out(const Tensor& self, int64_t k, int64_t dim, bool largest,
                                      bool sorted, Tensor& values, Tensor& indices) {
  metalops::check_same_device("topk", {{values, "values"}, {indices, "indices"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_topk> call(values, indices);
  call.meta(self, k, dim, largest, sorted);
  metalops::check_sortable("topk", self.scalar_type());
  write_sorted("topk", self, at::maybe_wrap_dim(dim, self.dim()),
               {.count = k, .descending = largest}, values, indices);
  return {values, indices};
}

std::tuple<Tensor, Tensor> topk(const Tensor& self, int64_t k, int64_t dim, bool largest,
                                bool sorted) {
  auto values = at::empty({0}, self.options());
  auto indices = at::empty({0}, self.options().dtype(at::kLong));
  topk_out(self, k, dim, largest, sorted, values, indices);
  return {values, indices};
}

// ---- kthvalue -----------------------------------------------------------------------------------

std::tuple<Tensor&, Tensor&> kthvalue_out(const Tensor& self, int64_t k, int64_t dim, bool keepdim,
                                          Tensor& values, Tensor& indices) {
  metalops::check_same_device("kthvalue",
                              {{values, "values"}, {indices, "indices"}, {self, "self"}});
  const auto wrapped = at::maybe_wrap_dim(dim, self.dim());
  at::native::zero_numel_check_dims(self, wrapped, "kthvalue()");
  const auto size = self.dim() == 0 ? 1 : self.size(wrapped);
  TORCH_CHECK(k >= 1 && k <= size, "kthvalue(): selected number k out of range for dimension ",
              wrapped);
  metalops::check_sortable("kthvalue", self.scalar_type());
  metalops::write_choice("kthvalue", self, wrapped, keepdim, {.first = k - 1}, values, indices);
  return {values, indices};
}

const metalops::Fix kSort("sort", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("sort.stable", sort, reason);
  m.replace("sort.values_stable", sort_out, reason);
  m.replace("topk", topk, reason);
  m.replace("topk.values", topk_out, reason);
  m.replace("kthvalue.values", kthvalue_out, reason);
});

}  // namespace
