// Textures: the types of Metal, whose objects are handles of 8 bytes. Included only by programs
// that mention these types.
//
// Reads beyond a texture give zero and writes beyond it do nothing, as on Apple GPUs, where Metal
// leaves both undefined; a sanitizer reports them.
#pragma once

#include <msl/atomic.h>
#include <msl/metal.h>
#include <msl/texture_checks.h>
#include <msl/texture_sampling.h>

namespace msl::metal {

enum class access { sample, read, write, read_write };
enum memory_coherence { memory_coherence_threadgroup, memory_coherence_device };
enum class component { x, y, z, w };

struct gradient2d {
  float2 x, y;
  MSL_INLINE constexpr gradient2d(float2 dx, float2 dy) : x(dx), y(dy) {}
};
struct gradient3d {
  float3 x, y;
  MSL_INLINE constexpr gradient3d(float3 dx, float3 dy) : x(dx), y(dy) {}
};
struct gradientcube {
  float3 x, y;
  MSL_INLINE constexpr gradientcube(float3 dx, float3 dy) : x(dx), y(dy) {}
};

}  // namespace msl::metal

namespace msl::msl_impl {

using abi::TextureKind;
using metal::access;
using metal::vec;

// The types of coordinates: to sample at, to read at, and of offsets. Types that a kind of texture
// lacks are ones that no program can name; one coordinate of 16 bits becomes a uint implicitly.
struct NoOffset {};
struct NoShortTexel {};
template <TextureKind K>
struct TextureCoordinates {
  using Sample = vec<float, 2>;
  using Texel = vec<uint, 2>;
  using ShortTexel = vec<ushort, 2>;
  using Offset = vec<int, 2>;
};
struct CoordinatesOfLine {
  using Sample = float;
  using Texel = uint;
  using ShortTexel = NoShortTexel;
  using Offset = NoOffset;
};
template <>
struct TextureCoordinates<TextureKind::k1d> : CoordinatesOfLine {};
template <>
struct TextureCoordinates<TextureKind::k1dArray> : CoordinatesOfLine {};
template <>
struct TextureCoordinates<TextureKind::kBuffer> : CoordinatesOfLine {};
template <>
struct TextureCoordinates<TextureKind::k3d> {
  using Sample = vec<float, 3>;
  using Texel = vec<uint, 3>;
  using ShortTexel = vec<ushort, 3>;
  using Offset = vec<int, 3>;
};
struct CoordinatesOfCube {
  using Sample = vec<float, 3>;
  using Texel = vec<uint, 2>;
  using ShortTexel = vec<ushort, 2>;
  using Offset = NoOffset;
};
template <>
struct TextureCoordinates<TextureKind::kCube> : CoordinatesOfCube {};
template <>
struct TextureCoordinates<TextureKind::kCubeArray> : CoordinatesOfCube {};

// The dimensions and operations of each kind of texture.
constexpr bool has_elements(TextureKind k) {
  return k == TextureKind::k1dArray || k == TextureKind::k2dArray || k == TextureKind::kCubeArray;
}
constexpr bool has_levels(TextureKind k) { return k != TextureKind::kBuffer; }
constexpr bool has_height(TextureKind k) {
  return k != TextureKind::k1d && k != TextureKind::k1dArray && k != TextureKind::kBuffer;
}
constexpr bool is_gathered(TextureKind k) { return has_height(k) && k != TextureKind::k3d; }
template <TextureKind K, class T, access A, bool IsArray>
using if_atomic = metal::enable_if_t<!is_cube(K) && has_elements(K) == IsArray &&
                                     A == access::read_write && (same<T, int> || same<T, uint>)>;

// Options of the level of detail, for the kinds of texture that take them.
MSL_INLINE void set_derivatives(SampleLevel& level, vec<float, 2> dx, vec<float, 2> dy) {
  level.has_derivatives = true;
  level.dx[0] = dx.x;
  level.dx[1] = dx.y;
  level.dy[0] = dy.x;
  level.dy[1] = dy.y;
}
MSL_INLINE void set_derivatives(SampleLevel& level, vec<float, 3> dx, vec<float, 3> dy) {
  level.has_derivatives = true;
  level.dx[0] = dx.x;
  level.dx[1] = dx.y;
  level.dx[2] = dx.z;
  level.dy[0] = dy.x;
  level.dy[1] = dy.y;
  level.dy[2] = dy.z;
}
template <TextureKind K>
struct LevelOptions {
  static MSL_INLINE void set(SampleLevel& l, metal::level o) { l.level = o.value; }
  static MSL_INLINE void set(SampleLevel& l, metal::bias o) { l.level = o.value; }
  static MSL_INLINE void set(SampleLevel& l, metal::min_lod_clamp o) { l.least = o.value; }
  template <TextureKind J = K,
            class = metal::enable_if_t<J == TextureKind::k2d || J == TextureKind::k2dArray>>
  static MSL_INLINE void set(SampleLevel& l, metal::gradient2d o) {
    set_derivatives(l, o.x, o.y);
  }
  template <TextureKind J = K, class = metal::enable_if_t<J == TextureKind::k3d>, class = void>
  static MSL_INLINE void set(SampleLevel& l, metal::gradient3d o) {
    set_derivatives(l, o.x, o.y);
  }
  template <TextureKind J = K, class = metal::enable_if_t<is_cube(J)>, class = void, class = void>
  static MSL_INLINE void set(SampleLevel& l, metal::gradientcube o) {
    set_derivatives(l, o.x, o.y);
  }
};
template <TextureKind K, class... Option>
using if_options =
    metal::enable_if_t<has_height(K),
                       decltype((LevelOptions<K>::set(*(SampleLevel*)0, *(Option*)0), ..., 0))>;

template <class T>
constexpr bool is_texture_component =
    same<T, half> || same<T, float> || same<T, short> || same<T, ushort> || same<T, int> ||
    same<T, uint> || same<T, long> || same<T, ulong>;
// Another type is an error of its own; others would follow from it.
template <class T>
using TextureComponentOr = metal::conditional_t<is_texture_component<T>, T, float>;
template <class T>
constexpr abi::TextureComponent texture_component() {
  if constexpr (is_integer_scalar<T>) {
    return T(-1) < T(0) ? abi::TextureComponent::kInt : abi::TextureComponent::kUint;
  } else {
    return abi::TextureComponent::kFloat;
  }
}
template <class T>
using Stored = metal::conditional_t<is_integer_scalar<T>, uint, float>;

template <class T, class V>
MSL_INLINE vec<T, 4> components(const Texel<V>& t) {
  return vec<T, 4>(T(t.c[0]), T(t.c[1]), T(t.c[2]), T(t.c[3]));
}
template <class T>
MSL_INLINE Texel<Stored<T>> texel_of(const vec<T, 4>& v) {
  using V = Stored<T>;
  return {{V(v.x), V(v.y), V(v.z), V(v.w)}};
}

struct ReadPlace {
  uint at[3];
  uint element, face;
};

// Write a coordinate or an offset of one to three dimensions.
template <class T>
MSL_INLINE void set_components(T (&to)[3], T x) {
  to[0] = x;
}
template <class T>
MSL_INLINE void set_components(T (&to)[3], vec<T, 2> v) {
  to[0] = v.x;
  to[1] = v.y;
}
template <class T>
MSL_INLINE void set_components(T (&to)[3], vec<T, 3> v) {
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
}
MSL_INLINE void set_components(int (&)[3], NoOffset) {}

// Returns the level and the slice that hold a texel, or null for a texel that does not exist.
struct FoundTexel {
  const abi::TextureLevel* level;
  uint slice;
};
MSL_INLINE FoundTexel find_texel(const abi::Texture& of, const ReadPlace& place, uint level) {
  check_level(of, level);
  if (level >= of.level_count) return {nullptr, 0};
  const abi::TextureLevel& found = of.levels[level];
  const uint slice = is_cube(of.kind) ? place.element * 6 + place.face : place.element;
  const bool exists = place.at[0] < found.width && place.at[1] < found.height &&
                      place.at[2] < found.depth && slice < of.layers && place.face < 6;
  if (!exists) {
    report_texel_outside(of, place.at, slice);
    return {nullptr, 0};
  }
  return {&found, slice + place.at[2]};
}

namespace bases {

// The operations of all textures, for the types below to offer where they apply.
template <TextureKind K, class T, access A, bool IsDepth>
struct TextureHandle {
  static constexpr TextureKind msl_kind = K;
  static constexpr access msl_access = A;
  static constexpr bool msl_is_depth = IsDepth;
  using Component = T;
  using V = Stored<T>;
  using Value = metal::conditional_t<IsDepth, T, vec<T, 4>>;
  using Sample = typename TextureCoordinates<K>::Sample;
  using TexelAt = typename TextureCoordinates<K>::Texel;
  using ShortTexelAt = typename TextureCoordinates<K>::ShortTexel;
  using Offset = typename TextureCoordinates<K>::Offset;

  const abi::Texture* msl_texture;

 protected:
  static MSL_INLINE Value value(const Texel<V>& texel) {
    if constexpr (IsDepth) {
      return T(texel.c[0]);
    } else {
      return components<T>(texel);
    }
  }
  template <class... Option>
  static MSL_INLINE SampleLevel level_of(Option... option) {
    SampleLevel level = {};
    (LevelOptions<K>::set(level, option), ...);
    return level;
  }
  static MSL_INLINE SamplePlace place_of(Sample at, uint element, Offset offset) {
    SamplePlace place = {};
    set_components(place.at, at);
    place.element = element;
    set_components(place.offset, offset);
    return place;
  }
  MSL_INLINE Value sampled(metal::sampler s, const SamplePlace& place,
                           const SampleLevel& level) const {
    check_filter<T>(s.msl_bits);
    return value(sample_texture<V>(*msl_texture, s.msl_bits, place, level, nullptr));
  }
  MSL_INLINE Comparison comparison(metal::sampler s, float reference) const {
    const bool is_clamped = msl_texture->format.encoding == abi::TexelEncoding::kUnorm16;
    if (is_clamped) reference = reference > 0.0f ? (reference < 1.0f ? reference : 1.0f) : 0.0f;
    return {metal::compare_func(sampler_field(s.msl_bits, abi::kCompare)), reference};
  }
  MSL_INLINE Value sampled_compared(metal::sampler s, const SamplePlace& place, float reference,
                                    const SampleLevel& level) const {
    const Comparison compared = comparison(s, reference);
    return value(sample_texture<V>(*msl_texture, s.msl_bits, place, level, &compared));
  }
  MSL_INLINE vec<T, 4> gathered(metal::sampler s, const SamplePlace& place,
                                metal::component c) const {
    return components<T>(gather_texels<V>(*msl_texture, s.msl_bits, place, int(c), nullptr));
  }
  MSL_INLINE vec<T, 4> gathered_compared(metal::sampler s, const SamplePlace& place,
                                         float reference) const {
    const Comparison compared = comparison(s, reference);
    return components<T>(gather_texels<V>(*msl_texture, s.msl_bits, place, 0, &compared));
  }
  static MSL_INLINE ReadPlace texel_place(TexelAt at, uint element, uint face) {
    ReadPlace place = {};
    set_components(place.at, at);
    place.element = element;
    place.face = face;
    return place;
  }
  MSL_INLINE Value read_at(const ReadPlace& place, uint level) const {
    const FoundTexel found = find_texel(*msl_texture, place, level);
    if (found.level == nullptr) return Value(T(0));
    return value(load_texel<V>(*msl_texture, *found.level, place.at[0], place.at[1], found.slice));
  }
  MSL_INLINE void write_at(const vec<T, 4>& color, const ReadPlace& place, uint level) const {
    const FoundTexel found = find_texel(*msl_texture, place, level);
    if (found.level == nullptr) return;
    store_texel<V>(*msl_texture, *found.level, place.at[0], place.at[1], found.slice,
                   texel_of<T>(color));
  }
  // Returns the word of a texel for an atomic operation, or null for one that has no such word.
  MSL_INLINE void* word_at(const ReadPlace& place) const {
    const auto encoding = msl_texture->format.encoding;
    if (encoding != abi::TexelEncoding::kUint32 && encoding != abi::TexelEncoding::kSint32) {
      return nullptr;
    }
    const FoundTexel found = find_texel(*msl_texture, place, 0);
    if (found.level == nullptr) return nullptr;
    return texel_address(*msl_texture, *found.level, place.at[0], place.at[1], found.slice);
  }
  MSL_INLINE uint size_of(uint abi::TextureLevel::* size, uint level) const {
    check_level(*msl_texture, level);
    const uint last = msl_texture->level_count - 1;
    return msl_texture->levels[level < last ? level : last].*size;
  }
};

// Operations that depend on the access of a texture are templates, so that a program that uses one
// without the access is an error at its call.
#define MSL_IF_SAMPLED template <access B = A, class = metal::enable_if_t<B == access::sample>>
#define MSL_IF_GATHERED                      \
  template <TextureKind J = K, access B = A, \
            class = metal::enable_if_t<B == access::sample && is_gathered(J)>>
#define MSL_IF_COMPARED \
  template <bool D = IsDepth, access B = A, class = metal::enable_if_t<B == access::sample && D>>
#define MSL_IF_READ template <access B = A, class = metal::enable_if_t<B != access::write>>
#define MSL_IF_WRITTEN \
  template <access B = A, class = metal::enable_if_t<B == access::write || B == access::read_write>>

template <TextureKind K, class T, access A, bool IsDepth>
struct TextureQueries : TextureHandle<K, T, A, IsDepth> {
  MSL_INLINE uint get_width() const { return this->size_of(&abi::TextureLevel::width, 0); }
  template <TextureKind J = K, class = metal::enable_if_t<has_levels(J)>>
  MSL_INLINE uint get_width(uint lod) const {
    return this->size_of(&abi::TextureLevel::width, lod);
  }
  template <TextureKind J = K, class = metal::enable_if_t<has_height(J)>>
  MSL_INLINE uint get_height(uint lod = 0) const {
    return this->size_of(&abi::TextureLevel::height, lod);
  }
  template <TextureKind J = K, class = metal::enable_if_t<J == TextureKind::k3d>>
  MSL_INLINE uint get_depth(uint lod = 0) const {
    return this->size_of(&abi::TextureLevel::depth, lod);
  }
  template <TextureKind J = K, class = metal::enable_if_t<has_elements(J)>>
  MSL_INLINE uint get_array_size() const {
    return is_cube(K) ? this->msl_texture->layers / 6 : this->msl_texture->layers;
  }
  template <TextureKind J = K, class = metal::enable_if_t<has_levels(J)>>
  MSL_INLINE uint get_num_mip_levels() const {
    return this->msl_texture->level_count;
  }
  template <access B = A, class = metal::enable_if_t<B == access::read_write>>
  MSL_INLINE void fence() const {}  // a thread always sees its own writes
};

// Textures without array elements: 1d, 2d, 3d, cubes and buffers.
template <TextureKind K, class T, access A, bool IsDepth, bool IsArray = has_elements(K),
          bool IsCube = is_cube(K)>
struct TextureAccess : TextureQueries<K, T, A, IsDepth> {
  using Base = TextureHandle<K, T, A, IsDepth>;
  using typename Base::Offset;
  using typename Base::Sample;
  using typename Base::ShortTexelAt;
  using typename Base::TexelAt;
  using typename Base::Value;

  template <access B = A, class = metal::enable_if_t<B == access::sample && has_levels(K)>>
  MSL_INLINE Value sample(metal::sampler s, Sample at, Offset offset = Offset()) const {
    return this->sampled(s, this->place_of(at, 0, offset), {});
  }
  template <class O, access B = A, class = metal::enable_if_t<B == access::sample>,
            class = if_options<K, O>>
  MSL_INLINE Value sample(metal::sampler s, Sample at, O option, Offset offset = Offset()) const {
    return this->sampled(s, this->place_of(at, 0, offset), this->level_of(option));
  }
  template <class O, access B = A, class = metal::enable_if_t<B == access::sample>,
            class = if_options<K, O>>
  MSL_INLINE Value sample(metal::sampler s, Sample at, O option, metal::min_lod_clamp least,
                          Offset offset = Offset()) const {
    return this->sampled(s, this->place_of(at, 0, offset), this->level_of(option, least));
  }
  MSL_IF_COMPARED
  MSL_INLINE Value sample_compare(metal::sampler s, Sample at, float reference,
                                  Offset offset = Offset()) const {
    return this->sampled_compared(s, this->place_of(at, 0, offset), reference, {});
  }
  template <class O, bool D = IsDepth, access B = A,
            class = metal::enable_if_t<B == access::sample && D>, class = if_options<K, O>>
  MSL_INLINE Value sample_compare(metal::sampler s, Sample at, float reference, O option,
                                  Offset offset = Offset()) const {
    return this->sampled_compared(s, this->place_of(at, 0, offset), reference,
                                  this->level_of(option));
  }
  template <class O, bool D = IsDepth, access B = A,
            class = metal::enable_if_t<B == access::sample && D>, class = if_options<K, O>>
  MSL_INLINE Value sample_compare(metal::sampler s, Sample at, float reference, O option,
                                  metal::min_lod_clamp least, Offset offset = Offset()) const {
    return this->sampled_compared(s, this->place_of(at, 0, offset), reference,
                                  this->level_of(option, least));
  }
  MSL_IF_GATHERED
  MSL_INLINE vec<T, 4> gather(metal::sampler s, Sample at, Offset offset = Offset(),
                              metal::component c = metal::component::x) const {
    return this->gathered(s, this->place_of(at, 0, offset), c);
  }
  MSL_IF_COMPARED
  MSL_INLINE vec<T, 4> gather_compare(metal::sampler s, Sample at, float reference,
                                      Offset offset = Offset()) const {
    return this->gathered_compared(s, this->place_of(at, 0, offset), reference);
  }
  MSL_IF_READ
  MSL_INLINE Value read(TexelAt at, uint lod = 0) const {
    return this->read_at(this->texel_place(at, 0, 0), lod);
  }
  MSL_IF_READ
  MSL_INLINE Value read(ShortTexelAt at, ushort lod = 0) const {
    return this->read_at(this->texel_place(TexelAt(at), 0, 0), lod);
  }
  MSL_IF_WRITTEN
  MSL_INLINE void write(vec<T, 4> color, TexelAt at, uint lod = 0) const {
    this->write_at(color, this->texel_place(at, 0, 0), lod);
  }
  MSL_IF_WRITTEN
  MSL_INLINE void write(vec<T, 4> color, ShortTexelAt at, ushort lod = 0) const {
    this->write_at(color, this->texel_place(TexelAt(at), 0, 0), lod);
  }
};

// Arrays of 1d and 2d textures.
template <TextureKind K, class T, access A, bool IsDepth>
struct TextureAccess<K, T, A, IsDepth, true, false> : TextureQueries<K, T, A, IsDepth> {
  using Base = TextureHandle<K, T, A, IsDepth>;
  using typename Base::Offset;
  using typename Base::Sample;
  using typename Base::ShortTexelAt;
  using typename Base::TexelAt;
  using typename Base::Value;

  MSL_IF_SAMPLED
  MSL_INLINE Value sample(metal::sampler s, Sample at, uint element,
                          Offset offset = Offset()) const {
    return this->sampled(s, this->place_of(at, element, offset), {});
  }
  template <class O, access B = A, class = metal::enable_if_t<B == access::sample>,
            class = if_options<K, O>>
  MSL_INLINE Value sample(metal::sampler s, Sample at, uint element, O option,
                          Offset offset = Offset()) const {
    return this->sampled(s, this->place_of(at, element, offset), this->level_of(option));
  }
  template <class O, access B = A, class = metal::enable_if_t<B == access::sample>,
            class = if_options<K, O>>
  MSL_INLINE Value sample(metal::sampler s, Sample at, uint element, O option,
                          metal::min_lod_clamp least, Offset offset = Offset()) const {
    return this->sampled(s, this->place_of(at, element, offset), this->level_of(option, least));
  }
  MSL_IF_COMPARED
  MSL_INLINE Value sample_compare(metal::sampler s, Sample at, uint element, float reference,
                                  Offset offset = Offset()) const {
    return this->sampled_compared(s, this->place_of(at, element, offset), reference, {});
  }
  template <class O, bool D = IsDepth, access B = A,
            class = metal::enable_if_t<B == access::sample && D>, class = if_options<K, O>>
  MSL_INLINE Value sample_compare(metal::sampler s, Sample at, uint element, float reference,
                                  O option, Offset offset = Offset()) const {
    return this->sampled_compared(s, this->place_of(at, element, offset), reference,
                                  this->level_of(option));
  }
  MSL_IF_GATHERED
  MSL_INLINE vec<T, 4> gather(metal::sampler s, Sample at, uint element, Offset offset = Offset(),
                              metal::component c = metal::component::x) const {
    return this->gathered(s, this->place_of(at, element, offset), c);
  }
  MSL_IF_COMPARED
  MSL_INLINE vec<T, 4> gather_compare(metal::sampler s, Sample at, uint element, float reference,
                                      Offset offset = Offset()) const {
    return this->gathered_compared(s, this->place_of(at, element, offset), reference);
  }
  MSL_IF_READ
  MSL_INLINE Value read(TexelAt at, uint element, uint lod = 0) const {
    return this->read_at(this->texel_place(at, element, 0), lod);
  }
  MSL_IF_READ
  MSL_INLINE Value read(ShortTexelAt at, ushort element, ushort lod = 0) const {
    return this->read_at(this->texel_place(TexelAt(at), element, 0), lod);
  }
  MSL_IF_WRITTEN
  MSL_INLINE void write(vec<T, 4> color, TexelAt at, uint element, uint lod = 0) const {
    this->write_at(color, this->texel_place(at, element, 0), lod);
  }
  MSL_IF_WRITTEN
  MSL_INLINE void write(vec<T, 4> color, ShortTexelAt at, ushort element, ushort lod = 0) const {
    this->write_at(color, this->texel_place(TexelAt(at), element, 0), lod);
  }
};

// Cubes.
template <TextureKind K, class T, access A, bool IsDepth>
struct TextureAccess<K, T, A, IsDepth, false, true> : TextureQueries<K, T, A, IsDepth> {
  using Base = TextureHandle<K, T, A, IsDepth>;
  using typename Base::Sample;
  using typename Base::ShortTexelAt;
  using typename Base::TexelAt;
  using typename Base::Value;

  MSL_IF_SAMPLED
  MSL_INLINE Value sample(metal::sampler s, Sample at) const {
    return this->sampled(s, this->place_of(at, 0, {}), {});
  }
  template <class... O, access B = A, class = metal::enable_if_t<B == access::sample>,
            class = if_options<K, O...>>
  MSL_INLINE Value sample(metal::sampler s, Sample at, O... options) const {
    return this->sampled(s, this->place_of(at, 0, {}), this->level_of(options...));
  }
  template <class... O, bool D = IsDepth, access B = A,
            class = metal::enable_if_t<B == access::sample && D>, class = if_options<K, O...>>
  MSL_INLINE Value sample_compare(metal::sampler s, Sample at, float reference,
                                  O... options) const {
    return this->sampled_compared(s, this->place_of(at, 0, {}), reference,
                                  this->level_of(options...));
  }
  MSL_IF_GATHERED
  MSL_INLINE vec<T, 4> gather(metal::sampler s, Sample at,
                              metal::component c = metal::component::x) const {
    return this->gathered(s, this->place_of(at, 0, {}), c);
  }
  MSL_IF_COMPARED
  MSL_INLINE vec<T, 4> gather_compare(metal::sampler s, Sample at, float reference) const {
    return this->gathered_compared(s, this->place_of(at, 0, {}), reference);
  }
  MSL_IF_READ
  MSL_INLINE Value read(TexelAt at, uint face, uint lod = 0) const {
    return this->read_at(this->texel_place(at, 0, face), lod);
  }
  MSL_IF_READ
  MSL_INLINE Value read(ShortTexelAt at, ushort face, ushort lod = 0) const {
    return this->read_at(this->texel_place(TexelAt(at), 0, face), lod);
  }
  MSL_IF_WRITTEN
  MSL_INLINE void write(vec<T, 4> color, TexelAt at, uint face, uint lod = 0) const {
    this->write_at(color, this->texel_place(at, 0, face), lod);
  }
  MSL_IF_WRITTEN
  MSL_INLINE void write(vec<T, 4> color, ShortTexelAt at, ushort face, ushort lod = 0) const {
    this->write_at(color, this->texel_place(TexelAt(at), 0, face), lod);
  }
};

// Arrays of cubes.
template <TextureKind K, class T, access A, bool IsDepth>
struct TextureAccess<K, T, A, IsDepth, true, true> : TextureQueries<K, T, A, IsDepth> {
  using Base = TextureHandle<K, T, A, IsDepth>;
  using typename Base::Sample;
  using typename Base::ShortTexelAt;
  using typename Base::TexelAt;
  using typename Base::Value;

  MSL_IF_SAMPLED
  MSL_INLINE Value sample(metal::sampler s, Sample at, uint element) const {
    return this->sampled(s, this->place_of(at, element, {}), {});
  }
  template <class... O, access B = A, class = metal::enable_if_t<B == access::sample>,
            class = if_options<K, O...>>
  MSL_INLINE Value sample(metal::sampler s, Sample at, uint element, O... options) const {
    return this->sampled(s, this->place_of(at, element, {}), this->level_of(options...));
  }
  template <class... O, bool D = IsDepth, access B = A,
            class = metal::enable_if_t<B == access::sample && D>, class = if_options<K, O...>>
  MSL_INLINE Value sample_compare(metal::sampler s, Sample at, uint element, float reference,
                                  O... options) const {
    return this->sampled_compared(s, this->place_of(at, element, {}), reference,
                                  this->level_of(options...));
  }
  MSL_IF_GATHERED
  MSL_INLINE vec<T, 4> gather(metal::sampler s, Sample at, uint element,
                              metal::component c = metal::component::x) const {
    return this->gathered(s, this->place_of(at, element, {}), c);
  }
  MSL_IF_COMPARED
  MSL_INLINE vec<T, 4> gather_compare(metal::sampler s, Sample at, uint element,
                                      float reference) const {
    return this->gathered_compared(s, this->place_of(at, element, {}), reference);
  }
  MSL_IF_READ
  MSL_INLINE Value read(TexelAt at, uint face, uint element, uint lod = 0) const {
    return this->read_at(this->texel_place(at, element, face), lod);
  }
  MSL_IF_READ
  MSL_INLINE Value read(ShortTexelAt at, ushort face, ushort element, ushort lod = 0) const {
    return this->read_at(this->texel_place(TexelAt(at), element, face), lod);
  }
  MSL_IF_WRITTEN
  MSL_INLINE void write(vec<T, 4> color, TexelAt at, uint face, uint element, uint lod = 0) const {
    this->write_at(color, this->texel_place(at, element, face), lod);
  }
  MSL_IF_WRITTEN
  MSL_INLINE void write(vec<T, 4> color, ShortTexelAt at, ushort face, ushort element,
                        ushort lod = 0) const {
    this->write_at(color, this->texel_place(TexelAt(at), element, face), lod);
  }
};

#undef MSL_IF_SAMPLED
#undef MSL_IF_GATHERED
#undef MSL_IF_COMPARED
#undef MSL_IF_READ
#undef MSL_IF_WRITTEN

// Atomic operations (Metal 3.1) on textures of 32-bit integers with access::read_write: on the
// first component of formats with one of 32 bits.
template <TextureKind K, class T, access A>
struct TextureAtomics : TextureAccess<K, T, A, false> {
  using Handle = TextureHandle<K, T, A, false>;
  using typename Handle::TexelAt;

  template <TextureKind J = K, class = if_atomic<J, T, A, false>>
  MSL_INLINE vec<T, 4> atomic_load(TexelAt at) const {
    return load_at(at, 0);
  }
  template <TextureKind J = K, class = if_atomic<J, T, A, true>>
  MSL_INLINE vec<T, 4> atomic_load(TexelAt at, uint element) const {
    return load_at(at, element);
  }
  template <TextureKind J = K, class = if_atomic<J, T, A, false>>
  MSL_INLINE void atomic_store(vec<T, 4> color, TexelAt at) const {
    store_at(color, at, 0);
  }
  template <TextureKind J = K, class = if_atomic<J, T, A, true>>
  MSL_INLINE void atomic_store(vec<T, 4> color, TexelAt at, uint element) const {
    store_at(color, at, element);
  }
  template <TextureKind J = K, class = if_atomic<J, T, A, false>>
  MSL_INLINE bool atomic_compare_exchange_weak(TexelAt at, vec<T, 4>* expected,
                                               vec<T, 4> desired) const {
    return exchange_at(at, 0, expected, desired);
  }
  template <TextureKind J = K, class = if_atomic<J, T, A, true>>
  MSL_INLINE bool atomic_compare_exchange_weak(TexelAt at, uint element, vec<T, 4>* expected,
                                               vec<T, 4> desired) const {
    return exchange_at(at, element, expected, desired);
  }
#define MSL_TEXTURE_ATOMIC(NAME)                                                                   \
  template <TextureKind J = K, class = if_atomic<J, T, A, false>>                                  \
  MSL_INLINE vec<T, 4> NAME(TexelAt at, vec<T, 4> operand) const {                                 \
    const auto word = word_of(at, 0);                                                              \
    return first(word ? metal::NAME##_explicit(word, operand.x, metal::memory_order_relaxed) : 0); \
  }                                                                                                \
  template <TextureKind J = K, class = if_atomic<J, T, A, true>>                                   \
  MSL_INLINE vec<T, 4> NAME(TexelAt at, uint element, vec<T, 4> operand) const {                   \
    const auto word = word_of(at, element);                                                        \
    return first(word ? metal::NAME##_explicit(word, operand.x, metal::memory_order_relaxed) : 0); \
  }
  MSL_TEXTURE_ATOMIC(atomic_exchange)
  MSL_TEXTURE_ATOMIC(atomic_fetch_add)
  MSL_TEXTURE_ATOMIC(atomic_fetch_sub)
  MSL_TEXTURE_ATOMIC(atomic_fetch_and)
  MSL_TEXTURE_ATOMIC(atomic_fetch_or)
  MSL_TEXTURE_ATOMIC(atomic_fetch_xor)
  MSL_TEXTURE_ATOMIC(atomic_fetch_min)
  MSL_TEXTURE_ATOMIC(atomic_fetch_max)
#undef MSL_TEXTURE_ATOMIC

 private:
  static MSL_INLINE vec<T, 4> first(T value) { return vec<T, 4>(value, T(0), T(0), T(1)); }
  MSL_INLINE metal::atomic<T>* word_of(TexelAt at, uint element) const {
    return static_cast<metal::atomic<T>*>(this->word_at(this->texel_place(at, element, 0)));
  }
  MSL_INLINE vec<T, 4> load_at(TexelAt at, uint element) const {
    const auto word = word_of(at, element);
    return first(word ? metal::atomic_load_explicit(word, metal::memory_order_relaxed) : 0);
  }
  MSL_INLINE void store_at(vec<T, 4> color, TexelAt at, uint element) const {
    const auto word = word_of(at, element);
    if (word) metal::atomic_store_explicit(word, color.x, metal::memory_order_relaxed);
  }
  MSL_INLINE bool exchange_at(TexelAt at, uint element, vec<T, 4>* expected,
                              vec<T, 4> desired) const {
    const auto word = word_of(at, element);
    if (!word) return false;
    T seen = expected->x;
    const bool done = metal::atomic_compare_exchange_weak_explicit(
        word, &seen, desired.x, metal::memory_order_relaxed, metal::memory_order_relaxed);
    if (!done) *expected = first(seen);
    return done;
  }
};

// There are no multisampled textures: kernels that take one are left out of the library. Functions
// may name the members, and nothing calls them.
template <class Texel>
struct Multisampled {
  MSL_INLINE uint get_width() const { return 0; }
  MSL_INLINE uint get_height() const { return 0; }
  MSL_INLINE uint get_num_samples() const { return 0; }
  MSL_INLINE Texel read(uint2, uint) const { return {}; }
  MSL_INLINE Texel read(ushort2, ushort) const { return {}; }
};
template <class Texel>
struct MultisampledArray {
  MSL_INLINE uint get_width() const { return 0; }
  MSL_INLINE uint get_height() const { return 0; }
  MSL_INLINE uint get_array_size() const { return 0; }
  MSL_INLINE uint get_num_samples() const { return 0; }
  MSL_INLINE Texel read(uint2, uint, uint) const { return {}; }
  MSL_INLINE Texel read(ushort2, ushort, ushort) const { return {}; }
};

}  // namespace bases
}  // namespace msl::msl_impl

namespace msl::metal {

#define MSL_TEXTURE(NAME, KIND)                                                                    \
  template <class T, access A = access::sample, memory_coherence C = memory_coherence_threadgroup> \
  struct NAME : msl_impl::bases::TextureAtomics<abi::TextureKind::KIND,                            \
                                                msl_impl::TextureComponentOr<T>, A> {              \
    static_assert(msl_impl::is_texture_component<T>,                                               \
                  "the components of a texture are half, float, short, ushort, int, uint, long "   \
                  "or ulong");                                                                     \
  };
#define MSL_DEPTH_TEXTURE(NAME, KIND)                                                              \
  template <class T, access A = access::sample, memory_coherence C = memory_coherence_threadgroup> \
  struct NAME : msl_impl::bases::TextureAccess<abi::TextureKind::KIND, T, A, true> {               \
    static_assert(msl_impl::same<T, float>, "the components of a depth texture are float");        \
    static_assert(A == access::sample || A == access::read,                                        \
                  "the access of a depth texture is sample or read");                              \
  };
MSL_TEXTURE(texture1d, k1d)
MSL_TEXTURE(texture1d_array, k1dArray)
MSL_TEXTURE(texture2d, k2d)
MSL_TEXTURE(texture2d_array, k2dArray)
MSL_TEXTURE(texture3d, k3d)
MSL_TEXTURE(texturecube, kCube)
MSL_TEXTURE(texturecube_array, kCubeArray)
MSL_DEPTH_TEXTURE(depth2d, k2d)
MSL_DEPTH_TEXTURE(depth2d_array, k2dArray)
MSL_DEPTH_TEXTURE(depthcube, kCube)
MSL_DEPTH_TEXTURE(depthcube_array, kCubeArray)
#undef MSL_TEXTURE
#undef MSL_DEPTH_TEXTURE
template <class T, access A = access::read, memory_coherence C = memory_coherence_threadgroup>
struct texture2d_ms : msl_impl::bases::Multisampled<vec<T, 4>> {};
template <class T, access A = access::read, memory_coherence C = memory_coherence_threadgroup>
struct texture2d_ms_array : msl_impl::bases::MultisampledArray<vec<T, 4>> {};
template <class T, access A = access::read, memory_coherence C = memory_coherence_threadgroup>
struct depth2d_ms : msl_impl::bases::Multisampled<T> {};
template <class T, access A = access::read, memory_coherence C = memory_coherence_threadgroup>
struct depth2d_ms_array : msl_impl::bases::MultisampledArray<T> {};
template <class T, access A = access::read, memory_coherence C = memory_coherence_threadgroup>
struct texture_buffer : msl_impl::bases::TextureAtomics<abi::TextureKind::kBuffer,
                                                        msl_impl::TextureComponentOr<T>, A> {
  static_assert(msl_impl::is_texture_component<T>,
                "the components of a texture are half, float, short, ushort, int, uint, long or "
                "ulong");
  static_assert(A != access::sample, "a texture buffer cannot be sampled");
};

// A texture that a function constant switches off is null.
template <abi::TextureKind K, class T, access A, bool IsDepth>
MSL_INLINE bool is_null_texture(const msl_impl::bases::TextureHandle<K, T, A, IsDepth>& texture) {
  return texture.msl_texture == nullptr || texture.msl_texture->is_null != 0;
}

}  // namespace msl::metal
