// Quantised weights as lines of codes that GPUs decode in registers while they multiply (see
// <msl/cuda/coded_lines.h>): decoded, they are nowhere in memory.
#pragma once
#include <metal_stdlib>

#include <kernels/quantized/packed_weights.h>
#include <kernels/quantized/skinny_gemm.h>

#if defined(__METALOPS_CODED_LINES__) && defined(__HAVE_TENSOR__)

namespace metalops {
namespace packed {

// ---- scales and biases ----

// Factors as stored, so that nothing waits for them when they are loaded: those of PARTS parts of
// 64 codes, which may have scales of their own.
template <typename S, typename T, int PARTS>
struct StoredFactors {
  S scales[PARTS];
  T biases[PARTS];
  inline S scale(int part) const { return scales[part]; }
  inline T bias(int part) const { return biases[part]; }
};
// Scales of one byte, of groups of 64 / PARTS codes, are loaded together.
template <typename T>
struct BytesOfFactors {
  uint bytes;
  inline T bias(int) const { return T(0); }
};
template <typename T>
struct StoredFactors<formats::e8m0, T, 2> : BytesOfFactors<T> {
  inline formats::e8m0 scale(int part) const {
    return {static_cast<uchar>(this->bytes >> (8 * part))};
  }
};
template <typename T>
struct StoredFactors<uchar, T, 4> : BytesOfFactors<T> {
  inline half scale(int part) const {
    return ::mpp::tensor_ops::halves_of_e4m3(this->bytes >> (part / 2 * 16))[part % 2];
  }
};

// The factors of a line.
template <typename S, typename T>
struct FactorsOfLine {
  device const S* scales;
  device const T* biases;
};
template <typename S, typename T, int PARTS>
inline void load_factors(thread StoredFactors<S, T, PARTS>& to, FactorsOfLine<S, T> from, int k,
                         int group_shift, bool has_biases) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    if (part == 0 || group_shift < 6) {
      const uint group = static_cast<uint>((k + part * (64 / PARTS)) >> group_shift);
      to.scales[part] = from.scales[group];
      to.biases[part] = has_biases ? from.biases[group] : T(0);
    } else {
      to.scales[part] = to.scales[0];
      to.biases[part] = to.biases[0];
    }
  }
}
template <typename T>
inline void load_factors(thread StoredFactors<formats::e8m0, T, 2>& to,
                         FactorsOfLine<formats::e8m0, T> from, int k, int, bool) {
  to.bytes = reinterpret_cast<device const ushort*>(from.scales)[static_cast<uint>(k) / 64];
}
template <typename T>
inline void load_factors(thread StoredFactors<uchar, T, 4>& to, FactorsOfLine<uchar, T> from, int k,
                         int, bool) {
  to.bytes = reinterpret_cast<device const uint*>(from.scales)[static_cast<uint>(k) / 64];
}

// ---- codes ----

// Decodes two integers. Each half of `codes` has one in its low byte, or, of fewer bits, both in
// its low bits; its other bits are arbitrary. The second of two in a byte is left where it is, 1 /
// second times as large. second, integer_0: bits of halves, the latter those of what is added to
// the second one.
template <int BITS>
inline half2 decode_integers(uint codes, half scale, half bias, uint exponent) {
  constexpr uint mask = BITS == 2 ? 0x000c0003u : BITS == 4 ? 0x00f0000fu : 0x00ff00ffu;
  constexpr uint second = BITS == 2 ? 0x3400u : BITS == 4 ? 0x2c00u : 0x3c00u;
  constexpr uint integer_0 = BITS == 2 ? 0xdc00u : BITS == 4 ? 0xd400u : 0xe400u;
  const uint bits = (codes & mask) | formats::kept(0x64006400u, exponent);
  const half2 values =
      ::metal::fma(::metal::as_type<half2>(bits),
                   ::metal::as_type<half2>(formats::kept(second << 16 | 0x3c00u, exponent)),
                   ::metal::as_type<half2>(integer_0 << 16 | 0xe400u));
  return ::metal::fma(values, half2(scale), half2(bias));
}
template <int BITS>
inline ::metal::vec<bfloat, 2> decode_integers(uint codes, bfloat scale, bfloat bias,
                                               uint exponent) {
  constexpr uint mask = (1u << BITS) - 1u;
  constexpr int second = 16 + (BITS < 8 ? BITS : 0);
  ::metal::vec<bfloat, 2> values;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint code = (j == 0 ? codes : codes >> second) & mask;
    values[j] =
        static_cast<bfloat>(::metal::fma(Integer<BITS>::unscaled(code, exponent),
                                         static_cast<float>(scale), static_cast<float>(bias)));
  }
  return values;
}

// Multiplies two halves by a scale.
inline half2 scaled(half2 values, half scale, half) { return product_of(values, half2(scale)); }
inline half2 scaled(half2 values, float scale, half) { return scaled_by_float(values, scale); }
// Small powers of two are two factors, of which the first rounds nothing.
inline half2 scaled(half2 values, formats::e8m0 power, half) {
  const uint code = power.code;
  const bool is_small = code < 127u - 14u;
  const uint bits = code == 255u ? 0x7fc00000u : (is_small ? code + 14u : code) << 23;
  const half2 first = half2(static_cast<half>(::metal::as_type<float>(bits)));
  return product_of(product_of(values, first), second_factor(is_small));
}
template <typename S>
inline ::metal::vec<bfloat, 2> scaled(half2 values, S scale, bfloat) {
  const float factor = formats::scale_of(scale);
  return ::metal::vec<bfloat, 2>(static_cast<bfloat>(static_cast<float>(values.x) * factor),
                                 static_cast<bfloat>(static_cast<float>(values.y) * factor));
}

// How a format's codes are decoded: apart, unless it is one of these.
template <typename Format>
struct Decoder {
  static constant constexpr auto form = ::mpp::tensor_ops::coded_form::apart;
  uint exponent;
  inline void begin(uint of_inner) thread { exponent = of_inner; }
  template <typename T>
  inline ::metal::vec<T, 2> two(uint codes, T scale, T bias) const thread {
    return decode_integers<Format::bits>(codes, scale, bias, exponent);
  }
};
template <>
struct Decoder<MXFloat8> {
  static constant constexpr auto form = ::mpp::tensor_ops::coded_form::bytes;
  inline void begin(uint) thread {}
  template <typename T>
  inline ::metal::vec<T, 2> two(uint codes, formats::e8m0 scale, T) const thread {
    return scaled(::mpp::tensor_ops::halves_of_e4m3(codes), scale, T(0));
  }
};
struct DecoderOfE2M1 {
  static constant constexpr auto form = ::mpp::tensor_ops::coded_form::halves_of_bytes;
  ::mpp::tensor_ops::table_of_e2m1 table;
  inline void begin(uint exponent) thread {
    table.below = formats::kept(table.below_2, exponent);
    table.from = formats::kept(table.from_2, exponent);
    table.signs = formats::kept(table.all_signs, exponent);
  }
  inline void look_up(thread half2 (&values)[2], uint codes) const thread {
    ::mpp::tensor_ops::halves_of_e2m1(values, table, codes);
  }
};
template <>
struct Decoder<MXFloat4> : DecoderOfE2M1 {};
template <>
struct Decoder<NVFloat4> : DecoderOfE2M1 {};
// A format's table as halves in registers.
template <typename Format>
inline ::mpp::tensor_ops::table_of_halves table_of(uint exponent) {
  ::mpp::tensor_ops::table_of_halves table;
#pragma unroll
  for (int four = 0; four < 4; ++four) {
    uint low = 0u;
    uint high = 0u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint bits = ::metal::as_type<ushort>(
          static_cast<half>(Format::unscaled(static_cast<uint>(four * 4 + i), 0u)));
      low |= (bits & 0xffu) << (8 * i);
      high |= (bits >> 8) << (8 * i);
    }
    table.low[four] = formats::kept(low, exponent);
    table.high[four] = formats::kept(high, exponent);
  }
  return table;
}
template <typename Format>
struct DecoderOfTable {
  static constant constexpr auto form = ::mpp::tensor_ops::coded_form::halves_of_bytes;
  ::mpp::tensor_ops::table_of_halves table;
  inline void begin(uint exponent) thread { table = table_of<Format>(exponent); }
  // The first of two codes is the high half of their byte.
  inline void look_up(thread half2 (&values)[2], uint codes) const thread {
    ::mpp::tensor_ops::halves_of_table(values, table, codes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      values[i] = values[i].yx;
    }
  }
};
template <>
struct Decoder<NormalFloat4> : DecoderOfTable<NormalFloat4> {};
template <>
struct Decoder<Float4> : DecoderOfTable<Float4> {};

// The lines of a tile, from `first` on, and their codes from `first_k` on. The last line stands for
// those behind it.
template <typename T, typename Format>
struct CodedLines {
  typedef T element;
  typedef typename Scale<T, Format>::type StoredScale;
  static constant constexpr int bits = Format::bits;
  static constant constexpr auto form = Decoder<Format>::form;
  static constant constexpr int parts = Format::has_short_groups ? 4 : 2;
  typedef StoredFactors<StoredScale, T, parts> Factors;

  device const uchar* codes;
  device const StoredScale* scales;
  device const T* biases;
  int64_t line_bytes, line_scales;
  int first, last, first_k;
  int group_shift;
  Decoder<Format> decoder;

  inline int64_t at(int i) const { return ::metal::min(first + i, last); }
  inline device const uchar* line(int i) const { return codes + at(i) * line_bytes; }
  inline FactorsOfLine<StoredScale, T> factors_of_line(int i) const {
    const int64_t of_line = at(i) * line_scales;
    return {scales + of_line, biases + (Format::has_biases ? of_line : 0)};
  }
  inline Factors factors(FactorsOfLine<StoredScale, T> of_line, int k) const {
    Factors found;
    load_factors(found, of_line, first_k + k, group_shift, Format::has_biases);
    return found;
  }
  inline ::metal::vec<T, 2> two(uint of_two, thread const Factors& of, int eight) const {
    const int part = eight * parts / 8;
    return decoder.two(of_two, of.scale(part), of.bias(part));
  }
  inline void four(thread::metal::vec<T, 2> (&to)[2], uint of_four, thread const Factors& of,
                   int eight) const {
    half2 values[2];
    decoder.look_up(values, of_four);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to[i] = scaled(values[i], of.scale((eight + i) * parts / 8), T(0));
    }
  }
};

template <typename T, typename Format>
inline CodedLines<T, Format> coded_lines(Matrix<T> matrix, int first, int last, int first_k) {
  constant PackedLayout& layout = *matrix.layout;
  typedef typename CodedLines<T, Format>::StoredScale StoredScale;
  CodedLines<T, Format> lines;
  lines.codes = matrix.codes + first_k / 8 * Format::bits;
  lines.scales = reinterpret_cast<device const StoredScale*>(matrix.scales);
  lines.biases = matrix.biases;
  lines.line_bytes = layout.line_bytes;
  lines.line_scales = layout.line_scales;
  lines.first = first;
  lines.last = last;
  lines.first_k = first_k;
  lines.group_shift = layout.group_shift;
  lines.decoder.begin(formats::exponent_of(layout.inner));
  return lines;
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

#endif
