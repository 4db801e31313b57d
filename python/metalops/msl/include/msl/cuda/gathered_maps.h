// Gathered operands (gathered_lines.h) that the copy engine of compute capability 9.0 finds by
// itself: pixels of images and taps of each, and matrices. A comment in the kernel's PTX tells the
// launch in which buffer such an operand is, and where the arguments say how it lies there; the
// launch makes a map of it if the engine can read the same elements and zeros that line() and
// inner() name (metalops/cuda/copy_maps.py). So maps change no result.
#pragma once

#include <msl/cuda/copy_engine.h>

namespace msl::abi {

// Images whose channels are adjacent, group by group, as are their pixels, in the order of depth,
// height and width. The pixels of a product are counted by image, depth, height and width, and its
// taps by depth, height and width; strides are in elements.
struct GatheredImages {
  int sizes[4], strides[4];          // of pixels
  int tap_sizes[3], tap_strides[3];  // of taps
  int begin;                         // of pixel 0 and tap 0, which may be outside
  int first[3];                      // the position of that, along depth, height and width
  int step[3], move[3];              // from one pixel and tap to the next
  int limits[3];                     // of the images
  int channels, groups;
};
// A matrix of so many lines of `stride` elements.
struct GatheredMatrix {
  int stride, lines;
};

}  // namespace msl::abi

namespace msl::msl_impl {

constexpr int kBoxRows = 64, kBoxElements = 64;

// Coordinates in a map.
template <int Count>
struct MapCoordinates {
  int of[Count];
};
// A pixel has an image, depth, height and width, of which the latter may be outside; a tap has a
// channel, and its distance along depth, height and width from the lowest tap.
using MappedPixel = MapCoordinates<4>;
using MappedTap = MapCoordinates<4>;

MSL_INLINE int lowest_tap(const abi::GatheredImages& images, int d) {
  const int last = (images.tap_sizes[d] - 1) * images.move[d];
  return last < 0 ? last : 0;
}
// Divides a number by a size, and returns the remainder. Many sizes are 1, and divisions are long.
MSL_INLINE int next_digit(uint& number, int size) {
  if (size <= 1) return 0;
  const uint digit = number % uint(size);
  number /= uint(size);
  return int(digit);
}
MSL_INLINE MappedPixel mapped_pixel(const abi::GatheredImages& images, int pixel) {
  MappedPixel mapped;
  uint rest = uint(pixel);
  MSL_UNROLLED
  for (int d = 2; d >= 0; --d) {
    const int digit = next_digit(rest, images.sizes[1 + d]);
    mapped.of[1 + d] = images.first[d] + lowest_tap(images, d) + digit * images.step[d];
  }
  mapped.of[0] = int(rest);
  return mapped;
}
// Returns the tap and the channel that are element k; of those that do not exist any.
MSL_INLINE MappedTap mapped_tap(const abi::GatheredImages& images, int group, int k) {
  const uint count = uint(images.tap_sizes[0] * images.tap_sizes[1] * images.tap_sizes[2]);
  uint tap = uint(k) / uint(images.channels);
  MappedTap mapped;
  mapped.of[0] = (group - int(tap)) * images.channels + k;
  tap = tap < count ? tap : 0;
  MSL_UNROLLED
  for (int d = 2; d >= 0; --d) {
    const int digit = next_digit(tap, images.tap_sizes[d]);
    mapped.of[1 + d] = digit * images.move[d] - lowest_tap(images, d);
  }
  return mapped;
}
// Copies 64 channels of 64 pixels.
MSL_INLINE void copy_pixels(abi::u32 to, const abi::CopyMap* map, bool is_deep,
                            const MappedPixel& pixel, const MappedTap& tap, abi::u32 barrier) {
  using Distance = unsigned short;
  if (is_deep) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10};" ::"r"(to),
        "l"(map), "r"(tap.of[0]), "r"(pixel.of[3]), "r"(pixel.of[2]), "r"(pixel.of[1]),
        "r"(pixel.of[0]), "r"(barrier), "h"(Distance(tap.of[3])), "h"(Distance(tap.of[2])),
        "h"(Distance(tap.of[1]))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(to),
        "l"(map), "r"(tap.of[0]), "r"(pixel.of[3]), "r"(pixel.of[2]), "r"(pixel.of[0]),
        "r"(barrier), "h"(Distance(tap.of[3])), "h"(Distance(tap.of[2]))
        : "memory");
  }
}

enum class MappedKind { kImages, kMatrix };

}  // namespace msl::msl_impl

namespace msl::mpp::tensor_ops {

// Where an operand of run_gathered() is: in buffer Buffer of the kernel, and bytes from Offset on
// of its parameters, buffer Parameters, are an abi::GatheredImages or an abi::GatheredMatrix.
// begin() computes where a line is, at() where an element of K, both multiples of 64, and bring()
// copies 64 elements of 64 lines from there on.

// Pixels are lines; K are the taps and the channels of each, a multiple of 64.
template <int Buffer, int Parameters, int Offset>
struct gathered_pixels {
  static constexpr int buffer = Buffer, parameters = Parameters, offset = Offset;
  static constexpr auto kind = msl_impl::MappedKind::kImages;
  const abi::GatheredImages& images;
  int first, inner, group;
  template <class P>
  MSL_INLINE gathered_pixels(const P& of, int first_line, int first_of_inner, int of_group)
      : images(reinterpret_cast<const abi::GatheredImages&>(of)),
        first(first_line),
        inner(first_of_inner),
        group(of_group) {}
  MSL_INLINE auto begin(int line) const { return msl_impl::mapped_pixel(images, first + line); }
  MSL_INLINE auto at(int k) const { return msl_impl::mapped_tap(images, group, inner + k); }
  static MSL_INLINE void bring(abi::u32 to, const abi::CopyMap* map, bool is_deep,
                               const msl_impl::MappedPixel& begin, const msl_impl::MappedTap& at,
                               abi::u32 barrier) {
    msl_impl::copy_pixels(to, map, is_deep, begin, at, barrier);
  }
};
// Taps and channels are lines; K are the pixels.
template <int Buffer, int Parameters, int Offset>
struct gathered_taps : gathered_pixels<Buffer, Parameters, Offset> {
  using Base = gathered_pixels<Buffer, Parameters, Offset>;
  using Base::Base, Base::images, Base::first, Base::inner, Base::group;
  MSL_INLINE auto begin(int line) const {
    return msl_impl::mapped_tap(images, group, first + line);
  }
  MSL_INLINE auto at(int k) const { return msl_impl::mapped_pixel(images, inner + k); }
  static MSL_INLINE void bring(abi::u32 to, const abi::CopyMap* map, bool is_deep,
                               const msl_impl::MappedTap& begin, const msl_impl::MappedPixel& at,
                               abi::u32 barrier) {
    msl_impl::copy_pixels(to, map, is_deep, at, begin, barrier);
  }
};
// Lines of a matrix, with K adjacent.
template <int Buffer, int Parameters, int Offset>
struct gathered_rows {
  static constexpr int buffer = Buffer, parameters = Parameters, offset = Offset;
  static constexpr auto kind = msl_impl::MappedKind::kMatrix;
  int first, inner;
  MSL_INLINE int begin(int line) const { return first + line; }
  MSL_INLINE msl_impl::MapCoordinates<1> at(int k) const { return {inner + k}; }
  static MSL_INLINE void bring(abi::u32 to, const abi::CopyMap* map, bool, int begin,
                               const msl_impl::MapCoordinates<1>& at, abi::u32 barrier) {
    msl_impl::copy_box(to, map, at.of[0], begin, barrier);
  }
};
// Columns of a matrix, of which K are the rows; or, if K has several times `rows` elements, the
// columns that are `apart` further for each.
template <int Buffer, int Parameters, int Offset>
struct gathered_columns {
  static constexpr int buffer = Buffer, parameters = Parameters, offset = Offset;
  static constexpr auto kind = msl_impl::MappedKind::kMatrix;
  int first, inner, row, rows, apart;
  MSL_INLINE int begin(int line) const { return first + line; }
  MSL_INLINE msl_impl::MapCoordinates<2> at(int k) const {
    const int turn = int(uint(inner + k) / uint(rows));
    return {turn * apart, row + inner + k - turn * rows};
  }
  static MSL_INLINE void bring(abi::u32 to, const abi::CopyMap* map, bool, int begin,
                               const msl_impl::MapCoordinates<2>& at, abi::u32 barrier) {
    msl_impl::copy_box(to, map, begin + at.of[0], at.of[1], barrier);
  }
};

}  // namespace msl::mpp::tensor_ops

namespace msl::msl_impl {

template <int Count>
MSL_INLINE MapCoordinates<Count> of_lane(const MapCoordinates<Count>& mine, int lane) {
  MapCoordinates<Count> found;
  MSL_UNROLLED
  for (int i = 0; i < Count; ++i) found.of[i] = ::__shfl_sync(~0u, mine.of[i], lane);
  return found;
}

// Copies blocks of a gathered operand, as StagedBlock lays them out, without fragments.
template <class InMap, int Rows>
struct GatheredBoxes {
  static_assert(Rows % kBoxRows == 0);
  InMap in_map;
  const abi::CopyMap* map;
  bool is_deep;
  decltype(in_map.begin(0)) begins[Rows / kBoxRows];
  decltype(in_map.at(0)) ats;  // of 32 blocks, each lane's

  MSL_INLINE GatheredBoxes(const InMap& in, int operand) : in_map(in) {
    const msl_support::MapsOfLaunch& all = msl_support::maps_of_launch();
    map = &all.maps->of_64_rows[operand];
    is_deep = (all.gathered >> (8 + operand) & 1) != 0;
  }
  // Called by the warp that copies, first.
  MSL_INLINE void begin() {
    MSL_UNROLLED
    for (int i = 0; i < Rows / kBoxRows; ++i) begins[i] = in_map.begin(i * kBoxRows);
  }
  // Returns where a block is. Called by a warp, with consecutive blocks; divisions take long, so
  // each lane computes one in 32.
  MSL_INLINE auto at(int block) {
    if (block % 32 == 0) ats = in_map.at((block + int(warp_lane())) * kBoxElements);
    return of_lane(ats, block % 32);
  }
  // Called by one thread.
  template <class At>
  MSL_INLINE void bring(abi::u32 to, const At& at, abi::u32 barrier) const {
    MSL_UNROLLED
    for (int i = 0; i < Rows / kBoxRows; ++i) {
      InMap::bring(to + i * kBoxRows * 128, map, is_deep, begins[i], at, barrier);
    }
  }
};

// Tells the launch of an operand in a map, the number Operand of its operation, and returns true if
// the launch has made the map.
template <int Operand, class InMap>
MSL_INLINE bool has_map() {
  asm volatile("// msl_gathered %0 %1 %2 %3 %4" ::"n"(Operand), "n"(int(InMap::kind)),
               "n"(InMap::buffer), "n"(InMap::parameters), "n"(InMap::offset));
  return (msl_support::maps_of_launch().gathered >> Operand & 1) != 0;
}

}  // namespace msl::msl_impl
