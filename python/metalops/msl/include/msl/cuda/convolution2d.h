// convolution2d on NVIDIA's GPUs: implicit GEMM of pixels and filters. K runs over the filter's
// positions, and over the channels within each.
#pragma once

#include <msl/cuda/matmul2d.h>

namespace msl::msl_impl {

// The im2col matrix of the destination's pixels: 0 outside the images.
template <convolution2d_descriptor D, class A>
struct PixelMatrix {
  using Element = typename A::element_type;
  using Value = metal::remove_cv_t<Element>;
  static constexpr bool is_plain = false;  // its rows are not contiguous
  const A& activations;
  int2 offsets;
  int channels;
  long rows, columns;

  MSL_INLINE float value(long row, long column) const {
    const int pixel = int(row), place = int(column) / channels, channel = int(column) % channels;
    const int n = pixel / (D.destination[1] * D.destination[2]);
    const int at[] = {channel,
                      source_of<D, 0>(pixel % D.destination[1], place % D.kernel[0], offsets.x),
                      source_of<D, 1>(pixel / D.destination[1] % D.destination[2],
                                      place / D.kernel[0], offsets.y),
                      n};
    const bool exists = row < rows && column < columns && at[1] >= 0 &&
                        at[1] < activations.get_extent(1) && at[2] >= 0 &&
                        at[2] < activations.get_extent(2) && n < activations.get_extent(3);
    return exists ? float(activations.msl_at(at)) : 0.0f;
  }
  template <class T>
  MSL_INLINE abi::u32 pair(long row, long column) const {
    return pair_of<T>(value(row, column), value(row, column + 1));
  }
};
// The filters as a matrix, one per column, or one per row if transposed.
template <convolution2d_descriptor D, class W, bool IsTransposed>
struct FilterMatrix {
  using Element = typename W::element_type;
  using Value = metal::remove_cv_t<Element>;
  static constexpr bool is_plain = false;
  const W& weights;
  int channels;
  long rows, columns;

  MSL_INLINE float value(long row, long column) const {
    const int k = int(IsTransposed ? column : row), filter = int(IsTransposed ? row : column);
    const int place = k / channels;
    const int at[] = {filter, k % channels, place % D.kernel[0], place / D.kernel[0]};
    const bool exists = row < rows && column < columns && filter < weights.get_extent(0) &&
                        at[1] < weights.get_extent(1);
    return exists ? float(weights.msl_at(at)) : 0.0f;
  }
  template <class T>
  MSL_INLINE abi::u32 pair_below(long row, long column) const {
    return pair_of<T>(value(row, column), value(row + 1, column));
  }
};

// The destination tensor indexed by filter and pixel.
template <convolution2d_descriptor D, class Dst>
struct PixelDestination {
  using value_type = typename Dst::value_type;
  const Dst& to;
  static MSL_INLINE metal::array<int, 4> place(const int* at) {
    constexpr int width = D.destination[1], height = D.destination[2];
    return {{at[0], at[1] % width, at[1] / width % height, at[1] / (width * height)}};
  }
  MSL_INLINE bool msl_has(const int* at) const { return to.msl_has(place(at).data()); }
  MSL_INLINE auto& msl_at(const int* at) const { return to.msl_at(place(at).data()); }
  MSL_INLINE int get_stride(int) const { return to.get_stride(0); }
};
template <convolution2d_descriptor D, class Dst>
inline constexpr bool is_tensor<PixelDestination<D, Dst>> = true;

template <convolution2d_descriptor D, class Scope, class A, class W, class Dst>
MSL_INLINE void convolve_tile(A& activations, W& weights, Dst& destination, int2 offsets) {
  constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  constexpr int pixels = pixels_of(D), filters = D.destination[0];
  using Factor = typename FactorOf<element_of_operand_t<A>, element_of_operand_t<W>,
                                   typename Dst::value_type, false>::type;
  constexpr bool accumulates =
      D.convolution2d_mode == convolution2d_descriptor::mode::multiply_accumulate;
  const int channels = D.source[0] > 0 ? D.source[0] : activations.get_extent(0);
  const int inner = channels * D.kernel[0] * D.kernel[1];
  const PixelMatrix<D, A> a{activations, offsets, channels, pixels, inner};
  const FilterMatrix<D, W, false> b{weights, channels, inner, filters};
  const FilterMatrix<D, W, true> by_filter{weights, channels, filters, inner};
  const auto run = [&](auto& to) {
    multiply_matrices<Factor, pixels, filters, 0, simdgroups, accumulates, true, false>(
        a, b, by_filter, inner, to);
  };
  if constexpr (is_tensor<Dst>) {
    PixelDestination<D, Dst> to{destination};
    run(to);
  } else {
    run(destination);
  }
}

}  // namespace msl::msl_impl
