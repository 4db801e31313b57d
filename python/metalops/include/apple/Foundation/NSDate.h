// Points in time.
#pragma once
#include <Foundation/NSObject.h>

#ifdef __OBJC__
@interface NSDate : NSObject <NSCopying>
+ (instancetype)date;
- (NSTimeInterval)timeIntervalSinceDate:(NSDate*)other;
@property(readonly) NSTimeInterval timeIntervalSinceNow;
@property(readonly) NSTimeInterval timeIntervalSince1970;
@end
#endif
