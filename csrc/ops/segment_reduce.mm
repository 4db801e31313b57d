// Host side of kernels/segment_reduce.metal: segment_reduce and _segment_reduce_backward, which
// stock MPS lacks.
#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReductionType.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <kernels/segment_reduce.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>
#include <metalops/stock.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

namespace {

using at::Tensor;
using at::native::ReductionType;
using metalops::SegmentReduceParameters;
using MaybeTensor = std::optional<Tensor>;
using MaybeScalar = std::optional<at::Scalar>;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("segment_reduce"); }

Tensor value_of(const MaybeTensor& tensor) { return tensor.value_or(Tensor()); }

const char* name_of(ReductionType reduction) {
  switch (reduction) {
    case ReductionType::SUM:
      return "sum";
    case ReductionType::MEAN:
      return "mean";
    case ReductionType::PROD:
      return "prod";
    case ReductionType::MAX:
      return "max";
    case ReductionType::MIN:
      return "min";
  }
  TORCH_INTERNAL_ASSERT(false, "no such reduction");
}

const char* gradient_name_of(ReductionType reduction) {
  const bool extremum = reduction == ReductionType::MAX || reduction == ReductionType::MIN;
  return extremum ? "extremum" : name_of(reduction);
}

float identity_of(ReductionType reduction) {
  constexpr auto kInfinity = std::numeric_limits<float>::infinity();
  switch (reduction) {
    case ReductionType::SUM:
    case ReductionType::MEAN:
      return 0.0f;
    case ReductionType::PROD:
      return 1.0f;
    case ReductionType::MAX:
      return -kInfinity;
    case ReductionType::MIN:
      return kInfinity;
  }
  TORCH_INTERNAL_ASSERT(false, "no such reduction");
}

// The number as an element of that type; raises if it is too large.
float as_element(const at::Scalar& number, at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return number.to<at::Half>();
    case at::kBFloat16:
      return number.to<at::BFloat16>();
    default:
      return number.to<float>();
  }
}

// How an axis is divided into segments, by `offsets` [outer][segments + 1].
struct Segmentation {
  Tensor offsets;
  SegmentReduceParameters parameters{};

  // bounds: the lengths of the segments, or the offsets that they are between.
  Segmentation(const Tensor& data, const Tensor& bounds, bool are_offsets, int64_t axis) {
    const auto* argument = are_offsets ? "offsets" : "lengths";
    for (int64_t dim = 0; dim < axis; ++dim) {
      TORCH_CHECK(bounds.size(dim) == data.size(dim), "segment_reduce(): Expected ", argument,
                  " to have the sizes of data before axis ", axis, ", but got sizes ",
                  bounds.sizes(), " for data of sizes ", data.sizes());
    }
    const auto type = bounds.scalar_type();
    metalops::check_dtype(type == at::kInt || type == at::kLong, "segment_reduce", type);
    const auto data_type = data.scalar_type();
    metalops::check_dtype(metalops::is_metal_float(data_type), "segment_reduce", data_type);
    parameters.outer = c10::multiply_integers(data.sizes().slice(0, axis));
    parameters.size = data.size(axis);
    parameters.inner = c10::multiply_integers(data.sizes().slice(axis + 1));
    parameters.segments = bounds.size(axis) - (are_offsets ? 1 : 0);
    if (are_offsets) {
      offsets = bounds.to(at::kLong).contiguous();
    } else {
      auto sizes = bounds.sizes().vec();
      ++sizes[axis];
      offsets = at::zeros(sizes, bounds.options().dtype(at::kLong));
      if (bounds.numel() != 0) {
        auto ends = offsets.narrow(axis, 1, parameters.segments);
        at::cumsum_out(ends, bounds, axis);
      }
    }
  }

  // Of a segment, on average. Where elements of a segment do not lie side by side but those of
  // several results do, and there are results enough to keep a GPU busy, segments count as short:
  // one thread for each.
  int64_t length() const {
    constexpr int64_t kSideBySide = 8;  // 16 or 32 bytes
    constexpr int64_t kEnoughThreads = 1 << 12;
    if (parameters.inner >= kSideBySide && results() >= kEnoughThreads) {
      return 1;
    }
    return parameters.size / std::max<int64_t>(parameters.segments, 1);
  }

  int64_t results() const { return parameters.outer * parameters.segments * parameters.inner; }
};

void check_given(const Tensor& lengths, const Tensor& offsets) {
  TORCH_CHECK(lengths.defined() || offsets.defined(),
              "segment_reduce(): Either lengths or offsets must be defined.");
}

void check_axis(const Tensor& data, const Tensor& bounds, int64_t axis, const char* argument) {
  TORCH_CHECK(data.dim() >= bounds.dim(), "segment_reduce(): Expected data.dim() >= ", argument,
              ".dim(), but got ", data.dim(), " and ", bounds.dim());
  TORCH_CHECK(bounds.dim() - 1 == axis,
              "segment_reduce(): Expected axis to be the last dimension of ", argument, " but got ",
              axis, ".");
}

Tensor segment_reduce(const Tensor& data, std::string_view reduce, const MaybeTensor& maybe_lengths,
                      const MaybeTensor& maybe_indices, const MaybeTensor& maybe_offsets,
                      int64_t axis, bool unsafe, const MaybeScalar& initial) {
  const auto lengths = value_of(maybe_lengths);
  const auto indices = value_of(maybe_indices);
  const auto offsets = value_of(maybe_offsets);
  metalops::check_same_device(
      "segment_reduce",
      {{data, "data"}, {lengths, "lengths"}, {indices, "indices"}, {offsets, "offsets"}});
  axis = at::maybe_wrap_dim(axis, data.dim());
  TORCH_CHECK(!indices.defined(),
              "segment_reduce(): indices based reduction is not supported yet.");
  check_given(lengths, offsets);
  const auto reduction = at::native::get_reduction_enum(reduce);
  const bool by_offsets = offsets.defined();
  const auto& bounds = by_offsets ? offsets : lengths;
  check_axis(data, bounds, axis, by_offsets ? "offsets" : "lengths");
  const bool whole = !by_offsets && !unsafe;
  TORCH_CHECK(!whole || lengths.numel() != 0,
              "min(): Expected reduction dim to be specified for input.numel() == 0. "
              "Specify the reduction dim with the 'dim' argument.");

  Segmentation segmentation(data, bounds, by_offsets, axis);
  auto& parameters = segmentation.parameters;
  const auto type = data.scalar_type();
  parameters.whole = whole ? 1 : 0;
  parameters.initial = initial ? as_element(*initial, type) : identity_of(reduction);
  parameters.empty = !initial && reduction == ReductionType::MEAN
                         ? std::numeric_limits<float>::quiet_NaN()
                         : parameters.initial;
  auto sizes = data.sizes().vec();
  sizes[axis] = parameters.segments;
  const auto results = at::empty(sizes, data.options());
  metalops::launch_threads(kernels(), "check_segments", parameters.outer * parameters.segments,
                           segmentation.offsets, parameters, metalops::kErrorBuffer);
  metalops::launch_reduction(
      kernels(), metalops::KernelName("segment_reduce_") + name_of(reduction),
      metalops::metal_type(type), segmentation.results(), segmentation.length(), results,
      data.contiguous(), segmentation.offsets, parameters);
  return results;
}

Tensor segment_reduce_backward(const Tensor& grad, const Tensor& output, const Tensor& data,
                               std::string_view reduce, const MaybeTensor& maybe_lengths,
                               const MaybeTensor& maybe_offsets, int64_t axis,
                               const MaybeScalar& initial) {
  const auto lengths = value_of(maybe_lengths);
  const auto offsets = value_of(maybe_offsets);
  metalops::check_same_device("_segment_reduce_backward", {{grad, "grad"},
                                                           {output, "output"},
                                                           {data, "data"},
                                                           {lengths, "lengths"},
                                                           {offsets, "offsets"}});
  axis = at::maybe_wrap_dim(axis, data.dim());
  check_given(lengths, offsets);
  const auto reduction = at::native::get_reduction_enum(reduce);
  const bool by_offsets = offsets.defined();
  const auto& bounds = by_offsets ? offsets : lengths;
  check_axis(data, bounds, axis, by_offsets ? "offsets" : "lengths");

  Segmentation segmentation(data, bounds, by_offsets, axis);
  auto& parameters = segmentation.parameters;
  const auto type = data.scalar_type();
  parameters.initial = initial ? as_element(*initial, type) : 1.0f;  // of a product
  auto sizes = data.sizes().vec();
  sizes[axis] = parameters.segments;
  for (const auto& tensor : {grad, output}) {
    TORCH_CHECK(tensor.sizes() == sizes, "_segment_reduce_backward(): expected grad and output of ",
                "sizes ", at::IntArrayRef(sizes), ", but got ", tensor.sizes());
    TORCH_CHECK(tensor.scalar_type() == type, "expected scalar type ", type, " but found ",
                tensor.scalar_type());
  }
  const auto grad_data = at::zeros(data.sizes(), grad.options());
  metalops::launch_reduction(
      kernels(), metalops::KernelName("segment_reduce_backward_") + gradient_name_of(reduction),
      metalops::metal_type(type), segmentation.results(), segmentation.length(), grad_data,
      grad.contiguous(), output.contiguous(), data.contiguous(), segmentation.offsets, parameters);
  return grad_data;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("segment_reduce", segment_reduce);
  m.impl("_segment_reduce_backward", segment_reduce_backward);
}

}  // namespace
