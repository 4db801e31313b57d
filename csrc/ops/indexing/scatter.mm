// Host side of kernels/indexing/scatter.metal: gather, scatter and its reductions, index_fill_,
// index_copy, index_add and index_put_, while the fix "indexing" is on.
#include <csrc/ops/indexing/scatter.h>

#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/ReductionType.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gather_meta.h>
#include <ATen/ops/index_add_meta.h>
#include <ATen/ops/index_copy_meta.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scatter_add_meta.h>
#include <ATen/ops/scatter_meta.h>
#include <ATen/ops/scatter_reduce_meta.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/reduction/sort.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/strided_launch.h>
#include <metalops/structured.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

namespace metalops {
namespace {

using at::Tensor;

at::native::mps::MetalShaderLibrary& scatter_kernels() { return library("scatter"); }

ScatterParameters parameters_of(const ScatterItems& to) {
  const auto items = to.places.numel();
  return {.items = items,
          .spans = c10::metal::ceil_div(items, kScatterSpan),
          .operation = kScatterSum,
          .is_mean = 0,
          .has_self = 1,
          .is_sorted = 0,
          .items_first = to.items_first ? 1 : 0,
          .has_rows = to.rows.defined() ? 1 : 0,
          .has_scales = to.scales.defined() ? 1 : 0,
          .pack = 1};
}

// Returns the bytes at which the tensor begins in its storage, which is aligned.
int64_t first_byte(const Tensor& x) {
  return x.storage_offset() * static_cast<int64_t>(x.element_size());
}

// Returns true if threads can have packs of so many adjacent elements of an item: its elements are
// adjacent in self and in the source, and the source's packs begin where a vector may.
bool has_packs(const ScatterItems& to, const StridedLayout<1>& items,
               const StridedLayout<2>& columns, int64_t pack) {
  const auto element = static_cast<int64_t>(to.items.element_size());
  const auto bytes = pack * element;
  bool are_aligned = first_byte(to.items) % bytes == 0;
  for (uint32_t d = 0; d < items.dimensions; ++d) {
    are_aligned = are_aligned && items.strides[0][d] % bytes == 0;
  }
  return are_aligned && pack > 1 && !to.items_first && columns.dimensions == 1 &&
         columns.strides[0][0] == element && columns.strides[1][0] == element &&
         columns.count % pack == 0;
}

// Makes the layout one of packs of elements.
void divide_by_packs(StridedLayout<2>& columns, int64_t pack) {
  columns.count /= pack;
  columns.sizes[0] /= pack;
  columns.strides[0][0] *= pack;
  columns.strides[1][0] *= pack;
}

struct SortedPlaces {
  Tensor places;
  Tensor order;
};

SortedPlaces sorted(const Tensor& places) {
  SortedPlaces result{at::empty_like(places), at::empty_like(places)};
  write_sorted("scatter", places, 0, {.count = places.numel()}, result.places, result.order);
  return result;
}

bool can_be_reduced(at::ScalarType type, int32_t operation) {
  const bool is_arithmetic = operation == kScatterSum || operation == kScatterProduct;
  return is_metal_float(type) || (type == at::kComplexFloat && is_arithmetic) ||
         (at::isIntegralType(type, /*includeBool=*/true) && !at::isBarebonesUnsignedType(type));
}

at::ScalarType reduced_type(at::ScalarType type) {
  return at::isComplexType(type)                          ? at::kComplexFloat
         : at::isIntegralType(type, /*includeBool=*/true) ? at::kLong
                                                          : at::kFloat;
}

// Returns true if items can be reduced by atomics, without sorting their places, which takes the
// time of many elements of an item.
bool has_atomics(const ScatterItems& to, int64_t columns) {
  constexpr int64_t kMostColumns = 8;
  const auto type = to.items.scalar_type();
  return (type == at::kFloat || type == at::kInt) && columns <= kMostColumns &&
         !to.rows.defined() && !to.scales.defined();
}

bool is_sum_with_self(const ScatterReduction& reduction) {
  return reduction.operation == kScatterSum && !reduction.is_mean && reduction.has_self;
}
bool is_extremum(const ScatterReduction& reduction) {
  return reduction.operation == kScatterMaximum || reduction.operation == kScatterMinimum;
}

// Writes the value to all places that is no larger than any item's, or for minima no smaller.
void begin_extrema(const ScatterItems& to, bool is_maximum) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  using Ints = std::numeric_limits<int32_t>;
  const at::Scalar first = to.items.is_floating_point()
                               ? at::Scalar(is_maximum ? -kInfinity : kInfinity)
                               : at::Scalar(is_maximum ? Ints::min() : Ints::max());
  const auto one = at::scalar_tensor(first, to.items.options());
  auto begun = to;
  begun.items = one.expand(to.items.sizes());
  begun.columns = one.expand(to.columns.sizes());
  copy_items(begun, /*is_ordered=*/false);
}

}  // namespace

void copy_items(const ScatterItems& to, bool is_ordered) {
  auto p = parameters_of(to);
  p.is_sorted = is_ordered ? 1 : 0;
  const auto order = is_ordered ? sorted(to.places) : SortedPlaces{to.places, to.places};
  const auto items = row_major_layout<1>({to.items});
  auto columns = row_major_layout<2>({to.self_columns, to.columns});
  const auto pack = 16 / static_cast<int32_t>(to.items.element_size());
  if (has_packs(to, items, columns, pack) && first_byte(to.self_columns) % 16 == 0) {
    p.pack = pack;
    divide_by_packs(columns, pack);
  }
  launch_threads(scatter_kernels(),
                 KernelName("scatter_copy_") + metal_type_of_width(to.items.scalar_type()),
                 static_cast<uint64_t>(p.items * columns.count), to.self_columns, to.items,
                 order.places, order.order, p, items, columns);
}

void reduce_items(const char* name, const ScatterItems& to, const ScatterReduction& reduction,
                  bool is_ordered) {
  const auto type = to.items.scalar_type();
  check_dtype(can_be_reduced(type, reduction.operation), name, type);
  auto p = parameters_of(to);
  const auto items = row_major_layout<1>({to.items});
  auto columns = row_major_layout<2>({to.self_columns, to.columns});
  p.operation = reduction.operation;
  const bool is_in_any_order =
      is_extremum(reduction) || (is_sum_with_self(reduction) && !is_ordered);
  if (is_in_any_order && has_atomics(to, columns.count)) {
    if (!reduction.has_self) {
      begin_extrema(to, reduction.operation == kScatterMaximum);
    }
    launch_threads(
        scatter_kernels(),
        typed_kernel(is_extremum(reduction) ? "scatter_extremum_" : "scatter_add_", type),
        static_cast<uint64_t>(p.items * columns.count), to.self_columns, to.items, to.places, p,
        items, columns);
    return;
  }
  p.is_mean = reduction.is_mean ? 1 : 0;
  p.has_self = reduction.has_self ? 1 : 0;
  const auto order = sorted(to.places);
  const auto partials = at::empty({p.spans > 1 ? 2 * p.spans * columns.count : 1},
                                  to.items.options().dtype(reduced_type(type)));
  const bool are_packs = is_metal_float(type) && has_packs(to, items, columns, kPack);
  if (are_packs) {
    divide_by_packs(columns, kPack);
  }
  const auto threads = static_cast<uint64_t>(p.spans * columns.count);
  launch_threads(
      scatter_kernels(), typed_kernel(are_packs ? "scatter_spans_packs_" : "scatter_spans_", type),
      threads, to.self_columns, partials, to.items, order.places, order.order, p, items, columns,
      to.rows.defined() ? to.rows : order.order, to.scales.defined() ? to.scales : order.order);
  if (p.spans > 1) {
    launch_threads(scatter_kernels(),
                   typed_kernel(are_packs ? "scatter_runs_packs_" : "scatter_runs_", type), threads,
                   to.self_columns, partials, order.places, p, columns);
  }
}

namespace {

// ---- places -------------------------------------------------------------------------------------

// A tensor's dimensions, which are divided among items and their columns.
struct Dimensions {
  std::vector<int64_t> items;
  std::vector<int64_t> columns;
};

// A view of some dimensions of a tensor. none: one of them in which all elements are one, or -1.
Tensor view_of(const Tensor& x, at::IntArrayRef sizes, const std::vector<int64_t>& dims,
               int64_t none = -1) {
  at::DimVector some_sizes;
  at::DimVector strides;
  for (const auto d : dims) {
    some_sizes.push_back(sizes[d]);
    strides.push_back(d == none ? 0 : x.stride(d));
  }
  return x.as_strided(some_sizes, strides);
}

ScatterPlacesParameters places_parameters(const Tensor& self, int64_t dim, bool wraps) {
  TORCH_CHECK_INDEX(self.size(dim) > 0, "index is out of bounds for dimension with size 0");
  return {.size = self.size(dim),
          .stride = self.stride(dim) * static_cast<int64_t>(self.element_size()),
          .dim = static_cast<int32_t>(dim),
          .wraps = wraps ? 1 : 0,
          .adds = 0,
          .unused = 0};
}

// self_items: where the items would be if all indices were 0.
void write_places(const Tensor& places, const Tensor& index, const Tensor& self_items,
                  const ScatterPlacesParameters& p) {
  const auto layout = row_major_layout<2>({index, self_items});
  launch_threads(scatter_kernels(), typed_kernel("scatter_places_", index),
                 static_cast<uint64_t>(layout.count), places, index, p, layout, kErrorBuffer);
}

Tensor empty_places(const Tensor& self, int64_t items) {
  return at::empty({items}, self.options().dtype(at::kLong));
}

bool items_are_adjacent(const Tensor& self_columns, int64_t item_stride) {
  for (int64_t d = 0; d < self_columns.dim(); ++d) {
    if (self_columns.size(d) > 1 && self_columns.stride(d) <= item_stride) {
      return false;
    }
  }
  return true;
}

// Items that indices along a dimension place. The part of source that is as large as index is
// written. Where indices are expanded along other dimensions, an item has a row of elements.
ScatterItems items_along(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                         bool wraps) {
  Dimensions dims;
  for (int64_t d = 0; d < index.dim(); ++d) {
    (d != dim && index.stride(d) == 0 ? dims.columns : dims.items).push_back(d);
  }
  const auto p = places_parameters(self, dim, wraps);
  ScatterItems to;
  const auto sizes = index.sizes();
  to.items = view_of(source, sizes, dims.items);
  to.columns = view_of(source, sizes, dims.columns);
  to.self_columns = view_of(self, sizes, dims.columns);
  to.items_first = items_are_adjacent(to.self_columns, self.stride(dim));
  to.places = empty_places(self, to.items.numel());
  write_places(to.places, view_of(index, sizes, dims.items),
               view_of(self, sizes, dims.items, /*none=*/dim), p);
  return to;
}

Tensor at_least_1d(const Tensor& x) { return x.dim() == 0 ? x.unsqueeze(0) : x; }

void check_copied(const char* name, at::ScalarType type) {
  check_dtype(type != at::kComplexHalf && !at::isBarebonesUnsignedType(type), name, type);
}

// reduction: none to copy. is_ordered: in the order of the items.
void write_items(const char* name, const ScatterItems& to,
                 const std::optional<ScatterReduction>& reduction, bool is_ordered) {
  if (reduction) {
    reduce_items(name, to, *reduction, is_ordered);
  } else {
    check_copied(name, to.items.scalar_type());
    copy_items(to, is_ordered);
  }
}

bool must_be_ordered() { return at::globalContext().deterministicAlgorithms(); }

// Copies rows, or reduces them with those of self: index has one element for each along the
// dimension.
void write_rows(const char* name, const Tensor& self, int64_t dim, const Tensor& index,
                const Tensor& source, bool wraps, const std::optional<ScatterReduction>& reduction,
                bool is_ordered) {
  if (index.numel() == 0 || source.numel() == 0) {
    return;
  }
  const auto rows = at_least_1d(source);
  at::DimVector sizes(rows.dim(), 1);
  sizes[dim] = index.numel();
  const auto to =
      items_along(at_least_1d(self), dim, index.reshape(sizes).expand(rows.sizes()), rows, wraps);
  write_items(name, to, reduction, is_ordered);
}

// ---- index_fill_ --------------------------------------------------------------------------------

void check_filler(const Tensor& self, bool is_complex) {
  TORCH_CHECK(self.is_complex() || !is_complex,
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
}

Tensor& index_fill_by_tensor(Tensor& self, int64_t dim, const Tensor& index, const Tensor& value) {
  constexpr const char* kName = "index_fill_";
  check_same_device(kName, {{self, "self"}, {index, "index"}});
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong,
                    "index_fill_(): Expected dtype int64 for index.");
  TORCH_CHECK(value.dim() == 0,
              "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  check_filler(self, value.is_complex());
  TORCH_CHECK(index.dim() <= 1, "Index has to be a vector/scalar");
  at::assert_no_overlap(self, index);
  at::assert_no_internal_overlap(self);
  dim = at::maybe_wrap_dim(dim, self.dim());
  auto sizes = at_least_1d(self).sizes().vec();
  sizes[dim] = index.numel();
  const auto filler = value.to(self.device(), self.scalar_type());
  write_rows(kName, self, dim, index, filler.expand(sizes), /*wraps=*/true, /*reduction=*/{},
             /*is_ordered=*/false);
  return self;
}

Tensor& index_fill_by_scalar(Tensor& self, int64_t dim, const Tensor& index,
                             const at::Scalar& value) {
  check_filler(self, value.isComplex());
  return index_fill_by_tensor(self, dim, index, at::scalar_tensor(value, self.options()));
}

// ---- index_copy and index_add -------------------------------------------------------------------

void begin_with(const Tensor& self, const Tensor& out) {
  if (!out.is_same(self)) {
    out.copy_(self);
  }
}

// The tensor that a functional form writes, which has what self has.
Tensor copy_of(const Tensor& self) { return self.clone(at::MemoryFormat::Contiguous); }

Tensor& index_copy_out(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                       Tensor& out) {
  check_same_device("index_copy",
                    {{out, "out"}, {self, "self"}, {index, "index"}, {source, "source"}});
  StructuredOut<at::meta::structured_index_copy> call(out);
  call.meta(self, dim, index, source);
  begin_with(self, out);
  write_rows("index_copy", out, at::maybe_wrap_dim(dim, self.dim()), index, source, /*wraps=*/false,
             /*reduction=*/{}, /*is_ordered=*/true);
  return out;
}

// Integers are rounded towards zero. Raises RuntimeError if the dtype has no such number.
at::Scalar of_dtype(const at::Scalar& number, at::ScalarType type) {
  return AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(at::kBool, at::kHalf, at::kBFloat16, type,
                                                "index_add",
                                                [&] { return at::Scalar(number.to<scalar_t>()); });
}

Tensor& index_add_out(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                      const at::Scalar& alpha, Tensor& out) {
  check_same_device("index_add",
                    {{out, "out"}, {self, "self"}, {index, "index"}, {source, "source"}});
  StructuredOut<at::meta::structured_index_add> call(out);
  call.meta(self, dim, index, source, alpha);
  begin_with(self, out);
  const auto factor = of_dtype(alpha, self.scalar_type());
  const bool is_one = factor.equal(1);
  write_rows("index_add", out, at::maybe_wrap_dim(dim, self.dim()), index,
             is_one ? source : source.mul(factor), /*wraps=*/false, ScatterReduction{},
             must_be_ordered());
  return out;
}

// ---- scatter and its reductions -----------------------------------------------------------------

ScatterReduction reduction_of(std::string_view reduce, bool has_new_names, bool has_self) {
  using at::native::ReductionType;
  switch (at::native::get_operator_enum(reduce, has_new_names)) {
    case ReductionType::PROD:
      return {kScatterProduct, false, has_self};
    case ReductionType::MAX:
      return {kScatterMaximum, false, has_self};
    case ReductionType::MIN:
      return {kScatterMinimum, false, has_self};
    case ReductionType::MEAN:
      return {kScatterSum, true, has_self};
    default:
      return {kScatterSum, false, has_self};
  }
}

void scatter_into(const char* name, const Tensor& out, int64_t dim, const Tensor& index,
                  const Tensor& source, const std::optional<ScatterReduction>& reduction) {
  if (index.numel() == 0) {
    return;
  }
  dim = at::maybe_wrap_dim(dim, out.dim());
  const auto to = items_along(at_least_1d(out), dim, at_least_1d(index), at_least_1d(source),
                              /*wraps=*/false);
  write_items(name, to, reduction, must_be_ordered());
}

Tensor filled(const Tensor& self, const Tensor& index, const at::Scalar& value) {
  return at::scalar_tensor(value, self.options()).expand(index.sizes());
}

void check_devices(const Tensor& self, const Tensor& index, const Tensor& source,
                   const Tensor& out) {
  check_same_device("scatter", {{out, "out"}, {self, "self"}, {index, "index"}, {source, "src"}});
}

Tensor& scatter_out(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
                    Tensor& out) {
  check_devices(self, index, src, out);
  StructuredOut<at::meta::structured_scatter_src> call(out);
  call.meta(self, dim, index, src);
  begin_with(self, out);
  scatter_into("scatter", out, dim, index, src, {});
  return out;
}

Tensor& scatter_value_out(const Tensor& self, int64_t dim, const Tensor& index,
                          const at::Scalar& value, Tensor& out) {
  check_devices(self, index, self, out);
  StructuredOut<at::meta::structured_scatter_value> call(out);
  call.meta(self, dim, index, value);
  begin_with(self, out);
  scatter_into("scatter", out, dim, index, filled(self, index, value), {});
  return out;
}

Tensor& scatter_with_out(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
                         c10::string_view reduce, Tensor& out) {
  check_devices(self, index, src, out);
  StructuredOut<at::meta::structured_scatter_reduce> call(out);
  call.meta(self, dim, index, src, reduce);
  begin_with(self, out);
  scatter_into("scatter", out, dim, index, src, reduction_of(reduce, false, true));
  return out;
}

Tensor& scatter_value_with_out(const Tensor& self, int64_t dim, const Tensor& index,
                               const at::Scalar& value, c10::string_view reduce, Tensor& out) {
  check_devices(self, index, self, out);
  StructuredOut<at::meta::structured_scatter_value_reduce> call(out);
  call.meta(self, dim, index, value, reduce);
  begin_with(self, out);
  scatter_into("scatter", out, dim, index, filled(self, index, value),
               reduction_of(reduce, false, true));
  return out;
}

Tensor& scatter_add_out(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
                        Tensor& out) {
  check_devices(self, index, src, out);
  StructuredOut<at::meta::structured_scatter_add> call(out);
  call.meta(self, dim, index, src);
  begin_with(self, out);
  scatter_into("scatter_add", out, dim, index, src, ScatterReduction{});
  return out;
}

Tensor& scatter_reduce_out(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
                           c10::string_view reduce, bool include_self, Tensor& out) {
  check_devices(self, index, src, out);
  StructuredOut<at::meta::structured_scatter_reduce_two> call(out);
  call.meta(self, dim, index, src, reduce, include_self);
  begin_with(self, out);
  scatter_into("scatter_reduce", out, dim, index, src, reduction_of(reduce, true, include_self));
  return out;
}

// ---- gather -------------------------------------------------------------------------------------

Tensor& gather_out(const Tensor& self, int64_t dim, const Tensor& index, bool sparse_grad,
                   Tensor& out) {
  check_same_device("gather", {{out, "out"}, {self, "self"}, {index, "index"}});
  StructuredOut<at::meta::structured_gather> call(out);
  call.meta(self, dim, index, sparse_grad);
  check_copied("gather", self.scalar_type());
  if (index.numel() == 0) {
    return out;
  }
  dim = at::maybe_wrap_dim(dim, self.dim());
  const auto input = at_least_1d(self);
  const auto indices = at_least_1d(index);
  auto strides = input.strides().vec();
  strides[dim] = 0;
  const auto p = places_parameters(input, dim, /*wraps=*/false);
  const auto layout =
      row_major_layout<3>({at_least_1d(out), indices, input.as_strided(indices.sizes(), strides)});
  launch_threads(scatter_kernels(),
                 KernelName("scatter_gather_") + metal_type_of_width(self.scalar_type()) + "_" +
                     metal_type(index.scalar_type()),
                 static_cast<uint64_t>(layout.count), out, self, index, p, layout, kErrorBuffer);
  return out;
}

Tensor gather(const Tensor& self, int64_t dim, const Tensor& index, bool sparse_grad) {
  auto out = at::empty({0}, self.options());
  return gather_out(self, dim, index, sparse_grad, out);
}

// ---- index_put_ ---------------------------------------------------------------------------------

using OptionalTensors = c10::List<std::optional<Tensor>>;

// Indices of all dimensions, of one shape where they are defined.
std::vector<Tensor> broadcast_indices(const Tensor& self, const OptionalTensors& indices) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(),
                    "too many indices for tensor of dimension ", self.dim(), " (got ",
                    indices.size(), ")");
  at::native::checkIndexTensorTypes(indices, /*allow_int=*/true);
  auto each = at::native::expandTensors(self, indices, /*ensure_same_device=*/true);
  std::vector<at::IntArrayRef> shapes;
  for (const auto& index : each) {
    if (index.defined()) {
      shapes.push_back(index.sizes());
    }
  }
  try {
    each = at::expand_outplace(each);
  } catch (const c10::Error&) {
    TORCH_CHECK_INDEX(false,
                      "shape mismatch: indexing tensors could not be broadcast together with "
                      "shapes ",
                      c10::Join(", ", shapes));
  }
  each.resize(self.dim());
  for (auto& index : each) {
    if (index.defined() && index.device() != self.device()) {
      index = index.to(self.device());
    }
  }
  return each;
}

// Items that indices of several dimensions place: of the result of the index, the dimensions of
// the indices are items, the others columns. An undefined tensor of places: there are none.
ScatterItems items_at(const Tensor& original, const OptionalTensors& original_indices,
                      const Tensor& values) {
  auto indices = broadcast_indices(original, original_indices);
  auto self = original;
  if (!at::native::hasContiguousSubspace(indices)) {
    std::tie(self, indices) = at::native::transposeToFront(self, indices);
  }
  std::vector<int64_t> indexed;
  Dimensions of_self;
  Dimensions of_result;
  at::DimVector sizes;
  at::IntArrayRef items;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (!indices[d].defined()) {
      of_self.columns.push_back(d);
      of_result.columns.push_back(static_cast<int64_t>(sizes.size()));
      sizes.push_back(self.size(d));
    } else if (indexed.push_back(d); indexed.size() == 1) {
      items = indices[d].sizes();
      for (const auto size : items) {
        of_result.items.push_back(static_cast<int64_t>(sizes.size()));
        sizes.push_back(size);
      }
    }
  }
  TORCH_CHECK(at::is_expandable_to(values.sizes(), sizes), "shape mismatch: value tensor of shape ",
              values.sizes(), " cannot be broadcast to indexing result of shape ", sizes);
  ScatterItems to;
  const auto count = c10::multiply_integers(items);
  if (count == 0) {
    return to;
  }
  std::vector<ScatterPlacesParameters> parameters;
  for (const auto d : indexed) {
    parameters.push_back(places_parameters(self, d, /*wraps=*/true));
    parameters.back().adds = parameters.size() > 1 ? 1 : 0;
  }
  if (c10::multiply_integers(sizes) == 0) {
    return to;
  }
  const auto source = values.expand(sizes);
  to.items = view_of(source, sizes, of_result.items);
  to.columns = view_of(source, sizes, of_result.columns);
  to.self_columns = view_of(self, self.sizes(), of_self.columns);
  to.items_first = items_are_adjacent(to.self_columns, self.stride(indexed.back()));
  to.places = empty_places(self, count);
  const auto origin = self.as_strided(items, at::DimVector(items.size(), 0));
  for (size_t i = 0; i < indexed.size(); ++i) {
    write_places(to.places, indices[indexed[i]], origin, parameters[i]);
  }
  return to;
}

Tensor& index_put_(Tensor& self, const OptionalTensors& indices, const Tensor& values,
                   bool accumulate, bool /*unsafe*/) {
  if (at::has_internal_overlap(self) == at::MemOverlap::Yes) {
    TORCH_WARN(
        "Use of index_put_ on expanded tensors is deprecated. Please clone() the tensor before "
        "performing this operation. This also applies to advanced indexing e.g. tensor[indices] = "
        "tensor");
  }
  if (!accumulate) {
    const auto [is_mask, mask] = at::native::canDispatchToMaskedFill(self, indices, values);
    if (is_mask) {
      return self.masked_fill_(mask, values.item());
    }
  }
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "Index put requires the source and destination dtypes match, got ",
              self.scalar_type(), " for the destination and ", values.scalar_type(),
              " for the source.");
  const auto source = values.dim() == 0 ? values.to(self.device()) : values;
  check_same_device("index_put_", {{self, "self"}, {source, "values"}});
  at::assert_no_overlap(self, source);
  bool is_indexed = false;
  for (const std::optional<Tensor>& index : indices) {
    if (index && index->defined()) {
      at::assert_no_overlap(self, *index);
      is_indexed = true;
    }
  }
  if (!is_indexed) {
    return accumulate ? self.add_(source) : self.copy_(source.expand_as(self));
  }
  const auto to = items_at(self, indices, source);
  if (!to.places.defined()) {
    return self;
  }
  // Sums are always ordered, as by torch on CUDA.
  write_items("index_put_", to, accumulate ? std::optional(ScatterReduction{}) : std::nullopt,
              accumulate || must_be_ordered());
  return self;
}

// ---- registration -------------------------------------------------------------------------------

// The functional and the in-place form of a function that writes `out`.
template <auto kOut, class... Options>
struct Forms {
  static Tensor functional(const Tensor& self, int64_t dim, const Tensor& index,
                           Options... options) {
    auto out = copy_of(self);
    kOut(out, dim, index, options..., out);
    return out;
  }
  static Tensor& inplace(Tensor& self, int64_t dim, const Tensor& index, Options... options) {
    return kOut(self, dim, index, options..., self);
  }
};

using BySource = Forms<scatter_out, const Tensor&>;
using ByValue = Forms<scatter_value_out, const at::Scalar&>;
using BySourceWith = Forms<scatter_with_out, const Tensor&, c10::string_view>;
using ByValueWith = Forms<scatter_value_with_out, const at::Scalar&, c10::string_view>;
using Adding = Forms<scatter_add_out, const Tensor&>;
using Reducing = Forms<scatter_reduce_out, const Tensor&, c10::string_view, bool>;
using Copying = Forms<index_copy_out, const Tensor&>;
using AddingRows = Forms<index_add_out, const Tensor&, const at::Scalar&>;

const Fix kIndexing("indexing", [](AtenKernels& m, const char* reason) {
  m.replace("index_fill_.int_Scalar", index_fill_by_scalar, reason);
  m.replace("index_fill_.int_Tensor", index_fill_by_tensor, reason);
  m.replace("index_copy", Copying::functional, reason);
  m.replace("index_copy_", Copying::inplace, reason);
  m.replace("index_copy.out", index_copy_out, reason);
  m.replace("index_add", AddingRows::functional, reason);
  m.replace("index_add_", AddingRows::inplace, reason);
  m.replace("index_add.out", index_add_out, reason);
  m.replace("scatter.src", BySource::functional, reason);
  m.replace("scatter_.src", BySource::inplace, reason);
  m.replace("scatter.src_out", scatter_out, reason);
  m.replace("scatter.value", ByValue::functional, reason);
  m.replace("scatter_.value", ByValue::inplace, reason);
  m.replace("scatter.value_out", scatter_value_out, reason);
  m.replace("scatter.reduce", BySourceWith::functional, reason);
  m.replace("scatter_.reduce", BySourceWith::inplace, reason);
  m.replace("scatter.reduce_out", scatter_with_out, reason);
  m.replace("scatter.value_reduce", ByValueWith::functional, reason);
  m.replace("scatter_.value_reduce", ByValueWith::inplace, reason);
  m.replace("scatter.value_reduce_out", scatter_value_with_out, reason);
  m.replace("scatter_add", Adding::functional, reason);
  m.replace("scatter_add_", Adding::inplace, reason);
  m.replace("scatter_add.out", scatter_add_out, reason);
  m.replace("scatter_reduce.two", Reducing::functional, reason);
  m.replace("scatter_reduce_.two", Reducing::inplace, reason);
  m.replace("scatter_reduce.two_out", scatter_reduce_out, reason);
  m.replace("gather", gather, reason);
  m.replace("gather.out", gather_out, reason);
  m.replace("_index_put_impl_", index_put_, reason);
});

}  // namespace
}  // namespace metalops
