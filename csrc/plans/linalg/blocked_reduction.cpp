#include <csrc/plans/linalg/block_reflectors.h>
#include <csrc/plans/linalg/blocked_reduction.h>

#include <utility>

namespace metalops::plans {

namespace {

constexpr int64_t kReductionWidth{kReductionPanel};

// Returns the leading dimension of columns, in vectors of 16 bytes: an odd number of cache lines,
// so that adjacent columns do not fall into the same sets of a cache.
int64_t column_stride(int64_t n, Type type) {
  return ceil_div(ceil_div(n, 16 / size_of(type)), 4) / 2 * 8 + 4;
}

// Returns the products of real rows with each other, (batch, rows, rows), as sums of short sums: a
// GEMM adds one product after the other, and what is rounded the same way everywhere makes block
// reflectors less orthogonal.
View gram(Plan& plan, const View& rows) {
  constexpr int64_t kShort = 16;
  const auto batch = rows.size(0);
  const auto count = rows.size(1);
  const auto parts = rows.size(2) / kShort;
  const auto result = plan.allocate(rows.type, {batch, count, count});
  const Plan::Scope scope(plan);
  View shorts{.buffer = rows.buffer,
              .type = rows.type,
              .dims = 4,
              .alignment = rows.alignment,
              .offset = rows.offset,
              .sizes = {batch, parts, count, kShort},
              .strides = {rows.stride(0), kShort, rows.stride(1), 1}};
  if (batch > 1 && parts > 1) {
    shorts = plan.copied(shorts, shorts.type);
  }
  const View factors{.buffer = shorts.buffer,
                     .type = shorts.type,
                     .dims = 3,
                     .alignment = shorts.alignment,
                     .offset = shorts.offset,
                     .sizes = {batch * parts, count, kShort},
                     .strides = {shorts.stride(parts > 1 ? 1 : 0), shorts.stride(2), 1}};
  const auto products = plan.allocate(rows.type, {batch * parts, count, count});
  plan.product(products, factors, factors.mT(), /*alpha=*/1, /*beta=*/0);
  plan.launch("blocked_reduction", "blocked_reduction_gram",
              grid_of_elements(count * count, batch, 1), result, products,
              static_cast<int32_t>(parts), static_cast<int32_t>(count * count));
  return result;
}

}  // namespace

BlockedReduction::BlockedReduction(Plan& plan, const View& a, const SquaresParameters& parameters,
                                   const char* source, int64_t sides, int64_t reflector_count,
                                   const View& all_infos, int32_t not_finite)
    : type(a.type),
      batch(a.size(0)),
      n(a.size(1)),
      stride(column_stride(n, type)),
      row(stride * (16 / size_of(type))),
      infos(all_infos) {
  const auto count = round_up(reflector_count, kReductionWidth);
  exponents = plan.allocate(infos.type, {batch});
  reflectors = plan.zeros(type, {sides * batch, count, row});
  taus = plan.zeros(type, {sides * batch, count});
  // The kernel reads lines, columns or rows, along which elements are adjacent.
  auto lines = parameters;
  if (lines.column_stride < lines.row_stride) {
    std::swap(lines.row_stride, lines.column_stride);
    lines.is_upper = !lines.is_upper;
  }
  const Plan::Scope scope(plan);
  const auto extents = plan.allocate(Type::kFloat, {batch * n});
  plan.launch("blocked_reduction", Name("blocked_reduction_extents_") + source + type,
              grid_of_simdgroups(batch * n), extents, a, lines);
  plan.launch("blocked_reduction", "blocked_reduction_exponents", grid_of_threadgroups(batch, 32),
              exponents, infos, extents, parameters, not_finite);
}

View BlockedReduction::load(Plan& plan, const View& a, const SquaresParameters& parameters,
                            const char* source) const {
  const auto copy = plan.allocate(type, {batch, n, row});
  plan.launch("blocked_reduction", Name("blocked_reduction_load_") + source + type,
              grid_of_elements(stride, n, batch), copy, a, exponents, infos, parameters,
              static_cast<int32_t>(stride));
  return copy;
}

View BlockedReduction::zero_panels(Plan& plan) const {
  return plan.zeros(type, {reflectors.size(0), kReductionWidth, row});
}

View BlockedReduction::store_values(Plan& plan, const View& values, const View& unordered,
                                    const char* order) const {
  const auto padded = unordered.size(1);
  const auto ranks = plan.allocate(infos.type, {batch, padded});
  const ReductionOrderParameters p{static_cast<int32_t>(n), static_cast<int32_t>(padded),
                                   static_cast<int32_t>(row)};
  plan.launch("blocked_reduction", Name("blocked_reduction_values_") + order,
              grid_of_elements(padded, batch, 1), values, ranks, infos, unordered, exponents, p);
  return ranks;
}

View BlockedReduction::ordered_vectors(Plan& plan, const View& unordered, const View& ranks) const {
  const auto padded = ranks.size(1);
  const auto all = reflectors.size(0);
  const auto ordered = plan.zeros(type, {all, n, row});
  const ReductionOrderParameters p{static_cast<int32_t>(n), static_cast<int32_t>(padded),
                                   static_cast<int32_t>(row)};
  plan.launch("blocked_reduction", Name("blocked_reduction_vectors_") + type,
              grid_of_elements(n, padded, all), ordered, unordered, ranks, p,
              static_cast<uint32_t>(batch));
  multiply_by_q(plan, ordered, reflectors, taus);
  return ordered;
}

ColumnSteps::ColumnSteps(Plan& plan_of_it, const BlockedReduction& reduction, int64_t kinds)
    : plan(plan_of_it), n(reduction.n) {
  constexpr int64_t kFewSlices = 32;
  const auto batch = reduction.batch;
  const auto row = reduction.row;
  const auto slice = kReductionWidth * ceil_div(n, kReductionWidth * kFewSlices);
  const auto slices = ceil_div(n, slice);
  elements = row / reduction.stride;
  packs = ceil_div(n, elements);
  threads = std::min<int64_t>(256, round_up(packs, 32));
  products = plan.allocate(reduction.type, {batch, slices, row});
  overlaps = plan.allocate(reduction.type, {batch, slices, 2 * kReductionWidth});
  p.size = static_cast<int32_t>(n);
  p.stride = static_cast<int32_t>(reduction.stride);
  p.reflectors = static_cast<int32_t>(reduction.reflectors.size(1));
  p.slice = static_cast<int32_t>(slice);
  p.slices = static_cast<int32_t>(slices);
  p.kinds = static_cast<int32_t>(kinds);
}

void ColumnSteps::multiply(const View& matrices, int64_t first, const View& reflectors,
                           const View& panels, int64_t vectors) {
  p.first = static_cast<int32_t>(first);
  plan.launch("blocked_reduction", Name("blocked_reduction_products_") + matrices.type,
              grid_of_elements(packs - first / elements + vectors, p.slices - p.from / p.slice,
                               matrices.size(0)),
              products, overlaps, matrices, reflectors, panels, p);
}

View real_form(Plan& plan, const View& rows) {
  if (rows.type != Type::kComplexFloat) {
    return rows;
  }
  const auto count = rows.size(1);
  const auto elements = rows.size(2);
  const auto result = plan.allocate(rows.type, {rows.size(0), 2 * count, elements});
  const ReductionRowsParameters p{rows.stride(0), rows.stride(1), static_cast<int32_t>(count),
                                  static_cast<int32_t>(elements)};
  plan.launch("blocked_reduction", "blocked_reduction_real_form",
              grid_of_elements(elements, count, rows.size(0)), result, rows, p);
  return result.real_parts();
}

View conjugate_factors(Plan& plan, const View& rows) {
  return rows.type == Type::kComplexFloat ? plan.copied(rows.mH(), rows.type).real_parts()
                                          : rows.mT();
}

void subtract_products(Plan& plan, const View& matrices, int64_t from, const std::array<View, 2>& v,
                       const std::array<View, 2>& w) {
  const Plan::Scope scope(plan);
  const auto n = matrices.size(1) - from;
  const auto row = matrices.size(2);
  // Returns both one below the other. Rows are whole: where they begin, and so how products are
  // rounded, is the same for each matrix of a batch.
  const auto joined = [&](const std::array<View, 2>& parts) {
    const auto count = parts[0].size(1);
    const auto rows = plan.allocate(matrices.type, {matrices.size(0), 2 * count, row});
    plan.copy(rows.narrow(1, 0, count), parts[0]);
    plan.copy(rows.narrow(1, count, count), parts[1]);
    return rows;
  };
  const auto factors = conjugate_factors(plan, joined(w).narrow(2, from, n));
  const auto others = real_form(plan, joined(v).narrow(2, from, row - from));
  plan.product(matrices.narrow(1, from, n).narrow(2, from, row - from).real_parts(), factors,
               others, /*alpha=*/-1, /*beta=*/1);
}

void apply_block_reflector(Plan& plan, const View& columns, const View& reflectors,
                           const View& taus, int64_t start, bool is_adjoint) {
  const Plan::Scope scope(plan);
  const auto behind = reflectors.size(2) - start;
  ReductionParameters p{};
  p.reflectors = static_cast<int32_t>(reflectors.size(1));
  p.start = static_cast<int32_t>(start);
  const auto v =
      real_form(plan, reflectors.narrow(1, start, kReductionWidth).narrow(2, start, behind));
  const auto t = plan.zeros(v.type, {v.size(0), v.size(1), v.size(1)});
  plan.launch("blocked_reduction", Name("blocked_reduction_larft_") + reflectors.type,
              grid_of_elements(kReductionWidth, v.size(0), 1), t, gram(plan, v), taus, p);
  multiply_columns(plan, {v, t}, is_adjoint, columns.narrow(2, start, behind).real_parts());
}

void multiply_by_q(Plan& plan, const View& columns, const View& reflectors, const View& taus) {
  for (auto start = reflectors.size(1) - kReductionWidth; start >= 0; start -= kReductionWidth) {
    apply_block_reflector(plan, columns, reflectors, taus, start, /*is_adjoint=*/false);
  }
}

}  // namespace metalops::plans
