// simd_shuffle_down for types that Metal's own does not take.

inline uint64_t simd_shuffle_down(uint64_t data, ushort delta) {
  return as_type<uint64_t>(metal::simd_shuffle_down(as_type<uint2>(data), delta));
}
inline int64_t simd_shuffle_down(int64_t data, ushort delta) {
  return as_type<int64_t>(metal::simd_shuffle_down(as_type<uint2>(data), delta));
}
inline bool simd_shuffle_down(bool data, ushort delta) {
  return metal::simd_shuffle_down(uint(data), delta) != 0;
}
