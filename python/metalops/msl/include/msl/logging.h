// metal_logging: os_log. Lines go to the runtime, which writes them to the standard error.
#pragma once

#include <msl/simd.h>

namespace msl::msl_impl {

// One line of text, truncated to a fixed size.
class LogLine {
 public:
  void put(char c) {
    if (length_ < sizeof(text_)) text_[length_++] = c;
  }
  void put(const char* s) {
    while (*s) put(*s++);
  }
  void put_unsigned(ulong value, uint base, uint width, bool zeros, bool upper) {
    char digits[24];
    uint count = 0;
    do {
      const uint digit = uint(value % base);
      digits[count++] = char(digit < 10 ? '0' + digit : (upper ? 'A' : 'a') + digit - 10);
      value /= base;
    } while (value != 0);
    for (uint i = count; i < width; ++i) put(zeros ? '0' : ' ');
    while (count != 0) put(digits[--count]);
  }
  void put_signed(long value, uint width, bool zeros) {
    if (value < 0) {
      put('-');
      put_unsigned(0ul - ulong(value), 10, width != 0 ? width - 1 : 0, zeros, false);
    } else {
      put_unsigned(ulong(value), 10, width, zeros, false);
    }
  }
  void put_float(double value, uint precision) {
    char buffer[64];
    const int count = __builtin_snprintf(buffer, sizeof(buffer), "%.*f", int(precision), value);
    for (int i = 0; i < count && i < int(sizeof(buffer)) - 1; ++i) put(buffer[i]);
  }
  void send() const { msl_runtime->log(text_, length_); }

 private:
  char text_[1024];
  u32 length_ = 0;
};

// Formats one argument by its conversion: d i u x X f e g c s p v(ector).
struct LogFormat {
  uint width = 0;
  uint precision = 6;
  bool zeros = false;
  char conversion = 0;
};
template <class T>
MSL_INLINE void log_scalar(LogLine& line, const LogFormat& format, T value) {
  if constexpr (metal::is_pointer_v<T>) {
    line.put("0x");
    line.put_unsigned(reinterpret_cast<ulong>(value), 16, 0, false, false);
  } else if constexpr (metal::is_floating_point_v<T>) {
    line.put_float(double(float(value)), format.precision);
  } else if (format.conversion == 'c') {
    line.put(char(value));
  } else if (format.conversion == 'x' || format.conversion == 'X') {
    line.put_unsigned(metal::make_unsigned_t<T>(value), 16, format.width, format.zeros,
                      format.conversion == 'X');
  } else if constexpr (metal::is_signed_v<T>) {
    line.put_signed(value, format.width, format.zeros);
  } else {
    line.put_unsigned(value, 10, format.width, format.zeros, false);
  }
}
template <class T>
MSL_INLINE void log_argument(LogLine& line, const LogFormat& format, T value) {
  log_scalar(line, format, value);
}
MSL_INLINE void log_argument(LogLine& line, const LogFormat&, bool value) {
  line.put(value ? '1' : '0');
}
MSL_INLINE void log_argument(LogLine& line, const LogFormat&, const char* text) { line.put(text); }
template <class T, int N>
MSL_INLINE void log_argument(LogLine& line, const LogFormat& format, metal::vec<T, N> value) {
  for (int i = 0; i < N; ++i) {
    if (i != 0) line.put(',');
    log_argument(line, format, value[i]);
  }
}

// Copies text up to the next conversion, and parses that; returns the rest of the format.
inline const char* log_text(LogLine& line, const char* format, LogFormat& conversion) {
  while (*format) {
    if (*format != '%') {
      line.put(*format++);
    } else if (format[1] == '%') {
      line.put('%');
      format += 2;
    } else {
      ++format;
      conversion = LogFormat{};
      for (; *format == '-' || *format == '+' || *format == ' ' || *format == '#' || *format == '0';
           ++format) {
        conversion.zeros |= *format == '0';
      }
      for (; *format >= '0' && *format <= '9'; ++format) {
        conversion.width = conversion.width * 10 + uint(*format - '0');
      }
      if (*format == '.') {
        conversion.precision = 0;
        for (++format; *format >= '0' && *format <= '9'; ++format) {
          conversion.precision = conversion.precision * 10 + uint(*format - '0');
        }
      }
      // Vector counts (v4) and length modifiers (h, hh, hl, l) repeat what the argument's type
      // says.
      while (*format == 'v' || *format == 'h' || *format == 'l' ||
             (*format >= '0' && *format <= '9')) {
        ++format;
      }
      conversion.conversion = *format;
      if (*format) ++format;
      return format;
    }
  }
  return format;
}
inline void log_arguments(LogLine& line, const char* format) {
  LogFormat ignored;
  while (*format) format = log_text(line, format, ignored);
}
template <class First, class... Rest>
inline void log_arguments(LogLine& line, const char* format, First first, Rest... rest) {
  LogFormat conversion;
  format = log_text(line, format, conversion);
  if (conversion.conversion != 0) log_argument(line, conversion, first);
  log_arguments(line, format, rest...);
}

}  // namespace msl::msl_impl

namespace msl::metal {

enum os_log_type {
  OS_LOG_TYPE_DEFAULT = 0,
  OS_LOG_TYPE_INFO = 1,
  OS_LOG_TYPE_DEBUG = 2,
  OS_LOG_TYPE_ERROR = 16,
  OS_LOG_TYPE_FAULT = 17,
};

struct os_log {
  const char* subsystem = "";
  const char* category = "";

  constexpr os_log() = default;
  constexpr os_log(const char* subsystem, const char* category)
      : subsystem(subsystem), category(category) {}

  template <class... Args>
  void log_with_type(os_log_type, const char* format, Args... arguments) const {
    msl_impl::LogLine line;
    if (*subsystem) {
      line.put('[');
      line.put(subsystem);
      line.put(':');
      line.put(category);
      line.put("] ");
    }
    msl_impl::log_arguments(line, format, arguments...);
    line.send();
  }
#define MSL_LOG(NAME, TYPE)                                \
  template <class... Args>                                 \
  void NAME(const char* format, Args... arguments) const { \
    log_with_type(TYPE, format, arguments...);             \
  }
  MSL_LOG(log, OS_LOG_TYPE_DEFAULT)
  MSL_LOG(log_info, OS_LOG_TYPE_INFO)
  MSL_LOG(log_debug, OS_LOG_TYPE_DEBUG)
  MSL_LOG(log_error, OS_LOG_TYPE_ERROR)
  MSL_LOG(log_fault, OS_LOG_TYPE_FAULT)
#undef MSL_LOG
};
inline constexpr os_log os_log_default;

}  // namespace msl::metal
