// Host side of kernels/linalg/blocked_reduction.metal: scaled copies, products of reflectors,
// and the results of blocked two-sided reductions.
#include <csrc/ops/linalg/blocked_reduction.h>

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/plans/linalg/blocked_reduction.h>
#include <metalops/launch.h>

#include <utility>

namespace {

using at::Tensor;
using metalops::KernelName;
using metalops::kReductionPanel;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("blocked_reduction"); }

KernelName kernel_of_source(const char* prefix, const char* source, at::ScalarType type) {
  return KernelName(prefix) + source + metalops::metal_type(type);
}

// Returns the leading dimension of columns, in vectors of 16 bytes: an odd number of cache lines,
// so that adjacent columns do not fall into the same sets of a cache.
int64_t column_stride(int64_t n, at::ScalarType type) {
  const int64_t packs = c10::metal::ceil_div<int64_t>(n, at::isComplexType(type) ? 2 : 4);
  return c10::metal::ceil_div<int64_t>(packs, 4) / 2 * 8 + 4;
}

}  // namespace

namespace metalops {

BlockedReduction::BlockedReduction(const Tensor& a, const SquaresParameters& parameters,
                                   const char* source, int64_t sides, int64_t reflector_count,
                                   const Tensor& all_infos, int not_finite)
    : type(a.scalar_type()),
      batch(a.size(0)),
      n(a.size(1)),
      stride(column_stride(n, type)),
      row(stride * (a.is_complex() ? 2 : 4)),
      infos(all_infos) {
  const auto count = c10::metal::round_up<int64_t>(reflector_count, kReductionPanel);
  exponents = at::empty({batch}, infos.options());
  reflectors = at::zeros({sides * batch, count, row}, a.options());
  taus = at::zeros({sides * batch, count}, a.options());
  // The kernel reads lines, columns or rows, along which elements are adjacent.
  auto lines = parameters;
  if (lines.column_stride < lines.row_stride) {
    std::swap(lines.row_stride, lines.column_stride);
    lines.is_upper = !lines.is_upper;
  }
  const auto extents = at::empty({batch * n}, a.options().dtype(at::kFloat));
  launch_simdgroups(kernels(), kernel_of_source("blocked_reduction_extents_", source, type),
                    batch * n, extents, a, lines);
  launch_threadgroups(kernels(), "blocked_reduction_exponents", batch, c10::metal::simdgroup_size,
                      exponents, infos, extents, parameters, static_cast<int32_t>(not_finite));
}

Tensor BlockedReduction::load(const Tensor& a, const SquaresParameters& parameters,
                              const char* source) const {
  const auto copy = at::empty({batch, n, row}, a.options());
  launch_grid(kernels(), kernel_of_source("blocked_reduction_load_", source, type),
              grid(stride, n, batch), copy, a, exponents, infos, parameters,
              static_cast<int32_t>(stride));
  return copy;
}

Tensor BlockedReduction::store_values(const Tensor& values, const Tensor& unordered,
                                      const char* order) const {
  const auto padded = unordered.size(1);
  const auto ranks = at::empty({batch, padded}, infos.options());
  const ReductionOrderParameters p{size(), static_cast<int32_t>(padded), static_cast<int32_t>(row)};
  launch_rows(kernels(), KernelName("blocked_reduction_values_") + order, padded, batch, values,
              ranks, infos, unordered, exponents, p);
  return ranks;
}

Tensor BlockedReduction::ordered_vectors(const Tensor& unordered, const Tensor& ranks) const {
  const auto padded = ranks.size(1);
  const auto all = reflectors.size(0);
  const auto ordered = at::zeros({all, n, row}, reflectors.options());
  const ReductionOrderParameters p{size(), static_cast<int32_t>(padded), static_cast<int32_t>(row)};
  launch_grid(kernels(), typed_kernel("blocked_reduction_vectors_", type), grid(n, padded, all),
              ordered, unordered, ranks, p, static_cast<uint32_t>(batch));
  multiply_by_q(ordered, reflectors, taus);
  return ordered;
}

ColumnSteps::ColumnSteps(const BlockedReduction& reduction, int64_t kinds) : n(reduction.n) {
  constexpr int64_t kFewSlices = 32;
  const auto batch = reduction.batch;
  const auto row = reduction.row;
  const auto slice =
      kReductionPanel * c10::metal::ceil_div<int64_t>(n, kReductionPanel * kFewSlices);
  const auto slices = c10::metal::ceil_div<int64_t>(n, slice);
  elements = row / reduction.stride;
  packs = c10::metal::ceil_div<int64_t>(n, elements);
  threads = std::min<int64_t>(256, c10::metal::round_up<int64_t>(packs, 32));
  products = at::empty({batch, slices, row}, reduction.reflectors.options());
  overlaps = at::empty({batch, slices, 2 * kReductionPanel}, products.options());
  p.size = reduction.size();
  p.stride = static_cast<int32_t>(reduction.stride);
  p.reflectors = static_cast<int32_t>(reduction.reflectors.size(1));
  p.slice = static_cast<int32_t>(slice);
  p.slices = static_cast<int32_t>(slices);
  p.kinds = static_cast<int32_t>(kinds);
}

void ColumnSteps::multiply(const Tensor& matrices, int64_t first, const Tensor& reflectors,
                           const Tensor& panels, int64_t vectors) {
  p.first = static_cast<int32_t>(first);
  const auto threads_of_slice = packs - first / elements + vectors;
  launch_grid(
      kernels(), typed_kernel("blocked_reduction_products_", matrices),
      {static_cast<uint64_t>(threads_of_slice), static_cast<uint64_t>(p.slices - p.from / p.slice),
       static_cast<uint64_t>(matrices.size(0))},
      products, overlaps, matrices, reflectors, panels, p);
}

Tensor with_real_parts(const Tensor& rows) {
  return rows.is_complex() ? at::view_as_real(rows).flatten(-2) : rows;
}

Tensor real_form(const Tensor& rows) {
  if (!rows.is_complex()) {
    return rows;
  }
  const auto times_i = at::mul(rows, c10::complex<double>(0, 1));
  return with_real_parts(at::stack({rows, times_i}, 2).flatten(1, 2));
}

Tensor conjugate_factors(const Tensor& rows) {
  if (!rows.is_complex()) {
    return rows.mT();
  }
  return at::view_as_real(rows.conj().resolve_conj()).permute({0, 2, 1, 3}).flatten(-2);
}

void subtract_product(const Tensor& matrices, int64_t from, const Tensor& v, const Tensor& w) {
  const auto n = matrices.size(1) - from;
  const auto row = matrices.size(2) - from;
  const auto factors = conjugate_factors(w.narrow(2, from, n));
  with_real_parts(matrices.narrow(1, from, n).narrow(2, from, row))
      .sub_(at::bmm(factors, real_form(v.narrow(2, from, row))));
}

void apply_block_reflector(const Tensor& columns, const Tensor& reflectors, const Tensor& taus,
                           int64_t start, bool is_adjoint) {
  PlanRun run;
  plans::apply_block_reflector(run.plan(), run.view(columns), run.view(reflectors), run.view(taus),
                               start, is_adjoint);
  run.run();
}

void multiply_by_q(const Tensor& columns, const Tensor& reflectors, const Tensor& taus) {
  PlanRun run;
  plans::multiply_by_q(run.plan(), run.view(columns), run.view(reflectors), run.view(taus));
  run.run();
}

}  // namespace metalops
