// Host side of kernels/linalg/ldl.metal: LDL factorisation of symmetric and Hermitian indefinite
// matrices with Bunch-Kaufman pivoting, and solving with it.
#include <ATen/TensorOperators.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_ldl_factor_ex_meta.h>
#include <ATen/ops/linalg_ldl_solve_meta.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/linalg/ldl.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/stock.h>
#include <metalops/structured.h>

#include <algorithm>
#include <tuple>

#include <csrc/ops/linalg/common/matrix_rows.h>
#include <csrc/ops/linalg/triangular.h>

namespace {

using at::Tensor;
using metalops::LdlParameters;
using metalops::SmallMatricesMode;

// Returns the parameters of the kernels that solve. unit: elements that strides are counted in, 1
// or those of a vector.
LdlParameters parameters_of(const Tensor& matrices, bool hermitian, int64_t unit = 1) {
  LdlParameters p{};
  p.row_stride = matrices.stride(1) / unit;
  p.matrix_stride = matrices.stride(0) / unit;
  p.size = static_cast<uint32_t>(matrices.size(1));
  p.is_hermitian = hermitian;
  return p;
}

// Returns how many columns a GPU factors in some milliseconds.
int64_t columns_of_launch(int64_t n) {
  constexpr int64_t kElements = int64_t{1} << 24;  // of each matrix, about, that a launch updates
  return std::clamp(kElements / (n * n), int64_t{8}, n);
}

// Factors a, (batch, n, n) of any strides, and writes the result to `factors`.
void factor(const Tensor& factors, const Tensor& a, const Tensor& pivots, const Tensor& infos,
            bool hermitian) {
  constexpr int64_t kColumns = 8;  // that a thread processes at once, at most
  constexpr uint64_t kRows = 2;    // that a thread should process, at least
  const auto batch = a.size(0);
  const auto n = a.size(1);
  const auto ld = c10::metal::round_up(n, kColumns) + kColumns;
  const int64_t parts = a.is_complex() ? 2 : 1;
  const auto float_options = a.options().dtype(at::kFloat);
  const auto columns = at::empty({batch, ld, parts, ld}, float_options);
  const auto scratch = at::empty({batch, 2, parts, ld}, float_options);
  const auto progress = at::zeros({batch}, pivots.options());
  uint64_t threads = c10::metal::simdgroup_size;
  while (threads < 1024 && threads * kRows < static_cast<uint64_t>(n)) {
    threads *= 2;
  }
  auto& library = metalops::library("ldl");
  const auto launch_grid = [&](const char* kernel, int64_t side, const auto&... arguments) {
    const auto sides = static_cast<uint64_t>(side);
    metalops::launch_grid(library, metalops::typed_kernel(kernel, a),
                          {sides, sides, static_cast<uint64_t>(batch)}, arguments...);
  };
  metalops::LdlColumnsParameters p{};
  p.ld = static_cast<uint64_t>(ld);
  p.size = static_cast<uint32_t>(n);
  p.is_hermitian = hermitian;
  p.is_by_rows = a.stride(2) < a.stride(1);
  p.given = {a.stride(0), a.stride(1), a.stride(2)};
  launch_grid("ldl_load_", ld, columns, a, p);
  for (int64_t last = 0; last < n;) {
    last = std::min(last + columns_of_launch(n), n);
    p.last = static_cast<uint32_t>(last);
    metalops::launch_threadgroups(library, metalops::typed_kernel("ldl_factor_", a), batch, threads,
                                  columns, scratch, pivots, infos, progress, p);
  }
  p.given = {factors.stride(0), factors.stride(1), factors.stride(2)};
  launch_grid("ldl_store_", n, factors, columns, p);
}

std::tuple<Tensor&, Tensor&, Tensor&> ldl_factor_ex_out(const Tensor& self, bool hermitian,
                                                        bool check_errors, Tensor& LD,
                                                        Tensor& pivots, Tensor& info) {
  constexpr const char* kName = "torch.linalg.ldl_factor_ex";
  metalops::check_same_device("linalg_ldl_factor_ex",
                              {{LD, "LD"}, {pivots, "pivots"}, {info, "info"}, {self, "self"}});
  metalops::StructuredOut<at::meta::structured_linalg_ldl_factor_ex> call(LD, pivots, info);
  call.meta(self, hermitian, check_errors);
  at::native::checkFloatingOrComplex(self, kName, /*allow_low_precision_dtypes=*/false);
  const auto infos = at::zeros(call.output(2).sizes(), info.options());
  if (self.numel() != 0) {
    const auto own_pivots = at::empty(pivots.sizes(), pivots.options());
    const bool conjugates = hermitian && self.is_complex();
    if (metalops::fits_thread(self)) {
      metalops::launch_small_matrices(
          "ldl", call.output(0), self,
          conjugates ? SmallMatricesMode::kHermitian : SmallMatricesMode::kPlain,
          /*is_transposed=*/false, own_pivots, infos);
    } else {
      const auto factors = metalops::as_batch(call.output(0));
      const auto a = metalops::as_batch(self.resolve_conj().resolve_neg());
      const auto n = a.size(1);
      const auto pivots_of_batch = own_pivots.view({-1, n});
      const auto infos_of_batch = infos.view({-1});
      constexpr int64_t kOfColumn = 2048;  // steps of the threads that search the pivot of a column
      const auto steps = columns_of_launch(n) * (kOfColumn + n * n / 8);
      metalops::in_launches(
          a.size(0), steps, metalops::plan_device(), [&](int64_t first, int64_t count) {
            const auto own = [&](const Tensor& x) { return x.narrow(0, first, count); };
            factor(own(factors), own(a), own(pivots_of_batch), own(infos_of_batch), conjugates);
          });
      if (!factors.is_alias_of(call.output(0))) {
        call.output(0).copy_(factors.view(self.sizes()));
      }
    }
    call.output(1).copy_(own_pivots);
  }
  call.output(2).copy_(infos);
  call.write_back();
  if (check_errors) {
    at::_linalg_check_errors(info, kName, self.dim() == 2);
  }
  return {LD, pivots, info};
}

// Solves A X = B in place. x: (batch, n, columns) of padded_rows(). factors: (batch, n, n), by rows
// or by columns.
void solve(const Tensor& factors, const Tensor& pivots, bool hermitian, const Tensor& x) {
  constexpr metalops::Triangle kLower{/*is_upper=*/false, /*is_unit=*/true};
  constexpr metalops::Triangle kUpper{/*is_upper=*/true, /*is_unit=*/true};
  auto& library = metalops::library("ldl");
  const auto pack = metalops::pack_of(x);
  const auto packs = c10::metal::ceil_div(x.size(2), pack);
  const auto batch = x.size(0);
  auto p = parameters_of(x, hermitian, pack);
  const auto lower = metalops::padded_rows(factors);
  const auto of_lower = parameters_of(lower, hermitian);
  const auto blocks = lower.clone();
  metalops::launch_rows(library, metalops::typed_kernel("ldl_order_rows_", lower), lower.size(1),
                        batch, lower, pivots, of_lower);
  metalops::launch_rows(library, "ldl_swap_rows", packs, batch, x, pivots, p,
                        metalops::kErrorBuffer);
  metalops::solve_triangular_(lower, kLower, x);
  metalops::launch_rows(library, metalops::typed_kernel("ldl_solve_blocks_", lower), packs, batch,
                        x, blocks, pivots, p, parameters_of(blocks, hermitian));
  metalops::solve_triangular_(hermitian ? lower.mH() : lower.mT(), kUpper, x);
  p.is_backward = true;
  metalops::launch_rows(library, "ldl_swap_rows", packs, batch, x, pivots, p,
                        metalops::kErrorBuffer);
}

Tensor& ldl_solve_out(const Tensor& LD, const Tensor& pivots, const Tensor& B, bool hermitian,
                      Tensor& out) {
  constexpr const char* kName = "torch.linalg.ldl_solve";
  metalops::check_same_device("linalg_ldl_solve",
                              {{out, "out"}, {LD, "LD"}, {pivots, "pivots"}, {B, "B"}});
  metalops::StructuredOut<at::meta::structured_linalg_ldl_solve> call(out);
  call.meta(LD, pivots, B, hermitian);
  at::native::checkFloatingOrComplex(LD, kName, /*allow_low_precision_dtypes=*/false);
  const auto& result = call.output(0);
  if (result.numel() != 0) {
    const auto n = LD.size(-1);
    const auto x = metalops::padded_rows(B.expand(result.sizes()));
    solve(metalops::broadcast_batch(LD, result, {n, n}),
          metalops::broadcast_batch(pivots, result, {n}).to(at::kInt).contiguous(),
          hermitian && LD.is_complex(), x);
    result.copy_(x.view(result.sizes()));
  }
  call.write_back();
  return out;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("linalg_ldl_factor_ex.out", ldl_factor_ex_out);
  m.impl("linalg_ldl_solve.out", ldl_solve_out);
}

}  // namespace
