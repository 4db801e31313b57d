// Text.
#pragma once
#include <Foundation/NSObject.h>

#ifdef __OBJC__
typedef NSUInteger NSStringCompareOptions;

@interface NSString : NSObject <NSCopying, NSMutableCopying>
+ (instancetype)string;
+ (instancetype)stringWithString:(NSString*)string;
+ (instancetype)stringWithUTF8String:(const char*)text;
+ (instancetype)stringWithCString:(const char*)text;
+ (instancetype)stringWithCString:(const char*)text encoding:(NSStringEncoding)encoding;
+ (instancetype)stringWithFormat:(NSString*)format, ... NS_FORMAT_FUNCTION(1, 2);
+ (instancetype)stringWithContentsOfFile:(NSString*)path
                                encoding:(NSStringEncoding)encoding
                                   error:(NSError**)error;
+ (instancetype)stringWithContentsOfURL:(NSURL*)url
                               encoding:(NSStringEncoding)encoding
                                  error:(NSError**)error;
+ (NSString*)pathWithComponents:(NSArray<NSString*>*)components;
- (instancetype)initWithString:(NSString*)string;
- (instancetype)initWithUTF8String:(const char*)text;
- (instancetype)initWithCString:(const char*)text encoding:(NSStringEncoding)encoding;
- (instancetype)initWithFormat:(NSString*)format, ... NS_FORMAT_FUNCTION(1, 2);
- (instancetype)initWithFormat:(NSString*)format arguments:(va_list)arguments;
- (instancetype)initWithBytes:(const void*)bytes
                       length:(NSUInteger)length
                     encoding:(NSStringEncoding)encoding;
- (instancetype)initWithBytesNoCopy:(void*)bytes
                             length:(NSUInteger)length
                           encoding:(NSStringEncoding)encoding
                       freeWhenDone:(BOOL)freeWhenDone;
- (instancetype)initWithData:(NSData*)data encoding:(NSStringEncoding)encoding;
- (instancetype)initWithContentsOfFile:(NSString*)path
                              encoding:(NSStringEncoding)encoding
                                 error:(NSError**)error;
- (const char*)cStringUsingEncoding:(NSStringEncoding)encoding;
- (BOOL)getCString:(char*)buffer maxLength:(NSUInteger)length encoding:(NSStringEncoding)encoding;
- (NSUInteger)lengthOfBytesUsingEncoding:(NSStringEncoding)encoding;
- (NSUInteger)maximumLengthOfBytesUsingEncoding:(NSStringEncoding)encoding;
- (NSData*)dataUsingEncoding:(NSStringEncoding)encoding;
- (unichar)characterAtIndex:(NSUInteger)index;
- (BOOL)isEqualToString:(NSString*)other;
- (BOOL)hasPrefix:(NSString*)prefix;
- (BOOL)hasSuffix:(NSString*)suffix;
- (BOOL)containsString:(NSString*)part;
- (NSRange)rangeOfString:(NSString*)part;
- (NSComparisonResult)compare:(NSString*)other;
- (NSComparisonResult)caseInsensitiveCompare:(NSString*)other;
- (NSString*)stringByAppendingString:(NSString*)other;
- (NSString*)stringByAppendingFormat:(NSString*)format, ... NS_FORMAT_FUNCTION(1, 2);
- (NSString*)stringByReplacingOccurrencesOfString:(NSString*)part withString:(NSString*)other;
- (NSString*)substringToIndex:(NSUInteger)index;
- (NSString*)substringFromIndex:(NSUInteger)index;
- (NSString*)substringWithRange:(NSRange)range;
- (NSArray<NSString*>*)componentsSeparatedByString:(NSString*)separator;
- (NSString*)stringByAppendingPathComponent:(NSString*)component;
- (NSString*)stringByAppendingPathExtension:(NSString*)extension;
- (BOOL)writeToFile:(NSString*)path
         atomically:(BOOL)atomically
           encoding:(NSStringEncoding)encoding
              error:(NSError**)error;
@property(readonly) NSUInteger length;
@property(readonly) const char* UTF8String;
@property(readonly) const char* fileSystemRepresentation;
@property(readonly) NSInteger integerValue;
@property(readonly) int intValue;
@property(readonly) long long longLongValue;
@property(readonly) float floatValue;
@property(readonly) double doubleValue;
@property(readonly) BOOL boolValue;
@property(readonly, copy) NSString* lowercaseString;
@property(readonly, copy) NSString* uppercaseString;
@property(readonly, copy) NSString* stringByDeletingLastPathComponent;
@property(readonly, copy) NSString* stringByDeletingPathExtension;
@property(readonly, copy) NSString* stringByStandardizingPath;
@property(readonly, copy) NSString* stringByExpandingTildeInPath;
@property(readonly, copy) NSString* lastPathComponent;
@property(readonly, copy) NSString* pathExtension;
@property(readonly, copy) NSArray<NSString*>* pathComponents;
@property(readonly, getter=isAbsolutePath) BOOL absolutePath;
@end

@interface NSMutableString : NSString
+ (instancetype)stringWithCapacity:(NSUInteger)capacity;
- (instancetype)initWithCapacity:(NSUInteger)capacity;
- (void)appendString:(NSString*)other;
- (void)appendFormat:(NSString*)format, ... NS_FORMAT_FUNCTION(1, 2);
- (void)setString:(NSString*)other;
@end

// Literals.
@interface NSConstantString : NSString
@end
#endif
