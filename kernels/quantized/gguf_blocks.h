// Dequantises eight adjacent elements of a ggml block. The blocks' structs are in ggml-common.h,
// and the formulas are those of ggml-quants.c (dequantize_row_*).
#pragma once
#include <metal_stdlib>

#include <kernels/quantized/gguf.h>

namespace metalops {
namespace gguf {

struct Eight {
  float of[8];
};

constant constexpr float kNonLinear4[16] = {-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f,
                                            -22.0f,  -10.0f,  1.0f,   13.0f,  25.0f,  38.0f,
                                            53.0f,   69.0f,   89.0f,  113.0f};
// Twice the values of the e2m1 codes.
constant constexpr float kTwiceE2M1[16] = {0.0f, 1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                           0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};

// Loads a half from any byte address: blocks need not be aligned.
inline float half_at(device const uchar* at) {
  return static_cast<float>(
      ::metal::as_type<half>(static_cast<ushort>(at[0] | static_cast<uint>(at[1]) << 8)));
}

// Returns 4-bit code i of 32 in 16 bytes; the low halves are the first 16.
inline uint nibble(device const uchar* codes, int i) {
  return static_cast<uint>(codes[i % 16]) >> (i / 16 * 4) & 15u;
}

// The scale and the minimum of part `i` of 8, 6 bits each, packed in 12 bytes.
struct ScaleAndMinimum {
  float scale;
  float minimum;
};
inline ScaleAndMinimum scale_and_minimum(device const uchar* packed, int i) {
  uint scale;
  uint minimum;
  if (i < 4) {
    scale = packed[i] & 63u;
    minimum = packed[i + 4] & 63u;
  } else {
    scale = (packed[i + 4] & 15u) | static_cast<uint>(packed[i - 4] >> 6) << 4;
    minimum = static_cast<uint>(packed[i + 4] >> 4) | static_cast<uint>(packed[i] >> 6) << 4;
  }
  return {static_cast<float>(scale), static_cast<float>(minimum)};
}

// Dequantises eight elements from `first` on of a block of 32.
inline Eight eight_of_32(device const uchar* block, int first, GgufType type) {
  Eight values;
  switch (type) {
    case GgufType::kQ4_0: {
      const float d = half_at(block);
      for (int e = 0; e < 8; ++e) {
        values.of[e] = d * (static_cast<float>(nibble(block + 2, first + e)) - 8.0f);
      }
      break;
    }
    case GgufType::kQ4_1: {
      const float d = half_at(block);
      const float m = half_at(block + 2);
      for (int e = 0; e < 8; ++e) {
        values.of[e] = d * static_cast<float>(nibble(block + 4, first + e)) + m;
      }
      break;
    }
    case GgufType::kQ5_0:
    case GgufType::kQ5_1: {
      const bool has_minimum = type == GgufType::kQ5_1;
      const float d = half_at(block);
      const float m = has_minimum ? half_at(block + 2) : -16.0f * d;
      device const uchar* high = block + (has_minimum ? 4 : 2);
      for (int e = 0; e < 8; ++e) {
        const uint bit = static_cast<uint>(high[first / 8]) >> e & 1u;
        const uint code = nibble(high + 4, first + e) | bit << 4;
        values.of[e] = d * static_cast<float>(code) + m;
      }
      break;
    }
    case GgufType::kQ8_0: {
      const float d = half_at(block);
      for (int e = 0; e < 8; ++e) {
        values.of[e] = d * static_cast<float>(static_cast<char>(block[2 + first + e]));
      }
      break;
    }
    case GgufType::kIQ4_NL: {
      const float d = half_at(block);
      for (int e = 0; e < 8; ++e) {
        values.of[e] = d * kNonLinear4[nibble(block + 2, first + e)];
      }
      break;
    }
    default: {  // MXFP4
      const uint exponent = block[0];
      const float d =
          ::metal::as_type<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1u) << 23);
      for (int e = 0; e < 8; ++e) {
        values.of[e] = d * kTwiceE2M1[nibble(block + 1, first + e)];
      }
    }
  }
  return values;
}

// Dequantises eight elements from `first` on of a block of 256.
inline Eight eight_of_256(device const uchar* block, int first, GgufType type) {
  Eight values;
  const int half_of = first / 128;
  const int quarter = first % 128 / 32;
  const int at = first % 32;
  const int part = first / 32;
  switch (type) {
    case GgufType::kQ2_K: {
      const uint scales = block[first / 16];
      const float d = half_at(block + 80) * static_cast<float>(scales & 15u);
      const float m = half_at(block + 82) * static_cast<float>(scales >> 4);
      for (int e = 0; e < 8; ++e) {
        const uint code =
            static_cast<uint>(block[16 + half_of * 32 + at + e]) >> (2 * quarter) & 3u;
        values.of[e] = d * static_cast<float>(code) - m;
      }
      break;
    }
    case GgufType::kQ3_K: {
      const int i = first / 16;
      device const uchar* packed = block + 96;
      const uint low = i < 8 ? packed[i] & 15u : static_cast<uint>(packed[i - 8]) >> 4;
      const uint high = static_cast<uint>(packed[8 + i % 4]) >> (i / 4 * 2) & 3u;
      const float d = half_at(block + 108) * (static_cast<float>(low | high << 4) - 32.0f);
      for (int e = 0; e < 8; ++e) {
        const uint code =
            static_cast<uint>(block[32 + half_of * 32 + at + e]) >> (2 * quarter) & 3u;
        const uint bit = static_cast<uint>(block[at + e]) >> part & 1u;
        values.of[e] = d * (static_cast<float>(code | bit << 2) - 4.0f);
      }
      break;
    }
    case GgufType::kQ4_K:
    case GgufType::kQ5_K: {
      const bool is_five = type == GgufType::kQ5_K;
      const ScaleAndMinimum own = scale_and_minimum(block + 4, part);
      const float d = half_at(block) * own.scale;
      const float m = half_at(block + 2) * own.minimum;
      device const uchar* codes = block + (is_five ? 48 : 16) + part / 2 * 32 + at;
      for (int e = 0; e < 8; ++e) {
        uint code = static_cast<uint>(codes[e]) >> (part % 2 * 4) & 15u;
        if (is_five) {
          code |= (static_cast<uint>(block[16 + at + e]) >> part & 1u) << 4;
        }
        values.of[e] = d * static_cast<float>(code) - m;
      }
      break;
    }
    case GgufType::kQ6_K: {
      const float scale = static_cast<float>(static_cast<char>(block[192 + first / 16]));
      const float d = half_at(block + 208) * scale;
      device const uchar* low = block + half_of * 64 + quarter % 2 * 32 + at;
      for (int e = 0; e < 8; ++e) {
        const uint high =
            static_cast<uint>(block[128 + half_of * 32 + at + e]) >> (2 * quarter) & 3u;
        const uint code = (static_cast<uint>(low[e]) >> (quarter / 2 * 4) & 15u) | high << 4;
        values.of[e] = d * (static_cast<float>(code) - 32.0f);
      }
      break;
    }
    default: {  // IQ4_XS
      const uint highs = block[2] | static_cast<uint>(block[3]) << 8;
      const uint low = static_cast<uint>(block[4 + part / 2]) >> (part % 2 * 4) & 15u;
      const uint scale = low | (highs >> (2 * part) & 3u) << 4;
      const float d = half_at(block) * (static_cast<float>(scale) - 32.0f);
      for (int e = 0; e < 8; ++e) {
        values.of[e] = d * kNonLinear4[nibble(block + 8 + part * 16, at + e)];
      }
    }
  }
  return values;
}

// Dequantises eight elements of a line from k on; k is a multiple of 8.
inline Eight eight(device const uchar* data, constant GgufLayout& layout, int64_t line, int k) {
  device const uchar* const block =
      data + line * layout.line_bytes +
      static_cast<int64_t>(k >> layout.block_shift) * layout.block_bytes;
  const int first = k & ((1 << layout.block_shift) - 1);
  return layout.block_shift == 5 ? eight_of_32(block, first, layout.type)
                                 : eight_of_256(block, first, layout.type);
}

}  // namespace gguf
}  // namespace metalops
