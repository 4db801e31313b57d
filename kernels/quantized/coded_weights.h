// Quantised weights as lines of codes that GPUs decode in registers while they multiply (see
// <msl/cuda/coded_lines.h>): decoded, they are nowhere in memory.
#pragma once
#include <metal_stdlib>

#include <kernels/quantized/packed_weights.h>
#include <kernels/quantized/skinny_gemm.h>

namespace metalops {
namespace packed {

// The functions decode_two dequantise two adjacent codes to T. Each half of `codes` has the code in
// its low byte, or, of a format of fewer bits, both in its low bits; its other bits are arbitrary.
template <typename T, typename Format>
inline void decode_two(thread::metal::vec<T, 2>& values, Format, uint codes, float scale, T bias,
                       uint exponent, LaneTable) {
  constexpr uint mask = (1u << Format::bits) - 1u;
  constexpr int second = 16 + (Format::bits < 8 ? Format::bits : 0);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float value = Format::unscaled((j == 0 ? codes : codes >> second) & mask, exponent);
    values[j] = static_cast<T>(::metal::fma(value, scale, static_cast<float>(bias)));
  }
}

// The second of two integers is left where it is, 1 / second times as large. second, integer_0:
// bits of halves, the latter those of what is added to the second one.
inline half2 decode_integers(uint codes, uint second, uint integer_0, float scale, half bias) {
  const half2 values =
      ::metal::fma(::metal::as_type<half2>(codes), ::metal::as_type<half2>(second << 16 | 0x3c00u),
                   ::metal::as_type<half2>(integer_0 << 16 | 0xe400u));
  return ::metal::fma(values, half2(static_cast<half>(scale)), half2(bias));
}
inline void decode_two(thread half2& values, Integer<2>, uint codes, float scale, half bias,
                       uint exponent, LaneTable) {
  values =
      decode_integers((codes & 0x000c0003u) | two_halves(exponent), 0x3400u, 0xdc00u, scale, bias);
}
inline void decode_two(thread half2& values, Integer<4>, uint codes, float scale, half bias,
                       uint exponent, LaneTable) {
  values =
      decode_integers((codes & 0x00f0000fu) | two_halves(exponent), 0x2c00u, 0xd400u, scale, bias);
}
inline void decode_two(thread half2& values, Integer<8>, uint codes, float scale, half bias,
                       uint exponent, LaneTable) {
  values = two_integers(codes & 0x00ff00ffu, scale, bias, exponent);
}

template <typename T>
inline void decode_two_e2m1(thread::metal::vec<T, 2>& values, uint codes, float scale) {
  const uint sign = (codes << 12 & 0x8000u) | (codes << 8 & 0x80000000u);
  const uint magnitude = (codes << 9 & 0x0e00u) | (codes << 5 & 0x0e000000u);
  scale_two(values, ::metal::as_type<half2>(sign | magnitude), scale);
}
template <typename T>
inline void decode_two(thread::metal::vec<T, 2>& values, MXFloat4, uint codes, float scale, T, uint,
                       LaneTable) {
  decode_two_e2m1(values, codes, scale);
}
template <typename T>
inline void decode_two(thread::metal::vec<T, 2>& values, NVFloat4, uint codes, float scale, T, uint,
                       LaneTable) {
  decode_two_e2m1(values, codes, scale);
}
template <typename T>
inline void decode_two(thread::metal::vec<T, 2>& values, MXFloat8, uint codes, float scale, T, uint,
                       LaneTable) {
  scale_two(values, two_e4m3(codes << 8 & 0x80008000u, codes << 7 & 0x3f803f80u), scale);
}

// The first of two codes is the high half of their byte.
template <typename T>
inline void decode_two_of_table(thread::metal::vec<T, 2>& values, uint codes, float scale,
                                LaneTable table) {
  threadgroup const float* const own = table.values + table.lane;
  values[0] = static_cast<T>(own[(codes >> 4 & 15u) * 32] * scale);
  values[1] = static_cast<T>(own[(codes >> 16 & 15u) * 32] * scale);
}
template <typename T>
inline void decode_two(thread::metal::vec<T, 2>& values, NormalFloat4, uint codes, float scale, T,
                       uint, LaneTable table) {
  decode_two_of_table(values, codes, scale, table);
}
template <typename T>
inline void decode_two(thread::metal::vec<T, 2>& values, Float4, uint codes, float scale, T, uint,
                       LaneTable table) {
  decode_two_of_table(values, codes, scale, table);
}

// The lines of a tile, from `first` on, and their codes from `first_k` on. The last line stands for
// those behind it.
template <typename T, typename Format>
struct CodedLines {
  typedef T element;
  typedef Scale<T, Format> ScaleOf;
  typedef typename ScaleOf::type StoredScale;
  static constant constexpr int bits = Format::bits;
  // Parts of 64 codes that may have scales of their own.
  static constant constexpr int parts = Format::has_short_groups ? 4 : 2;

  // As stored, so that nothing waits for them when they are loaded.
  struct Factors {
    StoredScale scales[parts];
    T biases[parts];
  };

  device const uchar* codes;
  device const StoredScale* scales;
  device const T* biases;
  int64_t line_bytes, line_scales;
  int first, last, first_k;
  int group_shift;
  uint exponent;
  LaneTable table;

  inline int64_t at(int i) const { return ::metal::min(first + i, last); }
  inline device const uchar* line(int i) const { return codes + at(i) * line_bytes; }
  inline Factors factors(int i, int k) const {
    const int64_t of_line = at(i) * line_scales;
    Factors found;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      if (part == 0 || group_shift < 6) {
        const int64_t group = of_line + ((first_k + k + part * (64 / parts)) >> group_shift);
        found.scales[part] = scales[group];
        found.biases[part] = Format::has_biases ? biases[group] : T(0);
      } else {
        found.scales[part] = found.scales[0];
        found.biases[part] = found.biases[0];
      }
    }
    return found;
  }
  inline ::metal::vec<T, 2> two(uint of_two, thread const Factors& of, int eight) const {
    const int part = eight * parts / 8;
    ::metal::vec<T, 2> values;
    decode_two(values, Format(), of_two, ScaleOf::value(of.scales[part]) * Format::factor,
               of.biases[part], exponent, table);
    return values;
  }
};

template <typename T, typename Format>
inline CodedLines<T, Format> coded_lines(Matrix<T> matrix, int first, int last, int first_k,
                                         LaneTable table) {
  constant PackedLayout& layout = *matrix.layout;
  typedef typename CodedLines<T, Format>::StoredScale StoredScale;
  return {matrix.codes + first_k / 8 * Format::bits,
          reinterpret_cast<device const StoredScale*>(matrix.scales),
          matrix.biases,
          layout.line_bytes,
          layout.line_scales,
          first,
          last,
          first_k,
          layout.group_shift,
          formats::exponent_of(layout.inner),
          table};
}

// Finishes the sums of a line: a factor, and a bias if there is one.
template <typename T>
struct FinishLine {
  device const T* bias;
  float factor;
  int first, last;
  bool has_bias;

  inline float of_row(int i) const {
    return has_bias ? static_cast<float>(bias[::metal::min(first + i, last)]) : 0.0f;
  }
  inline T value(float sum, float offset) const { return static_cast<T>(sum * factor + offset); }
};

}  // namespace packed
}  // namespace metalops
