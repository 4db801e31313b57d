// Functions of the Objective-C runtime.
#pragma once
#include <objc/objc.h>

#ifndef __OBJC__
typedef struct objc_object Protocol;
#else
@class Protocol;
#endif

OBJC_EXTERN id objc_getClass(const char* name);
OBJC_EXTERN Class objc_lookUpClass(const char* name);
OBJC_EXTERN Protocol* objc_getProtocol(const char* name);
OBJC_EXTERN const char* protocol_getName(Protocol* protocol);
OBJC_EXTERN Class object_getClass(id object);
OBJC_EXTERN const char* class_getName(Class cls);
OBJC_EXTERN Class class_getSuperclass(Class cls);
OBJC_EXTERN BOOL class_isMetaClass(Class cls);
OBJC_EXTERN size_t class_getInstanceSize(Class cls);
OBJC_EXTERN IMP class_getMethodImplementation(Class cls, SEL selector);
OBJC_EXTERN IMP class_replaceMethod(Class cls, SEL selector, IMP function, const char* types);
OBJC_EXTERN BOOL class_respondsToSelector(Class cls, SEL selector);
OBJC_EXTERN BOOL class_conformsToProtocol(Class cls, Protocol* protocol);

typedef uintptr_t objc_AssociationPolicy;
enum {
  OBJC_ASSOCIATION_ASSIGN = 0,
  OBJC_ASSOCIATION_RETAIN_NONATOMIC = 1,
  OBJC_ASSOCIATION_COPY_NONATOMIC = 3,
  OBJC_ASSOCIATION_RETAIN = 01401,
  OBJC_ASSOCIATION_COPY = 01403
};
OBJC_EXTERN void objc_setAssociatedObject(id object, const void* key, id value,
                                          objc_AssociationPolicy policy);
OBJC_EXTERN id objc_getAssociatedObject(id object, const void* key);

// Functions that clang calls for ARC.
OBJC_EXTERN id objc_retain(id object);
OBJC_EXTERN void objc_release(id object);
OBJC_EXTERN id objc_autorelease(id object);
OBJC_EXTERN void* objc_autoreleasePoolPush(void);
OBJC_EXTERN void objc_autoreleasePoolPop(void* pool);
OBJC_EXTERN int objc_sync_enter(id object);
OBJC_EXTERN int objc_sync_exit(id object);
