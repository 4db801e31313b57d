// Host side of kernels/reduction/segment_reduce.metal: segment_reduce and _segment_reduce_backward,
// which stock MPS lacks.
#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReductionType.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <kernels/reduction/segment_reduce.h>
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
using metalops::KernelName;
using metalops::MaybeTensor;
using metalops::SegmentReduceParameters;
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

// Returns the number rounded to that dtype; raises an error if it is too large.
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

// How an axis is divided into segments. offsets: (outer, segments + 1).
struct Segmentation {
  Tensor offsets;
  SegmentReduceParameters parameters{};
  int64_t threads = c10::metal::simdgroup_size;  // of a threadgroup

  // bounds: the lengths of the segments, or their offsets.
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
    share();
  }

  // Decides how threads and threadgroups share the work.
  void share() {
    constexpr int64_t kSideBySide = 8;           // results, of 16 or 32 bytes together
    constexpr int64_t kEnoughThreads = 1 << 12;  // to keep a GPU busy
    constexpr int64_t kEnoughGroups = 1 << 11;
    constexpr int64_t kShort = 128;
    constexpr int64_t kPiece = 4096;
    const auto elements = parameters.outer * parameters.size * parameters.inner;
    const auto average = parameters.size / std::max<int64_t>(parameters.segments, 1);
    const bool many = results() >= kEnoughThreads;
    parameters.piece = std::max(kPiece, elements / (4 * kEnoughGroups));
    parameters.longest = std::max(kPiece, elements / kEnoughGroups);
    parameters.alone = -1;
    parameters.share = 1;
    if (parameters.inner >= kSideBySide && many) {
      // Adjacent threads read adjacent elements.
      parameters.alone = std::max(4 * kShort, 4 * average);
    } else if (average <= kShort && (many || parameters.size <= 2 * kShort)) {
      parameters.alone = 2 * kShort;
    } else if (results() >= 16 * kEnoughGroups) {
      parameters.share = 4;
    }
    if (parameters.alone >= 0) {
      parameters.share = metalops::kLeftTogether;
    }
    parameters.longest = std::max(parameters.piece, parameters.longest / parameters.share);
    if (parameters.size > std::max(parameters.longest, parameters.alone)) {
      parameters.pieces = c10::metal::ceil_div(parameters.size, parameters.piece);
    }
    // Segments that are left to threadgroups are longer than the others.
    while (threads < 128 && (16 * threads < average || parameters.alone >= 0)) {
      threads *= 2;
    }
  }

  int64_t results() const { return parameters.outer * parameters.segments * parameters.inner; }

  // Returns the number of pieces of all columns.
  int64_t pieces() const { return parameters.outer * parameters.pieces * parameters.inner; }

  // Returns the PieceOwners of all pieces, or a dummy tensor if there are none.
  Tensor owners() const {
    return parameters.pieces == 0
               ? offsets
               : at::zeros({parameters.outer, parameters.pieces, 2}, offsets.options());
  }
};

// Launches the kernels that compute all results: `name`_short for those of one thread, `name` for
// the others. arguments: those of both kernels before the offsets.
template <class... Arguments>
void launch_for_results(const KernelName& name, const KernelName& type, Segmentation& segmentation,
                        const Tensor& owners, const Arguments&... arguments) {
  auto& parameters = segmentation.parameters;
  auto left = segmentation.offsets;  // a dummy where all or none are computed by one thread
  const bool some_alone = parameters.alone >= 0;
  const bool all_alone = some_alone && parameters.size <= parameters.alone;
  if (some_alone && !all_alone) {
    left = at::zeros(c10::metal::ceil_div<int64_t>(segmentation.results(), parameters.share),
                     left.options().dtype(at::kInt));
  }
  if (some_alone) {
    metalops::launch_threads(kernels(), name + "short_" + type, segmentation.results(),
                             arguments..., segmentation.offsets, parameters, left);
  }
  if (!all_alone) {
    const int64_t most = ((int64_t{1} << 32) / segmentation.threads - 1) * parameters.share;
    for (parameters.first = 0; parameters.first < segmentation.results();
         parameters.first += most) {
      const auto rest = std::min(segmentation.results() - parameters.first, most);
      metalops::launch_threadgroups(
          kernels(), name + type, c10::metal::ceil_div<int64_t>(rest, parameters.share),
          segmentation.threads, arguments..., segmentation.offsets, parameters, owners, left);
    }
  }
}

constexpr int64_t kThreadsOfPiece = 128;

void combine_pieces(const KernelName& name, const Tensor& totals, const Tensor& parts,
                    const Segmentation& segmentation, const Tensor& owners) {
  metalops::launch_threadgroups(
      kernels(), name,
      c10::metal::ceil_div<int64_t>(segmentation.pieces(), metalops::kPiecesOfGroup),
      kThreadsOfPiece, totals, parts, segmentation.offsets, segmentation.parameters, owners);
}

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
  metalops::launch_threads(kernels(), "segment_reduce_check_segments",
                           parameters.outer * parameters.segments, segmentation.offsets, parameters,
                           metalops::kErrorBuffer);
  const auto name = KernelName("segment_reduce_") + name_of(reduction) + "_";
  const auto metal_type = metalops::metal_type(type);
  const auto elements = data.contiguous();
  const auto owners = segmentation.owners();
  launch_for_results(name, metal_type, segmentation, owners, results, elements);
  if (parameters.pieces != 0) {
    const auto parts = at::empty({segmentation.pieces(), 2}, data.options().dtype(at::kFloat));
    metalops::launch_threadgroups(kernels(), name + "pieces_" + metal_type, segmentation.pieces(),
                                  kThreadsOfPiece, parts, results, elements, segmentation.offsets,
                                  parameters, owners);
    combine_pieces(name + "combine_" + metal_type, results, parts, segmentation, owners);
  }
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
  const KernelName gradient = gradient_name_of(reduction);
  const auto name = KernelName("segment_reduce_backward_") + gradient + "_";
  const auto metal_type = metalops::metal_type(type);
  const auto grads = grad.contiguous();
  const auto results = output.contiguous();
  const auto elements = data.contiguous();
  const auto owners = segmentation.owners();
  launch_for_results(name, metal_type, segmentation, owners, grad_data, grads, results, elements);
  if (parameters.pieces != 0) {
    constexpr int64_t kTally = 3;  // floats, at most
    const auto tallies = data.options().dtype(at::kFloat);
    const auto totals = at::empty({segmentation.pieces(), kTally}, tallies);
    if (reduction != ReductionType::SUM && reduction != ReductionType::MEAN) {
      const auto parts = at::empty({segmentation.pieces(), 2, kTally}, tallies);
      metalops::launch_threadgroups(
          kernels(), KernelName("segment_reduce_tally_") + gradient + "_pieces_" + metal_type,
          segmentation.pieces(), kThreadsOfPiece, parts, results, elements, segmentation.offsets,
          parameters, owners);
      combine_pieces(name + "combine", totals, parts, segmentation, owners);
    }
    metalops::launch_threadgroups(kernels(), name + "pieces_" + metal_type, segmentation.pieces(),
                                  kThreadsOfPiece, grad_data, grads, results, elements,
                                  segmentation.offsets, parameters, owners, totals);
  }
  return grad_data;
}

TORCH_LIBRARY_IMPL(aten, MPS, library) {
  metalops::AtenKernels m(library);
  m.impl("segment_reduce", segment_reduce);
  m.impl("_segment_reduce_backward", segment_reduce_backward);
}

}  // namespace
