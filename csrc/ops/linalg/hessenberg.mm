// Host side of kernels/linalg/hessenberg.metal: balancing (the scaling of LAPACK's xGEBAL) and the
// blocked reduction to Hessenberg form (xGEHRD).
#include <csrc/ops/linalg/hessenberg.h>

#include <csrc/ops/linalg/blocked_reduction.h>

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/linalg/eig.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <utility>

namespace {

using at::Tensor;
using metalops::kReductionPanel;
using metalops::SquaresParameters;

constexpr const char* kSource = "General_";

class HessenbergReduction : metalops::BlockedReduction {
 public:
  HessenbergReduction(const Tensor& a, const SquaresParameters& parameters, const Tensor& all_infos)
      : BlockedReduction(a, parameters, kSource, 1, a.size(1), all_infos, metalops::kEigNotFinite),
        library_(metalops::library("hessenberg")),
        parameters_(parameters),
        matrices_(load(a, parameters, kSource)) {
    balance();
    reduce();
  }

  metalops::Hessenberg result(bool with_q) const {
    Tensor q;
    if (with_q) {
      q = at::eye(n, row, matrices_.options()).expand({batch, n, row}).contiguous();
      metalops::multiply_by_q(q, reflectors, taus);
    }
    return {stride, matrices_, q, scales_, exponents};
  }

 private:
  void balance() {
    constexpr int kSteps = 16;
    const auto of_columns = static_cast<int32_t>(stride);
    const auto shifts = at::empty_like(exponents);
    const auto levels = at::empty({batch, n, 2}, infos.options());
    scales_ = at::zeros({batch, n}, infos.options());
    auto next = at::empty_like(scales_);
    for (int step = 0; step < kSteps; ++step) {
      if (step > 0) {
        std::swap(scales_, next);
      }
      metalops::launch_rows(library_, metalops::typed_kernel("hessenberg_balance_", type), n, batch,
                            next, levels, scales_, matrices_, parameters_, of_columns);
    }
    metalops::launch_threadgroups(library_, "hessenberg_accept", batch, c10::metal::simdgroup_size,
                                  scales_, shifts, exponents, levels, parameters_);
    metalops::launch_grid(library_, metalops::typed_kernel("hessenberg_scale_", type),
                          grid(stride, n, batch), matrices_, scales_, shifts, parameters_,
                          of_columns);
  }

  void reduce() {
    metalops::ColumnSteps steps(*this, 1);
    const auto panels = at::zeros({batch, kReductionPanel, row}, matrices_.options());
    const auto t = at::empty({batch, kReductionPanel, kReductionPanel}, matrices_.options());
    const auto reduce_column = [&] {
      metalops::launch_threadgroups(library_, metalops::typed_kernel("hessenberg_column_", type),
                                    batch, steps.threads, matrices_, reflectors, panels,
                                    steps.products, steps.overlaps, t, taus, steps.p);
    };
    steps.for_each(
        [&] {
          steps.p.from = steps.p.column + 1;
          reduce_column();
          steps.multiply(matrices_, 0, reflectors, panels, steps.in_panel());
        },
        [&](int64_t start, int64_t end) {
          reduce_column();
          update(panels, start, end);
        });
  }

  // A -= Y V^H, then A -= V T^H V^H A, in the columns from `from` on.
  void update(const Tensor& panels, int64_t start, int64_t from) {
    const auto v = reflectors.narrow(1, start, kReductionPanel);
    const auto columns = matrices_.narrow(1, from, n - from);
    metalops::with_real_parts(columns).sub_(at::bmm(
        metalops::conjugate_factors(v.narrow(2, from, n - from)), metalops::real_form(panels)));
    metalops::apply_block_reflector(columns, reflectors, taus, start, true);
  }

  at::native::mps::MetalShaderLibrary& library_;
  SquaresParameters parameters_;
  Tensor matrices_;
  Tensor scales_;
};

}  // namespace

namespace metalops {

Hessenberg hessenberg_of(const Tensor& a, const SquaresParameters& parameters, bool with_q,
                         const Tensor& infos) {
  return HessenbergReduction(a, parameters, infos).result(with_q);
}

}  // namespace metalops
