// complex64 as kernels written for MLX see it: a pair with complex arithmetic. float2, which
// torch's own kernels use, multiplies each part by itself.

struct complex64_t {
  float real;
  float imag;

  constexpr complex64_t() : real(0), imag(0) {}
  constexpr complex64_t() threadgroup : real(0), imag(0) {}
  constexpr complex64_t(float re, float im) : real(re), imag(im) {}
  constexpr complex64_t(float re) : real(re), imag(0) {}
};

constexpr complex64_t operator-(complex64_t a) { return complex64_t(-a.real, -a.imag); }
constexpr complex64_t operator+(complex64_t a, complex64_t b) {
  return complex64_t(a.real + b.real, a.imag + b.imag);
}
constexpr complex64_t operator-(complex64_t a, complex64_t b) {
  return complex64_t(a.real - b.real, a.imag - b.imag);
}
constexpr complex64_t operator*(complex64_t a, complex64_t b) {
  return complex64_t(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real);
}
constexpr complex64_t operator/(complex64_t a, complex64_t b) {
  const float norm = b.real * b.real + b.imag * b.imag;
  return complex64_t((a.real * b.real + a.imag * b.imag) / norm,
                     (a.imag * b.real - a.real * b.imag) / norm);
}
constexpr bool operator==(complex64_t a, complex64_t b) {
  return a.real == b.real && a.imag == b.imag;
}
constexpr bool operator!=(complex64_t a, complex64_t b) { return !(a == b); }
