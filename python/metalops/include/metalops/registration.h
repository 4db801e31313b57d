// Registration of elementwise kernels for several dtypes in one line: PyTorch's in-tree convenience
// macros, which its shipped headers lack, under their known names, and their unary, alpha and
// ternary counterparts. Include it from a .metal file as <metalops/registration.h>; every macro
// takes the NAME of a functor called NAME_functor.
//
// FLOAT: float, half, bfloat; the result has the input's type.
//
// OPMATH_FLOAT: the same, but the functor is called with float for half and bfloat, and its result
// is rounded once.
//
// INT2FLOAT: long, int, short, uchar, char, bool; the result is float.
//
// INTEGER: the same six; the result has the input's type.
//
// NO_BOOL at the end: the same without bool.
//
// Besides torch's variants each of them registers a tile kernel (<metalops/tiles.h>), which GPUs
// use for strided, broadcast and 16-bit operands. ..._OP_WITH_TILES, for one dtype, takes the
// arguments of torch's REGISTER_..._OP. FLOAT unary macros also register a vector kernel for 16-bit
// operands.
//
// In alpha kernels (a scalar that is the same for all elements) alpha is float whatever the tensors
// are, so that half precision does not round it: the host passes at::kFloat as scalar_arg_type.
#pragma once
#include <c10/metal/indexing.h>
#include <metalops/tiles.h>

#include <metal_stdlib>

namespace metalops {

// The result type of a floating-point function: float for integers, else the type itself.
template <typename T>
using float_result_t = ::metal::conditional_t<::c10::metal::is_scalar_integral_v<T>, float, T>;

}  // namespace metalops

// ---- one dtype ----------------------------------------------------------------------------------

#define REGISTER_UNARY_OP_WITH_TILES(NAME, DTYPEI, DTYPEO) \
  REGISTER_UNARY_OP(NAME, DTYPEI, DTYPEO);                 \
  REGISTER_UNARY_TILES(NAME, DTYPEI, DTYPEO)

#define REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, DTYPEI, DTYPEA, DTYPEO) \
  REGISTER_UNARY_ALPHA_OP(NAME, DTYPEI, DTYPEA, DTYPEO);                 \
  REGISTER_UNARY_ALPHA_TILES(NAME, DTYPEI, DTYPEA, DTYPEO)

#define REGISTER_BINARY_OP_WITH_TILES(NAME, DTYPEI, DTYPEO) \
  REGISTER_BINARY_OP(NAME, DTYPEI, DTYPEO);                 \
  REGISTER_BINARY_TILES(NAME, DTYPEI, DTYPEO)

#define REGISTER_OPMATH_BINARY_OP_WITH_TILES(NAME, DTYPEI, DTYPEO) \
  REGISTER_OPMATH_BINARY_OP(NAME, DTYPEI, DTYPEO);                 \
  REGISTER_OPMATH_BINARY_TILES(NAME, DTYPEI, DTYPEO)

#define REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, DTYPEI, DTYPEA, DTYPEO) \
  REGISTER_BINARY_ALPHA_OP(NAME, DTYPEI, DTYPEA, DTYPEO);                 \
  REGISTER_BINARY_ALPHA_TILES(NAME, DTYPEI, DTYPEA, DTYPEO)

#define REGISTER_TERNARY_OP_WITH_TILES(NAME, DTYPEI, DTYPEO) \
  REGISTER_TERNARY_OP(NAME, DTYPEI, DTYPEO);                 \
  REGISTER_TERNARY_TILES(NAME, DTYPEI, DTYPEO)

#define REGISTER_OPMATH_TERNARY_OP_WITH_TILES(NAME, DTYPEI, DTYPEO) \
  REGISTER_OPMATH_TERNARY_OP(NAME, DTYPEI, DTYPEO);                 \
  REGISTER_OPMATH_TERNARY_TILES(NAME, DTYPEI, DTYPEO)

// ---- one input ----------------------------------------------------------------------------------

#define REGISTER_FLOAT_UNARY_OP(NAME)                 \
  REGISTER_UNARY_OP_WITH_TILES(NAME, float, float);   \
  REGISTER_UNARY_OP_WITH_TILES(NAME, half, half);     \
  REGISTER_UNARY_OP_WITH_TILES(NAME, bfloat, bfloat); \
  REGISTER_UNARY_PACKS(NAME, half);                   \
  REGISTER_UNARY_PACKS(NAME, bfloat)

#define REGISTER_INT2FLOAT_UNARY_OP_NO_BOOL(NAME)   \
  REGISTER_UNARY_OP_WITH_TILES(NAME, long, float);  \
  REGISTER_UNARY_OP_WITH_TILES(NAME, int, float);   \
  REGISTER_UNARY_OP_WITH_TILES(NAME, short, float); \
  REGISTER_UNARY_OP_WITH_TILES(NAME, uchar, float); \
  REGISTER_UNARY_OP_WITH_TILES(NAME, char, float)

#define REGISTER_INT2FLOAT_UNARY_OP(NAME)    \
  REGISTER_INT2FLOAT_UNARY_OP_NO_BOOL(NAME); \
  REGISTER_UNARY_OP_WITH_TILES(NAME, bool, float)

#define REGISTER_INTEGER_UNARY_OP_NO_BOOL(NAME)     \
  REGISTER_UNARY_OP_WITH_TILES(NAME, long, long);   \
  REGISTER_UNARY_OP_WITH_TILES(NAME, int, int);     \
  REGISTER_UNARY_OP_WITH_TILES(NAME, short, short); \
  REGISTER_UNARY_OP_WITH_TILES(NAME, uchar, uchar); \
  REGISTER_UNARY_OP_WITH_TILES(NAME, char, char)

#define REGISTER_INTEGER_UNARY_OP(NAME)    \
  REGISTER_INTEGER_UNARY_OP_NO_BOOL(NAME); \
  REGISTER_UNARY_OP_WITH_TILES(NAME, bool, bool)

#define REGISTER_FLOAT_UNARY_ALPHA_OP(NAME)                        \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, float, float, float);   \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, half, float, half);     \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, bfloat, float, bfloat); \
  REGISTER_UNARY_ALPHA_PACKS(NAME, half, float);                   \
  REGISTER_UNARY_ALPHA_PACKS(NAME, bfloat, float)

#define REGISTER_INT2FLOAT_UNARY_ALPHA_OP_NO_BOOL(NAME)          \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, long, float, float);  \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, int, float, float);   \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, short, float, float); \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, uchar, float, float); \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, char, float, float)

#define REGISTER_INT2FLOAT_UNARY_ALPHA_OP(NAME)    \
  REGISTER_INT2FLOAT_UNARY_ALPHA_OP_NO_BOOL(NAME); \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, bool, float, float)

#define REGISTER_INTEGER_UNARY_ALPHA_OP_NO_BOOL(NAME)            \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, long, float, long);   \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, int, float, int);     \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, short, float, short); \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, uchar, float, uchar); \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, char, float, char)

#define REGISTER_INTEGER_UNARY_ALPHA_OP(NAME)    \
  REGISTER_INTEGER_UNARY_ALPHA_OP_NO_BOOL(NAME); \
  REGISTER_UNARY_ALPHA_OP_WITH_TILES(NAME, bool, float, bool)

// ---- two inputs ---------------------------------------------------------------------------------

#define REGISTER_FLOAT_BINARY_OP(NAME)               \
  REGISTER_BINARY_OP_WITH_TILES(NAME, float, float); \
  REGISTER_BINARY_OP_WITH_TILES(NAME, half, half);   \
  REGISTER_BINARY_OP_WITH_TILES(NAME, bfloat, bfloat)

#define REGISTER_OPMATH_FLOAT_BINARY_OP(NAME)               \
  REGISTER_OPMATH_BINARY_OP_WITH_TILES(NAME, float, float); \
  REGISTER_OPMATH_BINARY_OP_WITH_TILES(NAME, half, half);   \
  REGISTER_OPMATH_BINARY_OP_WITH_TILES(NAME, bfloat, bfloat)

#define REGISTER_INT2FLOAT_BINARY_OP_NO_BOOL(NAME)   \
  REGISTER_BINARY_OP_WITH_TILES(NAME, long, float);  \
  REGISTER_BINARY_OP_WITH_TILES(NAME, int, float);   \
  REGISTER_BINARY_OP_WITH_TILES(NAME, short, float); \
  REGISTER_BINARY_OP_WITH_TILES(NAME, uchar, float); \
  REGISTER_BINARY_OP_WITH_TILES(NAME, char, float)

#define REGISTER_INT2FLOAT_BINARY_OP(NAME)    \
  REGISTER_INT2FLOAT_BINARY_OP_NO_BOOL(NAME); \
  REGISTER_BINARY_OP_WITH_TILES(NAME, bool, float)

#define REGISTER_INTEGER_BINARY_OP_NO_BOOL(NAME)     \
  REGISTER_BINARY_OP_WITH_TILES(NAME, long, long);   \
  REGISTER_BINARY_OP_WITH_TILES(NAME, int, int);     \
  REGISTER_BINARY_OP_WITH_TILES(NAME, short, short); \
  REGISTER_BINARY_OP_WITH_TILES(NAME, uchar, uchar); \
  REGISTER_BINARY_OP_WITH_TILES(NAME, char, char)

#define REGISTER_INTEGER_BINARY_OP(NAME)    \
  REGISTER_INTEGER_BINARY_OP_NO_BOOL(NAME); \
  REGISTER_BINARY_OP_WITH_TILES(NAME, bool, bool)

#define REGISTER_FLOAT_BINARY_ALPHA_OP(NAME)                      \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, float, float, float); \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, half, float, half);   \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, bfloat, float, bfloat)

#define REGISTER_INT2FLOAT_BINARY_ALPHA_OP_NO_BOOL(NAME)          \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, long, float, float);  \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, int, float, float);   \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, short, float, float); \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, uchar, float, float); \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, char, float, float)

#define REGISTER_INT2FLOAT_BINARY_ALPHA_OP(NAME)    \
  REGISTER_INT2FLOAT_BINARY_ALPHA_OP_NO_BOOL(NAME); \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, bool, float, float)

#define REGISTER_INTEGER_BINARY_ALPHA_OP_NO_BOOL(NAME)            \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, long, float, long);   \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, int, float, int);     \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, short, float, short); \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, uchar, float, uchar); \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, char, float, char)

#define REGISTER_INTEGER_BINARY_ALPHA_OP(NAME)    \
  REGISTER_INTEGER_BINARY_ALPHA_OP_NO_BOOL(NAME); \
  REGISTER_BINARY_ALPHA_OP_WITH_TILES(NAME, bool, float, bool)

// ---- three inputs -------------------------------------------------------------------------------

#define REGISTER_FLOAT_TERNARY_OP(NAME)               \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, float, float); \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, half, half);   \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, bfloat, bfloat)

#define REGISTER_OPMATH_FLOAT_TERNARY_OP(NAME)               \
  REGISTER_OPMATH_TERNARY_OP_WITH_TILES(NAME, float, float); \
  REGISTER_OPMATH_TERNARY_OP_WITH_TILES(NAME, half, half);   \
  REGISTER_OPMATH_TERNARY_OP_WITH_TILES(NAME, bfloat, bfloat)

#define REGISTER_INT2FLOAT_TERNARY_OP_NO_BOOL(NAME)   \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, long, float);  \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, int, float);   \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, short, float); \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, uchar, float); \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, char, float)

#define REGISTER_INT2FLOAT_TERNARY_OP(NAME)    \
  REGISTER_INT2FLOAT_TERNARY_OP_NO_BOOL(NAME); \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, bool, float)

#define REGISTER_INTEGER_TERNARY_OP_NO_BOOL(NAME)     \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, long, long);   \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, int, int);     \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, short, short); \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, uchar, uchar); \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, char, char)

#define REGISTER_INTEGER_TERNARY_OP(NAME)    \
  REGISTER_INTEGER_TERNARY_OP_NO_BOOL(NAME); \
  REGISTER_TERNARY_OP_WITH_TILES(NAME, bool, bool)
