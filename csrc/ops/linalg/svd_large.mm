// Host side of kernels/linalg/svd_large.metal: reduction to bidiagonal form, blocked as LAPACK's
// xGEBRD, divide and conquer, and multiplication of the vectors with the reflectors. The reduction
// shares kernels with that of Hermitian matrices, kernels/linalg/eigh_large.metal.
#include <csrc/ops/linalg/svd_large.h>

#include <csrc/ops/linalg/common/blocked_reduction.h>
#include <csrc/ops/linalg/svd_merge.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/linalg/svd_large.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>
#include <array>

namespace {

using at::Tensor;
using metalops::kEighPanel;

constexpr int32_t kNotFinite = -4;  // as LAPACK's xGESDD has it

using Sides = std::array<Tensor, 2>;

Sides sides_of(const Tensor& both) { return {both.select(0, 0), both.select(0, 1)}; }

class Bidiagonalisation {
 public:
  Bidiagonalisation(const Tensor& a, const Tensor& infos)
      : type_(a.scalar_type()),
        batch_(a.size(0)),
        n_(a.size(1)),
        stride_(metalops::column_stride(n_, type_)),
        row_(stride_ * (a.is_complex() ? 2 : 4)),
        infos_(infos) {
    const auto reflectors = c10::metal::round_up<int64_t>(n_, kEighPanel);
    exponents_ = at::empty({batch_}, infos.options());
    reflectors_ = at::zeros({2, batch_, reflectors, row_}, a.options());
    taus_ = at::zeros({2, batch_, reflectors}, a.options());
    bidiagonals_ = at::zeros({2, batch_, n_}, a.options().dtype(at::kFloat));
    reduce(load(a));
  }

  void find_values(bool with_vectors, const Tensor& u, const Tensor& values,
                   const Tensor& v_adjoint) {
    const auto found = metalops::svd_of_bidiagonal(bidiagonals_, with_vectors);
    const auto padded = found.values.size(1);
    const auto ranks = at::empty({batch_, padded}, infos_.options());
    const metalops::EighOrderParameters p{size(), static_cast<int32_t>(padded),
                                          static_cast<int32_t>(row_)};
    metalops::launch_rows(metalops::library("svd_large"), "svd_large_values", padded, batch_,
                          values, ranks, infos_, found.values, exponents_, p);
    if (with_vectors) {
      const auto vectors = at::zeros({2, batch_, n_, row_}, reflectors_.options());
      launch_grid("eigh_large", "eigh_large_vectors_", {n_, padded, 2 * batch_}, vectors,
                  found.vectors, ranks, p, static_cast<uint32_t>(batch_));
      metalops::multiply_by_q(vectors.flatten(0, 1), reflectors_.flatten(0, 1),
                              taus_.flatten(0, 1));
      const auto [lefts, rights] = sides_of(vectors.narrow(3, 0, n_));
      u.copy_(lefts.mT());
      v_adjoint.copy_(rights.conj());
    }
    infos_.mul_(kNotFinite);
  }

 private:
  template <class... Arguments>
  void launch_grid(const char* library, const char* name, const std::array<int64_t, 3>& grid,
                   const Arguments&... arguments) const {
    metalops::launch_grid(metalops::library(library), metalops::typed_kernel(name, type_),
                          {static_cast<uint64_t>(grid[0]), static_cast<uint64_t>(grid[1]),
                           static_cast<uint64_t>(grid[2])},
                          arguments...);
  }
  int32_t size() const { return static_cast<int32_t>(n_); }

  // Returns scaled copies of the matrices and of their adjoints, by columns: (batch, n, row) each.
  Sides load(const Tensor& a) const {
    auto& library = metalops::library("svd_large");
    metalops::SvdLoadParameters p{a.stride(0),
                                  a.stride(1),
                                  a.stride(2),
                                  static_cast<uint32_t>(batch_),
                                  size(),
                                  static_cast<int32_t>(stride_),
                                  0};
    // The kernel reads lines, columns or rows, along which elements are adjacent.
    auto lines = p;
    if (lines.column_stride < lines.row_stride) {
      std::swap(lines.row_stride, lines.column_stride);
    }
    const auto extents = at::empty({batch_ * n_}, bidiagonals_.options());
    metalops::launch_simdgroups(library, metalops::typed_kernel("svd_large_extents_", type_),
                                batch_ * n_, extents, a, lines);
    metalops::SquaresParameters of_exponents{};
    of_exponents.size = size();
    metalops::launch_threadgroups(metalops::library("eigh_large"), "eigh_large_exponents", batch_,
                                  c10::metal::simdgroup_size, exponents_, infos_, extents,
                                  of_exponents);
    Sides copies;
    for (auto& copy : copies) {
      copy = at::empty({batch_, n_, row_}, a.options());
      launch_grid("svd_large", "svd_large_load_", {stride_, n_, batch_}, copy, a, exponents_,
                  infos_, p);
      std::swap(p.row_stride, p.column_stride);
      p.is_conjugate = 1;
    }
    return copies;
  }

  // Reduces the matrices to bidiagonal ones. Side 0 is A's, with reflectors V and products X of the
  // panel; side 1 is that of its adjoint, with U and Y.
  void reduce(const Sides& matrices) {
    const auto reflectors = sides_of(reflectors_);
    const auto taus = sides_of(taus_);
    const auto bidiagonals = sides_of(bidiagonals_);
    const auto panels = sides_of(at::empty({2, batch_, kEighPanel, row_}, reflectors_.options()));
    metalops::ColumnSteps steps(matrices[0], stride_, reflectors_.size(2), 2);
    auto& p = steps.p;
    const auto reduce_column = [&](int64_t side) {
      metalops::launch_threadgroups(metalops::library("svd_large"),
                                    metalops::typed_kernel("svd_large_column_", type_), batch_,
                                    steps.threads, matrices[side], reflectors[side], panels[side],
                                    steps.products, steps.overlaps, bidiagonals[side], taus[side],
                                    reflectors[1 - side], panels[1 - side], taus[1 - side], p);
    };
    // Multiplies with the last reflector of this side.
    const auto multiply = [&](int64_t side) {
      steps.multiply(matrices[1 - side], p.from, reflectors[side], panels[side],
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
          const auto made = sides_of(reflectors_.narrow(2, start, kEighPanel));
          const auto lefts = at::cat({made[0], panels[0]}, 1);
          const auto rights = at::cat({panels[1], made[1]}, 1);
          metalops::subtract_product(matrices[0], end, lefts, rights);
          metalops::subtract_product(matrices[1], end, rights, lefts);
        });
  }

  at::ScalarType type_;
  int64_t batch_;
  int64_t n_;
  int64_t stride_;
  int64_t row_;  // elements of a column, with padding
  Tensor infos_;
  Tensor exponents_;
  Tensor reflectors_;  // (2, batch, reflectors, row)
  Tensor taus_;
  Tensor bidiagonals_;  // (2, batch, n): the diagonal and the superdiagonal
};

}  // namespace

namespace metalops {

void svd_of_large(const Tensor& a, bool with_vectors, const Tensor& u, const Tensor& values,
                  const Tensor& v_adjoint, const Tensor& infos) {
  Bidiagonalisation(a, infos).find_values(with_vectors, u, values, v_adjoint);
}

}  // namespace metalops
