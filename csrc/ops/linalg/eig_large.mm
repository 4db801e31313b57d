// Host side of kernels/linalg/eig_large.metal: the Schur form of a Hessenberg matrix by the
// multishift QR algorithm (xHSEQR), and eigenvectors by back substitution (xTREVC).
#include <csrc/ops/linalg/eig_large.h>

#include <csrc/ops/linalg/blocked_reduction.h>
#include <csrc/ops/linalg/hessenberg.h>

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/linalg/eig_large.h>
#include <metalops/launch.h>
#include <metalops/library.h>

#include <algorithm>

namespace {

using at::Tensor;
using metalops::Hessenberg;
using metalops::SchurParameters;
using metalops::SquaresParameters;

constexpr int64_t kSweepInts = sizeof(metalops::SchurSweeps) / sizeof(int32_t);

class SchurForm {
 public:
  SchurForm(Hessenberg reduced, const SquaresParameters& parameters, const Tensor& infos)
      : library_(metalops::library("eig_large")),
        reduced_(std::move(reduced)),
        type_(reduced_.h.scalar_type()),
        batch_(reduced_.h.size(0)),
        n_(reduced_.h.size(1)),
        infos_(infos),
        p_{static_cast<int32_t>(n_), static_cast<int32_t>(reduced_.stride), parameters.with_vectors,
           0, 0} {
    iterate();
  }

  void store_values(const Tensor& values) {
    metalops::launch_rows(library_, metalops::typed_kernel("eig_large_values_", type_), n_, batch_,
                          values, reduced_.h, reduced_.exponents, p_);
  }

  void store_vectors(const Tensor& vectors) {
    const auto row = reduced_.h.size(2);
    const auto options = reduced_.h.options();
    const bool is_complex = reduced_.h.is_complex();
    // The eigenvectors are products of the eigenvectors of the Schur form (`factors`) and the rows
    // of Q, as real matrices.
    const auto rows = metalops::real_form(reduced_.q);
    auto of_form = at::empty({batch_, is_complex ? n_ : 2 * n_, row}, options);
    substitute(of_form);
    const auto factors = metalops::with_real_parts(of_form.narrow(2, 0, n_));
    const auto balanced = at::bmm(factors, rows);
    metalops::launch_rows(library_, metalops::typed_kernel("eig_large_vectors_", type_),
                          n_ * c10::metal::simdgroup_size, batch_, vectors, balanced, reduced_.h,
                          reduced_.scales, p_);
  }

 private:
  void apply(const Tensor& sweeps, const Tensor& transformations) {
    const auto groups =
        metalops::kSchurBlocks * c10::metal::ceil_div<int64_t>(n_, metalops::kSchurRows);
    metalops::launch_threadgroups(library_, metalops::typed_kernel("eig_large_schur_apply_", type_),
                                  groups * batch_, metalops::kSchurRows, reduced_.h,
                                  reduced_.q.defined() ? reduced_.q : reduced_.h, sweeps,
                                  transformations, p_);
  }

  // Sweeps until all eigenvalues are found. After each sweep the host reads how many windows the
  // next one has.
  void iterate() {
    const auto options = reduced_.h.options().dtype(at::kFloat);
    auto begin = at::zeros({kSweepInts}, infos_.options().device(at::kCPU));
    begin.data_ptr<int32_t>()[1] = p_.size - 1;
    begin.data_ptr<int32_t>()[2] = 30 * p_.size;
    const auto sweeps = begin.to(infos_.device()).expand({batch_, kSweepInts}).contiguous();
    const auto window =
        reduced_.h.is_complex() ? metalops::kComplexSchurWindow : metalops::kSchurWindow;
    const auto transformations = at::empty({batch_, window, window}, reduced_.h.options());
    const auto shifts = at::empty({batch_, metalops::kMostBulges, 4}, options);
    const auto in_groups = [&](const char* name, int64_t simdgroups, const auto&... arguments) {
      metalops::launch_threadgroups(library_, metalops::typed_kernel(name, type_), batch_,
                                    simdgroups * c10::metal::simdgroup_size, sweeps, arguments...,
                                    p_);
    };
    // At most one simdgroup per bulge. Simdgroups cost the software device time, which matters less
    // beside the GEMMs the larger the matrix is.
    const auto chasing = std::clamp<int64_t>(n_ / 128, 2, metalops::kMostBulges);
    while (true) {
      in_groups("eig_large_schur_finish_", 1, reduced_.h, transformations, infos_);
      apply(sweeps, transformations);
      in_groups("eig_large_schur_begin_", 1, shifts, reduced_.h, transformations, infos_);
      apply(sweeps, transformations);
      const auto known = sweeps.cpu();
      const auto* const states =
          reinterpret_cast<const metalops::SchurSweeps*>(known.const_data_ptr<int32_t>());
      int32_t windows = 0;
      bool is_done = true;
      for (int64_t i = 0; i < batch_; ++i) {
        windows = std::max(windows, states[i].windows);
        is_done = is_done && states[i].high < 0;
      }
      if (is_done) {
        break;
      }
      for (int32_t i = 0; i < windows; ++i) {
        in_groups("eig_large_schur_chase_", chasing, reduced_.h, transformations, shifts);
        apply(sweeps, transformations);
      }
    }
  }

  // Computes the eigenvectors of the Schur form, in launches of some milliseconds each.
  void substitute(const Tensor& vectors) {
    constexpr int64_t kMostProducts = int64_t{1} << 31;
    const auto count =
        std::clamp<int64_t>(kMostProducts / std::max<int64_t>(n_ * n_ * batch_, 1), 1, n_);
    auto p = p_;
    for (int64_t first = 0; first < n_; first += count) {
      p.first = static_cast<int32_t>(first);
      p.count = static_cast<int32_t>(std::min(count, n_ - first));
      metalops::launch_threadgroups(
          library_, metalops::typed_kernel("eig_large_back_substitute_", type_), batch_ * p.count,
          c10::metal::simdgroup_size, vectors, reduced_.h, p);
    }
  }

  at::native::mps::MetalShaderLibrary& library_;
  Hessenberg reduced_;
  at::ScalarType type_;
  int64_t batch_;
  int64_t n_;
  Tensor infos_;
  SchurParameters p_;
};

}  // namespace

namespace metalops {

void eig_of_large(const Tensor& a, const SquaresParameters& parameters, const Tensor& values,
                  const Tensor& vectors, const Tensor& infos) {
  SchurForm form(hessenberg_of(a, parameters, parameters.with_vectors != 0, infos), parameters,
                 infos);
  form.store_values(values);
  if (parameters.with_vectors != 0) {
    form.store_vectors(vectors);
  }
}

}  // namespace metalops
