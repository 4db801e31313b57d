// Bytes.
#pragma once
#include <Foundation/NSObject.h>

#ifdef __OBJC__
@interface NSData : NSObject <NSCopying, NSMutableCopying>
+ (instancetype)data;
+ (instancetype)dataWithBytes:(const void*)bytes length:(NSUInteger)length;
+ (instancetype)dataWithBytesNoCopy:(void*)bytes length:(NSUInteger)length;
+ (instancetype)dataWithBytesNoCopy:(void*)bytes
                             length:(NSUInteger)length
                       freeWhenDone:(BOOL)freeWhenDone;
+ (instancetype)dataWithData:(NSData*)data;
+ (instancetype)dataWithContentsOfFile:(NSString*)path;
+ (instancetype)dataWithContentsOfURL:(NSURL*)url;
- (instancetype)initWithBytes:(const void*)bytes length:(NSUInteger)length;
- (void)getBytes:(void*)buffer length:(NSUInteger)length;
- (BOOL)isEqualToData:(NSData*)other;
- (BOOL)writeToFile:(NSString*)path atomically:(BOOL)atomically;
@property(readonly) NSUInteger length;
@property(readonly) const void* bytes;
@end

@interface NSMutableData : NSData
+ (instancetype)dataWithLength:(NSUInteger)length;
+ (instancetype)dataWithCapacity:(NSUInteger)capacity;
- (void)appendBytes:(const void*)bytes length:(NSUInteger)length;
- (void)appendData:(NSData*)data;
@property(readonly) void* mutableBytes;
@property NSUInteger length;
@end
#endif
