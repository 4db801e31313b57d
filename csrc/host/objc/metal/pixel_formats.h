// The pixel formats of textures, by their values in MTLPixelFormat. metalops/_textures/formats.py
// has them for Python; tests/objc/test_pixel_formats.py compares the two.
#pragma once
#include <msl/texture_abi.h>

#include <optional>

namespace metalops::objc {

using msl::abi::TexelEncoding;
using msl::abi::TexelFormat;
using msl::abi::TexelOrder;

struct PixelFormat {
  unsigned long value;  // of MTLPixelFormat
  TexelFormat format;
  unsigned usage;
};

// Formats of one, two and four equal components.
struct Components {
  unsigned long values[3];
  TexelEncoding encoding;
  unsigned char bytes;  // of a component
  bool has_read_write;  // with one and four components (texture tier 2)
};
inline constexpr Components kComponents[] = {
    {{10, 30, 70}, TexelEncoding::kUnorm8, 1, true},
    {{11, 31, 71}, TexelEncoding::kSrgb8, 1, false},
    {{12, 32, 72}, TexelEncoding::kSnorm8, 1, false},
    {{13, 33, 73}, TexelEncoding::kUint8, 1, true},
    {{14, 34, 74}, TexelEncoding::kSint8, 1, true},
    {{20, 60, 110}, TexelEncoding::kUnorm16, 2, false},
    {{22, 62, 112}, TexelEncoding::kSnorm16, 2, false},
    {{23, 63, 113}, TexelEncoding::kUint16, 2, true},
    {{24, 64, 114}, TexelEncoding::kSint16, 2, true},
    {{25, 65, 115}, TexelEncoding::kHalf, 2, true},
    {{53, 103, 123}, TexelEncoding::kUint32, 4, true},
    {{54, 104, 124}, TexelEncoding::kSint32, 4, true},
    {{55, 105, 125}, TexelEncoding::kFloat, 4, true},
};
using msl::abi::kUsageWrite;
inline constexpr PixelFormat kOtherFormats[] = {
    {1, {TexelEncoding::kUnorm8, 1, TexelOrder::kAlpha, 1}, kUsageWrite},
    {40, {TexelEncoding::kB5G6R5, 3, TexelOrder::kRgba, 2}, kUsageWrite},
    {41, {TexelEncoding::kA1Bgr5, 4, TexelOrder::kRgba, 2}, kUsageWrite},
    {42, {TexelEncoding::kAbgr4, 4, TexelOrder::kRgba, 2}, kUsageWrite},
    {43, {TexelEncoding::kBgr5A1, 4, TexelOrder::kRgba, 2}, kUsageWrite},
    {80, {TexelEncoding::kUnorm8, 4, TexelOrder::kBgra, 4}, kUsageWrite},
    {81, {TexelEncoding::kSrgb8, 4, TexelOrder::kBgra, 4}, kUsageWrite},
    {90, {TexelEncoding::kRgb10A2, 4, TexelOrder::kRgba, 4}, kUsageWrite},
    {91, {TexelEncoding::kRgb10A2Uint, 4, TexelOrder::kRgba, 4}, kUsageWrite},
    {92, {TexelEncoding::kRg11B10Float, 3, TexelOrder::kRgba, 4}, kUsageWrite},
    {93, {TexelEncoding::kRgb9E5Float, 3, TexelOrder::kRgba, 4}, kUsageWrite},
    {94, {TexelEncoding::kBgr10A2, 4, TexelOrder::kRgba, 4}, kUsageWrite},
    {250, {TexelEncoding::kUnorm16, 1, TexelOrder::kRgba, 2}, 0},
    {252, {TexelEncoding::kFloat, 1, TexelOrder::kRgba, 4}, 0},
};

inline bool is_integer(TexelEncoding encoding) {
  switch (encoding) {
    case TexelEncoding::kUint8:
    case TexelEncoding::kSint8:
    case TexelEncoding::kUint16:
    case TexelEncoding::kSint16:
    case TexelEncoding::kUint32:
    case TexelEncoding::kSint32:
    case TexelEncoding::kRgb10A2Uint:
      return true;
    default:
      return false;
  }
}

// Returns nothing for formats that the software device does not have.
inline std::optional<PixelFormat> find_pixel_format(unsigned long value) {
  for (const Components& one : kComponents) {
    for (int i = 0; i < 3; ++i) {
      if (one.values[i] != value) continue;
      const auto channels = static_cast<unsigned char>(1 << i);
      const bool read_write = one.has_read_write && i != 1;
      return PixelFormat{value,
                         {one.encoding, channels, TexelOrder::kRgba,
                          static_cast<unsigned char>(channels * one.bytes)},
                         kUsageWrite | (read_write ? msl::abi::kUsageReadWrite : 0)};
    }
  }
  for (const PixelFormat& one : kOtherFormats) {
    if (one.value == value) return one;
  }
  return std::nullopt;
}

}  // namespace metalops::objc
