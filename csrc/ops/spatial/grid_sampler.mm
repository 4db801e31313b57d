// Host side of kernels/spatial/grid_sampler.metal: grid_sample of images and volumes, and its
// gradients, while the fix "grid_sample" is on. Deterministic gradients of the input are reduced by
// kernels/indexing/scatter.metal.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <csrc/ops/common/fixes.h>
#include <csrc/ops/indexing/scatter.h>
#include <kernels/spatial/grid_sampler.h>
#include <metalops/checks.h>
#include <metalops/kernel_name.h>
#include <metalops/launch.h>
#include <metalops/metal_type.h>
#include <metalops/strided_launch.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace {

using at::Tensor;
using metalops::GridSamplerParameters;

at::native::mps::MetalShaderLibrary& kernels() { return metalops::library("grid_sampler"); }

// How samples are taken, as in torch's schema.
struct Sampling {
  int64_t interpolation;
  int64_t padding;
  bool align_corners;
};

// The operators of images and of volumes.
struct Images {
  static constexpr int64_t dims = 2;
  static constexpr const char* name = "grid_sampler_2d";
  static constexpr const char* backward = "grid_sampler_2d_backward";
};

struct Volumes {
  static constexpr int64_t dims = 3;
  static constexpr const char* name = "grid_sampler_3d";
  static constexpr const char* backward = "grid_sampler_3d_backward";
};

// name: the operator's.
template <class Sampler>
void check_arguments(const char* name, const Tensor& input, const Tensor& grid,
                     const Sampling& how) {
  metalops::check_same_device(name, {{input, "input"}, {grid, "grid"}});
  if constexpr (Sampler::dims == 2) {
    at::native::check_grid_sampler_2d(input, grid);
  } else {
    at::native::check_grid_sampler_3d(input, grid, how.interpolation);
  }
  at::native::check_grid_sampler_common(input, grid);
  metalops::check_metal_float(name, input.scalar_type());
  TORCH_CHECK(input.scalar_type() == grid.scalar_type(), "expected scalar type ",
              input.scalar_type(), " but found ", grid.scalar_type());
  TORCH_CHECK(
      how.interpolation >= metalops::kGridBilinear && how.interpolation <= metalops::kGridBicubic,
      name, ": interpolation_mode must be 0, 1 or 2, but is ", how.interpolation);
  TORCH_CHECK(how.padding >= metalops::kGridZeros && how.padding <= metalops::kGridReflection, name,
              ": padding_mode must be 0, 1 or 2, but is ", how.padding);
  for (const auto size : input.sizes().slice(2)) {
    constexpr int64_t kMost = int64_t{1} << 30;
    TORCH_CHECK(size < kMost, name, ": size ", size, " of an input of sizes ", input.sizes(),
                " is too large for MPS");
  }
}

// Returns the name of a kernel for this sampling. prefix: a literal.
metalops::KernelName kernel_of(const char* prefix, const Tensor& input, const Sampling& how) {
  constexpr std::array<const char*, 3> kInterpolations{"bilinear", "nearest", "bicubic"};
  return metalops::KernelName(prefix) + kInterpolations[how.interpolation] +
         (input.dim() == 4 ? "_2d_" : "_3d_") + metalops::metal_type(input.scalar_type());
}

at::DimVector output_sizes(const Tensor& input, const Tensor& grid) {
  at::DimVector sizes(grid.sizes());
  sizes.back() = input.size(1);
  std::rotate(sizes.begin() + 1, sizes.end() - 1, sizes.end());
  return sizes;
}

int64_t taps_of(const Tensor& input, const Sampling& how) {
  if (how.interpolation == metalops::kGridNearest) {
    return 1;
  }
  return how.interpolation == metalops::kGridBicubic ? 16 : int64_t{1} << (input.dim() - 2);
}

GridSamplerParameters parameters_of(const Tensor& input, const Tensor& grid, const Tensor& output,
                                    const Sampling& how) {
  const auto width = static_cast<int64_t>(input.element_size());
  GridSamplerParameters p{};
  p.channels = input.size(1);
  p.lanes = 1;
  p.grid_stride = grid.stride(-1) * width;
  p.input_channel = input.stride(1) * width;
  p.output_channel = output.stride(1) * width;
  p.pixels = 1;
  for (int64_t d = 0; d < 3; ++d) {
    const bool exists = d < input.dim() - 2;
    p.sizes[d] = exists ? static_cast<int32_t>(input.size(-1 - d)) : 1;
    p.strides[d] = exists ? input.stride(-1 - d) * width : 0;
    p.pixels *= p.sizes[d];
  }
  p.padding = static_cast<int32_t>(how.padding);
  p.align_corners = how.align_corners ? 1 : 0;
  return p;
}

// The image of each point, as a tensor of the sizes of `points`.
Tensor images_of(const Tensor& input, const Tensor& points) {
  at::DimVector strides(points.dim(), 0);
  strides[0] = input.stride(0);
  return input.as_strided(points.sizes(), strides);
}

// ---- samples ------------------------------------------------------------------------------------

// Divides the channels of a point among threads: adjacent ones where they are adjacent in memory,
// otherwise only as many as keep a GPU busy.
void set_lanes(GridSamplerParameters& p, const Tensor& input, int64_t points) {
  constexpr int64_t kBusy = int64_t{1} << 18;
  constexpr int64_t kLeastLanes = 32;
  constexpr int64_t kOfLane = 4;  // channels, if there are many
  p.channels_first = p.channels >= kLeastLanes / 2 && input.stride(1) == 1 ? 1 : 0;
  p.lanes = p.channels_first != 0
                ? std::min(p.channels, std::max(p.channels / kOfLane, kLeastLanes))
                : std::clamp<int64_t>(kBusy / points, 1, p.channels);
}

template <class Sampler>
Tensor sample(const Tensor& input, const Tensor& grid, int64_t interpolation, int64_t padding,
              bool align_corners) {
  const Sampling how{interpolation, padding, align_corners};
  check_arguments<Sampler>(Sampler::name, input, grid, how);
  const auto output = at::empty(output_sizes(input, grid), input.options());
  if (output.numel() == 0) {
    return output;
  }
  const auto points = grid.select(-1, 0);
  const auto layout =
      metalops::row_major_layout<3>({points, output.select(1, 0), images_of(input, points)});
  auto p = parameters_of(input, grid, output, how);
  set_lanes(p, input, layout.count);
  metalops::launch_threads(kernels(), kernel_of("grid_sampler_", input, how),
                           static_cast<uint64_t>(layout.count * p.lanes), output, input, grid, p,
                           layout);
  return output;
}

// ---- gradients ----------------------------------------------------------------------------------

// Adds the gradients of samples to that of the input, in their order.
void reduce_gradients(const char* name, const Tensor& grad_output, const Tensor& grid,
                      const Tensor& grad_input, const Sampling& how) {
  constexpr int64_t kManyItems = int64_t{1} << 24;
  const auto taps = taps_of(grad_input, how);
  const auto of_image = grid.select(-1, 0).numel() / grid.size(0) * taps;
  const auto images = std::max<int64_t>(kManyItems / of_image, 1);
  for (int64_t first = 0; first < grid.size(0); first += images) {
    const auto count = std::min(images, grid.size(0) - first);
    const auto part = grid.narrow(0, first, count);
    const auto result = grad_input.narrow(0, first, count);
    const auto points = part.select(-1, 0);
    const auto options = grid.options().dtype(at::kLong);
    metalops::ScatterItems to;
    to.places = at::empty({points.numel() * taps}, options);
    to.rows = at::empty_like(to.places);
    to.scales = at::empty(to.places.sizes(), options.dtype(at::kFloat));
    to.items = grad_output.narrow(0, first, count).select(1, 0);
    to.columns = grad_output.as_strided({grad_output.size(1)}, {grad_output.stride(1)});
    to.self_columns = result.as_strided({result.size(1)}, {result.stride(1)});
    metalops::launch_threads(kernels(), kernel_of("grid_sampler_items_", grad_input, how),
                             static_cast<uint64_t>(points.numel()), to.places, to.rows, to.scales,
                             part, parameters_of(result, part, result, how),
                             metalops::row_major_layout<2>({points, images_of(result, points)}));
    metalops::reduce_items(name, to, {});
  }
}

// The gradient of the grid is always computed, as by torch's other devices.
template <class Sampler>
std::tuple<Tensor, Tensor> backward(const Tensor& grad_output, const Tensor& input,
                                    const Tensor& grid, int64_t interpolation, int64_t padding,
                                    bool align_corners, std::array<bool, 2> mask) {
  constexpr const char* kName = Sampler::backward;
  const Sampling how{interpolation, padding, align_corners};
  metalops::check_same_device(kName, {{grad_output, "grad_output"}, {input, "input"}});
  check_arguments<Sampler>(kName, input, grid, how);
  const auto sizes = output_sizes(input, grid);
  TORCH_CHECK(grad_output.sizes() == at::IntArrayRef(sizes), kName,
              ": expected grad_output of sizes ", at::IntArrayRef(sizes), ", but got ",
              grad_output.sizes());
  TORCH_CHECK(grad_output.scalar_type() == input.scalar_type(), "expected scalar type ",
              input.scalar_type(), " but found ", grad_output.scalar_type());
  if (grad_output.numel() == 0) {
    return {mask[0] ? at::zeros(input.sizes(), input.options()) : Tensor(),
            at::zeros(grid.sizes(), grid.options())};
  }
  const bool is_ordered = at::globalContext().deterministicAlgorithms();
  const auto grad_grid = at::empty(grid.sizes(), grid.options());
  const auto options = input.options();
  const auto sums = at::zeros(mask[0] ? input.sizes() : at::IntArrayRef(),
                              is_ordered ? options : options.dtype(at::kFloat));
  auto p = parameters_of(input, grid, grad_output, how);
  p.has_sums = mask[0] && !is_ordered ? 1 : 0;
  const auto points = grid.select(-1, 0);
  const auto layout = metalops::row_major_layout<5>(
      {points, grad_grid.select(-1, 0), grad_output.select(1, 0), images_of(input, points),
       mask[0] ? images_of(sums, points) : sums.expand(points.sizes())});
  metalops::launch_threads(kernels(), kernel_of("grid_sampler_backward_", input, how),
                           static_cast<uint64_t>(layout.count), sums, grad_grid, grad_output, input,
                           grid, p, layout);
  if (!mask[0]) {
    return {Tensor(), grad_grid};
  }
  if (is_ordered) {
    reduce_gradients(kName, grad_output, grid, sums, how);
  }
  return {sums.to(input.scalar_type()), grad_grid};
}

const metalops::Fix kGridSample("grid_sample", [](metalops::AtenKernels& m, const char* reason) {
  m.replace("grid_sampler_2d", sample<Images>, reason);
  m.replace("grid_sampler_2d_backward", backward<Images>, reason);
  m.replace("grid_sampler_3d", sample<Volumes>, reason);
  m.replace("grid_sampler_3d_backward", backward<Volumes>, reason);
});

}  // namespace
