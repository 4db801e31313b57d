// Host side of kernels/linalg/eigh_large.metal: reduction to tridiagonal form, blocked as LAPACK's
// xHETRD, divide and conquer, and multiplication of the vectors with the reflectors (xUNMTR).
#include <csrc/ops/linalg/eigh_large.h>

#include <csrc/ops/linalg/blocked_reduction.h>
#include <csrc/ops/linalg/eigh_merge.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/typed_kernel.h>
#include <metalops/launch.h>

namespace {

using at::Tensor;
using metalops::kReductionPanel;
using metalops::SquaresParameters;

constexpr const char* kSource = "Hermitian_";
constexpr int kNotFinite = 1;  // the info

class Tridiagonalisation : metalops::BlockedReduction {
 public:
  Tridiagonalisation(const Tensor& a, const SquaresParameters& parameters, const Tensor& all_infos)
      : BlockedReduction(a, parameters, kSource, 1, a.size(1) - 1, all_infos, kNotFinite) {
    const auto of_floats = a.options().dtype(at::kFloat);
    diagonals_ = at::empty({batch, n}, of_floats);
    off_diagonals_ = at::zeros({batch, n}, of_floats);
    reduce(load(a, parameters, kSource));
  }

  void find_values(bool with_vectors, const Tensor& values, const Tensor& vectors) const {
    const auto found = metalops::eigh_of_tridiagonal(diagonals_, off_diagonals_, with_vectors);
    const auto ranks = store_values(values, found.values, "ascending");
    if (with_vectors) {
      vectors.copy_(
          ordered_vectors(found.vectors, ranks).narrow(2, 0, n).view(vectors.sizes()).mT());
    }
  }

 private:
  // Reduces the matrices to tridiagonal ones: diagonals_ and off_diagonals_.
  void reduce(const Tensor& matrices) const {
    metalops::ColumnSteps steps(*this, 2);
    const auto panels = at::empty({batch, kReductionPanel, row}, matrices.options());
    const auto reduce_column = [&] {
      metalops::launch_threadgroups(metalops::library("eigh_large"),
                                    metalops::typed_kernel("eigh_large_column_", type), batch,
                                    steps.threads, matrices, reflectors, panels, steps.products,
                                    steps.overlaps, diagonals_, off_diagonals_, taus, steps.p);
    };
    steps.for_each(
        [&] {
          steps.p.from = steps.p.column + 1;
          reduce_column();
          if (!steps.is_last()) {
            steps.multiply(matrices, steps.p.from, reflectors, panels, 2 * steps.in_panel());
          }
        },
        [&](int64_t start, int64_t end) {
          reduce_column();
          // The rank-2k update of xHETRD, A -= V W^H + W V^H.
          const auto v = reflectors.narrow(1, start, kReductionPanel);
          metalops::subtract_product(matrices, end, at::cat({v, panels}, 1),
                                     at::cat({panels, v}, 1));
        });
  }

  Tensor diagonals_;
  Tensor off_diagonals_;
};

}  // namespace

namespace metalops {

void eigh_of_large(const Tensor& a, const SquaresParameters& parameters, const Tensor& values,
                   const Tensor& vectors, const Tensor& infos) {
  Tridiagonalisation(a, parameters, infos)
      .find_values(parameters.with_vectors != 0, values, vectors);
}

}  // namespace metalops
