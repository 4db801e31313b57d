// Least squares: torch.linalg.lstsq with all four of LAPACK's drivers, by QR factorisation and,
// where singular values are needed, the SVD of the triangular factor. It is composed of other
// operators and has no kernel of its own.
#include <ATen/TensorOperators.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/_linalg_svd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/geqrf.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ormqr.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <metalops/checks.h>
#include <metalops/stock.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <csrc/ops/common/outputs.h>

namespace {

using at::Tensor;

constexpr const char* kName = "torch.linalg.lstsq";

enum class Driver { kGels, kGelsy, kGelsd, kGelss };

Driver driver_of(std::optional<std::string_view> name) {
  if (!name || *name == "gelsy") return Driver::kGelsy;
  if (*name == "gels") return Driver::kGels;
  if (*name == "gelsd") return Driver::kGelsd;
  TORCH_CHECK(*name == "gelss", kName,
              ": parameter `driver` should be one of (gels, gelsy, gelsd, gelss)");
  return Driver::kGelss;
}

// Returns a tensor (*, m, n) or (*, k) with other batch dimensions.
Tensor with_batch(const Tensor& tensor, at::IntArrayRef batch, int64_t ends) {
  auto sizes = batch.vec();
  const auto own = tensor.sizes().slice(tensor.dim() - ends);
  sizes.insert(sizes.end(), own.begin(), own.end());
  return tensor.expand(sizes);
}

// The QR factorisation of a matrix with at least as many rows as columns, else of its adjoint.
struct Factors {
  bool is_tall;
  Tensor reflectors;
  Tensor taus;
  Tensor triangle;  // (*, k, k): R of A, upper, or the adjoint of that of A^H, lower

  explicit Factors(const Tensor& a) : is_tall(a.size(-2) >= a.size(-1)) {
    std::tie(reflectors, taus) = at::geqrf(is_tall ? a : a.mH());
    const auto k = reflectors.size(-1);
    const auto upper = reflectors.narrow(-2, 0, k).triu();
    triangle = is_tall ? upper : upper.mH();
  }

  // (*, 1, 1): true for matrices of zeros.
  Tensor is_zero() const { return triangle.eq(0).all(-1, /*keepdim=*/true).all(-2, true); }

  // Returns Q x or Q^H x. x has the batch dimensions of the result.
  Tensor multiply(const Tensor& x, bool is_adjoint) const {
    const auto batch = x.sizes().slice(0, x.dim() - 2);
    return at::ormqr(with_batch(reflectors, batch, 2), with_batch(taus, batch, 1), x,
                     /*left=*/true, is_adjoint);
  }
};

// Singular value decompositions of triangles (*, k, k). Where a singular value counts as zero, its
// divisor is infinite; for triangles that are not finite both are NaN.
struct Decomposition {
  Tensor u;
  Tensor values;
  Tensor divisors;
  Tensor v_adjoint;
  Tensor rank;

  Decomposition(const Tensor& triangle, double rcond) {
    const auto is_finite = triangle.isfinite().flatten(-2).all(-1, /*keepdim=*/true);
    const auto finite = triangle.masked_fill(is_finite.unsqueeze(-1).logical_not(), 0);
    std::tie(u, values, v_adjoint) = at::_linalg_svd(finite);
    const auto counts = values.gt(values.narrow(-1, 0, 1) * rcond);
    rank = counts.sum(-1);
    const auto number = [&](float x) { return at::full({}, x, values.options()); };
    const auto nan = number(std::numeric_limits<float>::quiet_NaN());
    const auto infinity = number(std::numeric_limits<float>::infinity());
    divisors = at::where(is_finite, at::where(counts, values, infinity), nan);
    values = at::where(is_finite, values, nan);
  }

  // Multiplies with the pseudo-inverses.
  Tensor multiply(const Tensor& x) const {
    const auto along = at::matmul(u.mH(), x);
    const auto by = divisors.unsqueeze(-1);
    // Complex numbers are divided part by part: divisors converted to complex overflow where they
    // are small.
    const auto divided = along.is_complex()
                             ? at::view_as_complex(at::view_as_real(along) / by.unsqueeze(-1))
                             : along / by;
    return at::matmul(v_adjoint.mH(), divided);
  }
};

// Returns true if the smallest singular value of a triangle is certainly larger than rcond times
// the largest one. The product of the Frobenius norms of the triangle and its inverse is at least
// their ratio. Returns false where that overflows or is not finite.
Tensor is_certainly_regular(const Tensor& triangle, bool is_upper, double rcond) {
  constexpr double kForRounding = 2.0;
  const auto scaled = triangle / triangle.abs().amax({-2, -1}, /*keepdim=*/true);
  const auto one = at::eye(triangle.size(-1), triangle.options()).expand(triangle.sizes());
  const auto inverse = at::linalg_solve_triangular(scaled, one, is_upper);
  const auto norm = [](const Tensor& x) {
    return at::linalg_vector_norm(x, 2, at::IntArrayRef{-2, -1});
  };
  return (norm(scaled) * norm(inverse)).lt(1.0 / (kForRounding * rcond));
}

// Solves with the inverse, which must exist; matrices of zeros give zeros. rows: (**, k, nrhs);
// is_zero: (*, 1, 1).
Tensor solve_gels(const Factors& factors, const Tensor& rows, const Tensor& is_zero) {
  const auto is_zero_there = factors.triangle.diagonal(0, -2, -1).eq(0);
  const auto first = is_zero_there.to(at::kInt).argmax(-1) + 1;
  const auto matters =
      is_zero_there.any(-1).logical_and(is_zero.squeeze(-1).squeeze(-1).logical_not());
  const auto infos = (first * matters).to(at::kInt);
  at::_linalg_check_errors(infos, kName, infos.dim() == 0);
  return at::linalg_solve_triangular(factors.triangle, rows, factors.is_tall)
      .masked_fill(is_zero, 0);
}

// Solves with the inverse, or, for matrices that may be rank-deficient, with the SVD, and updates
// their ranks. LAPACK's xGELSY pivots columns instead, which finds another solution of about the
// same norm only where a singular value is close to the threshold.
Tensor solve_gelsy(const Factors& factors, const Tensor& rows, double rcond, const Tensor& rank) {
  const auto x = at::linalg_solve_triangular(factors.triangle, rows, factors.is_tall);
  const auto& triangle = factors.triangle;
  const auto is_deficient = is_certainly_regular(triangle, factors.is_tall, rcond).logical_not();
  const auto indices = is_deficient.reshape(-1).nonzero().squeeze(-1);
  if (indices.numel() == 0) {
    return x;
  }
  const auto k = triangle.size(-1);
  Decomposition all(triangle.reshape({-1, k, k}).index_select(0, indices), rcond);
  rank.view(-1).index_copy_(0, indices, all.rank);
  for (auto* const part : {&all.u, &all.divisors, &all.v_adjoint}) {
    auto sizes = part->sizes().vec();
    sizes[0] = is_deficient.numel();
    const auto of_all = at::zeros(sizes, part->options()).index_copy_(0, indices, *part);
    sizes.erase(sizes.begin());
    sizes.insert(sizes.begin(), is_deficient.sizes().begin(), is_deficient.sizes().end());
    *part = of_all.view(sizes);
  }
  return at::where(is_deficient.unsqueeze(-1).unsqueeze(-1), all.multiply(rows), x);
}

struct Solution {
  Tensor x;  // (**, max(m, n), nrhs), by columns
  Tensor residuals;
  Tensor rank;
  Tensor values;
};

// Returns zeros of sizes (*, rows, columns), by columns.
Tensor zeros_by_columns(const Tensor& like, int64_t rows) {
  auto sizes = like.sizes().vec();
  const auto columns = sizes.back();
  sizes.back() = rows;
  sizes[sizes.size() - 2] = columns;
  return at::zeros(sizes, like.options()).mT();
}

// Solves a, (*, m, n), for b, (**, m, nrhs), where * is broadcast to **. Results that the driver
// does not compute stay undefined.
Solution solve(const Tensor& a, const Tensor& b, Driver driver, double rcond) {
  const auto m = a.size(-2);
  const auto n = a.size(-1);
  const auto k = std::min(m, n);
  const auto own_batch = a.sizes().slice(0, a.dim() - 2);
  const auto full_rank = [&] { return at::full(own_batch, k, a.options().dtype(at::kLong)); };
  Solution result;
  if (k == 0) {
    result.rank = full_rank();
    auto sizes = own_batch.vec();
    sizes.push_back(k);
    result.values = at::zeros(sizes, a.options().dtype(at::kFloat));
    result.x = zeros_by_columns(b, std::max(m, n));
    result.x.narrow(-2, 0, m).copy_(b);
    result.residuals = b.abs().square().sum(-2);
    return result;
  }
  const Factors factors(a);
  const auto y = factors.is_tall ? factors.multiply(b, /*is_adjoint=*/true) : b;
  const auto rows = y.narrow(-2, 0, k);
  result.residuals = y.narrow(-2, k, m - k).abs().square().sum(-2);
  Tensor along;  // what R or L is solved for
  switch (driver) {
    case Driver::kGels: {
      const auto is_zero = factors.is_zero();
      along = solve_gels(factors, rows, is_zero);
      result.residuals += rows.abs().square().sum(-2) * is_zero.squeeze(-1);
      break;
    }
    case Driver::kGelsy:
      result.rank = full_rank();
      along = solve_gelsy(factors, rows, rcond, result.rank);
      break;
    case Driver::kGelsd:
    case Driver::kGelss: {
      const Decomposition all(factors.triangle, rcond);
      along = all.multiply(rows);
      result.rank = all.rank;
      result.values = all.values;
    }
  }
  if (factors.is_tall) {
    y.narrow(-2, 0, k).copy_(along);
    result.x = y;
  } else {
    const auto padded = zeros_by_columns(b, n);
    padded.narrow(-2, 0, k).copy_(along);
    result.x = factors.multiply(padded, /*is_adjoint=*/false);
  }
  return result;
}

bool is_vector(const Tensor& a, const Tensor& b) { return a.dim() - b.dim() == 1; }

void check_operands(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() >= 2, kName, ": input must have at least 2 dimensions.");
  TORCH_CHECK(b.dim() >= 1, kName, ": other must have at least 1 dimension.");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), kName,
              ": Expected input and other to have the same dtype, but got input's dtype ",
              a.scalar_type(), " and other's dtype ", b.scalar_type());
  TORCH_CHECK(is_vector(a, b) || a.dim() == b.dim(), kName,
              ": input.dim() must be greater or equal to other.dim() and (input.dim() - "
              "other.dim()) <= 1");
  TORCH_CHECK(a.size(-2) == b.size(is_vector(a, b) ? -1 : -2), kName,
              ": input.size(-2) should match other.size(", is_vector(a, b) ? "-1)" : "-2)");
}

// Returns solution, residuals, rank and singular values; those that the driver does not compute
// have no elements.
std::tuple<Tensor, Tensor, Tensor, Tensor> results_of(const Tensor& a, const Tensor& b,
                                                      std::optional<double> rcond,
                                                      std::optional<std::string_view> driver_name) {
  const auto type = a.scalar_type();
  metalops::check_dtype(type == at::kFloat || type == at::kComplexFloat, "linalg_lstsq_mps", type);
  const auto driver = driver_of(driver_name);
  const auto columns = is_vector(a, b) ? b.unsqueeze(-1) : b;
  const auto m = a.size(-2);
  const auto n = a.size(-1);
  constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
  const auto smallest = rcond.value_or(kEpsilon * static_cast<double>(std::max(m, n)));

  const auto batch =
      at::infer_size(a.sizes().slice(0, a.dim() - 2), columns.sizes().slice(0, columns.dim() - 2));
  auto found = solve(a, with_batch(columns, batch, 2), driver, smallest < 0 ? kEpsilon : smallest);
  const auto x = found.x.narrow(-2, 0, n);
  const auto nothing = [&](at::ScalarType of) { return at::empty({0}, a.options().dtype(of)); };
  const auto real = c10::toRealValueType(type);
  const bool has_values = driver == Driver::kGelsd || driver == Driver::kGelss;
  const bool has_residuals =
      m > n && (driver == Driver::kGels || (has_values && found.rank.eq(n).all().item<bool>()));
  return {is_vector(a, b) ? x.squeeze(-1) : x, has_residuals ? found.residuals : nothing(real),
          driver == Driver::kGels ? nothing(at::kLong) : found.rank,
          has_values ? found.values : nothing(real)};
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> lstsq_out(const Tensor& a, const Tensor& b,
                                                         std::optional<double> rcond,
                                                         std::optional<std::string_view> driver,
                                                         Tensor& solution, Tensor& residuals,
                                                         Tensor& rank, Tensor& singular_values) {
  check_operands(a, b);
  metalops::check_same_device(kName, {{a, "input"},
                                      {b, "other"},
                                      {solution, "solution"},
                                      {residuals, "residuals"},
                                      {rank, "rank"},
                                      {singular_values, "singular_values"}});
  const auto type = a.scalar_type();
  at::native::checkLinalgCompatibleDtype(kName, solution.scalar_type(), type, "solution");
  const auto real = c10::toRealValueType(type);
  at::native::checkLinalgCompatibleDtype(kName, residuals.scalar_type(), real, "residuals");
  at::native::checkLinalgCompatibleDtype(kName, rank.scalar_type(), at::kLong, "rank");
  at::native::checkLinalgCompatibleDtype(kName, singular_values.scalar_type(), real,
                                         "singular_values");
  const auto results = results_of(a, b, rcond, driver);
  metalops::write_output(std::get<0>(results), solution);
  metalops::write_output(std::get<1>(results), residuals);
  metalops::write_output(std::get<2>(results), rank);
  metalops::write_output(std::get<3>(results), singular_values);
  return {solution, residuals, rank, singular_values};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> lstsq(const Tensor& a, const Tensor& b,
                                                 std::optional<double> rcond,
                                                 std::optional<std::string_view> driver) {
  check_operands(a, b);
  metalops::check_same_device(kName, {{a, "input"}, {b, "other"}});
  return results_of(a, b, rcond, driver);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  constexpr auto kReason =
      "computes singular values for every driver, on the CPU if the matrix is large";
  m.replace("linalg_lstsq", lstsq, kReason);
  m.replace("linalg_lstsq.out", lstsq_out, kReason);
}

}  // namespace
