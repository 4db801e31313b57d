// Host side of kernels/linalg/hessenberg.metal: balancing (the scaling of LAPACK's xGEBAL) and the
// blocked reduction to Hessenberg form (xGEHRD).
#include <csrc/ops/linalg/hessenberg.h>

#include <csrc/ops/linalg/common/blocked_reduction.h>

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/typed_kernel.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>
#include <utility>

namespace {

using at::Tensor;
using metalops::kEighPanel;
using metalops::SquaresParameters;

class HessenbergReduction {
 public:
  HessenbergReduction(const Tensor& a, const SquaresParameters& parameters, const Tensor& infos)
      : library_(metalops::library("hessenberg")),
        parameters_(parameters),
        type_(a.scalar_type()),
        batch_(a.size(0)),
        n_(a.size(-1)),
        stride_(metalops::column_stride(n_, type_)),
        row_(stride_ * (a.is_complex() ? 2 : 4)),
        reflector_count_(c10::metal::round_up<int64_t>(n_, kEighPanel)) {
    exponents_ = at::empty({batch_}, infos.options());
    matrices_ = at::empty({batch_, n_, row_}, a.options());
    reflectors_ = at::zeros({batch_, reflector_count_, row_}, a.options());
    taus_ = at::zeros({batch_, reflector_count_}, a.options());
    load(a, infos);
    balance(infos);
    reduce();
  }

  metalops::Hessenberg result(bool with_q) const {
    Tensor q;
    if (with_q) {
      q = at::eye(n_, row_, matrices_.options()).expand({batch_, n_, row_}).contiguous();
      metalops::multiply_by_q(q, reflectors_, taus_);
    }
    return {stride_, matrices_, q, scales_, exponents_};
  }

 private:
  std::array<uint64_t, 3> grid(int64_t x, int64_t y) const {
    return {static_cast<uint64_t>(x), static_cast<uint64_t>(y), static_cast<uint64_t>(batch_)};
  }
  int32_t stride() const { return static_cast<int32_t>(stride_); }

  void load(const Tensor& a, const Tensor& infos) {
    const auto extents = at::empty({batch_ * n_}, a.options().dtype(at::kFloat));
    metalops::launch_simdgroups(library_, metalops::typed_kernel("hessenberg_extents_", type_),
                                batch_ * n_, extents, a, parameters_);
    metalops::launch_threadgroups(library_, "hessenberg_exponents", batch_,
                                  c10::metal::simdgroup_size, exponents_, infos, extents,
                                  parameters_);
    metalops::launch_grid(library_, metalops::typed_kernel("hessenberg_load_", type_),
                          grid(stride_, n_), matrices_, a, exponents_, infos, parameters_,
                          stride());
  }

  void balance(const Tensor& infos) {
    constexpr int kSteps = 16;
    const auto shifts = at::empty_like(exponents_);
    const auto levels = at::empty({batch_, n_, 2}, infos.options());
    scales_ = at::zeros({batch_, n_}, infos.options());
    auto next = at::empty_like(scales_);
    for (int step = 0; step < kSteps; ++step) {
      if (step > 0) {
        std::swap(scales_, next);
      }
      metalops::launch_rows(library_, metalops::typed_kernel("hessenberg_balance_", type_), n_,
                            batch_, next, levels, scales_, matrices_, parameters_, stride());
    }
    metalops::launch_threadgroups(library_, "hessenberg_accept", batch_, c10::metal::simdgroup_size,
                                  scales_, shifts, exponents_, levels, parameters_);
    metalops::launch_grid(library_, metalops::typed_kernel("hessenberg_scale_", type_),
                          grid(stride_, n_), matrices_, scales_, shifts, parameters_, stride());
  }

  void reduce() {
    metalops::ColumnSteps steps(matrices_, stride_, reflector_count_, 1);
    const auto panels = at::zeros({batch_, kEighPanel, row_}, matrices_.options());
    const auto t = at::empty({batch_, kEighPanel, kEighPanel}, matrices_.options());
    const auto reduce_column = [&] {
      metalops::launch_threadgroups(library_, metalops::typed_kernel("hessenberg_column_", type_),
                                    batch_, steps.threads, matrices_, reflectors_, panels,
                                    steps.products, steps.overlaps, t, taus_, steps.p);
    };
    steps.for_each(
        [&] {
          steps.p.from = steps.p.column + 1;
          reduce_column();
          steps.multiply(matrices_, 0, reflectors_, panels, steps.in_panel());
        },
        [&](int64_t start, int64_t end) {
          reduce_column();
          update(panels, start, end);
        });
  }

  // A -= Y V^H, then A -= V T^H V^H A, in the columns from `from` on.
  void update(const Tensor& panels, int64_t start, int64_t from) {
    const auto v = reflectors_.narrow(1, start, kEighPanel);
    const auto columns = matrices_.narrow(1, from, n_ - from);
    metalops::with_real_parts(columns).sub_(at::bmm(
        metalops::conjugate_factors(v.narrow(2, from, n_ - from)), metalops::real_form(panels)));
    metalops::apply_block_reflector(columns, reflectors_, taus_, start, true);
  }

  at::native::mps::MetalShaderLibrary& library_;
  SquaresParameters parameters_;
  at::ScalarType type_;
  int64_t batch_;
  int64_t n_;
  int64_t stride_;
  int64_t row_;  // elements of a column, with padding
  int64_t reflector_count_;
  Tensor exponents_;
  Tensor matrices_;
  Tensor scales_;
  Tensor reflectors_;
  Tensor taus_;
};

}  // namespace

namespace metalops {

Hessenberg hessenberg_of(const Tensor& a, const SquaresParameters& parameters, bool with_q,
                         const Tensor& infos) {
  return HessenbergReduction(a, parameters, infos).result(with_q);
}

}  // namespace metalops
