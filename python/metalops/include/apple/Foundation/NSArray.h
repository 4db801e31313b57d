// Lists.
#pragma once
#include <Foundation/NSEnumerator.h>

#ifdef __OBJC__
@interface NSArray<__covariant T> : NSObject <NSCopying, NSMutableCopying, NSFastEnumeration>
+ (instancetype)array;
+ (instancetype)arrayWithObject:(T)object;
+ (instancetype)arrayWithObjects:(T)first, ... NS_REQUIRES_NIL_TERMINATION;
+ (instancetype)arrayWithObjects:(const T __unsafe_unretained[])objects count:(NSUInteger)count;
+ (instancetype)arrayWithArray:(NSArray<T>*)array;
- (instancetype)initWithObjects:(T)first, ... NS_REQUIRES_NIL_TERMINATION;
- (instancetype)initWithObjects:(const T __unsafe_unretained[])objects count:(NSUInteger)count;
- (instancetype)initWithArray:(NSArray<T>*)array;
- (T)objectAtIndex:(NSUInteger)index;
- (T)objectAtIndexedSubscript:(NSUInteger)index;
- (BOOL)containsObject:(T)object;
- (NSUInteger)indexOfObject:(T)object;
- (BOOL)isEqualToArray:(NSArray<T>*)array;
- (NSArray<T>*)arrayByAddingObject:(T)object;
- (NSArray<T>*)subarrayWithRange:(NSRange)range;
- (NSString*)componentsJoinedByString:(NSString*)separator;
- (NSArray<T>*)sortedArrayUsingSelector:(SEL)comparator;
#ifdef __BLOCKS__
- (void)enumerateObjectsUsingBlock:(void (^)(T object, NSUInteger index, BOOL* stop))block;
#endif
@property(readonly) NSUInteger count;
@property(readonly) T firstObject;
@property(readonly) T lastObject;
@end

@interface NSMutableArray<T> : NSArray <T>
+ (instancetype)arrayWithCapacity:(NSUInteger)capacity;
- (instancetype)initWithCapacity:(NSUInteger)capacity;
- (void)addObject:(T)object;
- (void)addObjectsFromArray:(NSArray<T>*)array;
- (void)insertObject:(T)object atIndex:(NSUInteger)index;
- (void)replaceObjectAtIndex:(NSUInteger)index withObject:(T)object;
- (void)setObject:(T)object atIndexedSubscript:(NSUInteger)index;
- (void)removeObject:(T)object;
- (void)removeObjectAtIndex:(NSUInteger)index;
- (void)removeLastObject;
- (void)removeAllObjects;
@end
#endif
