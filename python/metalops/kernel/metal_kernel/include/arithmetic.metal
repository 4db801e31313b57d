// Functions beyond Metal's standard library that kernels written for MLX call.

inline size_t ceildiv(size_t n, size_t m) { return (n + m - 1) / m; }

// log(1 + x) without the loss of the digits of a small x: the rounding error of 1 + x is the same
// in both factors (Goldberg, What Every Computer Scientist Should Know About Floating-Point
// Arithmetic, theorem 4).
inline float log1p(float x) {
  const float sum = 1.0f + x;
  if (sum == 1.0f) return x;
  return isinf(sum) ? sum : x * (precise::log(sum) / (sum - 1.0f));
}
inline half log1p(half x) { return half(log1p(float(x))); }
inline bfloat log1p(bfloat x) { return bfloat(log1p(float(x))); }
