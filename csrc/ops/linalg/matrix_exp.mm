// Host side of kernels/linalg/matrix_exp.metal: the matrix exponential by scaling and squaring with
// a Taylor polynomial of few GEMMs (Bader, Blanes and Casas, "Computing the Matrix Exponential with
// an Optimized Taylor Polynomial Approximation", 2019, whose coefficients and bounds these are).
#include <ATen/TensorOperators.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/linalg/matrix_exp.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace {

using at::Tensor;

// The coefficients of the identity and of up to four terms.
using Coefficients = std::array<float, 5>;

// A Taylor polynomial, and the largest 1-norm for which it is exact in float32.
struct Polynomial {
  int degree;
  double most;
};
constexpr std::array<Polynomial, 6> kPolynomials{
    {{1, 1.192e-7}, {2, 5.979e-4}, {4, 5.117e-2}, {8, 5.801e-1}, {12, 1.462}, {18, 3.010}}};

// Returns linear combinations of terms (batch, n, n): (sums, batch, n, n).
Tensor sums_of(const std::vector<Tensor>& terms, const std::vector<Coefficients>& coefficients) {
  const auto& first = terms[0];
  const auto rows = static_cast<int64_t>(coefficients.size());
  const auto result =
      at::empty({rows, first.size(0), first.size(1), first.size(2)}, first.options());
  metalops::MatrixExpParameters parameters{
      first.numel(), static_cast<uint32_t>(first.size(1)), static_cast<uint32_t>(terms.size()), {}};
  for (size_t i = 0; i < coefficients.size(); ++i) {
    std::copy(coefficients[i].begin(), coefficients[i].end(), parameters.coefficients[i]);
  }
  const auto term = [&](size_t i) { return i < terms.size() ? terms[i] : first; };
  metalops::launch_rows(metalops::library("matrix_exp"),
                        metalops::typed_kernel("matrix_exp_sums_", first), first.numel(), rows,
                        result, first, term(1), term(2), term(3), parameters);
  return result;
}

Tensor sum_of(const std::vector<Tensor>& terms, const Coefficients& coefficients) {
  return sums_of(terms, {coefficients})[0];
}

Tensor degree_8(const Tensor& a) {
  const double root = std::sqrt(177.0);
  const double x3 = 2.0 / 3;
  const double x1 = x3 * (1 + root) / 88;
  const double x2 = x3 * (1 + root) / 352;
  const double x4 = (29 * root - 271) / (315 * x3);
  const double x5 = 11 * (root - 1) / (1260 * x3);
  const double x6 = 11 * (root - 9) / (5040 * x3);
  const double x7 = (89 - root) / (5040 * x3 * x3);
  const double y2 = (857 - 58 * root) / 630;
  const auto row = [](double i, double x, double y, double z) {
    return Coefficients{static_cast<float>(i), static_cast<float>(x), static_cast<float>(y),
                        static_cast<float>(z), 0};
  };
  const auto a2 = at::bmm(a, a);
  const auto a4 = at::bmm(a2, sum_of({a, a2}, row(0, x1, x2, 0)));
  const auto left = sum_of({a2, a4}, row(0, x3, 1, 0));
  const auto a8 = at::bmm(left, sum_of({a, a2, a4}, row(x4, x5, x6, x7)));
  return sum_of({a, a2, a8}, row(1, 1, y2, 1));
}

Tensor degree_12(const Tensor& a) {
  static const std::vector<Coefficients> kSums{
      {9.0198e-16f, 0.46932117595418237389f, -0.20099424927047284052f, -0.04623946134063071740f, 0},
      {5.31597895759871264183f, 1.19926790417132231573f, 0.01179296240992997031f,
       0.01108844528519167989f, 0},
      {0.18188869982170434744f, 0.05502798439925399070f, 0.09351590770535414968f,
       0.00610700528898058230f, 0},
      {-2.0861320e-13f, -0.13181061013830184015f, -0.02027855540589259079f,
       -0.00675951846863086359f, 0}};
  const auto a2 = at::bmm(a, a);
  const auto sums = sums_of({a, a2, at::bmm(a, a2)}, kSums);
  const auto a6 = sums[2] + at::bmm(sums[3], sums[3]);
  return sums[0] + at::bmm(sums[1] + a6, a6);
}

Tensor degree_18(const Tensor& a) {
  static const std::vector<Coefficients> kSums{
      {0, -1.00365581030144618291e-01f, -8.02924648241156932449e-03f, -8.92138498045729985177e-04f,
       0},
      {0, 3.97849749499645077844e-01f, 1.36783778460411720168e+00f, 4.98289622525382669416e-01f,
       -6.37898194594723280150e-04f},
      {-1.09676396052962061844e+01f, 1.68015813878906206114e+00f, 5.71779846478865511061e-02f,
       -6.98210122488052056106e-03f, 3.34975017086070470649e-05f},
      {-9.04316832390810593223e-02f, -6.76404519071381882256e-02f, 6.75961301770459654925e-02f,
       2.95552570429315521194e-02f, -1.39180257516060693404e-05f},
      {0, 0, -9.23364619367118555360e-02f, -1.69364939002081722752e-02f,
       -1.40086798182036094347e-05f}};
  const auto a2 = at::bmm(a, a);
  const auto a3 = at::bmm(a, a2);
  const auto sums = sums_of({a, a2, a3, at::bmm(a3, a3)}, kSums);
  const auto a9 = sums[3] + at::bmm(sums[0], sums[4]);
  return sums[1] + at::bmm(sums[2] + a9, a9);
}

Tensor polynomial(const Tensor& a, int degree) {
  switch (degree) {
    case 1:
      return sum_of({a}, {1, 1});
    case 2:
      return sum_of({a, at::bmm(a, a)}, {1, 1, 0.5f});
    case 4: {
      const auto a2 = at::bmm(a, a);
      const auto rest = at::bmm(a2, sum_of({a, a2}, {1.0f / 2, 1.0f / 6, 1.0f / 24}));
      return sum_of({a, rest}, {1, 1, 1});
    }
    case 8:
      return degree_8(a);
    case 12:
      return degree_12(a);
    default:
      return degree_18(a);
  }
}

// The degree, scaling and squarings of one matrix.
struct Plan {
  int64_t index;
  size_t polynomial;
  int squarings;
  float scale;  // 2^-squarings; NaN where the matrix is not finite: so is the result then
};

Plan plan_of(int64_t index, double norm) {
  if (!std::isfinite(norm)) {
    return {index, kPolynomials.size() - 1, 0, std::numeric_limits<float>::quiet_NaN()};
  }
  size_t chosen = 0;
  while (chosen + 1 < kPolynomials.size() && norm > kPolynomials[chosen].most) ++chosen;
  const double excess = norm / kPolynomials[chosen].most;
  const int squarings = excess > 1 ? static_cast<int>(std::ceil(std::log2(excess))) : 0;
  return {index, chosen, squarings, std::ldexp(1.0f, -squarings)};
}

// Returns the plans, sorted by polynomial and then by squarings, most first. The host waits for the
// norms.
std::vector<Plan> plans_of(const Tensor& a) {
  const auto norms = at::amax(at::sum(at::abs(a), -2), -1).cpu();
  std::vector<Plan> plans;
  plans.reserve(norms.numel());
  for (int64_t i = 0; i < norms.numel(); ++i) {
    plans.push_back(plan_of(i, norms.const_data_ptr<float>()[i]));
  }
  std::stable_sort(plans.begin(), plans.end(), [](const Plan& x, const Plan& y) {
    return std::pair(x.polynomial, -x.squarings) < std::pair(y.polynomial, -y.squarings);
  });
  return plans;
}

template <class Number>
Tensor on_device_of(const Tensor& like, const std::vector<Number>& numbers) {
  return at::tensor(numbers).to(like.device());
}

// Computes the exponentials of matrices (batch, n, n) that use one polynomial.
Tensor exponentials(const Tensor& a, const Plan* plans) {
  const auto* const end = plans + a.size(0);
  auto scaled = a;
  if (std::any_of(plans, end, [](const Plan& plan) { return plan.scale != 1; })) {
    std::vector<float> scales(a.size(0));
    std::transform(plans, end, scales.begin(), [](const Plan& plan) { return plan.scale; });
    scaled = a * on_device_of(a, scales).view({-1, 1, 1});
  }
  auto result = polynomial(scaled, kPolynomials[plans->polynomial].degree);
  for (int step = 0; step < plans->squarings; ++step) {
    const auto count =
        std::count_if(plans, end, [&](const Plan& plan) { return plan.squarings > step; });
    const auto part = result.narrow(0, 0, count);
    const auto squared = at::bmm(part, part);
    if (count == result.size(0)) {
      result = squared;
    } else {
      part.copy_(squared);
    }
  }
  return result;
}

// Computes the exponentials of a: (batch, n, n), float or complex float, contiguous.
Tensor matrix_exp_of(const Tensor& a) {
  const auto plans = plans_of(a);
  if (plans.size() == 1) {
    return exponentials(a, plans.data());
  }
  const auto result = at::empty_like(a);
  for (auto begin = plans.begin(); begin != plans.end();) {
    const auto end = std::find_if(
        begin, plans.end(), [&](const Plan& plan) { return plan.polynomial != begin->polynomial; });
    std::vector<int64_t> indices(end - begin);
    std::transform(begin, end, indices.begin(), [](const Plan& plan) { return plan.index; });
    const auto places = on_device_of(a, indices);
    result.index_copy_(0, places, exponentials(a.index_select(0, places), &*begin));
    begin = end;
  }
  return result;
}

Tensor matrix_exp(const Tensor& self) {
  constexpr const char* kName = "linalg.matrix_exp";
  at::native::squareCheckInputs(self, kName);
  at::native::checkFloatingOrComplex(self, kName);
  TORCH_CHECK(self.numel() <= std::numeric_limits<uint32_t>::max(), kName, ": matrices of ",
              self.numel(), " elements are too large for MPS");
  const auto type = self.scalar_type();
  const auto wide = at::isComplexType(type) ? at::kComplexFloat : at::kFloat;
  const auto a = self.to(wide).contiguous();
  const auto n = a.size(-1);
  auto result = a.numel() == 0 ? at::empty_like(a)
                : n == 1       ? at::exp(a)
                               : matrix_exp_of(a.view({-1, n, n})).view(a.sizes());
  return result.to(type);
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.replace("linalg_matrix_exp", matrix_exp, "refuses to run before macOS 15");
}

}  // namespace
