// Activations and their derivatives, in float.
#pragma once
#include <c10/metal/special_math.h>

#include <metal_stdlib>

constant constexpr float kSqrt2OverPi = 0.797884560802865356f;     // sqrt(2 / pi)
constant constexpr float kSqrtHalf = 0.707106781186547524f;        // sqrt(1 / 2)
constant constexpr float kInverseSqrt2Pi = 0.398942280401432678f;  // 1 / sqrt(2 pi)
constant constexpr float kGeluCubic = 0.044715f;
constant constexpr float kQuickSlope = 1.702f;

// An activation's value and derivative at one point.
struct activated {
  float value;
  float derivative;
};

inline float sigmoid(float x) { return 1.0f / (1.0f + ::metal::precise::exp(-x)); }

inline float silu(float x) { return x / (1.0f + ::metal::precise::exp(-x)); }

inline activated silu_with_derivative(float x) {
  const float s = sigmoid(x);
  return {x * s, s + x * (s * (1.0f - s))};
}

inline float gelu(float x) { return 0.5f * x * (1.0f + c10::metal::erf(x * kSqrtHalf)); }

inline activated gelu_with_derivative(float x) {
  const float cdf = 0.5f * (1.0f + c10::metal::erf(x * kSqrtHalf));
  const float pdf = kInverseSqrt2Pi * ::metal::precise::exp(-0.5f * x * x);
  return {x * cdf, cdf + x * pdf};
}

inline float gelu_tanh(float x) {
  const float inner = kSqrt2OverPi * x * (1.0f + kGeluCubic * x * x);
  return 0.5f * x * (1.0f + ::metal::precise::tanh(inner));
}

inline activated gelu_tanh_with_derivative(float x) {
  const float t = ::metal::precise::tanh(kSqrt2OverPi * x * (1.0f + kGeluCubic * x * x));
  // x * x may overflow where the tanh saturates. Its factor is zero there, and clamping keeps the
  // product zero instead of NaN.
  const float slope = kSqrt2OverPi * (1.0f + 3.0f * kGeluCubic * ::metal::min(x * x, 1e30f));
  return {0.5f * x * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope};
}

inline float gelu_quick(float x) { return x * sigmoid(kQuickSlope * x); }

inline activated gelu_quick_with_derivative(float x) {
  const float s = sigmoid(kQuickSlope * x);
  return {x * s, s + kQuickSlope * x * (s * (1.0f - s))};
}

// Returns max(x, 0). NaN stays NaN, as with torch.relu.
inline float relu(float x) { return x <= 0.0f ? 0.0f : x; }

inline activated relu_with_derivative(float x) { return {relu(x), x <= 0.0f ? 0.0f : 1.0f}; }
