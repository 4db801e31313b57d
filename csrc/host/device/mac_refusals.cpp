#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <device/mac_refusals.h>

#include <map>

namespace metalops::device {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

void lu_of_complex(Arguments arguments) {
  TORCH_CHECK(!arguments[0].toTensor().is_complex(),
              "linalg.lu_factor(): MPS doesn't support complex types.");
}

void lu_without_pivots(Arguments arguments) {
  lu_of_complex(arguments);
  TORCH_CHECK(arguments[1].toBool(), "linalg.lu_factor(): MPS doesn't allow pivot == False.");
}

void inverse_of_complex(Arguments arguments) {
  TORCH_CHECK(!arguments[0].toTensor().is_complex(),
              "linalg_inv: not supported for complex types yet!");
}

void cholesky_of_complex(Arguments arguments) {
  TORCH_CHECK(!arguments[0].toTensor().is_complex(),
              "linalg.cholesky: Input tensor must be float32");
}

void cholesky_inverse(Arguments arguments) {
  TORCH_CHECK(arguments[0].toTensor().scalar_type() == at::kFloat,
              "cholesky_inverse: MPS only supports float type");
}

void triangular_solve(Arguments arguments) {
  TORCH_CHECK(!arguments[0].toTensor().is_complex() && !arguments[1].toTensor().is_complex(),
              "linalg.solve.triangular(); Not supported for complex yet!");
}

void qr(Arguments arguments) {
  TORCH_CHECK(arguments[0].toTensor().scalar_type() == at::kFloat,
              "linalg_qr: MPS currently supports float32 only");
}

void index_reduce(Arguments arguments) {
  TORCH_CHECK(arguments[0].toTensor().scalar_type() != at::kLong,
              "index_reduce for MPS does not support torch.long");
}

// In torch's list of what fails on a Mac, torch/testing/_internal/common_mps.py.
void median_of_bool(Arguments arguments) {
  TORCH_CHECK(arguments[0].toTensor().scalar_type() != at::kBool,
              "median: MPS does not support torch.bool");
}

}  // namespace

Refusal find_refusal(const std::string& operator_name) {
  static const std::map<std::string, Refusal> kRefusals = {
      {"aten::_linalg_det", &lu_of_complex},
      {"aten::_linalg_slogdet", &lu_of_complex},
      {"aten::_linalg_solve_ex", &lu_of_complex},
      {"aten::linalg_lu_factor_ex", &lu_without_pivots},
      {"aten::linalg_lu_factor", &lu_without_pivots},
      {"aten::linalg_inv_ex", &inverse_of_complex},
      {"aten::linalg_cholesky_ex", &cholesky_of_complex},
      {"aten::cholesky", &cholesky_of_complex},
      {"aten::cholesky_inverse", &cholesky_inverse},
      {"aten::linalg_solve_triangular", &triangular_solve},
      {"aten::triangular_solve", &triangular_solve},
      {"aten::_cholesky_solve_helper", &triangular_solve},
      {"aten::linalg_qr", &qr},
      {"aten::index_reduce", &index_reduce},
      {"aten::index_reduce_", &index_reduce},
      {"aten::median", &median_of_bool},
      {"aten::nanmedian", &median_of_bool},
  };
  const auto found = kRefusals.find(operator_name);
  return found == kRefusals.end() ? nullptr : found->second;
}

}  // namespace metalops::device
