"""Kernels whose operators, constructors and conversions have simdgroup operations, where lanes diverge, and the same with
functions that have names."""

CLASSES = """#include <metal_stdlib>
using namespace metal;
struct Pair {
  uint a, b;
};
inline Pair operator+(Pair x, Pair y) {
  if (x.a > 3) return {simd_sum(x.a), y.b};
  return {simd_sum(y.a), simd_max(x.b)};
}
struct Sum {
  uint value;
  Sum(uint x) : value(simd_sum(x)) {
    if (x > 2) value += simd_max(x);
  }
  operator uint() const { return simd_min(value); }
  uint operator[](uint i) const { return simd_broadcast_first(value + i); }
  thread Sum& operator+=(uint x) {
    value += simd_sum(x);
    return *this;
  }
};
inline Pair plus(Pair x, Pair y) {
  if (x.a > 3) {
    Pair result = {simd_sum(x.a), y.b};
    return result;
  }
  Pair result = {simd_sum(y.a), simd_max(x.b)};
  return result;
}
inline uint sum(uint x) {
  uint value = simd_sum(x);
  if (x > 2) value += simd_max(x);
  return value;
}
inline uint converted(uint value) { return simd_min(value); }
inline uint at(uint value, uint i) { return simd_broadcast_first(value + i); }
inline uint increased(uint value, uint x) { return value + simd_sum(x); }
"""

KERNEL = """
kernel void NAME(device uint* out, uint i [[thread_position_in_grid]]) {
  uint r = 0;
  if (i % 3 == 0) {
    const Pair x = {i, 2 * i}, y = {2, i};
    const Pair z = PLUS;
    r = z.a + z.b;
  }
  for (uint j = 0; j < i % 4; ++j) {
    TYPE q = MAKE(i);
    ADD;
    r += CONVERTED(q);
    if (r > 100 && AT(q, 1) % 3 == 1) break;
    r += i % 2 ? AT(q, 2) : AT(q, 3);
  }
  switch (i % 3) {
    case 0:
      r += CONVERTED(MAKE(i));
      break;
    case 1:
      r -= AT(MAKE(i), 0);
    default:
      r ^= CONVERTED(MAKE(1));
  }
  out[i] = r;
}
"""


BY_OPERATORS = (
    KERNEL.replace("NAME", "by_operators")
    .replace("PLUS", "x + y")
    .replace("TYPE", "Sum")
    .replace("ADD", "q += j")
    .replace("MAKE", "Sum")
    .replace("CONVERTED", "uint")
    .replace("AT(q, 1)", "q[1]")
    .replace("AT(q, 2)", "q[2]")
    .replace("AT(q, 3)", "q[3]")
    .replace("AT(Sum(i), 0)", "Sum(i)[0]")
)
BY_FUNCTIONS = (
    KERNEL.replace("NAME", "by_functions")
    .replace("PLUS", "plus(x, y)")
    .replace("TYPE", "uint")
    .replace("ADD", "q = increased(q, j)")
    .replace("MAKE", "sum")
    .replace("CONVERTED", "converted")
    .replace("AT", "at")
)
SOURCE = CLASSES + BY_OPERATORS + BY_FUNCTIONS

# Added to a program, makes its threads note where they are.
NOTING = """
struct Noting {
  uint a;
};
inline Noting operator+(Noting x, Noting y) { return {metal::simd_sum(x.a + y.a)}; }
kernel void noting(device uint* x) { x[0] = (Noting{1} + Noting{2}).a; }
"""
