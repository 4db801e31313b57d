// Marks of the versions that have a declaration; the software Metal device has all of its own.
#pragma once
#include <TargetConditionals.h>

// macOS 26.
#define __MAC_OS_X_VERSION_MIN_REQUIRED 260000
#define __MAC_OS_X_VERSION_MAX_ALLOWED 260000

#define API_AVAILABLE(...)
#define API_UNAVAILABLE(...)
#define API_DEPRECATED(...)
#define API_DEPRECATED_WITH_REPLACEMENT(...)
#define API_AVAILABLE_BEGIN(...)
#define API_AVAILABLE_END
