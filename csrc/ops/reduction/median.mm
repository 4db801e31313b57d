// median and nanmedian of bool, which stock MPS refuses: those of zeros and ones. While the fix
// "median" is on, those of all dtypes, from sorted rows.
#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/outputs.h>
#include <csrc/ops/reduction/sort.h>
#include <metalops/checks.h>
#include <metalops/library.h>
#include <metalops/stock.h>

#include <limits>
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

// ---- the fix ------------------------------------------------------------------------------------

const char* name_of(int32_t choice) {
  return choice == metalops::kSortMedian ? "median" : "nanmedian";
}

template <int32_t kChoice>
Tensor sorted_median(const Tensor& self) {
  metalops::check_sortable(name_of(kChoice), self.scalar_type());
  if (self.numel() == 0) {
    return at::full({}, std::numeric_limits<float>::quiet_NaN()).to(self.options());
  }
  auto value = at::empty({}, self.options());
  const auto index = at::empty({1}, self.options().dtype(at::kLong));
  metalops::write_sorted(name_of(kChoice), self.reshape({-1}), 0, {.choice = kChoice},
                         value.unsqueeze(0), index);
  return value;
}

template <int32_t kChoice>
std::tuple<Tensor&, Tensor&> sorted_median_out(const Tensor& self, int64_t dim, bool keepdim,
                                               Tensor& values, Tensor& indices) {
  const auto* const name = name_of(kChoice);
  metalops::check_same_device(name, {{values, "values"}, {indices, "indices"}, {self, "self"}});
  const auto wrapped = at::maybe_wrap_dim(dim, self.dim());
  at::native::zero_numel_check_dims(self, wrapped, "median()");
  metalops::check_sortable(name, self.scalar_type());
  metalops::write_choice(name, self, wrapped, keepdim, {.choice = kChoice}, values, indices);
  return {values, indices};
}

const metalops::Fix kMedian("median", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("median", sorted_median<metalops::kSortMedian>, reason);
  m.replace("median.dim_values", sorted_median_out<metalops::kSortMedian>, reason);
  m.replace("nanmedian", sorted_median<metalops::kSortNanMedian>, reason);
  m.replace("nanmedian.dim_values", sorted_median_out<metalops::kSortNanMedian>, reason);
});

}  // namespace
