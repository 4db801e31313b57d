// Maps.
#pragma once
#include <Foundation/NSEnumerator.h>

#ifdef __OBJC__
@interface NSDictionary<__covariant K, __covariant V>
    : NSObject <NSCopying, NSMutableCopying, NSFastEnumeration>
+ (instancetype)dictionary;
+ (instancetype)dictionaryWithObject:(V)object forKey:(K)key;
+ (instancetype)dictionaryWithObjects:(const V __unsafe_unretained[])objects
                              forKeys:(const K __unsafe_unretained[])keys
                                count:(NSUInteger)count;
+ (instancetype)dictionaryWithObjects:(NSArray<V>*)objects forKeys:(NSArray<K>*)keys;
+ (instancetype)dictionaryWithObjectsAndKeys:(id)first, ... NS_REQUIRES_NIL_TERMINATION;
+ (instancetype)dictionaryWithDictionary:(NSDictionary<K, V>*)dictionary;
- (instancetype)initWithDictionary:(NSDictionary<K, V>*)dictionary;
- (instancetype)initWithObjectsAndKeys:(id)first, ... NS_REQUIRES_NIL_TERMINATION;
- (V)objectForKey:(K)key;
- (V)objectForKeyedSubscript:(K)key;
- (V)valueForKey:(NSString*)key;
- (BOOL)isEqualToDictionary:(NSDictionary<K, V>*)dictionary;
#ifdef __BLOCKS__
- (void)enumerateKeysAndObjectsUsingBlock:(void (^)(K key, V object, BOOL* stop))block;
#endif
@property(readonly) NSUInteger count;
@property(readonly, copy) NSArray<K>* allKeys;
@property(readonly, copy) NSArray<V>* allValues;
@end

@interface NSMutableDictionary<K, V> : NSDictionary <K, V>
+ (instancetype)dictionaryWithCapacity:(NSUInteger)capacity;
- (instancetype)initWithCapacity:(NSUInteger)capacity;
- (void)setObject:(V)object forKey:(K)key;
- (void)setObject:(V)object forKeyedSubscript:(K)key;
- (void)setValue:(V)object forKey:(NSString*)key;
- (void)addEntriesFromDictionary:(NSDictionary<K, V>*)dictionary;
- (void)removeObjectForKey:(K)key;
- (void)removeAllObjects;
@end

@interface NSCache<K, V> : NSObject
- (V)objectForKey:(K)key;
- (void)setObject:(V)object forKey:(K)key;
- (void)removeObjectForKey:(K)key;
- (void)removeAllObjects;
@end
#endif
