// Folders that hold a program, or a library, with its resources.
#pragma once
#include <Foundation/NSObject.h>

#ifdef __OBJC__
@interface NSBundle : NSObject
+ (NSBundle*)mainBundle;
+ (NSBundle*)bundleForClass:(Class)cls;
+ (instancetype)bundleWithPath:(NSString*)path;
+ (instancetype)bundleWithURL:(NSURL*)url;
- (instancetype)initWithPath:(NSString*)path;
- (NSString*)pathForResource:(NSString*)name ofType:(NSString*)extension;
- (NSString*)pathForResource:(NSString*)name
                      ofType:(NSString*)extension
                 inDirectory:(NSString*)folder;
- (NSURL*)URLForResource:(NSString*)name withExtension:(NSString*)extension;
- (id)objectForInfoDictionaryKey:(NSString*)key;
@property(readonly, copy) NSString* bundlePath;
@property(readonly, copy) NSURL* bundleURL;
@property(readonly, copy) NSString* bundleIdentifier;
@property(readonly, copy) NSString* resourcePath;
@property(readonly, copy) NSURL* resourceURL;
@property(readonly, copy) NSString* executablePath;
@end
#endif
