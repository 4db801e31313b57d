// Host side of kernels/reduction/histogram.metal: histc, histogram, histogramdd and bincount, while
// the fix "histogram" is on. Edges are those of torch's CPU operators, as are errors about them.
#include <ATen/TensorOperators.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_histogramdd_bin_edges.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/indexing/scatter.h>
#include <kernels/reduction/histogram.h>
#include <metalops/checks.h>
#include <metalops/launch.h>
#include <metalops/strided_launch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

namespace {

using at::Tensor;
using metalops::HistogramParameters;
using metalops::is_given;
using metalops::MaybeTensor;
using Range = std::optional<at::ArrayRef<double>>;
using Histogram = std::tuple<Tensor, Tensor>;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("histogram"); }

// Samples, and the bins that they are counted in. first: the first coordinate of each.
struct Samples {
  Tensor first;
  Tensor edges;  // of all axes, one after the other
  HistogramParameters parameters;
};

void check_bins(int64_t bins, size_t axis = 0) {
  TORCH_CHECK(bins > 0, "torch.histogram(): bins must be > 0, but got ", bins, " for dimension ",
              axis);
}

void set_bins(HistogramParameters& p, at::IntArrayRef bins) {
  TORCH_CHECK(bins.size() <= metalops::kMostHistogramAxes,
              "MPS supports tensors with dimensions <= ", metalops::kMostHistogramAxes);
  p.axes = static_cast<int32_t>(bins.size());
  p.bins = 1;
  int64_t edges = 0;
  for (size_t i = 0; i < bins.size(); ++i) {
    p.axis[i].bins = bins[i];
    p.axis[i].edges = edges;
    p.axis[i].scale = 1.0f;
    edges += bins[i] + 1;
  }
  for (size_t i = bins.size(); i-- > 0;) {
    p.axis[i].step = p.bins;
    p.bins *= bins[i];
  }
}

// Numbers of such a range times a number of bins would not be finite in float.
float scale_of(double low, double high) { return high - low > 0x1p90 ? 0x1p-64f : 1.0f; }

// Integers of a dtype for which there are kernels: others are converted.
Tensor countable(const Tensor& integers) {
  const auto type = integers.scalar_type();
  return type == at::kLong || type == at::kInt || type == at::kByte ? integers
                                                                    : integers.to(at::kLong);
}

Tensor counts_of(Samples& samples) {
  auto& p = samples.parameters;
  const auto& self = samples.first;
  auto counts = at::zeros({p.bins}, self.options().dtype(at::kLong));
  if (self.numel() == 0) {
    return counts;
  }
  constexpr int64_t kManyGroups = 1024;
  constexpr int64_t kMostCopies = 32;
  const auto layout = metalops::row_major_layout<1>({self});
  const auto span = int64_t{metalops::kHistogramThreads} * metalops::kHistogramSpan;
  const auto groups = std::min(c10::metal::ceil_div(self.numel(), span), kManyGroups);
  p.copies =
      static_cast<int32_t>(std::min(int64_t{metalops::kHistogramSlots} / p.bins, kMostCopies));
  metalops::launch_threadgroups(kernels(), metalops::typed_kernel("histogram_count_", self), groups,
                                metalops::kHistogramThreads, counts, self, samples.edges, p,
                                layout);
  return counts;
}

// Sums of weights, which have an element for each sample.
Tensor sums_of(const char* name, Samples& samples, const Tensor& weights) {
  auto& p = samples.parameters;
  const auto& self = samples.first;
  auto sums = at::zeros({p.bins}, weights.options());
  if (self.numel() == 0) {
    return sums;
  }
  const auto layout = metalops::row_major_layout<1>({self});
  p.width = static_cast<int64_t>(sums.element_size());
  metalops::ScatterItems to;
  to.places = at::empty({self.numel()}, self.options().dtype(at::kLong));
  to.items = weights;
  to.columns = to.self_columns = sums.as_strided({}, {});
  metalops::launch_threads(kernels(), metalops::typed_kernel("histogram_places_", self),
                           static_cast<uint64_t>(self.numel()), to.places, self, samples.edges, p,
                           layout);
  metalops::reduce_items(name, to, {.has_self = false});
  return sums;
}

Tensor& copy_to(Tensor& out, const Tensor& result) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

// ---- histc --------------------------------------------------------------------------------------

// The smallest and the largest number, on the CPU; by default of all. dims: those that are reduced.
Tensor extrema(const Tensor& self, at::IntArrayRef dims = {}) {
  return at::stack({at::amin(self, dims), at::amax(self, dims)}, -1).cpu();
}

void set_float_range(HistogramParameters& p, const Tensor& self, const at::Scalar& min,
                     const at::Scalar& max) {
  double low = min.to<double>();
  double high = max.to<double>();
  if (low == high && self.numel() > 0) {
    const auto found = extrema(self).to(at::kDouble);
    low = found[0].item<double>();
    high = found[1].item<double>();
  }
  if (low == high) {
    low -= 1;
    high += 1;
  }
  TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "torch.histc: range of [", low, ", ", high,
              "] is not finite");
  TORCH_CHECK(low < high, "torch.histc: max must be larger than min");
  p.axis[0].low = static_cast<float>(low);
  p.axis[0].high = static_cast<float>(high);
  p.axis[0].scale = scale_of(low, high);
}

void set_integer_range(HistogramParameters& p, const Tensor& self, const at::Scalar& min,
                       const at::Scalar& max) {
  int64_t low = min.to<int64_t>();
  int64_t high = max.to<int64_t>();
  if (low == high && self.numel() > 0) {
    const auto found = extrema(self);
    low = found[0].item<int64_t>();
    high = found[1].item<int64_t>();
  }
  if (low == high) {
    using Limits = std::numeric_limits<int64_t>;
    low = std::max(low, Limits::min() + 1) - 1;
    high = std::min(high, Limits::max() - 1) + 1;
  }
  TORCH_CHECK(low < high, "torch.histc: max must be larger than min");
  auto& axis = p.axis[0];
  axis.lowest = low;
  axis.highest = high;
  const auto width = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const double product = static_cast<double>(width) * static_cast<double>(axis.bins);
  axis.shift = std::max(std::ilogb(product) - 62, 0);
}

Tensor& histc_out(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max,
                  Tensor& out) {
  const auto type = self.scalar_type();
  const bool is_float = metalops::is_metal_float(type);
  metalops::check_same_device("histc", {{out, "out"}, {self, "self"}});
  metalops::check_dtype(is_float || (at::isIntegralType(type, /*includeBool=*/false) &&
                                     !at::isBarebonesUnsignedType(type)),
                        "histc", type);
  TORCH_CHECK(type == out.scalar_type(),
              "torch.histogram: input tensor and hist tensor should have the same dtype, but got "
              "input ",
              self.dtype(), " and hist ", out.dtype());
  check_bins(bins);
  HistogramParameters p{};
  set_bins(p, {bins});
  p.method = metalops::kHistogramEven;
  (is_float ? set_float_range : set_integer_range)(p, self, min, max);
  const auto numbers = is_float ? self : countable(self);
  Samples samples{numbers, numbers, p};
  return copy_to(out, counts_of(samples));
}

Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  auto out = at::empty({0}, self.options());
  return histc_out(self, bins, min, max, out);
}

// ---- histogram and histogramdd ------------------------------------------------------------------

void check_samples(const Tensor& self) {
  TORCH_CHECK(self.dim() >= 2, "torch.histogramdd: input tensor should have at least 2 dimensions");
  metalops::check_metal_float("histogram", self.scalar_type());
}

void check_edges(const Tensor& self, at::TensorList edges) {
  const auto axes = self.size(-1);
  TORCH_CHECK(static_cast<int64_t>(edges.size()) == axes, "torch.histogramdd: expected ", axes,
              " sequences of bin edges for a ", axes, "-dimensional histogram but got ",
              edges.size());
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto& each = edges[i];
    metalops::check_same_device("histogram", {{self, "self"}, {each, "bins"}});
    TORCH_CHECK(self.dtype() == each.dtype(),
                "torch.histogramdd: input tensor and bins tensors should have the same dtype, but "
                "got input with dtype ",
                self.dtype(), " and bins for dimension ", i, " with dtype ", each.dtype());
    TORCH_CHECK(each.dim() == 1,
                "torch.histogramdd: bins tensor should have one dimension, but got ", each.dim(),
                " dimensions in the bins tensor for dimension ", i);
    TORCH_CHECK(each.numel() > 0,
                "torch.histogramdd: bins tensor should have at least 1 element, but got ",
                each.numel(), " elements in the bins tensor for dimension ", i);
  }
}

void check_weight(const Tensor& self, const MaybeTensor& weight) {
  if (!is_given(weight)) {
    return;
  }
  metalops::check_same_device("histogram", {{self, "self"}, {*weight, "weight"}});
  TORCH_CHECK(self.dtype() == weight->dtype(),
              "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor "
              "should have the same dtype, but got input(",
              self.dtype(), "), and weight(", weight->dtype(), ")");
  const auto sizes = weight->dim() == 0 ? std::vector<int64_t>{1} : weight->sizes().vec();
  TORCH_CHECK(self.sizes().slice(0, self.dim() - 1) == at::IntArrayRef(sizes),
              "torch.histogramdd: if weight tensor is provided it should have the same shape as "
              "the input tensor excluding its innermost dimension, but got input with shape ",
              self.sizes(), " and weight with shape ", weight->sizes());
}

// Edges of bins of one width, on the CPU. The range is that of the samples by default.
std::vector<Tensor> even_edges(const Tensor& self, at::IntArrayRef bins, const Range& range) {
  check_samples(self);
  const auto none = at::empty({0, self.size(-1)}, self.options().device(at::kCPU));
  if (range || self.numel() == 0) {
    return at::_histogramdd_bin_edges(none, bins, range);
  }
  std::vector<int64_t> dims(self.dim() - 1);
  std::iota(dims.begin(), dims.end(), 0);
  const auto found = extrema(self, dims).to(at::kDouble).contiguous();
  const at::ArrayRef<double> limits(found.const_data_ptr<double>(), found.numel());
  return at::_histogramdd_bin_edges(none, bins, limits);
}

std::vector<Tensor> moved(const std::vector<Tensor>& edges, const Tensor& to) {
  std::vector<Tensor> result;
  for (const auto& each : edges) {
    result.push_back(each.to(to.device()));
  }
  return result;
}

// Each bin's share of all samples, divided by its size.
void divide_by_sizes(Tensor& histogram, at::TensorList edges) {
  histogram.div_(histogram.sum());
  for (size_t i = 0; i < edges.size(); ++i) {
    at::DimVector sizes(edges.size(), 1);
    sizes[i] = edges[i].numel() - 1;
    histogram.div_((edges[i].slice(0, 1) - edges[i].slice(0, 0, -1)).view(sizes));
  }
}

// even: the edges on the CPU, if they are those of bins of one width.
Tensor histogram_of(const Tensor& self, at::TensorList edges, const std::vector<Tensor>* even,
                    const MaybeTensor& weight, bool density) {
  check_samples(self);
  check_edges(self, edges);
  check_weight(self, weight);
  std::vector<int64_t> bins;
  for (size_t i = 0; i < edges.size(); ++i) {
    bins.push_back(edges[i].numel() - 1);
    check_bins(bins[i], i);
  }
  if (bins.empty()) {
    return at::zeros({}, self.options());
  }
  HistogramParameters p{};
  set_bins(p, bins);
  // Edges in half precision are rounded to others than the neighbours.
  const bool is_near = even && self.scalar_type() == at::kFloat;
  p.method = is_near ? metalops::kHistogramNear : metalops::kHistogramEdges;
  for (size_t i = 0; is_near && i < even->size(); ++i) {
    const auto& each = (*even)[i];
    p.axis[i].scale = scale_of(each[0].item<double>(), each[-1].item<double>());
  }
  p.coordinate_stride = self.stride(-1) * static_cast<int64_t>(self.element_size());
  Samples samples{self.select(-1, 0), edges.size() == 1 ? edges[0].contiguous() : at::cat(edges),
                  p};
  auto result = is_given(weight) ? sums_of("histogram", samples, *weight)
                                 : counts_of(samples).to(self.scalar_type());
  result = result.view(bins);
  if (density) {
    divide_by_sizes(result, edges);
  }
  return result;
}

void check_out(const Tensor& self, const Tensor& hist, const Tensor& bin_edges) {
  metalops::check_same_device("histogram",
                              {{self, "self"}, {hist, "hist"}, {bin_edges, "bin_edges"}});
  TORCH_CHECK(self.dtype() == hist.dtype(),
              "torch.histogram: input tensor and hist tensor should have the same dtype, but got "
              "input ",
              self.dtype(), " and hist ", hist.dtype());
  TORCH_CHECK(self.dtype() == bin_edges.dtype(),
              "torch.histogram: input tensor and bin_edges tensor should have the same dtype, but "
              "got input ",
              self.dtype(), " and bin_edges ", bin_edges.dtype(), " for dimension 0");
}

MaybeTensor flat(const MaybeTensor& weight) {
  return is_given(weight) ? MaybeTensor(weight->reshape({-1})) : MaybeTensor();
}

// Samples in one dimension, as torch's messages show them.
Tensor column_of(const Tensor& self) { return self.reshape({self.numel(), 1}); }

Histogram histogram(const Tensor& self, int64_t bins, Range range, const MaybeTensor& weight,
                    bool density) {
  check_bins(bins);
  const auto samples = column_of(self);
  const auto edges = even_edges(samples, {bins}, range);
  const auto on_device = moved(edges, self);
  return {histogram_of(samples, on_device, &edges, flat(weight), density), on_device[0]};
}

Histogram histogram_by_edges(const Tensor& self, const Tensor& edges, const MaybeTensor& weight,
                             bool density) {
  auto result = histogram_of(column_of(self), edges, nullptr, flat(weight), density);
  return {result, edges.clone()};
}

std::tuple<Tensor&, Tensor&> histogram_out(const Tensor& self, int64_t bins, Range range,
                                           const MaybeTensor& weight, bool density, Tensor& hist,
                                           Tensor& bin_edges) {
  check_out(self, hist, bin_edges);
  const auto result = histogram(self, bins, range, weight, density);
  return {copy_to(hist, std::get<0>(result)), copy_to(bin_edges, std::get<1>(result))};
}

std::tuple<Tensor&, Tensor&> histogram_by_edges_out(const Tensor& self, const Tensor& edges,
                                                    const MaybeTensor& weight, bool density,
                                                    Tensor& hist, Tensor& bin_edges) {
  check_out(self, hist, bin_edges);
  const auto result = histogram_by_edges(self, edges, weight, density);
  return {copy_to(hist, std::get<0>(result)), copy_to(bin_edges, std::get<1>(result))};
}

std::vector<Tensor> histogramdd_edges(const Tensor& self, at::IntArrayRef bins, Range range,
                                      const MaybeTensor& /*weight*/, bool /*density*/) {
  return moved(even_edges(self, bins, range), self);
}

Tensor histogramdd(const Tensor& self, at::IntArrayRef bins, Range range, const MaybeTensor& weight,
                   bool density) {
  const auto edges = even_edges(self, bins, range);
  return histogram_of(self, moved(edges, self), &edges, weight, density);
}

Tensor histogramdd_by_edges(const Tensor& self, at::TensorList edges, const MaybeTensor& weight,
                            bool density) {
  return histogram_of(self, edges, nullptr, weight, density);
}

// ---- bincount -----------------------------------------------------------------------------------

// Sums of weights of other dtypes than float32 are in float32, since torch's float64 is none on
// MPS; integers are added as such.
Tensor bincount(const Tensor& self, const MaybeTensor& weights, c10::SymInt minimum) {
  constexpr const char* kOneDimension = "bincount only supports 1-d non-negative integral inputs.";
  const auto type = self.scalar_type();
  const auto least = minimum.expect_int();
  metalops::check_dtype(
      at::isIntegralType(type, /*includeBool=*/false) && !at::isBarebonesUnsignedType(type),
      "bincount", type);
  TORCH_CHECK(least >= 0, "minlength should be >= 0");
  TORCH_CHECK(self.dim() == 1, kOneDimension);
  if (self.numel() == 0) {
    return at::zeros({least}, self.options().dtype(at::kLong));
  }
  const auto found = extrema(self).to(at::kLong);
  TORCH_CHECK(found[0].item<int64_t>() >= 0, kOneDimension);
  HistogramParameters p{};
  set_bins(p, {std::max(found[1].item<int64_t>() + 1, least)});
  p.method = metalops::kHistogramNumber;
  p.axis[0].highest = p.bins - 1;
  const auto numbers = countable(self);
  Samples samples{numbers, numbers, p};
  if (!is_given(weights)) {
    return counts_of(samples);
  }
  metalops::check_same_device("bincount", {{self, "self"}, {*weights, "weights"}});
  TORCH_CHECK(weights->dim() == 1 && weights->size(0) == self.size(0),
              "weights should be 1-d and have the same length as input");
  const bool is_integral = at::isIntegralType(weights->scalar_type(), /*includeBool=*/true);
  return sums_of("bincount", samples, weights->to(is_integral ? at::kLong : at::kFloat))
      .to(at::kFloat);
}

const metalops::Fix kHistogram("histogram", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("histc", histc, reason);
  m.replace("histc.out", histc_out, reason);
  m.replace("histogram.bin_ct", histogram, reason);
  m.replace("histogram.bin_ct_out", histogram_out, reason);
  m.replace("histogram.bins_tensor", histogram_by_edges, reason);
  m.replace("histogram.bins_tensor_out", histogram_by_edges_out, reason);
  m.replace("_histogramdd_bin_edges", histogramdd_edges, reason);
  m.replace("_histogramdd_from_bin_cts", histogramdd, reason);
  m.replace("_histogramdd_from_bin_tensors", histogramdd_by_edges, reason);
  m.replace("bincount", bincount, reason);
});

}  // namespace
