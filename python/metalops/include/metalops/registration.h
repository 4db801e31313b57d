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
// In alpha kernels (a scalar that is the same for all elements) alpha is float whatever the tensors
// are, so that half precision does not round it: the host passes at::kFloat as scalar_arg_type.
#pragma once
#include <c10/metal/indexing.h>

#include <metal_stdlib>

namespace metalops {

// The result type of a floating-point function: integers give float, everything else its own type.
template <typename T>
using float_result_t = ::metal::conditional_t<::c10::metal::is_scalar_integral_v<T>, float, T>;

}  // namespace metalops

// ---- one input
// -----------------------------------------------------------------------------------

#define REGISTER_FLOAT_UNARY_OP(NAME)    \
  REGISTER_UNARY_OP(NAME, float, float); \
  REGISTER_UNARY_OP(NAME, half, half);   \
  REGISTER_UNARY_OP(NAME, bfloat, bfloat)

#define REGISTER_INT2FLOAT_UNARY_OP_NO_BOOL(NAME) \
  REGISTER_UNARY_OP(NAME, long, float);           \
  REGISTER_UNARY_OP(NAME, int, float);            \
  REGISTER_UNARY_OP(NAME, short, float);          \
  REGISTER_UNARY_OP(NAME, uchar, float);          \
  REGISTER_UNARY_OP(NAME, char, float)

#define REGISTER_INT2FLOAT_UNARY_OP(NAME)    \
  REGISTER_INT2FLOAT_UNARY_OP_NO_BOOL(NAME); \
  REGISTER_UNARY_OP(NAME, bool, float)

#define REGISTER_INTEGER_UNARY_OP_NO_BOOL(NAME) \
  REGISTER_UNARY_OP(NAME, long, long);          \
  REGISTER_UNARY_OP(NAME, int, int);            \
  REGISTER_UNARY_OP(NAME, short, short);        \
  REGISTER_UNARY_OP(NAME, uchar, uchar);        \
  REGISTER_UNARY_OP(NAME, char, char)

#define REGISTER_INTEGER_UNARY_OP(NAME)    \
  REGISTER_INTEGER_UNARY_OP_NO_BOOL(NAME); \
  REGISTER_UNARY_OP(NAME, bool, bool)

#define REGISTER_FLOAT_UNARY_ALPHA_OP(NAME)           \
  REGISTER_UNARY_ALPHA_OP(NAME, float, float, float); \
  REGISTER_UNARY_ALPHA_OP(NAME, half, float, half);   \
  REGISTER_UNARY_ALPHA_OP(NAME, bfloat, float, bfloat)

#define REGISTER_INT2FLOAT_UNARY_ALPHA_OP_NO_BOOL(NAME) \
  REGISTER_UNARY_ALPHA_OP(NAME, long, float, float);    \
  REGISTER_UNARY_ALPHA_OP(NAME, int, float, float);     \
  REGISTER_UNARY_ALPHA_OP(NAME, short, float, float);   \
  REGISTER_UNARY_ALPHA_OP(NAME, uchar, float, float);   \
  REGISTER_UNARY_ALPHA_OP(NAME, char, float, float)

#define REGISTER_INT2FLOAT_UNARY_ALPHA_OP(NAME)    \
  REGISTER_INT2FLOAT_UNARY_ALPHA_OP_NO_BOOL(NAME); \
  REGISTER_UNARY_ALPHA_OP(NAME, bool, float, float)

#define REGISTER_INTEGER_UNARY_ALPHA_OP_NO_BOOL(NAME) \
  REGISTER_UNARY_ALPHA_OP(NAME, long, float, long);   \
  REGISTER_UNARY_ALPHA_OP(NAME, int, float, int);     \
  REGISTER_UNARY_ALPHA_OP(NAME, short, float, short); \
  REGISTER_UNARY_ALPHA_OP(NAME, uchar, float, uchar); \
  REGISTER_UNARY_ALPHA_OP(NAME, char, float, char)

#define REGISTER_INTEGER_UNARY_ALPHA_OP(NAME)    \
  REGISTER_INTEGER_UNARY_ALPHA_OP_NO_BOOL(NAME); \
  REGISTER_UNARY_ALPHA_OP(NAME, bool, float, bool)

// ---- two inputs
// ----------------------------------------------------------------------------------

#define REGISTER_FLOAT_BINARY_OP(NAME)    \
  REGISTER_BINARY_OP(NAME, float, float); \
  REGISTER_BINARY_OP(NAME, half, half);   \
  REGISTER_BINARY_OP(NAME, bfloat, bfloat)

#define REGISTER_OPMATH_FLOAT_BINARY_OP(NAME)    \
  REGISTER_OPMATH_BINARY_OP(NAME, float, float); \
  REGISTER_OPMATH_BINARY_OP(NAME, half, half);   \
  REGISTER_OPMATH_BINARY_OP(NAME, bfloat, bfloat)

#define REGISTER_INT2FLOAT_BINARY_OP_NO_BOOL(NAME) \
  REGISTER_BINARY_OP(NAME, long, float);           \
  REGISTER_BINARY_OP(NAME, int, float);            \
  REGISTER_BINARY_OP(NAME, short, float);          \
  REGISTER_BINARY_OP(NAME, uchar, float);          \
  REGISTER_BINARY_OP(NAME, char, float)

#define REGISTER_INT2FLOAT_BINARY_OP(NAME)    \
  REGISTER_INT2FLOAT_BINARY_OP_NO_BOOL(NAME); \
  REGISTER_BINARY_OP(NAME, bool, float)

#define REGISTER_INTEGER_BINARY_OP_NO_BOOL(NAME) \
  REGISTER_BINARY_OP(NAME, long, long);          \
  REGISTER_BINARY_OP(NAME, int, int);            \
  REGISTER_BINARY_OP(NAME, short, short);        \
  REGISTER_BINARY_OP(NAME, uchar, uchar);        \
  REGISTER_BINARY_OP(NAME, char, char)

#define REGISTER_INTEGER_BINARY_OP(NAME)    \
  REGISTER_INTEGER_BINARY_OP_NO_BOOL(NAME); \
  REGISTER_BINARY_OP(NAME, bool, bool)

#define REGISTER_FLOAT_BINARY_ALPHA_OP(NAME)           \
  REGISTER_BINARY_ALPHA_OP(NAME, float, float, float); \
  REGISTER_BINARY_ALPHA_OP(NAME, half, float, half);   \
  REGISTER_BINARY_ALPHA_OP(NAME, bfloat, float, bfloat)

#define REGISTER_INT2FLOAT_BINARY_ALPHA_OP_NO_BOOL(NAME) \
  REGISTER_BINARY_ALPHA_OP(NAME, long, float, float);    \
  REGISTER_BINARY_ALPHA_OP(NAME, int, float, float);     \
  REGISTER_BINARY_ALPHA_OP(NAME, short, float, float);   \
  REGISTER_BINARY_ALPHA_OP(NAME, uchar, float, float);   \
  REGISTER_BINARY_ALPHA_OP(NAME, char, float, float)

#define REGISTER_INT2FLOAT_BINARY_ALPHA_OP(NAME)    \
  REGISTER_INT2FLOAT_BINARY_ALPHA_OP_NO_BOOL(NAME); \
  REGISTER_BINARY_ALPHA_OP(NAME, bool, float, float)

#define REGISTER_INTEGER_BINARY_ALPHA_OP_NO_BOOL(NAME) \
  REGISTER_BINARY_ALPHA_OP(NAME, long, float, long);   \
  REGISTER_BINARY_ALPHA_OP(NAME, int, float, int);     \
  REGISTER_BINARY_ALPHA_OP(NAME, short, float, short); \
  REGISTER_BINARY_ALPHA_OP(NAME, uchar, float, uchar); \
  REGISTER_BINARY_ALPHA_OP(NAME, char, float, char)

#define REGISTER_INTEGER_BINARY_ALPHA_OP(NAME)    \
  REGISTER_INTEGER_BINARY_ALPHA_OP_NO_BOOL(NAME); \
  REGISTER_BINARY_ALPHA_OP(NAME, bool, float, bool)

// ---- three inputs
// --------------------------------------------------------------------------------

#define REGISTER_FLOAT_TERNARY_OP(NAME)    \
  REGISTER_TERNARY_OP(NAME, float, float); \
  REGISTER_TERNARY_OP(NAME, half, half);   \
  REGISTER_TERNARY_OP(NAME, bfloat, bfloat)

#define REGISTER_OPMATH_FLOAT_TERNARY_OP(NAME)    \
  REGISTER_OPMATH_TERNARY_OP(NAME, float, float); \
  REGISTER_OPMATH_TERNARY_OP(NAME, half, half);   \
  REGISTER_OPMATH_TERNARY_OP(NAME, bfloat, bfloat)

#define REGISTER_INT2FLOAT_TERNARY_OP_NO_BOOL(NAME) \
  REGISTER_TERNARY_OP(NAME, long, float);           \
  REGISTER_TERNARY_OP(NAME, int, float);            \
  REGISTER_TERNARY_OP(NAME, short, float);          \
  REGISTER_TERNARY_OP(NAME, uchar, float);          \
  REGISTER_TERNARY_OP(NAME, char, float)

#define REGISTER_INT2FLOAT_TERNARY_OP(NAME)    \
  REGISTER_INT2FLOAT_TERNARY_OP_NO_BOOL(NAME); \
  REGISTER_TERNARY_OP(NAME, bool, float)

#define REGISTER_INTEGER_TERNARY_OP_NO_BOOL(NAME) \
  REGISTER_TERNARY_OP(NAME, long, long);          \
  REGISTER_TERNARY_OP(NAME, int, int);            \
  REGISTER_TERNARY_OP(NAME, short, short);        \
  REGISTER_TERNARY_OP(NAME, uchar, uchar);        \
  REGISTER_TERNARY_OP(NAME, char, char)

#define REGISTER_INTEGER_TERNARY_OP(NAME)    \
  REGISTER_INTEGER_TERNARY_OP_NO_BOOL(NAME); \
  REGISTER_TERNARY_OP(NAME, bool, bool)
