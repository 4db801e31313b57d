// Exceptions.
#pragma once
#include <Foundation/NSObject.h>

#ifdef __OBJC__
#include <stdlib.h>

typedef NSString* NSExceptionName;
FOUNDATION_EXPORT NSExceptionName const NSGenericException;
FOUNDATION_EXPORT NSExceptionName const NSRangeException;
FOUNDATION_EXPORT NSExceptionName const NSInvalidArgumentException;
FOUNDATION_EXPORT NSExceptionName const NSInternalInconsistencyException;
FOUNDATION_EXPORT NSExceptionName const NSMallocException;

@interface NSException : NSObject <NSCopying>
+ (NSException*)exceptionWithName:(NSExceptionName)name
                           reason:(NSString*)reason
                         userInfo:(NSDictionary*)info;
+ (void)raise:(NSExceptionName)name format:(NSString*)format, ... NS_FORMAT_FUNCTION(2, 3);
- (instancetype)initWithName:(NSExceptionName)name
                      reason:(NSString*)reason
                    userInfo:(NSDictionary*)info;
- (void)raise;
@property(readonly, copy) NSExceptionName name;
@property(readonly, copy) NSString* reason;
@property(readonly, copy) NSDictionary* userInfo;
@end

#define NSAssert(CONDITION, ...)                                                               \
  do {                                                                                         \
    if (!(CONDITION)) [NSException raise:NSInternalInconsistencyException format:__VA_ARGS__]; \
  } while (0)
#define NSCAssert NSAssert
#define NSParameterAssert(CONDITION) NSAssert(CONDITION, @"Invalid parameter: %s", #CONDITION)
#define NSCParameterAssert NSParameterAssert
#endif
