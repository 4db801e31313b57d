// Host side of kernels/linalg/svd_large.metal: reduction to bidiagonal form, blocked as LAPACK's
// xGEBRD, divide and conquer, and multiplication of the vectors with the reflectors.
#include <csrc/ops/linalg/svd_large.h>

#include <csrc/ops/linalg/blocked_reduction.h>
#include <csrc/ops/linalg/svd_merge.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/typed_kernel.h>
#include <metalops/launch.h>

#include <array>

namespace {

using at::Tensor;
using metalops::kReductionPanel;
using metalops::SquaresParameters;

constexpr int kNotFinite = -4;  // the info, as LAPACK's xGESDD has it

using Sides = std::array<Tensor, 2>;

Sides sides_of(const Tensor& both) { return {both.select(0, 0), both.select(0, 1)}; }

class Bidiagonalisation : metalops::BlockedReduction {
 public:
  Bidiagonalisation(const Tensor& a, const SquaresParameters& parameters, const Tensor& all_infos)
      : BlockedReduction(a, parameters, "General_", 2, a.size(1), all_infos, kNotFinite) {
    bidiagonals_ = at::zeros({2, batch, n}, a.options().dtype(at::kFloat));
    reduce({load(a, parameters, "General_"), load(a, parameters, "Adjoint_")});
  }

  void find_values(bool with_vectors, const Tensor& u, const Tensor& values,
                   const Tensor& v_adjoint) const {
    const auto found = metalops::svd_of_bidiagonal(bidiagonals_, with_vectors);
    const auto ranks = store_values(values, found.values, "descending");
    if (with_vectors) {
      const auto [lefts, rights] =
          sides_of(of_sides(ordered_vectors(found.vectors, ranks)).narrow(3, 0, n));
      u.copy_(lefts.mT());
      v_adjoint.copy_(rights.conj());
    }
  }

 private:
  // Returns a tensor of (2 * batch, ...) as (2, batch, ...).
  Tensor of_sides(const Tensor& both) const { return both.unflatten(0, {2, batch}); }

  // Reduces the matrices to bidiagonal ones. Side 0 is A's, with reflectors V and products X of the
  // panel; side 1 is that of its adjoint, with U and Y.
  void reduce(const Sides& matrices) const {
    const auto vectors = sides_of(of_sides(reflectors));
    const auto scales = sides_of(of_sides(taus));
    const auto bidiagonals = sides_of(bidiagonals_);
    const auto panels = sides_of(at::empty({2, batch, kReductionPanel, row}, reflectors.options()));
    metalops::ColumnSteps steps(*this, 2);
    auto& p = steps.p;
    const auto reduce_column = [&](int64_t side) {
      metalops::launch_threadgroups(metalops::library("svd_large"),
                                    metalops::typed_kernel("svd_large_column_", type), batch,
                                    steps.threads, matrices[side], vectors[side], panels[side],
                                    steps.products, steps.overlaps, bidiagonals[side], scales[side],
                                    vectors[1 - side], panels[1 - side], scales[1 - side], p);
    };
    // Multiplies with the last reflector of this side.
    const auto multiply = [&](int64_t side) {
      steps.multiply(matrices[1 - side], p.from, vectors[side], panels[side],
                     2 * steps.in_panel() + side);
    };
    steps.for_each(
        [&] {
          p.from = p.column;
          reduce_column(0);
          if (!steps.is_last()) {
            multiply(0);
            p.from = p.column + 1;
            reduce_column(1);
            multiply(1);
          }
        },
        [&](int64_t start, int64_t end) {
          reduce_column(0);
          const auto made = sides_of(of_sides(reflectors).narrow(2, start, kReductionPanel));
          const auto lefts = at::cat({made[0], panels[0]}, 1);
          const auto rights = at::cat({panels[1], made[1]}, 1);
          metalops::subtract_product(matrices[0], end, lefts, rights);
          metalops::subtract_product(matrices[1], end, rights, lefts);
        });
  }

  Tensor bidiagonals_;  // (2, batch, n): the diagonal and the superdiagonal
};

}  // namespace

namespace metalops {

void svd_of_large(const Tensor& a, const SquaresParameters& parameters, const Tensor& u,
                  const Tensor& values, const Tensor& v_adjoint, const Tensor& infos) {
  Bidiagonalisation(a, parameters, infos)
      .find_values(parameters.with_vectors != 0, u, values, v_adjoint);
}

}  // namespace metalops
