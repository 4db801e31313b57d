// Marks of the versions that have a declaration; the software Metal device has all of its own.
#pragma once
#include <TargetConditionals.h>

#define API_AVAILABLE(...)
#define API_UNAVAILABLE(...)
#define API_DEPRECATED(...)
#define API_DEPRECATED_WITH_REPLACEMENT(...)
#define API_AVAILABLE_BEGIN(...)
#define API_AVAILABLE_END
