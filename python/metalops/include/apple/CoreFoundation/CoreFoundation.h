// The types of Core Foundation that headers of others name. None of its functions exist.
#pragma once
// As Apple's header does; programs use what is in these without including them.
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef const void* CFTypeRef;
typedef signed long CFIndex;
typedef unsigned long CFTypeID, CFOptionFlags, CFHashCode;
typedef double CFTimeInterval;
typedef CFTimeInterval CFAbsoluteTime;
