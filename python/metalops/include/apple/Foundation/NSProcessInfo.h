// The process and its machine.
#pragma once
#include <Foundation/NSObject.h>

#ifdef __OBJC__
typedef struct {
  NSInteger majorVersion, minorVersion, patchVersion;
} NSOperatingSystemVersion;

@interface NSProcessInfo : NSObject
+ (NSProcessInfo*)processInfo;
- (BOOL)isOperatingSystemAtLeastVersion:(NSOperatingSystemVersion)version;
@property(readonly) NSOperatingSystemVersion operatingSystemVersion;
@property(readonly, copy) NSString* operatingSystemVersionString;
@property(readonly, copy) NSDictionary<NSString*, NSString*>* environment;
@property(readonly, copy) NSArray<NSString*>* arguments;
@property(readonly, copy) NSString* processName;
@property(readonly) int processIdentifier;
@property(readonly) unsigned long long physicalMemory;
@property(readonly) NSUInteger processorCount;
@property(readonly) NSUInteger activeProcessorCount;
@property(readonly) NSTimeInterval systemUptime;
@end
#endif
