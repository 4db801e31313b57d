// os_log on NVIDIA's GPUs: lines go to the standard output when the host synchronises with the GPU.
#pragma once

#include <msl/simd.h>

namespace msl::msl_impl {

// Formats a float like sprintf's "%.*f"; returns the length.
inline int fixed(char* text, int precision, double value) {
  int length = 0;
  if (value < 0 || (value == 0 && 1 / value < 0)) text[length++] = '-';
  const double magnitude = ::fabs(value);
  if (!(magnitude <= 3.5e38)) {
    const char* const name = magnitude != magnitude ? "nan" : "inf";
    for (int i = 0; i < 3; ++i) text[length++] = name[i];
    return length;
  }
  unsigned __int128 whole = (unsigned __int128)magnitude;
  double rest = magnitude - double(whole);
  if (precision > 20) precision = 20;
  char decimals[20];
  for (int i = 0; i < precision; ++i) {
    rest *= 10;
    decimals[i] = char(rest);
    rest -= decimals[i];
  }
  const bool is_odd = precision == 0 ? whole % 2 : decimals[precision - 1] % 2;
  bool carry = rest > 0.5 || (rest == 0.5 && is_odd);
  for (int i = precision - 1; i >= 0 && carry; --i) {
    carry = decimals[i] == 9;
    decimals[i] = carry ? 0 : decimals[i] + 1;
  }
  if (carry) ++whole;
  char digits[40];
  int count = 0;
  do {
    digits[count++] = char('0' + int(whole % 10));
    whole /= 10;
  } while (whole != 0);
  while (count != 0) text[length++] = digits[--count];
  if (precision != 0) text[length++] = '.';
  for (int i = 0; i < precision; ++i) text[length++] = char('0' + decimals[i]);
  return length;
}

struct Runtime {
  MSL_INLINE const Runtime* operator->() const { return this; }
  void log(const char* text, abi::u32 length) const {
    char* const end = const_cast<char*>(text) + (length < 1023 ? length : 1023);
    *end = 0;
    ::printf("%s\n", text);
  }
};

}  // namespace msl::msl_impl

inline constexpr msl::msl_impl::Runtime msl_runtime;
#define __builtin_snprintf(text, size, format, precision, value) \
  ::msl::msl_impl::fixed(text, precision, value)
#include <msl/logging.h>
#undef __builtin_snprintf
