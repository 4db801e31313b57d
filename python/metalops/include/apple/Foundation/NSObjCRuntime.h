// Types and macros that all of Foundation uses.
#pragma once
#include <Availability.h>
#include <TargetConditionals.h>
#include <math.h>
#include <objc/message.h>
#include <objc/objc.h>
#include <objc/runtime.h>
#include <stdarg.h>
#include <stdint.h>

#ifdef __cplusplus
#define FOUNDATION_EXTERN extern "C"
#else
#define FOUNDATION_EXTERN extern
#endif
#define FOUNDATION_EXPORT FOUNDATION_EXTERN

#define NS_INLINE static inline
#define NS_ASSUME_NONNULL_BEGIN
#define NS_ASSUME_NONNULL_END
#define NS_ENUM(TYPE, NAME) \
  enum NAME : TYPE NAME;    \
  enum NAME : TYPE
// As in Apple's headers, options are numbers, which combine without casts.
#define NS_OPTIONS(TYPE, NAME) \
  TYPE NAME;                   \
  enum : NAME
#define NS_RETURNS_RETAINED __attribute__((ns_returns_retained))
#define NS_RETURNS_NOT_RETAINED __attribute__((ns_returns_not_retained))
#define NS_REQUIRES_NIL_TERMINATION __attribute__((sentinel))
#define NS_FORMAT_FUNCTION(FORMAT, FIRST) __attribute__((format(__NSString__, FORMAT, FIRST)))
#define NS_DESIGNATED_INITIALIZER
#define NS_SWIFT_NAME(...)
#define NS_REFINED_FOR_SWIFT
#define NS_AVAILABLE(...)
#define NS_AVAILABLE_MAC(...)
#define NS_DEPRECATED(...)
#define NS_UNAVAILABLE __attribute__((unavailable))

typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef double NSTimeInterval;
typedef double CGFloat;
typedef unsigned short unichar;

#define NSIntegerMax INTPTR_MAX
#define NSIntegerMin INTPTR_MIN
#define NSUIntegerMax UINTPTR_MAX
static const NSInteger NSNotFound = INTPTR_MAX;

typedef struct _NSRange {
  NSUInteger location, length;
} NSRange;
NS_INLINE NSRange NSMakeRange(NSUInteger location, NSUInteger length) {
  NSRange range = {location, length};
  return range;
}
NS_INLINE NSUInteger NSMaxRange(NSRange range) { return range.location + range.length; }

typedef NS_ENUM(NSInteger, NSComparisonResult) {
  NSOrderedAscending = -1,
  NSOrderedSame,
  NSOrderedDescending,
};
typedef NSUInteger NSStringEncoding;
enum { NSASCIIStringEncoding = 1, NSUTF8StringEncoding = 4 };

#ifndef MIN
#define MIN(A, B)           \
  ({                        \
    __typeof__(A) a_ = (A); \
    __typeof__(B) b_ = (B); \
    a_ < b_ ? a_ : b_;      \
  })
#define MAX(A, B)           \
  ({                        \
    __typeof__(A) a_ = (A); \
    __typeof__(B) b_ = (B); \
    a_ < b_ ? b_ : a_;      \
  })
#endif

#ifdef __OBJC__
@class NSString, NSArray, NSData, NSDate, NSDictionary, NSError, NSNumber, NSURL;

FOUNDATION_EXPORT void NSLog(NSString* format, ...) NS_FORMAT_FUNCTION(1, 2);
FOUNDATION_EXPORT NSString* NSStringFromClass(Class cls);
FOUNDATION_EXPORT NSString* NSStringFromProtocol(Protocol* protocol);
FOUNDATION_EXPORT NSString* NSStringFromSelector(SEL selector);
FOUNDATION_EXPORT Class NSClassFromString(NSString* name);
FOUNDATION_EXPORT SEL NSSelectorFromString(NSString* name);
#endif
