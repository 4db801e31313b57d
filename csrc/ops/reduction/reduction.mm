// Host side of kernels/reduction/reduction.metal: sums, products, extrema, norms and variances,
// while the fix "reduction" is on.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/amax_meta.h>
#include <ATen/ops/amin_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linalg_vector_norm_meta.h>
#include <ATen/ops/mean_meta.h>
#include <ATen/ops/prod_meta.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/sum_meta.h>
#include <ATen/ops/var.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <csrc/ops/common/fixes.h>
#include <kernels/reduction/reduction.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/metal_type.h>
#include <metalops/strided_launch.h>
#include <metalops/structured.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

namespace {

using at::OptionalIntArrayRef;
using at::Tensor;
using at::native::DimMask;
using metalops::kReductionQuad;
using metalops::kReductionThreads;
using metalops::ReductionParameters;
using metalops::StridedLayout;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("reduction"); }

// A bool is a byte that is 0 or 1.
const char* type_name(at::ScalarType type) {
  return type == at::kBool ? "uchar" : metalops::metal_type(type);
}

// A reduction as the kernels know it. name: its part of their names; parameter, has_root: see
// ReductionParameters.
struct Reduction {
  const char* name;
  float parameter = 0.0f;
  bool has_root = false;
};

// ---- layouts ------------------------------------------------------------------------------------

// The layout of results, in out and in self, and that of the elements of one, in self.
struct Layouts {
  StridedLayout<2> kept;
  StridedLayout<1> reduced;
};

// Broadcast dimensions come last.
int64_t order(int64_t stride) { return stride == 0 ? std::numeric_limits<int64_t>::max() : stride; }

// Collects the dimensions as they are adjacent in memory of self.
Layouts layouts_of(const Tensor& self, const Tensor& out, const DimMask& mask, bool keepdim) {
  struct Dimension {
    int64_t size, stride, out_stride;
    bool is_reduced;
  };
  c10::SmallVector<Dimension, 8> dimensions;
  int64_t of_out = 0;
  for (int64_t i = 0; i < self.dim(); ++i) {
    const bool has_out = keepdim || !mask[i];
    const auto stride = has_out ? out.stride(of_out++) * out.element_size() : 0;
    dimensions.push_back({self.size(i), self.stride(i) * self.element_size(), stride, mask[i]});
  }
  std::stable_sort(
      dimensions.begin(), dimensions.end(),
      [](const Dimension& a, const Dimension& b) { return order(a.stride) < order(b.stride); });
  metalops::detail::LayoutBuilder<2> kept;
  metalops::detail::LayoutBuilder<1> reduced;
  for (const auto& dimension : dimensions) {
    if (dimension.is_reduced) {
      reduced.add(dimension.size, {dimension.stride});
    } else {
      kept.add(dimension.size, {dimension.out_stride, dimension.stride});
    }
  }
  return {kept.finished(), reduced.finished()};
}

// Returns true if each of the tensor's quads along the fastest dimension begins where a quad may.
template <unsigned N>
bool has_quads(const StridedLayout<N>& layout, int64_t element_size) {
  constexpr unsigned kSelf = N - 1;
  return layout.strides[kSelf][0] == element_size && layout.sizes[0] % kReductionQuad == 0;
}

template <unsigned N>
bool is_aligned(const StridedLayout<N>& layout, int64_t bytes, uint32_t first) {
  for (uint32_t i = first; i < layout.dimensions; ++i) {
    if (layout.strides[N - 1][i] % bytes != 0) {
      return false;
    }
  }
  return true;
}

// Makes the layout one of quads.
template <unsigned N>
void divide_by_quads(StridedLayout<N>& layout) {
  layout.count /= kReductionQuad;
  layout.sizes[0] /= kReductionQuad;
  for (unsigned i = 0; i < N; ++i) {
    layout.strides[i][0] *= kReductionQuad;
  }
}

// ---- threads ------------------------------------------------------------------------------------

constexpr int64_t kManyGroups = 1024;
constexpr int64_t kManyThreads = int64_t{1} << 18;
// Results, and quads of results, that adjacent threads have.
constexpr int64_t kResultsAcross = 32;
constexpr int64_t kQuadsAcross = 64;

int64_t floor_power_of_two(int64_t x) {
  int64_t power = 1;
  while (2 * power <= x) {
    power *= 2;
  }
  return power;
}

// Returns how many threads at most have one result. adjacent: results that adjacent threads should
// have, so that what they load is adjacent.
int64_t most_threads(const ReductionParameters& p, int64_t adjacent) {
  return p.is_across != 0 ? kReductionThreads / floor_power_of_two(std::min(p.results, adjacent))
                          : kReductionThreads;
}

void divide_threads(ReductionParameters& p, int64_t adjacent) {
  const int64_t enough_units =
      p.is_packed != 0 ? 16 : 64;  // of a thread, where there are many results
  constexpr int64_t kFewUnits = 2;
  constexpr int64_t kMostUnits = 4096;  // of a thread, for the precision of sums
  constexpr int64_t kAtOnce = 4;
  const auto most = most_threads(p, adjacent);
  const auto units = [&] { return p.units >> p.width_log2; };
  const auto few = [&] { return p.results << p.width_log2 < kManyThreads; };
  while ((int64_t{2} << p.width_log2) <= most &&
         (units() > enough_units || (few() && units() > kFewUnits))) {
    ++p.width_log2;
  }
  const auto width = int64_t{1} << p.width_log2;
  const auto blocks = c10::metal::ceil_div<int64_t>(p.results, kReductionThreads / width);
  const auto most_spans = std::max<int64_t>(p.units / (width * kAtOnce), 1);
  const auto spans = std::max(std::clamp<int64_t>(kManyGroups / blocks, 1, most_spans),
                              c10::metal::ceil_div(p.units, width * kMostUnits));
  p.span =
      c10::metal::ceil_div(c10::metal::ceil_div(p.units, spans), width * kAtOnce) * width * kAtOnce;
  p.spans = static_cast<int32_t>(p.units > 0 ? c10::metal::ceil_div(p.units, p.span) : 1);
}

uint64_t groups_of(const ReductionParameters& p) {
  constexpr int64_t kMost = (int64_t{1} << 24) - 1;  // so that there are less than 2^32 threads
  const auto blocks = c10::metal::ceil_div<int64_t>(p.results, kReductionThreads >> p.width_log2);
  return static_cast<uint64_t>(std::min(blocks * p.spans, kMost));
}

// The values that the first launch leaves for a second one to combine.
struct Partials {
  Tensor values;
  ReductionParameters parameters;
  StridedLayout<2> kept;
};

void launch_partials(const Reduction& reduction, const Partials& partials, const Tensor& out) {
  auto p = partials.parameters;
  p.parameter = reduction.parameter;
  p.has_root = reduction.has_root ? 1 : 0;
  metalops::launch_threadgroups(kernels(),
                                metalops::KernelName("reduction_partials_") + reduction.name + "_" +
                                    type_name(out.scalar_type()),
                                groups_of(p), kReductionThreads, out, partials.values, p,
                                partials.kept);
}

// In bytes, of what some elements amount to: at least that of any reduction.
constexpr int64_t kPartialBytes = 12;

// Launches the reduction of spans. out: undefined if all are to be left to others.
Partials launch_spans(const Reduction& reduction, const Tensor& self, const Tensor& out,
                      Layouts layouts, bool is_partial) {
  const auto size = self.element_size();
  const auto quad_bytes = kReductionQuad * size;
  auto& [kept, reduced] = layouts;
  Partials partials{{}, {}, kept};
  ReductionParameters p{.results = kept.count,
                        .units = reduced.count,
                        .span = 0,
                        .out_stride = kept.strides[0][0],
                        .spans = 1,
                        .width_log2 = 0,
                        .is_across = 0,
                        .is_packed = 0,
                        .is_partial = 0,
                        .parameter = reduction.parameter,
                        .has_root = reduction.has_root ? 1 : 0,
                        .unused = 0};
  const bool is_across =
      p.results > 1 && p.units > 1 && order(kept.strides[1][0]) < order(reduced.strides[0][0]);
  p.is_across = is_across ? 1 : 0;
  const bool begins = metalops::begins_with_pack(self);
  const bool has_columns = is_across && begins && has_quads(kept, size) &&
                           is_aligned(kept, quad_bytes, 1) && is_aligned(reduced, quad_bytes, 0);
  if (has_columns) {
    divide_by_quads(kept);
    p.results = kept.count;
  } else if (!is_across && begins && p.units > 1 && has_quads(reduced, size) &&
             is_aligned(reduced, quad_bytes, 1) && is_aligned(kept, quad_bytes, 0)) {
    divide_by_quads(reduced);
    p.units = reduced.count;
    p.is_packed = 1;
  }
  divide_threads(p, has_columns ? kQuadsAcross : kResultsAcross);
  p.is_partial = is_partial || p.spans > 1 ? 1 : 0;
  const auto results = partials.kept.count;
  if (p.is_partial != 0) {
    partials.values =
        at::empty({results * p.spans * kPartialBytes}, self.options().dtype(at::kByte));
    auto& q = partials.parameters;
    q = p;
    q.results = results;
    q.units = p.spans;
    q.spans = 1;
    q.is_across = results > 1 ? 1 : 0;
    q.width_log2 = 0;
    while ((int64_t{2} << q.width_log2) <= most_threads(q, kResultsAcross) &&
           (int64_t{1} << q.width_log2) < q.units) {
      ++q.width_log2;
    }
  }
  const auto prefix = has_columns ? metalops::KernelName("reduction_columns_")
                                  : metalops::KernelName("reduction_elements_");
  metalops::launch_threadgroups(kernels(),
                                prefix + reduction.name + "_" + type_name(self.scalar_type()) +
                                    "_" + type_name(out.scalar_type()),
                                groups_of(p), kReductionThreads, out,
                                p.is_partial != 0 ? partials.values : out, self, p, kept, reduced);
  return partials;
}

// Reduces self to out, which has the sizes of the result and a dtype of the kernels.
void reduce(const Reduction& reduction, const Tensor& self, const DimMask& mask, bool keepdim,
            const Tensor& out) {
  if (out.numel() == 0) {
    return;
  }
  if (self.is_alias_of(out) && at::get_overlap_status(self, out) != at::MemOverlapStatus::No) {
    reduce(reduction, self.clone(), mask, keepdim, out);
    return;
  }
  const auto partials =
      launch_spans(reduction, self, out, layouts_of(self, out, mask, keepdim), false);
  if (partials.values.defined()) {
    launch_partials(reduction, partials, out);
  }
}

// As reduce(), where the kernels have the results in `type`, and out may have another dtype.
void reduce_in(at::ScalarType type, const Reduction& reduction, const Tensor& self,
               const DimMask& mask, bool keepdim, const Tensor& out) {
  if (out.scalar_type() == type) {
    reduce(reduction, self, mask, keepdim, out);
    return;
  }
  const auto result = at::empty(out.sizes(), out.options().dtype(type));
  reduce(reduction, self, mask, keepdim, result);
  out.copy_(result);
}

// ---- sums and products --------------------------------------------------------------------------

at::ScalarType sum_type(const Tensor& self, std::optional<at::ScalarType> dtype) {
  return dtype.value_or(at::isIntegralType(self.scalar_type(), /*includeBool=*/true)
                            ? at::kLong
                            : self.scalar_type());
}

bool has_integer_kernel(at::ScalarType type) {
  return at::isIntegralType(type, /*includeBool=*/true) && !at::isBarebonesUnsignedType(type);
}

// Adds or multiplies elements in the dtype of out.
void accumulate(const char* name, const Reduction& reduction, const Tensor& self,
                const DimMask& mask, bool keepdim, const Tensor& out) {
  const auto type = out.scalar_type();
  if (metalops::is_metal_float(type)) {
    const bool is_wider = type == at::kFloat && metalops::is_metal_float(self.scalar_type()) &&
                          std::string_view(reduction.name) == "sum";
    reduce(reduction, is_wider ? self : self.to(type), mask, keepdim, out);
  } else if (at::isComplexType(type)) {
    metalops::check_dtype(type != at::kComplexDouble, name, type);
    reduce_in(at::kComplexFloat, reduction, self.to(at::kComplexFloat), mask, keepdim, out);
  } else {
    metalops::check_dtype(at::isIntegralType(type, /*includeBool=*/true), name, type);
    const bool is_direct = has_integer_kernel(self.scalar_type()) && type != at::kBool;
    const auto integers = is_direct                  ? self
                          : has_integer_kernel(type) ? self.to(type)
                                                     : self.to(at::kLong);
    reduce_in(at::kLong, reduction, integers, mask, keepdim, out);
  }
}

Tensor result_of(const Tensor& self, at::ScalarType type) {
  return at::empty({0}, self.options().dtype(type));
}

Tensor& sum_out(const Tensor& self, OptionalIntArrayRef dim, bool keepdim,
                std::optional<at::ScalarType> dtype, Tensor& out) {
  metalops::check_same_device("sum", {{out, "out"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_sum_dim_IntList> call(out);
  call.meta(self, dim, keepdim, dtype);
  accumulate("sum", {.name = "sum", .parameter = 1.0f}, self,
             at::native::make_dim_mask(dim, self.dim()), keepdim, out);
  return out;
}

Tensor sum(const Tensor& self, OptionalIntArrayRef dim, bool keepdim,
           std::optional<at::ScalarType> dtype) {
  auto out = result_of(self, sum_type(self, dtype));
  return sum_out(self, dim, keepdim, dtype, out);
}

Tensor& nansum_out(const Tensor& self, OptionalIntArrayRef dim, bool keepdim,
                   std::optional<at::ScalarType> dtype, Tensor& out) {
  TORCH_CHECK(!at::isComplexType(self.scalar_type()),
              "nansum on MPS does not support complex inputs");
  const auto type = out.scalar_type();
  if (!at::isFloatingType(self.scalar_type()) || !at::isFloatingType(type)) {
    return sum_out(self, dim, keepdim, dtype, out);
  }
  metalops::check_same_device("nansum", {{out, "out"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_sum_dim_IntList> call(out);
  call.meta(self, dim, keepdim, dtype);
  metalops::check_metal_float("nansum", type);
  reduce({.name = "nansum", .parameter = 1.0f}, self.to(type),
         at::native::make_dim_mask(dim, self.dim()), keepdim, out);
  return out;
}

Tensor nansum(const Tensor& self, OptionalIntArrayRef dim, bool keepdim,
              std::optional<at::ScalarType> dtype) {
  auto out = result_of(self, sum_type(self, dtype));
  return nansum_out(self, dim, keepdim, dtype, out);
}

Tensor& mean_out(const Tensor& self, OptionalIntArrayRef dim, bool keepdim,
                 std::optional<at::ScalarType> dtype, Tensor& out) {
  metalops::check_same_device("mean", {{out, "out"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_mean_dim> call(out);
  call.meta(self, dim, keepdim, dtype);
  const auto count = out.numel() > 0 ? self.numel() / out.numel() : 0;
  accumulate("mean", {.name = "sum", .parameter = static_cast<float>(count)}, self,
             at::native::make_dim_mask(dim, self.dim()), keepdim, out);
  return out;
}

Tensor mean(const Tensor& self, OptionalIntArrayRef dim, bool keepdim,
            std::optional<at::ScalarType> dtype) {
  auto out = result_of(self, dtype.value_or(self.scalar_type()));
  return mean_out(self, dim, keepdim, dtype, out);
}

Tensor& prod_out(const Tensor& self, int64_t dim, bool keepdim, std::optional<at::ScalarType> dtype,
                 Tensor& out) {
  metalops::check_same_device("prod", {{out, "out"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_prod_dim_int> call(out);
  call.meta(self, dim, keepdim, dtype);
  accumulate("prod", {.name = "prod"}, self,
             at::native::make_dim_mask(at::IntArrayRef(dim), self.dim()), keepdim, out);
  return out;
}

Tensor prod_of_dim(const Tensor& self, int64_t dim, bool keepdim,
                   std::optional<at::ScalarType> dtype) {
  auto out = result_of(self, sum_type(self, dtype));
  return prod_out(self, dim, keepdim, dtype, out);
}

Tensor prod(const Tensor& self, std::optional<at::ScalarType> dtype) {
  const auto out = at::empty({}, self.options().dtype(sum_type(self, dtype)));
  accumulate("prod", {.name = "prod"}, self, at::native::make_dim_mask(std::nullopt, self.dim()),
             false, out);
  return out;
}

Tensor trace(const Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  return at::sum(self.diagonal());
}

Tensor count_nonzero(const Tensor& self, at::IntArrayRef dim) {
  const auto type = self.scalar_type();
  const auto mask = at::native::make_dim_mask(dim, self.dim());
  const bool has_kernel =
      metalops::is_metal_float(type) || has_integer_kernel(type) || type == at::kComplexFloat;
  const auto out = at::empty(at::native::shape_from_dim_mask(self, mask, false),
                             self.options().dtype(at::kLong));
  reduce({.name = "count_nonzero"}, has_kernel ? self : self.ne(0), mask, false, out);
  return out;
}

// ---- extrema ------------------------------------------------------------------------------------

struct Largest {
  using Meta = at::meta::structured_amax;
  static constexpr const char* name = "amax";
  static constexpr const char* name_of_all = "max";
};

struct Smallest {
  using Meta = at::meta::structured_amin;
  static constexpr const char* name = "amin";
  static constexpr const char* name_of_all = "min";
};

void check_ordered(const char* name, at::ScalarType type) {
  metalops::check_dtype(metalops::is_metal_float(type) || has_integer_kernel(type), name, type);
}

template <class Extremum>
Tensor& extremum_out(const Tensor& self, at::IntArrayRef dim, bool keepdim, Tensor& out) {
  metalops::check_same_device(Extremum::name, {{out, "out"}, {self, "self"}});
  metalops::StructuredOut<typename Extremum::Meta> call(out);
  call.meta(self, dim, keepdim);
  check_ordered(Extremum::name, self.scalar_type());
  reduce({.name = Extremum::name}, self, at::native::make_dim_mask(dim, self.dim()), keepdim, out);
  return out;
}

template <class Extremum>
Tensor extremum(const Tensor& self, at::IntArrayRef dim, bool keepdim) {
  auto out = result_of(self, self.scalar_type());
  return extremum_out<Extremum>(self, dim, keepdim, out);
}

template <class Extremum>
Tensor extremum_of_all(const Tensor& self) {
  TORCH_CHECK(self.numel() > 0, Extremum::name_of_all,
              "(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
              "reduction dim with the 'dim' argument.");
  check_ordered(Extremum::name_of_all, self.scalar_type());
  auto out = at::empty({}, self.options());
  reduce({.name = Extremum::name}, self, at::native::make_dim_mask(std::nullopt, self.dim()), false,
         out);
  return out;
}

// ---- norms --------------------------------------------------------------------------------------

Reduction norm_reduction(double exponent) {
  if (exponent == 2.0) {
    return {.name = "norm2"};
  }
  if (std::isinf(exponent)) {
    return {.name = exponent > 0 ? "norm_largest" : "norm_smallest"};
  }
  return {.name = "norm", .parameter = static_cast<float>(exponent)};
}

Tensor& vector_norm_out(const Tensor& self, const at::Scalar& ord, OptionalIntArrayRef dim,
                        bool keepdim, std::optional<at::ScalarType> dtype, Tensor& out) {
  metalops::check_same_device("linalg_vector_norm", {{out, "out"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_linalg_vector_norm> call(out);
  call.meta(self, ord, dim, keepdim, dtype);
  const auto type = out.scalar_type();
  metalops::check_metal_float("linalg_vector_norm", type);
  const bool is_complex = self.is_complex();
  reduce_in(is_complex ? at::kFloat : type, norm_reduction(ord.toDouble()),
            self.to(is_complex ? at::kComplexFloat : type),
            at::native::make_dim_mask(dim, self.dim()), keepdim, out);
  return out;
}

Tensor vector_norm(const Tensor& self, const at::Scalar& ord, OptionalIntArrayRef dim, bool keepdim,
                   std::optional<at::ScalarType> dtype) {
  auto out = result_of(self, c10::toRealValueType(dtype.value_or(self.scalar_type())));
  return vector_norm_out(self, ord, dim, keepdim, dtype, out);
}

// ---- variances ----------------------------------------------------------------------------------

void check_deviation(const char* name, const Tensor& self, OptionalIntArrayRef dim,
                     const std::optional<at::Scalar>& correction, bool keepdim,
                     const DimMask& mask) {
  const auto type = self.scalar_type();
  if (!at::isFloatingType(type) && !at::isComplexType(type)) {
    // torch's own error, whose type depends on its version.
    at::var(at::empty({0}, self.options().device(at::kCPU)), std::nullopt, correction, keepdim);
  }
  int64_t count = 1;
  for (int64_t i = 0; i < self.dim(); ++i) {
    count *= mask[i] ? self.size(i) : 1;
  }
  if (static_cast<double>(count) - correction.value_or(1).toDouble() <= 0) {
    TORCH_WARN(name, "(): degrees of freedom is <= 0. Correction should be strictly less than the "
                     "reduction factor (input numel divided by output numel).");
  }
}

// Returns the variances or their roots, and the means if `has_mean`.
std::tuple<Tensor, Tensor> real_deviation(const Tensor& self, const DimMask& mask,
                                          const Reduction& reduction, bool keepdim, bool has_mean) {
  const auto sizes = at::native::shape_from_dim_mask(self, mask, keepdim);
  const auto out = at::empty(sizes, self.options());
  if (!has_mean) {
    reduce(reduction, self, mask, keepdim, out);
    return {out, Tensor()};
  }
  const auto mean = at::empty(sizes, self.options());
  if (out.numel() > 0) {
    const auto partials =
        launch_spans(reduction, self, out, layouts_of(self, out, mask, keepdim), true);
    launch_partials(reduction, partials, out);
    launch_partials({.name = "mean_of_var"}, partials, mean);
  }
  return {out, mean};
}

std::tuple<Tensor, Tensor> deviation_and_mean(const char* name, const Tensor& self,
                                              OptionalIntArrayRef dim,
                                              const std::optional<at::Scalar>& correction,
                                              bool keepdim, bool has_root, bool has_mean) {
  const auto mask = at::native::make_dim_mask(dim, self.dim());
  check_deviation(name, self, dim, correction, keepdim, mask);
  Reduction reduction{.name = "var",
                      .parameter = static_cast<float>(correction.value_or(1).toDouble()),
                      .has_root = has_root};
  if (!self.is_complex()) {
    metalops::check_metal_float(name, self.scalar_type());
    return real_deviation(self, mask, reduction, keepdim, has_mean);
  }
  // A complex variance is the sum of those of the real and the imaginary parts.
  metalops::check_dtype(self.scalar_type() == at::kComplexFloat, name, self.scalar_type());
  reduction.has_root = false;
  auto of_parts = mask;
  of_parts[self.dim()] = false;
  const auto parts = at::view_as_real(self.resolve_conj());
  const auto [variances, means] = real_deviation(parts, of_parts, reduction, keepdim, has_mean);
  const auto variance = at::sum(variances, {-1});
  return {has_root ? variance.sqrt() : variance, has_mean ? at::view_as_complex(means) : Tensor()};
}

template <bool kRoot>
Tensor deviation(const Tensor& self, OptionalIntArrayRef dim,
                 const std::optional<at::Scalar>& correction, bool keepdim) {
  return std::get<0>(deviation_and_mean(kRoot ? "std" : "var", self, dim, correction, keepdim,
                                        kRoot, /*has_mean=*/false));
}

template <bool kRoot>
std::tuple<Tensor, Tensor> deviation_mean(const Tensor& self, OptionalIntArrayRef dim,
                                          const std::optional<at::Scalar>& correction,
                                          bool keepdim) {
  return deviation_and_mean(kRoot ? "std_mean" : "var_mean", self, dim, correction, keepdim, kRoot,
                            /*has_mean=*/true);
}

const metalops::Fix kReduction("reduction", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("sum.dim_IntList", sum, reason);
  m.replace("sum.IntList_out", sum_out, reason);
  m.replace("nansum", nansum, reason);
  m.replace("nansum.out", nansum_out, reason);
  m.replace("mean.dim", mean, reason);
  m.replace("mean.out", mean_out, reason);
  m.replace("prod", prod, reason);
  m.replace("prod.dim_int", prod_of_dim, reason);
  m.replace("prod.int_out", prod_out, reason);
  m.replace("trace", trace, reason);
  m.replace("count_nonzero.dim_IntList", count_nonzero, reason);
  m.replace("amax", extremum<Largest>, reason);
  m.replace("amax.out", extremum_out<Largest>, reason);
  m.replace("amin", extremum<Smallest>, reason);
  m.replace("amin.out", extremum_out<Smallest>, reason);
  m.replace("max", extremum_of_all<Largest>, reason);
  m.replace("min", extremum_of_all<Smallest>, reason);
  m.replace("linalg_vector_norm", vector_norm, reason);
  m.replace("linalg_vector_norm.out", vector_norm_out, reason);
  m.replace("var.correction", deviation<false>, reason);
  m.replace("std.correction", deviation<true>, reason);
  m.replace("var_mean.correction", deviation_mean<false>, reason);
  m.replace("std_mean.correction", deviation_mean<true>, reason);
});

}  // namespace
