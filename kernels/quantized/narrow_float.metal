// Casts between 8-bit floats and the other floating-point dtypes, with the rounding of torch's CPU
// casts.
#include <metalops/registration.h>
#include <metal_stdlib>

#include <kernels/common/number_formats.h>
using namespace metal;
namespace formats = metalops::formats;

#define REGISTER_CASTS(FORMAT)                                                   \
  struct encode_##FORMAT##_functor {                                             \
    template <typename T>                                                        \
    inline uchar operator()(const T x) {                                         \
      return static_cast<uchar>(formats::FORMAT::encode(static_cast<float>(x))); \
    }                                                                            \
  };                                                                             \
  template <typename T>                                                          \
  struct decode_##FORMAT {                                                       \
    inline T operator()(const uchar code) {                                      \
      return static_cast<T>(formats::FORMAT::decode(code));                      \
    }                                                                            \
  };                                                                             \
  typedef decode_##FORMAT<float> decode_##FORMAT##_to_float_functor;             \
  typedef decode_##FORMAT<half> decode_##FORMAT##_to_half_functor;               \
  typedef decode_##FORMAT<bfloat> decode_##FORMAT##_to_bfloat_functor;           \
  REGISTER_UNARY_OP_WITH_TILES(encode_##FORMAT, float, uchar);                   \
  REGISTER_UNARY_OP_WITH_TILES(encode_##FORMAT, half, uchar);                    \
  REGISTER_UNARY_OP_WITH_TILES(encode_##FORMAT, bfloat, uchar);                  \
  REGISTER_UNARY_OP_WITH_TILES(decode_##FORMAT##_to_float, uchar, float);        \
  REGISTER_UNARY_OP_WITH_TILES(decode_##FORMAT##_to_half, uchar, half);          \
  REGISTER_UNARY_OP_WITH_TILES(decode_##FORMAT##_to_bfloat, uchar, bfloat)

REGISTER_CASTS(e4m3);
REGISTER_CASTS(e5m2);
REGISTER_CASTS(e4m3fnuz);
REGISTER_CASTS(e5m2fnuz);
REGISTER_CASTS(e8m0);
