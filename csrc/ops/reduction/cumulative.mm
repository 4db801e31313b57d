// Host side of kernels/reduction/cumulative.metal: cumsum, cumprod and logcumsumexp, while the fix
// "cumulative" is on.
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/cumprod_meta.h>
#include <ATen/ops/cumsum_meta.h>
#include <ATen/ops/empty.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/typed_kernel.h>
#include <kernels/reduction/cumulative.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/strided_launch.h>
#include <metalops/structured.h>

#include <algorithm>
#include <optional>

namespace {

using at::Tensor;
using metalops::CumulativeParameters;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("cumulative"); }

struct CumulativeSum {
  using Meta = at::meta::structured_cumsum;
  static constexpr const char* name = "cumsum";
  static constexpr const char* spans = "cumulative_spans_sum_";
  static constexpr const char* rows = "cumulative_rows_sum_";
  static constexpr const char* threads = "cumulative_threads_sum_";
};

struct CumulativeProduct {
  using Meta = at::meta::structured_cumprod;
  static constexpr const char* name = "cumprod";
  static constexpr const char* spans = "cumulative_spans_product_";
  static constexpr const char* rows = "cumulative_rows_product_";
  static constexpr const char* threads = "cumulative_threads_product_";
};

struct CumulativeLogSumExp {
  static constexpr const char* name = "logcumsumexp";
  static constexpr const char* spans = "cumulative_spans_logsumexp_";
  static constexpr const char* rows = "cumulative_rows_logsumexp_";
  static constexpr const char* threads = "cumulative_threads_logsumexp_";
};

at::ScalarType accumulated_type(at::ScalarType type) {
  return at::isComplexType(type)                           ? at::kComplexFloat
         : at::isIntegralType(type, /*includeBool=*/false) ? at::kLong
                                                           : at::kFloat;
}

// Divides rows into spans, so that a few long rows have enough threadgroups.
void divide(CumulativeParameters& p) {
  constexpr int64_t kManyGroups = 1024;
  constexpr int64_t kTile = metalops::kCumulativeTile;
  const auto tiles = c10::metal::ceil_div(p.columns, kTile);
  const auto spans = std::clamp<int64_t>(kManyGroups / p.rows, 1, std::max<int64_t>(tiles / 2, 1));
  p.span = c10::metal::ceil_div(tiles, spans) * kTile;
  p.spans = static_cast<int32_t>(c10::metal::ceil_div(p.columns, p.span));
}

template <class Op>
void accumulate(const Tensor& self, int64_t dim, const Tensor& out) {
  if (self.dim() == 0) {
    accumulate<Op>(self.unsqueeze(0), 0, out.unsqueeze(0));
    return;
  }
  constexpr int64_t kFewColumns = 32;
  constexpr int64_t kManyRows = 2048;
  const auto rows = self.numel() / self.size(dim);
  const bool is_adjacent = self.stride(dim) == 1 && out.stride(dim) == 1;
  const bool has_threads = self.size(dim) <= kFewColumns || (!is_adjacent && rows >= kManyRows);
  if (!has_threads && !is_adjacent) {
    const auto moved = self.movedim(dim, -1).contiguous();
    const auto result = at::empty(moved.sizes(), moved.options());
    accumulate<Op>(moved, moved.dim() - 1, result);
    out.copy_(result.movedim(-1, dim));
    return;
  }
  const auto layout = metalops::row_major_layout<2>({out.select(dim, 0), self.select(dim, 0)});
  const auto bytes = [&](const Tensor& x) { return x.stride(dim) * x.element_size(); };
  CumulativeParameters p{.rows = rows,
                         .columns = self.size(dim),
                         .strides = {bytes(out), bytes(self)},
                         .span = 0,
                         .spans = 1,
                         .unused = 0};
  if (has_threads) {
    metalops::launch_threads(kernels(), metalops::typed_kernel(Op::threads, self),
                             static_cast<uint64_t>(rows), out, self, p, layout);
    return;
  }
  divide(p);
  const auto totals = at::empty({p.spans > 1 ? rows * p.spans : 1},
                                self.options().dtype(accumulated_type(self.scalar_type())));
  if (p.spans > 1) {
    metalops::launch_threadgroups(kernels(), metalops::typed_kernel(Op::spans, self),
                                  rows * p.spans, metalops::kCumulativeThreads, totals, self, p,
                                  layout);
  }
  metalops::launch_threadgroups(kernels(), metalops::typed_kernel(Op::rows, self), rows * p.spans,
                                metalops::kCumulativeThreads, out, self, totals, p, layout);
}

// Returns self in out's dtype, in memory that may be read while out is written.
Tensor readable(const Tensor& self, const Tensor& out) {
  auto converted = self.to(out.scalar_type());
  const bool is_itself = converted.is_same(out) ||
                         (converted.is_alias_of(out) && converted.strides() == out.strides() &&
                          converted.storage_offset() == out.storage_offset());
  if (!is_itself && at::get_overlap_status(converted, out) != at::MemOverlapStatus::No) {
    converted = converted.clone();
  }
  return converted;
}

template <class Op>
Tensor& cumulative_out(const Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype,
                       Tensor& out) {
  metalops::check_same_device(Op::name, {{out, "out"}, {self, "self"}});
  metalops::StructuredOut<typename Op::Meta> call(out);
  call.meta(self, dim, dtype);
  const auto type = out.scalar_type();
  metalops::check_dtype(
      metalops::is_metal_float(type) || type == at::kComplexFloat ||
          (at::isIntegralType(type, /*includeBool=*/false) && !at::isBarebonesUnsignedType(type)),
      Op::name, type);
  if (out.numel() == 0) {
    return out;
  }
  accumulate<Op>(readable(self, out), at::maybe_wrap_dim(dim, self.dim()), out);
  return out;
}

template <class Op>
Tensor cumulative(const Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  const auto type = dtype.value_or(at::isIntegralType(self.scalar_type(), /*includeBool=*/true)
                                       ? at::kLong
                                       : self.scalar_type());
  auto out = at::empty({0}, self.options().dtype(type));
  return cumulative_out<Op>(self, dim, dtype, out);
}

template <class Op>
Tensor& cumulative_(Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  return cumulative_out<Op>(self, dim, dtype ? *dtype : self.scalar_type(), self);
}

Tensor& log_sum_exp_out(const Tensor& self, int64_t dim, Tensor& out) {
  using Op = CumulativeLogSumExp;
  metalops::check_same_device(Op::name, {{out, "out"}, {self, "self"}});
  const auto type = out.scalar_type();
  dim = at::maybe_wrap_dim(dim, self.dim());
  metalops::check_dtype(metalops::is_metal_float(type) || type == at::kComplexFloat, Op::name,
                        type);
  at::native::resize_output(out, self.sizes());
  if (out.numel() > 0) {
    accumulate<Op>(readable(self, out), dim, out);
  }
  return out;
}

Tensor log_sum_exp(const Tensor& self, int64_t dim) {
  auto out = at::empty(self.sizes(), self.options());
  return log_sum_exp_out(self, dim, out);
}

const metalops::Fix kCumulative("cumulative", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("cumsum", cumulative<CumulativeSum>, reason);
  m.replace("cumsum_", cumulative_<CumulativeSum>, reason);
  m.replace("cumsum.out", cumulative_out<CumulativeSum>, reason);
  m.replace("cumprod", cumulative<CumulativeProduct>, reason);
  m.replace("cumprod_", cumulative_<CumulativeProduct>, reason);
  m.replace("cumprod.out", cumulative_out<CumulativeProduct>, reason);
  m.replace("_logcumsumexp", log_sum_exp, reason);
  m.replace("_logcumsumexp.out", log_sum_exp_out, reason);
});

}  // namespace
