// median and nanmedian of bool, which stock MPS refuses: those of zeros and ones.
#include <ATen/ops/empty.h>
#include <csrc/ops/common/outputs.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <tuple>

namespace {

using at::Tensor;

// torch's kernels of one of the two operators.
struct Stock {
  metalops::StockKernel of_all;
  metalops::StockKernel of_dim;
};

const Stock& stock_median() {
  static const Stock kernels{{"aten::median", ""}, {"aten::median", "dim_values"}};
  return kernels;
}

const Stock& stock_nanmedian() {
  static const Stock kernels{{"aten::nanmedian", ""}, {"aten::nanmedian", "dim_values"}};
  return kernels;
}

template <const Stock& (*kStock)()>
Tensor median(const Tensor& self) {
  const auto& stock = kStock().of_all;
  return self.scalar_type() == at::kBool ? stock(self.to(at::kByte)).to(at::kBool) : stock(self);
}

template <const Stock& (*kStock)()>
std::tuple<Tensor&, Tensor&> median_out(const Tensor& self, int64_t dim, bool keepdim,
                                        Tensor& values, Tensor& indices) {
  const auto& stock = kStock().of_dim;
  if (self.scalar_type() == at::kBool) {
    metalops::check_same_device("median",
                                {{values, "values"}, {indices, "indices"}, {self, "self"}});
    TORCH_CHECK(values.scalar_type() == at::kBool, "expected scalar type '", at::kBool,
                "' but got '", values.scalar_type(), "' for values output");
    const auto bytes = at::empty({0}, values.options().dtype(at::kByte));
    stock(self.to(at::kByte), dim, keepdim, bytes, indices);
    metalops::resize_and_copy(bytes, values);
  } else {
    stock(self, dim, keepdim, values, indices);
  }
  return {values, indices};
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  stock_median();  // before our kernels replace them
  stock_nanmedian();
  constexpr auto kReason = "refuses bool";
  m.replace("median", median<stock_median>, kReason);
  m.replace("median.dim_values", median_out<stock_median>, kReason);
  m.replace("nanmedian", median<stock_nanmedian>, kReason);
  m.replace("nanmedian.dim_values", median_out<stock_nanmedian>, kReason);
}

}  // namespace
