// Sampling: where a sampler's modes place the texels that a coordinate means, and their
// combination.
//
// Weights are computed in float and not rounded to fewer bits, as GPUs may do (Apple's weights have
// eight bits or more). A kernel has no implicit derivatives: without an option the first level is
// sampled. Anisotropic filters sample as isotropic ones do. Cubes are filtered across their edges.
#pragma once

#include <msl/sampler.h>
#include <msl/texel.h>

namespace msl::msl_impl {

// Where a texture is sampled: coordinates as the kernel gives them, the array element, and offsets
// in texels.
struct SamplePlace {
  float at[3];
  uint element;
  int offset[3];
};

// How the level of detail is chosen. The derivatives are those of the coordinates, in x and in y.
struct SampleLevel {
  float level;
  float least;  // min_lod_clamp
  bool has_derivatives;
  float dx[3], dy[3];
};

MSL_INLINE float finite(float value) { return value == value ? value : 0.0f; }
MSL_INLINE int integer(float value) {
  return value > -1e9f ? (value < 1e9f ? int(value) : 1000000000) : -1000000000;
}
MSL_INLINE int remainder(int value, int by) {
  const int rest = value % by;
  return rest < 0 ? rest + by : rest;
}

constexpr int kBorderTexel = -1;

// Returns the texel along one axis that an index means, or kBorderTexel.
MSL_INLINE int addressed(int index, int size, abi::AddressMode mode) {
  using M = abi::AddressMode;
  switch (mode) {
    case M::kClampToZero:
    case M::kClampToBorder:
      return index < 0 || index >= size ? kBorderTexel : index;
    case M::kRepeat:
      return remainder(index, size);
    case M::kMirroredRepeat:
      index = remainder(index, 2 * size);
      return index < size ? index : 2 * size - 1 - index;
    case M::kMirrorClampToEdge:
      index = index < 0 ? -1 - index : index;
      return index < size ? index : size - 1;
    default:
      return index < 0 ? 0 : index < size ? index : size - 1;
  }
}

MSL_INLINE abi::AddressMode address_mode(abi::u64 sampler, int axis) {
  return abi::AddressMode(
      sampler_field(sampler, {abi::kAddress.offset + 3 * unsigned(axis), abi::kAddress.width}));
}

// Returns a coordinate in texels. Periodic modes keep the part within a period, which is exact.
MSL_INLINE float in_texels(float at, int size, abi::u64 sampler, int axis) {
  at = finite(at);
  if (sampler_field(sampler, abi::kPixelCoordinates)) return at;
  const abi::AddressMode mode = address_mode(sampler, axis);
  if (mode == abi::AddressMode::kRepeat) at -= __builtin_floorf(at);
  if (mode == abi::AddressMode::kMirroredRepeat) at -= 2.0f * __builtin_floorf(at * 0.5f);
  return product(finite(at), float(size));
}

// ---- cubes --------------------------------------------------------------------------------------

// A place on a face, each coordinate from -1 to 1.
struct FacePlace {
  uint face;
  float s, t;
};

MSL_INLINE FacePlace face_of(float x, float y, float z) {
  const float ax = __builtin_fabsf(x), ay = __builtin_fabsf(y), az = __builtin_fabsf(z);
  if (az >= ax && az >= ay) {
    if (!(az > 0.0f)) return {4, 0.0f, 0.0f};
    return {z < 0.0f ? 5u : 4u, (z < 0.0f ? -x : x) / az, -y / az};
  }
  if (ay >= ax) return {y < 0.0f ? 3u : 2u, x / ay, (y < 0.0f ? -z : z) / ay};
  return {x < 0.0f ? 1u : 0u, (x < 0.0f ? z : -z) / ax, -y / ax};
}
MSL_INLINE void direction_of(const FacePlace& place, float* d) {
  const float s = place.s, t = place.t;
  const float axes[6][3] = {{1, -t, -s}, {-1, -t, s}, {s, 1, t},
                            {s, -1, -t}, {s, -t, 1},  {-s, -t, -1}};
  for (int i = 0; i < 3; ++i) d[i] = axes[place.face][i];
}

// A texel of a cube's faces.
struct FaceTexel {
  uint face;
  int x, y;
};
// Moves a texel that is beyond one edge of its face to the neighbouring face.
MSL_INLINE FaceTexel across_edge(const FaceTexel& texel, int size) {
  float d[3];
  direction_of({texel.face, (2.0f * float(texel.x) + 1.0f) / float(size) - 1.0f,
                (2.0f * float(texel.y) + 1.0f) / float(size) - 1.0f},
               d);
  const FacePlace there = face_of(d[0], d[1], d[2]);
  const auto clamped = [size](float at) {
    const int index = integer(__builtin_floorf((at + 1.0f) * 0.5f * float(size)));
    return index < 0 ? 0 : index < size ? index : size - 1;
  };
  return {there.face, clamped(there.s), clamped(there.t)};
}

// ---- one level ----------------------------------------------------------------------------------

MSL_INLINE constexpr bool is_cube(abi::TextureKind kind) {
  return kind == abi::TextureKind::kCube || kind == abi::TextureKind::kCubeArray;
}
MSL_INLINE constexpr int axes_of(abi::TextureKind kind) {
  using K = abi::TextureKind;
  return kind == K::k1d || kind == K::k1dArray || kind == K::kBuffer ? 1 : kind == K::k3d ? 3 : 2;
}

// The color beyond the edges of a texture. A format lacks components in the border, too.
template <class V>
MSL_INLINE Texel<V> border_texel(const abi::Texture& of, abi::u64 sampler, bool is_zero) {
  const bool has_alpha = of.format.order == abi::TexelOrder::kAlpha || of.format.channels == 4;
  const uint color = is_zero ? 0 : sampler_field(sampler, abi::kBorder);
  const V white = V(color == 2), alpha = V(color != 0);
  const V stored[4] = {white, white, white, alpha};
  Texel<V> texel = {{V(0), V(0), V(0), has_alpha ? alpha : V(1)}};
  for (int i = 0; i < 3; ++i) {
    if (of.format.order != abi::TexelOrder::kAlpha && i < of.format.channels) {
      texel.c[i] = stored[i];
    }
  }
  return texel;
}

// One level of a texture at the array element, and, of a cube, the face that a place means.
struct LevelPlace {
  const abi::Texture* of;
  const abi::TextureLevel* level;
  abi::u64 sampler;
  uint slice;   // without the plane of depth
  float at[3];  // in texels
  int offset[3];
};

MSL_INLINE uint clamped_element(const abi::Texture& of, uint element) {
  const uint faces = is_cube(of.kind) ? 6 : 1;
  const uint elements = of.layers / faces;
  return (element < elements ? element : elements - 1) * faces;
}

MSL_INLINE LevelPlace on_level(const abi::Texture& of, uint number, abi::u64 sampler,
                               const SamplePlace& place) {
  const abi::TextureLevel& level = of.levels[number];
  LevelPlace found = {&of, &level, sampler, clamped_element(of, place.element), {}, {}};
  const int sizes[3] = {int(level.width), int(level.height), int(level.depth)};
  if (is_cube(of.kind)) {
    const FacePlace face = face_of(finite(place.at[0]), finite(place.at[1]), finite(place.at[2]));
    found.slice += face.face;
    found.at[0] = product((finite(face.s) + 1.0f) * 0.5f, float(sizes[0]));
    found.at[1] = product((finite(face.t) + 1.0f) * 0.5f, float(sizes[1]));
    return found;
  }
  for (int axis = 0; axis < axes_of(of.kind); ++axis) {
    found.at[axis] = in_texels(place.at[axis], sizes[axis], sampler, axis);
    found.offset[axis] = place.offset[axis];
  }
  return found;
}

// Returns the texel at indices that may lie outside of the level.
template <class V>
MSL_TEXTURE_FUNCTION Texel<V> texel_at(const LevelPlace& place, const int* index) {
  const abi::Texture& of = *place.of;
  const abi::TextureLevel& level = *place.level;
  if (is_cube(of.kind)) {
    const int size = int(level.width);
    const uint first = place.slice / 6 * 6;
    FaceTexel texel = {place.slice - first, index[0], index[1]};
    const bool beside = texel.x < 0 || texel.x >= size;
    const bool above = texel.y < 0 || texel.y >= size;
    if (beside && above) {  // a corner, where three faces meet
      const int x = texel.x < 0 ? 0 : size - 1, y = texel.y < 0 ? 0 : size - 1;
      const FaceTexel three[3] = {{texel.face, x, y},
                                  across_edge({texel.face, texel.x, y}, size),
                                  across_edge({texel.face, x, texel.y}, size)};
      Texel<V> sum = load_texel<V>(of, level, uint(x), uint(y), first + texel.face);
      if constexpr (same<V, float>) {
        for (int i = 1; i < 3; ++i) {
          const Texel<V> other =
              load_texel<V>(of, level, uint(three[i].x), uint(three[i].y), first + three[i].face);
          for (int c = 0; c < 4; ++c) sum.c[c] += other.c[c];
        }
        for (int c = 0; c < 4; ++c) sum.c[c] /= 3.0f;
      }
      return sum;
    }
    if (beside || above) texel = across_edge(texel, size);
    return load_texel<V>(of, level, uint(texel.x), uint(texel.y), first + texel.face);
  }
  const int sizes[3] = {int(level.width), int(level.height), int(level.depth)};
  int at[3] = {0, 0, 0};
  for (int axis = 0; axis < axes_of(of.kind); ++axis) {
    const abi::AddressMode mode = address_mode(place.sampler, axis);
    at[axis] = addressed(index[axis], sizes[axis], mode);
    if (at[axis] == kBorderTexel) {
      return border_texel<V>(of, place.sampler, mode == abi::AddressMode::kClampToZero);
    }
  }
  return load_texel<V>(of, level, uint(at[0]), uint(at[1]), place.slice + uint(at[2]));
}

// The two texels along an axis between which a place lies, the first one and its distance.
struct Between {
  int index;
  float part;
};
MSL_INLINE Between between(const LevelPlace& place, int axis) {
  const float at = place.at[axis] - 0.5f;
  const float floor = __builtin_floorf(at);
  const float part = at - floor;
  // Beyond 2^23 every float is an integer; an infinite one has no part.
  return {integer(floor) + place.offset[axis], part >= 0.0f && part <= 1.0f ? part : 0.0f};
}

template <class V>
MSL_TEXTURE_FUNCTION Texel<V> nearest_texel(const LevelPlace& place) {
  int index[3];
  const int axes = axes_of(place.of->kind);
  for (int axis = 0; axis < axes; ++axis) {
    index[axis] = integer(__builtin_floorf(place.at[axis]));
    if (is_cube(place.of->kind)) {  // the far edge belongs to the face
      const int size = int(place.level->width);
      index[axis] = index[axis] < size ? index[axis] : size - 1;
    }
    index[axis] += place.offset[axis];
  }
  return texel_at<V>(place, index);
}

// How texels are compared before they are filtered, in depth textures. function: a value of
// metal::compare_func; none: they are not compared.
struct Comparison {
  metal::compare_func function;
  float reference;
};
MSL_INLINE float compared(const Comparison& comparison, float depth) {
  using F = metal::compare_func;
  const float reference = comparison.reference;
  switch (comparison.function) {
    case F::less:
      return reference < depth;
    case F::less_equal:
      return reference <= depth;
    case F::greater:
      return reference > depth;
    case F::greater_equal:
      return reference >= depth;
    case F::equal:
      return reference == depth;
    case F::not_equal:
      return reference != depth;
    case F::always:
      return 1.0f;
    default:
      return 0.0f;
  }
}

MSL_TEXTURE_FUNCTION Texel<float> linear_texel(const LevelPlace& place,
                                               const Comparison* comparison) {
  const int axes = axes_of(place.of->kind);
  Between on[3] = {};
  for (int axis = 0; axis < axes; ++axis) on[axis] = between(place, axis);
  Texel<float> sum = {};
  for (int corner = 0; corner < 1 << axes; ++corner) {
    int index[3];
    float weight = 1.0f;
    for (int axis = 0; axis < axes; ++axis) {
      const bool is_second = corner >> axis & 1;
      index[axis] = on[axis].index + is_second;
      weight *= is_second ? on[axis].part : 1.0f - on[axis].part;
    }
    if (weight == 0.0f) continue;  // a texel without weight has no part in the result, were it NaN
    Texel<float> texel = texel_at<float>(place, index);
    if (comparison != nullptr) texel.c[0] = compared(*comparison, texel.c[0]);
    for (int c = 0; c < 4; ++c) sum.c[c] += product(weight, texel.c[c]);
  }
  return sum;
}

// ---- levels -------------------------------------------------------------------------------------

// Returns the level of detail of derivatives: the logarithm of the longer one, in texels.
MSL_INLINE float level_of_derivatives(const abi::Texture& of, abi::u64 sampler,
                                      const SamplePlace& place, const SampleLevel& level) {
  const abi::TextureLevel& first = of.levels[0];
  const float sizes[3] = {float(first.width), float(first.height), float(first.depth)};
  float lengths[2];
  for (int direction = 0; direction < 2; ++direction) {
    const float* d = direction == 0 ? level.dx : level.dy;
    float steps[3] = {d[0] * sizes[0], d[1] * sizes[1], d[2] * sizes[2]};
    int axes = axes_of(of.kind);
    if (sampler_field(sampler, abi::kPixelCoordinates)) {
      for (int axis = 0; axis < axes; ++axis) steps[axis] = d[axis];
    }
    if (is_cube(of.kind)) {  // of the place on the face, by the quotient rule
      const float* at = place.at;
      const FacePlace face = face_of(at[0], at[1], at[2]);
      const int major = int(face.face >> 1);
      const float depth = __builtin_fabsf(at[major]);
      const float rate = at[major] < 0.0f ? -d[major] : d[major];
      int side = 0;
      for (int axis = 0; axis < 3; ++axis) {
        if (axis == major) continue;
        const float change = product(d[axis], depth) - product(at[axis], rate);
        steps[side++] = 0.5f * sizes[0] * change / (depth * depth);
      }
    }
    float sum = 0.0f;
    for (int axis = 0; axis < axes; ++axis) sum += product(steps[axis], steps[axis]);
    lengths[direction] = sum;
  }
  const float longer = lengths[0] > lengths[1] ? lengths[0] : lengths[1];
  return float(0.5 * __builtin_log2(double(longer)));  // rounded once, on every target
}

MSL_INLINE float level_of_detail(const abi::Texture& of, abi::u64 sampler, const SamplePlace& place,
                                 const SampleLevel& level) {
  float lod = level.has_derivatives ? level_of_derivatives(of, sampler, place, level) : level.level;
  lod = finite(lod);
  const float least = float(bit_cast<half>(ushort(sampler_field(sampler, abi::kMinLod))));
  const float most = float(bit_cast<half>(ushort(sampler_field(sampler, abi::kMaxLod))));
  lod = lod < least ? least : lod;
  lod = lod > most ? most : lod;
  return lod < level.least ? level.least : lod;
}

template <class V>
MSL_TEXTURE_FUNCTION Texel<V> sample_level(const abi::Texture& of, uint number, bool is_linear,
                                           abi::u64 sampler, const SamplePlace& place,
                                           const Comparison* comparison) {
  const LevelPlace found = on_level(of, number, sampler, place);
  if constexpr (same<V, float>) {
    if (is_linear) return linear_texel(found, comparison);
  }
  Texel<V> texel = nearest_texel<V>(found);
  if constexpr (same<V, float>) {
    if (comparison != nullptr) texel.c[0] = compared(*comparison, texel.c[0]);
  }
  return texel;
}

// Samples a texture. Integers are never filtered: a linear filter takes the nearest texel.
template <class V>
MSL_TEXTURE_FUNCTION Texel<V> sample_texture(const abi::Texture& of, abi::u64 sampler,
                                             const SamplePlace& place, const SampleLevel& level,
                                             const Comparison* comparison) {
  const float lod = level_of_detail(of, sampler, place, level);
  const bool is_linear =
      sampler_field(sampler, lod <= 0.0f ? abi::kMagFilter : abi::kMinFilter) != 0;
  const float last = float(of.level_count - 1);
  const float position = lod < 0.0f ? 0.0f : lod < last ? lod : last;
  const auto mode = metal::mip_filter(sampler_field(sampler, abi::kMipFilter));
  if (mode == metal::mip_filter::none) {
    return sample_level<V>(of, 0, is_linear, sampler, place, comparison);
  }
  if (mode == metal::mip_filter::nearest || !same<V, float>) {
    const uint nearest = uint(__builtin_floorf(position + 0.5f));
    return sample_level<V>(of, nearest, is_linear, sampler, place, comparison);
  }
  const uint finer = uint(position);
  const float part = position - float(finer);
  Texel<V> texel = sample_level<V>(of, finer, is_linear, sampler, place, comparison);
  if (part != 0.0f) {
    const Texel<V> coarser = sample_level<V>(of, finer + 1, is_linear, sampler, place, comparison);
    for (int c = 0; c < 4; ++c) {
      texel.c[c] = V(product(1.0f - part, float(texel.c[c])) + product(part, float(coarser.c[c])));
    }
  }
  return texel;
}

// Returns one component of the four texels that a linear filter would combine: counter-clockwise
// from the lower left one, where y points down.
template <class V>
MSL_TEXTURE_FUNCTION Texel<V> gather_texels(const abi::Texture& of, abi::u64 sampler,
                                            const SamplePlace& place, int component,
                                            const Comparison* comparison) {
  const LevelPlace found = on_level(of, 0, sampler, place);
  const int x = between(found, 0).index, y = between(found, 1).index;
  const int corners[4][2] = {{x, y + 1}, {x + 1, y + 1}, {x + 1, y}, {x, y}};
  Texel<V> gathered;
  for (int i = 0; i < 4; ++i) {
    gathered.c[i] = texel_at<V>(found, corners[i]).c[component];
    if constexpr (same<V, float>) {
      if (comparison != nullptr) gathered.c[i] = compared(*comparison, gathered.c[i]);
    }
  }
  return gathered;
}

}  // namespace msl::msl_impl
