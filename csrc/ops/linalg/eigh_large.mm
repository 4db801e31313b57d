// Host side of kernels/linalg/eigh_large.metal: reduction to tridiagonal form, blocked as LAPACK's
// xHETRD, divide and conquer, and multiplication of the vectors with the reflectors (xUNMTR).
#include <csrc/ops/linalg/eigh_large.h>

#include <csrc/ops/linalg/common/blocked_reduction.h>
#include <csrc/ops/linalg/eigh_merge.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/linalg/eigh_large.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>

namespace {

using at::Tensor;
using metalops::EighOrderParameters;
using metalops::kEighPanel;
using metalops::SquaresParameters;

class Reduction {
 public:
  Reduction(const Tensor& a, const SquaresParameters& parameters, const Tensor& infos)
      : library_(metalops::library("eigh_large")),
        parameters_(parameters),
        type_(a.scalar_type()),
        batch_(parameters.end),
        n_(parameters.size),
        stride_(metalops::column_stride(n_, type_)),
        row_(stride_ * (a.is_complex() ? 2 : 4)),
        reflector_count_(c10::metal::round_up<int64_t>(n_ - 1, kEighPanel)),
        infos_(infos) {
    const auto of_floats = a.options().dtype(at::kFloat);
    exponents_ = at::empty({batch_}, infos.options());
    matrices_ = at::empty({batch_, n_, row_}, a.options());
    diagonals_ = at::empty({batch_, n_}, of_floats);
    off_diagonals_ = at::zeros({batch_, n_}, of_floats);
    reflectors_ = at::zeros({batch_, reflector_count_, row_}, a.options());
    taus_ = at::zeros({batch_, reflector_count_}, a.options());
    load(a);
    reduce();
    matrices_ = Tensor();
  }

  void find_values(const Tensor& values, const Tensor& vectors) {
    const bool with_vectors = parameters_.with_vectors;
    const auto found = metalops::eigh_of_tridiagonal(diagonals_, off_diagonals_, with_vectors);
    const auto padded = found.values.size(1);
    const auto ranks = at::empty({batch_, padded}, infos_.options());
    const EighOrderParameters p{size(), static_cast<int32_t>(padded), static_cast<int32_t>(row_)};
    metalops::launch_rows(library_, "eigh_large_values", padded, batch_, values, ranks, infos_,
                          found.values, exponents_, p);
    if (with_vectors) {
      const auto ordered = at::zeros({batch_, n_, row_}, reflectors_.options());
      metalops::launch_grid(library_, metalops::typed_kernel("eigh_large_vectors_", type_),
                            grid(n_, padded), ordered, found.vectors, ranks, p, parameters_.end);
      metalops::multiply_by_q(ordered, reflectors_, taus_);
      vectors.copy_(ordered.narrow(2, 0, n_).view(vectors.sizes()).mT());
    }
  }

 private:
  int32_t size() const { return static_cast<int32_t>(n_); }
  std::array<uint64_t, 3> grid(int64_t x, int64_t y) const {
    return {static_cast<uint64_t>(x), static_cast<uint64_t>(y), static_cast<uint64_t>(batch_)};
  }

  void load(const Tensor& a) {
    const auto extents = at::empty({batch_ * n_}, diagonals_.options());
    metalops::launch_simdgroups(library_, metalops::typed_kernel("eigh_large_extents_", type_),
                                batch_ * n_, extents, a, parameters_);
    metalops::launch_threadgroups(library_, "eigh_large_exponents", batch_,
                                  c10::metal::simdgroup_size, exponents_, infos_, extents,
                                  parameters_);
    metalops::launch_grid(library_, metalops::typed_kernel("eigh_large_load_", type_),
                          grid(stride_, n_), matrices_, a, exponents_, infos_, parameters_,
                          static_cast<int32_t>(stride_));
  }

  // Reduces the matrices to tridiagonal ones: diagonals_ and, off-diagonal, besides_.
  void reduce() {
    metalops::ColumnSteps steps(matrices_, stride_, reflector_count_, 2);
    const auto panels = at::empty({batch_, kEighPanel, row_}, matrices_.options());
    const auto reduce_column = [&] {
      metalops::launch_threadgroups(library_, metalops::typed_kernel("eigh_large_column_", type_),
                                    batch_, steps.threads, matrices_, reflectors_, panels,
                                    steps.products, steps.overlaps, diagonals_, off_diagonals_,
                                    taus_, steps.p);
    };
    steps.for_each(
        [&] {
          steps.p.from = steps.p.column + 1;
          reduce_column();
          if (!steps.is_last()) {
            steps.multiply(matrices_, steps.p.from, reflectors_, panels, 2 * steps.in_panel());
          }
        },
        [&](int64_t start, int64_t end) {
          reduce_column();
          update(panels, start, end);
        });
  }

  // A -= V W^H + W V^H, in rows and columns from `from` on (the rank-2k update of xHETRD).
  void update(const Tensor& panels, int64_t start, int64_t from) {
    const auto v = reflectors_.narrow(1, start, kEighPanel);
    metalops::subtract_product(matrices_, from, at::cat({v, panels}, 1), at::cat({panels, v}, 1));
  }

  at::native::mps::MetalShaderLibrary& library_;
  SquaresParameters parameters_;
  at::ScalarType type_;
  int64_t batch_;
  int64_t n_;
  int64_t stride_;
  int64_t row_;  // elements of a column, with padding
  int64_t reflector_count_;
  Tensor infos_;
  Tensor exponents_;
  Tensor matrices_;
  Tensor diagonals_;
  Tensor off_diagonals_;
  Tensor reflectors_;
  Tensor taus_;
};

}  // namespace

namespace metalops {

void eigh_of_large(const Tensor& a, const SquaresParameters& parameters, const Tensor& values,
                   const Tensor& vectors, const Tensor& infos) {
  Reduction(a, parameters, infos).find_values(values, vectors);
}

}  // namespace metalops
