// Locks.
#pragma once
#include <Foundation/NSObject.h>

#ifdef __OBJC__
@protocol NSLocking
- (void)lock;
- (void)unlock;
@end

@interface NSLock : NSObject <NSLocking>
- (BOOL)tryLock;
@property(copy) NSString* name;
@end

@interface NSRecursiveLock : NSObject <NSLocking>
- (BOOL)tryLock;
@property(copy) NSString* name;
@end
#endif
