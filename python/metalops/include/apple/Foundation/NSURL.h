// Paths of files, as URLs.
#pragma once
#include <Foundation/NSObject.h>

#ifdef __OBJC__
@interface NSURL : NSObject <NSCopying>
+ (instancetype)fileURLWithPath:(NSString*)path;
+ (instancetype)fileURLWithPath:(NSString*)path isDirectory:(BOOL)isDirectory;
+ (instancetype)URLWithString:(NSString*)text;
- (instancetype)initFileURLWithPath:(NSString*)path;
- (NSURL*)URLByAppendingPathComponent:(NSString*)component;
- (NSURL*)URLByAppendingPathExtension:(NSString*)extension;
- (BOOL)checkResourceIsReachableAndReturnError:(NSError**)error;
@property(readonly, copy) NSURL* URLByDeletingLastPathComponent;
@property(readonly, copy) NSString* path;
@property(readonly, copy) NSString* lastPathComponent;
@property(readonly, copy) NSString* pathExtension;
@property(readonly, copy) NSString* absoluteString;
@property(readonly, getter=isFileURL) BOOL fileURL;
@property(readonly) const char* fileSystemRepresentation;
@end
#endif
