// mpp::tensor_ops::convolution2d: a tile of the cross-correlation of images with filters.
//
// Dimensions, innermost first: images are (C, W, H, N), channels, width, height, number; filters
// (O, C, KW, KH); the destination (O, W, H, N).
#pragma once

#include <msl/tensor_ops/matmul2d.h>

namespace msl::mpp::tensor_ops {

enum class convolution2d_activation_layout { nhwc };
enum class convolution2d_weights_layout { hwio };

struct convolution2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  using activation_layout = convolution2d_activation_layout;
  using weights_layout = convolution2d_weights_layout;

  // Plain numbers, because a descriptor is a template argument.
  int destination[4], source[4], kernel[2], strides[2], dilations[2];
  int groups;
  activation_layout activations;
  weights_layout weights;
  bool relaxed_precision;
  mode convolution2d_mode;

  // source_dimensions: -1 for channels that are taken from the tensor. The tile is clipped to the
  // destination.
  MSL_INLINE constexpr convolution2d_descriptor(
      int4 destination_dimensions, int4 source_dimensions, int2 kernel_dimensions,
      activation_layout of_activations = activation_layout::nhwc,
      weights_layout of_weights = weights_layout::hwio, int2 steps = int2(1, 1),
      int2 spacings = int2(1, 1), int number_of_groups = 1, bool is_relaxed = false,
      mode how = mode::multiply)
      : destination{destination_dimensions.x, destination_dimensions.y, destination_dimensions.z,
                    destination_dimensions.w},
        source{source_dimensions.x, source_dimensions.y, source_dimensions.z, source_dimensions.w},
        kernel{kernel_dimensions.x, kernel_dimensions.y},
        strides{steps.x, steps.y},
        dilations{spacings.x, spacings.y},
        groups(number_of_groups),
        activations(of_activations),
        weights(of_weights),
        relaxed_precision(is_relaxed),
        convolution2d_mode(how) {}
};

}  // namespace msl::mpp::tensor_ops

namespace msl::msl_impl {

using mpp::tensor_ops::convolution2d_descriptor;

// Returns the number of pixels of the destination's tile, the rows of the GEMM (M).
constexpr int pixels_of(const convolution2d_descriptor& d) {
  return d.destination[1] * d.destination[2] * d.destination[3];
}

// Returns the pixel to which position k of the filter is applied, along a dimension.
template <convolution2d_descriptor D, int Dimension>
MSL_INLINE int source_of(int pixel, int k, int offset) {
  constexpr int dilation = D.dilations[Dimension];
  constexpr int half = ((D.kernel[Dimension] - 1) * dilation + 1) / 2;
  return pixel * D.strides[Dimension] + k * dilation - half + offset;
}

template <convolution2d_descriptor D, class Scope, class A, class W>
struct ConvolutionLayout {
  static constexpr Role role = Role::kDestination;
  static constexpr convolution2d_descriptor descriptor = D;
  static constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  using Tile = ScopeTile<pixels_of(D), D.destination[0], simdgroups>;
  static constexpr int rank = 4, capacity = Tile::capacity;
  static constexpr bool is_full = false;
  static constexpr bool expands = false;
  static MSL_INLINE constexpr Coordinates coordinates(uint thread, uint slot) {
    const TilePlace in = Tile::place(thread, slot);
    constexpr int width = D.destination[1], height = D.destination[2];
    return {{in.column, in.row % width, in.row / width % height, in.row / (width * height)},
            in.exists};
  }
  static MSL_INLINE constexpr bool stores(uint, uint) { return true; }
};

template <convolution2d_descriptor D, class Scope, class A, class W, class Dst>
constexpr bool check_convolution() {
  static_assert(is_tensor<A> && is_tensor<W>, "Source operands must be tensors");
  static_assert(A::get_rank() == 4 && W::get_rank() == 4, "Operand must have rank 4");
  static_assert(same<typename A::index_type, int> && same<typename W::index_type, int>,
                "Index type must be int");
  using E = element_of_operand_t<Dst>;
  using S = element_of_operand_t<A>;
  constexpr Element source = element_of_product<S>;
  static_assert(
      same<S, element_of_operand_t<W>> &&
          (source == Element::kHalf || source == Element::kBfloat || source == Element::kFloat) &&
          (same<E, S> || same<E, float>),
      "Unsupported type");
  return true;
}

}  // namespace msl::msl_impl

#if defined(__CUDACC_RTC__)
#include <msl/cuda/convolution2d.h>
#else
#include <msl/host/convolution2d.h>
#endif

namespace msl::mpp::tensor_ops {

template <convolution2d_descriptor Descriptor, class Scope, class... Args>
class convolution2d {
  static_assert(Descriptor.activations == convolution2d_activation_layout::nhwc,
                "only nhwc activation layout supported currently");
  static_assert(Descriptor.weights == convolution2d_weights_layout::hwio,
                "only hwio weights layout supported currently");
  static_assert(Descriptor.groups == 1, "only group size 1 supported currently");
  static_assert(msl_impl::ScopeOf<Scope>::exists,
                "Scope template argument should be of op_scope type");

 public:
  static constexpr convolution2d_descriptor descriptor = Descriptor;
  using scope = Scope;

  template <class A, class W, class E, class Coord = int>
  using cooperative_tensor_destination_t = metal::cooperative_tensor<
      E, metal::dextents<Coord, 4>,
      msl_impl::ConvolutionLayout<Descriptor, Scope, msl_impl::element_of_operand_t<A>,
                                  msl_impl::element_of_operand_t<W>>>;

  // offsets: the position (x, y) in the source on which the filter of the first destination pixel
  // is centred.
  MSL_INLINE void set_offsets(int2 offsets) { offsets_ = offsets; }

  template <class A, class W, class Dst>
  MSL_INLINE void run(A& activations, W& weights, Dst& destination) const {
    static_assert(msl_impl::check_convolution<Descriptor, Scope, metal::remove_cv_t<A>,
                                              metal::remove_cv_t<W>, Dst>());
    msl_impl::convolve_tile<Descriptor, Scope>(activations, weights, destination, offsets_);
  }
  template <class A, class W, class E, class Coord = int>
  MSL_INLINE auto get_destination_cooperative_tensor() const {
    static_assert(msl_impl::is_destination_element<E>(),
                  "cooperative tensor destination data type can only be one of "
                  "float/half/bfloat/int32_t");
    return cooperative_tensor_destination_t<A, W, E, Coord>();
  }

 private:
  int2 offsets_ = int2(0, 0);
};

}  // namespace msl::mpp::tensor_ops
