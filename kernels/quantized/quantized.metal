// Quantising, packing and dequantising weights. Formulas are those of
// python/metalops/ops/quantized.py.
#include <c10/metal/error.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>

#include <kernels/quantized/packed_weights.h>
using namespace metal;
using c10::metal::ErrorMessages;
using metalops::CodeFormat;
using metalops::PackedLayout;
using metalops::ScaleFormat;
namespace formats = metalops::formats;
namespace packed = metalops::packed;

// Thresholds between adjacent values of the tables; codes in the order of their values.
constant constexpr float kNormalFloat4Thresholds[15] = {
    -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
    -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
    0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
    0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f};
constant constexpr float kFloat4Thresholds[7] = {0.00260417f, 0.0859375f, 0.20833333f, 0.29166667f,
                                                 0.4166667f,  0.583333f,  0.8333333f};
constant constexpr uchar kFloat4Codes[8] = {0, 1, 6, 7, 4, 5, 2, 3};

inline uint nearest_code(float x, CodeFormat format) {
  switch (format) {
    case CodeFormat::kE2M1:
      return formats::e2m1::encode(x);
    case CodeFormat::kE4M3:
      return formats::e4m3::encode(x);
    case CodeFormat::kNormalFloat4: {
      uint code = 0;
      for (int i = 0; i < 15; ++i) {
        code += x > kNormalFloat4Thresholds[i] ? 1u : 0u;
      }
      return code;
    }
    default: {
      uint index = 0;
      for (int i = 0; i < 7; ++i) {
        index += abs(x) > kFloat4Thresholds[i] ? 1u : 0u;
      }
      return kFloat4Codes[index] | (x < 0.0f ? 8u : 0u);
    }
  }
}

// Returns the biased exponent of the smallest power of two that is at least x, so that nothing is
// clipped; for 0, that of 1.
inline uint power_above(float x) {
  const uint bits = as_type<uint>(x);
  return x == 0.0f ? 127u : min((bits >> 23) + ((bits & 0x7fffffu) != 0u ? 1u : 0u), 254u);
}

// A lane's part of a quantisation group: adjacent lanes of a simdgroup share a group, and each
// takes eight elements at a time.
struct GroupShare {
  int64_t group;
  int64_t line;
  int first;  // element within the line
  int lanes;
  int lane;
  int end;  // end of the group within the line
  bool exists;
};

inline GroupShare share_of(int64_t thread_number, constant PackedLayout& layout) {
  const int size = 1 << layout.group_shift;
  const int lanes = min(size / 8, 32);
  const int64_t groups = layout.lines * layout.line_scales;
  GroupShare share;
  share.group = thread_number / lanes;
  share.exists = share.group < groups;
  share.group = min(share.group, groups - 1);
  share.line = share.group / layout.line_scales;
  share.first = static_cast<int>(share.group % layout.line_scales) << layout.group_shift;
  share.lanes = lanes;
  share.lane = static_cast<int>(thread_number % lanes);
  share.end = min(share.first + size, layout.inner);
  return share;
}

template <typename T>
inline void store_scale(device uchar* scales, int64_t i, float scale, ScaleFormat format) {
  if (format == ScaleFormat::kElement) {
    reinterpret_cast<device T*>(scales)[i] = static_cast<T>(scale);
  } else {
    reinterpret_cast<device float*>(scales)[i] = scale;
  }
}

// The scale and the bias of a group. code: the scale as it is stored, if it is stored as a byte.
struct GroupScale {
  float scale;
  float bias;
  uint code;
};

// Returns those of integer codes, which represent the element of the greatest magnitude exactly.
inline GroupScale scale_of_integers(float low, float high, int bits) {
  const float most = static_cast<float>((1 << bits) - 1);
  const float scale = max((high - low) / most, 1e-7f);
  if (bits == 1) {  // the codes are both extremes
    return {scale, low, 0};
  }
  const bool is_low = abs(low) > abs(high);
  const float edge = is_low ? low : high;
  const float directed = is_low ? scale : -scale;
  const float steps = rint(edge / directed);
  if (steps != 0.0f) {
    return {edge / steps, edge, 0};
  }
  return {directed, 0.0f, 0};
}

inline GroupScale scale_of_group(float low, float high, float global_factor,
                                 constant PackedLayout& layout) {
  if (layout.format == CodeFormat::kInteger) {
    return scale_of_integers(low, high, layout.bits);
  }
  const float largest = max(abs(low), abs(high));
  if (layout.scale == ScaleFormat::kFloat) {
    return {largest, 0.0f, 0};
  }
  const float ratio =
      largest / (layout.format == CodeFormat::kE4M3 ? 448.0f : 6.0f) / global_factor;
  if (layout.scale == ScaleFormat::kE8M0) {
    const uint code = power_above(ratio);
    return {formats::scale_of(formats::e8m0{static_cast<uchar>(code)}) * global_factor, 0.0f, code};
  }
  const uint code = formats::e4m3::encode(ratio);
  return {formats::e4m3::decode(code) * global_factor, 0.0f, code};
}

template <typename T>
inline void store_scale_of_group(device uchar* scales, device T* biases, int64_t group,
                                 GroupScale of, constant PackedLayout& layout) {
  if (layout.format == CodeFormat::kInteger) {
    store_scale<T>(scales, group, of.scale, ScaleFormat::kElement);
    biases[group] = static_cast<T>(of.bias);
  } else if (layout.scale == ScaleFormat::kFloat) {
    store_scale<T>(scales, group, of.scale, ScaleFormat::kFloat);
  } else {
    scales[group] = static_cast<uchar>(of.code);
  }
}

inline uint code_of(float w, GroupScale of, constant PackedLayout& layout) {
  if (layout.format == CodeFormat::kInteger) {
    const float most = static_cast<float>((1 << layout.bits) - 1);
    return static_cast<uint>(clamp(rint((w - of.bias) / of.scale), 0.0f, most));
  }
  return nearest_code(of.scale == 0.0f ? 0.0f : w / of.scale, layout.format);
}

// Quantises contiguous weights; share_of() maps lanes to groups.
template <typename T>
kernel void quantized_quantize(device uchar* codes [[buffer(0)]],
                               device uchar* scales [[buffer(1)]], device T* biases [[buffer(2)]],
                               device const T* weights [[buffer(3)]],
                               device const float* global_scale [[buffer(4)]],
                               constant PackedLayout& layout [[buffer(5)]],
                               uint2 position [[thread_position_in_grid]],
                               uint2 grid [[threads_per_grid]]) {
  const GroupShare share = share_of(metalops::thread_index(position, grid), layout);
  device const T* line = weights + share.line * layout.inner;
  float low = INFINITY;
  float high = -INFINITY;
  for (int k = share.first + share.lane * 8; k < share.end; k += share.lanes * 8) {
    for (int e = 0; e < 8; ++e) {
      const float w = static_cast<float>(line[k + e]);
      low = min(low, w);
      high = max(high, w);
    }
  }
  for (int i = 1; i < share.lanes; i *= 2) {
    low = min(low, simd_shuffle_xor(low, static_cast<ushort>(i)));
    high = max(high, simd_shuffle_xor(high, static_cast<ushort>(i)));
  }
  const GroupScale of =
      scale_of_group(low, high, packed::global_factor(global_scale, layout), layout);
  if (!share.exists) {
    return;
  }
  if (share.lane == 0) {
    store_scale_of_group(scales, biases, share.group, of, layout);
  }
  for (int k = share.first + share.lane * 8; k < share.end; k += share.lanes * 8) {
    ulong word = 0;
    for (int e = 0; e < 8; ++e) {
      const uint code = code_of(static_cast<float>(line[k + e]), of, layout);
      const int place = packed::is_high_first(layout.format) ? e ^ 1 : e;
      word |= static_cast<ulong>(code) << (layout.bits * place);
    }
    device uchar* to = codes + share.line * layout.line_bytes + k / 8 * layout.bits;
    for (int i = 0; i < layout.bits; ++i) {
      to[i] = static_cast<uchar>(word >> (8 * i));
    }
  }
}

// Dequantises eight elements of a line per thread, for all lines or for those in `indices`.
template <typename T>
kernel void quantized_dequantize(
    device T* result [[buffer(0)]], device const uchar* codes [[buffer(1)]],
    device const uchar* scales [[buffer(2)]], device const T* biases [[buffer(3)]],
    device const float* global_scale [[buffer(4)]], device const int64_t* indices [[buffer(5)]],
    constant PackedLayout& layout [[buffer(6)]], constant bool& has_indices [[buffer(7)]],
    device ErrorMessages* errors [[buffer(8)]], uint2 position [[thread_position_in_grid]]) {
  int64_t line = position.y;
  if (has_indices) {
    line = indices[position.y];
    if (line < 0 || line >= layout.lines) {
      TORCH_REPORT_ERROR(errors, "quantized_embedding: index ", line, " is not one of ",
                         layout.lines, " rows");
      return;
    }
  }
  const auto matrix = packed::matrix_of<T>(codes, scales, biases,
                                           packed::global_factor(global_scale, layout), layout, 0);
  const int k = static_cast<int>(position.x) * 8;
  const packed::EightValues values = matrix.eight(line, k);
  device T* const to = result + static_cast<int64_t>(position.y) * layout.inner + k;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    vec<T, 4> four;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      four[e] = static_cast<T>(values.of[4 * i + e]);
    }
    reinterpret_cast<device vec<T, 4>*>(to)[i] = four;
  }
}

// Computes the gradients of scales and biases from the weights' gradient. Threads are mapped as in
// quantize.
template <typename T>
kernel void quantized_scales_gradient(device uchar* grad_scales [[buffer(0)]],
                                      device T* grad_biases [[buffer(1)]],
                                      device const T* grad [[buffer(2)]],
                                      device const uchar* codes [[buffer(3)]],
                                      constant PackedLayout& layout [[buffer(4)]],
                                      uint2 position [[thread_position_in_grid]],
                                      uint2 grid [[threads_per_grid]]) {
  const GroupShare share = share_of(metalops::thread_index(position, grid), layout);
  float of_scale = 0.0f;
  float of_bias = 0.0f;
  for (int k = share.first + share.lane * 8; k < share.end; k += share.lanes * 8) {
    const packed::EightCodes eight =
        packed::eight_codes(codes + share.line * layout.line_bytes + k / 8 * layout.bits, layout);
    for (int e = 0; e < 8; ++e) {
      const float g = static_cast<float>(grad[share.line * layout.inner + k + e]);
      of_scale += g * packed::value_of(eight.of[e], layout.format);
      of_bias += g;
    }
  }
  for (int i = 1; i < share.lanes; i *= 2) {
    of_scale += simd_shuffle_xor(of_scale, static_cast<ushort>(i));
    of_bias += simd_shuffle_xor(of_bias, static_cast<ushort>(i));
  }
  if (share.exists && share.lane == 0) {
    store_scale<T>(grad_scales, share.group, of_scale, layout.scale);
    if (layout.format == CodeFormat::kInteger) {
      grad_biases[share.group] = static_cast<T>(of_bias);
    }
  }
}

#define REGISTER(T)                                                     \
  REGISTER_KERNEL("quantized_quantize_" #T, quantized_quantize, T);     \
  REGISTER_KERNEL("quantized_dequantize_" #T, quantized_dequantize, T); \
  REGISTER_KERNEL("quantized_scales_gradient_" #T, quantized_scales_gradient, T)

REGISTER(float);
REGISTER(half);
REGISTER(bfloat);
