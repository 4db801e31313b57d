// The root class, and what all objects do.
#pragma once
#include <Foundation/NSObjCRuntime.h>

#ifdef __OBJC__
typedef struct _NSZone NSZone;

@protocol NSObject
- (BOOL)isEqual:(id)other;
- (NSUInteger)hash;
- (Class)superclass;
- (Class)class;
- (instancetype)self;
- (id)performSelector:(SEL)selector;
- (id)performSelector:(SEL)selector withObject:(id)object;
- (id)performSelector:(SEL)selector withObject:(id)first withObject:(id)second;
- (BOOL)isKindOfClass:(Class)cls;
- (BOOL)isMemberOfClass:(Class)cls;
- (BOOL)conformsToProtocol:(Protocol*)protocol;
- (BOOL)respondsToSelector:(SEL)selector;
#if !__has_feature(objc_arc)
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
- (NSUInteger)retainCount;
#endif
@property(readonly, copy) NSString* description;
@property(readonly, copy) NSString* debugDescription;
@end

@protocol NSCopying
- (id)copyWithZone:(NSZone*)zone;
@end
@protocol NSMutableCopying
- (id)mutableCopyWithZone:(NSZone*)zone;
@end
@protocol NSSecureCoding
@end

__attribute__((objc_root_class))
@interface NSObject<NSObject> {
  Class isa;
}
+ (void)load;
+ (void)initialize;
+ (instancetype)new;
+ (instancetype)alloc;
+ (instancetype)allocWithZone:(NSZone*)zone;
+ (Class)class;
+ (Class)superclass;
+ (BOOL)instancesRespondToSelector:(SEL)selector;
+ (BOOL)conformsToProtocol:(Protocol*)protocol;
- (instancetype)init;
- (void)dealloc;
- (id)copy;
- (id)mutableCopy;
- (void)doesNotRecognizeSelector:(SEL)selector;
@end

#if !__has_feature(objc_arc)
@interface NSAutoreleasePool : NSObject
- (void)drain;
@end
#endif

// Without ARC these are what the casts of a bridge are with it.
#if __has_feature(objc_arc)
NS_INLINE void* CFBridgingRetain(id object) { return (__bridge_retained void*)object; }
NS_INLINE id CFBridgingRelease(void* object) { return (__bridge_transfer id)object; }
#else
NS_INLINE void* CFBridgingRetain(id object) { return [object retain]; }
NS_INLINE id CFBridgingRelease(void* object) { return [(id)object autorelease]; }
#endif
#endif
