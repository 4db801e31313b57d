// Sets.
#pragma once
#include <Foundation/NSEnumerator.h>

#ifdef __OBJC__
@interface NSSet<__covariant T> : NSObject <NSCopying, NSMutableCopying, NSFastEnumeration>
+ (instancetype)set;
+ (instancetype)setWithObject:(T)object;
+ (instancetype)setWithObjects:(T)first, ... NS_REQUIRES_NIL_TERMINATION;
+ (instancetype)setWithArray:(NSArray<T>*)array;
- (BOOL)containsObject:(T)object;
@property(readonly) NSUInteger count;
@property(readonly, copy) NSArray<T>* allObjects;
@end

@interface NSMutableSet<T> : NSSet <T>
- (void)addObject:(T)object;
- (void)removeObject:(T)object;
- (void)removeAllObjects;
@end
#endif
