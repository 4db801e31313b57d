// The basic types of Objective-C, for the runtime of the software Metal device.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define OBJC_EXTERN extern "C"
#else
#define OBJC_EXTERN extern
#endif
#define OBJC_EXPORT OBJC_EXTERN

#ifndef __has_feature
#define __has_feature(FEATURE) 0
#endif

#ifndef __OBJC__
typedef struct objc_class* Class;
typedef struct objc_object {
  Class isa;
}* id;
#endif
typedef struct objc_selector* SEL;
typedef id (*IMP)(id, SEL, ...);
typedef bool BOOL;  // as on Apple's 64-bit ARM

#ifdef __OBJC__
#define YES __objc_yes
#define NO __objc_no
#else
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#endif

#ifndef nil
#ifdef __cplusplus
#define nil nullptr
#else
#define nil ((void*)0)
#endif
#endif
#ifndef Nil
#define Nil nil
#endif

// The qualifiers mean nothing without ARC.
#if !__has_feature(objc_arc)
#ifndef __bridge
#define __bridge
#define __bridge_transfer
#define __bridge_retained
#endif
#ifndef __OBJC__
#define __strong
#define __weak
#define __autoreleasing
#define __unsafe_unretained
#endif
#endif

OBJC_EXTERN const char* sel_getName(SEL selector);
OBJC_EXTERN SEL sel_registerName(const char* name);
OBJC_EXTERN SEL sel_getUid(const char* name);
OBJC_EXTERN BOOL sel_isEqual(SEL a, SEL b);
OBJC_EXTERN const char* object_getClassName(id object);
