// The least and the greatest values of a type: Limits<T>::min and ::max, infinities included, and
// finite_min and finite_max, as kernels written for MLX call them.

template <typename U>
struct Limits {
  static constexpr constant U max = numeric_limits<U>::max();
  static constexpr constant U min = numeric_limits<U>::min();
  static constexpr constant U finite_max = numeric_limits<U>::max();
  static constexpr constant U finite_min = numeric_limits<U>::min();
};

template <typename U>
struct FloatLimits {
  static constexpr constant U max = numeric_limits<U>::infinity();
  static constexpr constant U min = -numeric_limits<U>::infinity();
  static constexpr constant U finite_max = numeric_limits<U>::max();
  static constexpr constant U finite_min = -numeric_limits<U>::max();
};
template <>
struct Limits<float> : FloatLimits<float> {};
template <>
struct Limits<half> : FloatLimits<half> {};
template <>
struct Limits<bfloat> : FloatLimits<bfloat> {};
