// Texture and sampler types, so that functions that take them can be compiled. There are no
// textures on this device: kernels with texture parameters are left out of the library, so nothing
// here is ever called, and every read gives zero. Included only by programs that mention these
// types.
#pragma once

#include <msl/metal.h>

namespace msl::metal {

enum class access { sample, read, write, read_write };
enum memory_coherence { memory_coherence_threadgroup, memory_coherence_device };
enum class coord { normalized, pixel };
enum class address { clamp_to_edge, clamp_to_zero, clamp_to_border, repeat, mirrored_repeat };
enum class filter { nearest, linear, bicubic };
typedef filter mag_filter;
typedef filter min_filter;
enum class mip_filter { none, nearest, linear };
enum class compare_func {
  never,
  less,
  less_equal,
  greater,
  greater_equal,
  equal,
  not_equal,
  always,
  none
};
enum class border_color { transparent_black, opaque_black, opaque_white };
enum class s_address { clamp_to_edge, clamp_to_zero, clamp_to_border, repeat, mirrored_repeat };
typedef s_address t_address;
typedef s_address r_address;
enum class component { x, y, z, w };
struct max_anisotropy {
  explicit constexpr max_anisotropy(int) {}
};
struct lod_clamp {
  constexpr lod_clamp(float, float) {}
};

struct sampler {
  template <class... Option>
  constexpr explicit sampler(Option...) {}
};
struct level {
  explicit constexpr level(float) {}
};
struct bias {
  explicit constexpr bias(float) {}
};
struct min_lod_clamp {
  explicit constexpr min_lod_clamp(float) {}
};
struct gradient2d {
  constexpr gradient2d(float2, float2) {}
};
struct gradient3d {
  constexpr gradient3d(float3, float3) {}
};

}  // namespace msl::metal

namespace msl::msl_support {

// Queries of every texture type. Coordinates, offsets and levels may have any type.
template <class T, class Pixel>
struct texture {
  template <class... A>
  Pixel sample(metal::sampler, A...) const {
    return Pixel(T(0));
  }
  template <class... A>
  Pixel gather(metal::sampler, A...) const {
    return Pixel(T(0));
  }
  template <class... A>
  Pixel sample_compare(metal::sampler, A...) const {
    return Pixel(T(0));
  }
  template <class... A>
  metal::vec<T, 4> gather_compare(metal::sampler, A...) const {
    return metal::vec<T, 4>(T(0));
  }
  template <class... A>
  Pixel read(A...) const {
    return Pixel(T(0));
  }
  template <class... A>
  void write(A...) const {}
  template <class... A>
  metal::vec<T, 4> atomic_load(A...) const {
    return metal::vec<T, 4>(T(0));
  }
  template <class... A>
  metal::vec<T, 4> atomic_fetch_add(A...) const {
    return metal::vec<T, 4>(T(0));
  }
  void fence() const {}
  uint get_width(uint = 0) const { return 0; }
  uint get_height(uint = 0) const { return 0; }
  uint get_depth(uint = 0) const { return 0; }
  uint get_array_size() const { return 0; }
  uint get_num_mip_levels() const { return 0; }
  uint get_num_samples() const { return 0; }
};

}  // namespace msl::msl_support

namespace msl::metal {

#define MSL_COLOR(NAME)                                                                            \
  template <class T, access A = access::sample, memory_coherence C = memory_coherence_threadgroup> \
  struct NAME : msl_support::texture<T, vec<T, 4>> {};
#define MSL_DEPTH(NAME)                                                                            \
  template <class T, access A = access::sample, memory_coherence C = memory_coherence_threadgroup> \
  struct NAME : msl_support::texture<T, T> {};
MSL_COLOR(texture1d)
MSL_COLOR(texture1d_array)
MSL_COLOR(texture2d)
MSL_COLOR(texture2d_array)
MSL_COLOR(texture2d_ms)
MSL_COLOR(texture2d_ms_array)
MSL_COLOR(texture3d)
MSL_COLOR(texturecube)
MSL_COLOR(texturecube_array)
MSL_COLOR(texture_buffer)
MSL_DEPTH(depth2d)
MSL_DEPTH(depth2d_array)
MSL_DEPTH(depth2d_ms)
MSL_DEPTH(depth2d_ms_array)
MSL_DEPTH(depthcube)
MSL_DEPTH(depthcube_array)
#undef MSL_COLOR
#undef MSL_DEPTH

}  // namespace msl::metal
