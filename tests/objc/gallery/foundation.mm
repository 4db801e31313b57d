// Strings, numbers, collections, errors and files.
#import <Foundation/Foundation.h>

#include <string>

#include "check.h"

static std::string text(NSString* string) { return string == nil ? "nil" : string.UTF8String; }

TEST(literals_of_every_kind) {
  EQUAL(text(@""), "");
  EQUAL(text(@"tiny"), "tiny");
  EQUAL(text(@"eight ch"), "eight ch");
  EQUAL(text(@"a longer literal"), "a longer literal");
  EQUAL(text(@"Grüße 👋"), "Grüße 👋");
  EQUAL([@"Grüße 👋" length], 8u);
  EQUAL(text(@__FILE__).substr(text(@__FILE__).size() - 13), "foundation.mm");
  EQUAL(text(@R"(raw "text")"), "raw \"text\"");
  CHECK([@"tiny" isEqual:[NSString stringWithUTF8String:"tiny"]]);
  EQUAL([@"same" hash], [[NSString stringWithUTF8String:"same"] hash]);
}

TEST(formats) {
  EQUAL(text([NSString stringWithFormat:@"%d|%5.2f|%s|%@|%c|%%|%lu|%lld", 7, 3.14159, "c",
                                        @"object", 'x', 12345678901ul, -5ll]),
        "7| 3.14|c|object|x|%|12345678901|-5");
  EQUAL(text([NSString stringWithFormat:@"%-6d|%06x|%*d", 42, 255, 4, 1]), "42    |0000ff|   1");
  EQUAL(text([NSString stringWithFormat:@"%@ %@ %@", @1.5, @YES, (id)nil]), "1.5 1 (null)");
  const std::string many(2000, 'x');
  NSString* long_one = [NSString stringWithFormat:@"%s", many.c_str()];
  EQUAL(long_one.length, 2000u);
}

TEST(parts_of_strings) {
  NSString* string = @"Grüße 👋, Welt";
  EQUAL(text([string substringToIndex:5]), "Grüße");
  EQUAL(text([string substringFromIndex:10]), "Welt");
  EQUAL(text([string substringWithRange:NSMakeRange(6, 2)]), "👋");
  EQUAL([string characterAtIndex:2], 0xFC);
  EQUAL([string rangeOfString:@"Welt"].location, 10u);
  CHECK([string rangeOfString:@"none"].location == NSUInteger(NSNotFound));
  CHECK([string hasPrefix:@"Gr"] && [string hasSuffix:@"elt"] && [string containsString:@"👋"]);
  EQUAL([[@"a,b,,c" componentsSeparatedByString:@","] count], 4u);
  EQUAL(text([@[ @"a", @"b" ] componentsJoinedByString:@"-"]), "a-b");
  EQUAL(text([@[ @"", @"b" ] componentsJoinedByString:@"-"]), "-b");
  EQUAL(text([@"aXbX" stringByReplacingOccurrencesOfString:@"X" withString:@"YX"]), "aYXbYX");
  RAISES("NSRangeException: -[NSConstantString substringFromIndex:]",
         [@"too short for that" substringFromIndex:19]);
  NSMutableString* built = [NSMutableString string];
  [built appendFormat:@"%d", 1];
  [built appendString:@"2"];
  EQUAL(text(built), "12");
}

TEST(paths) {
  NSString* path = @"/usr/lib/libfoo.metallib";
  EQUAL(text([path stringByDeletingLastPathComponent]), "/usr/lib");
  EQUAL(text([path lastPathComponent]), "libfoo.metallib");
  EQUAL(text([path pathExtension]), "metallib");
  EQUAL(text([path stringByDeletingPathExtension]), "/usr/lib/libfoo");
  EQUAL(text([@"/usr" stringByAppendingPathComponent:@"lib"]), "/usr/lib");
  EQUAL(text([@"/usr/" stringByAppendingPathComponent:@"lib"]), "/usr/lib");
  EQUAL(text([NSURL fileURLWithPath:path].path), text(path));
  EQUAL(text([NSURL fileURLWithPath:path].absoluteString), "file://" + text(path));
}

TEST(numbers) {
  EQUAL(text(@(0.1f).stringValue), "0.1");
  EQUAL(text(@(1e100).stringValue), "1e+100");
  EQUAL(text(@(18446744073709551615ull).stringValue), "18446744073709551615");
  EQUAL([@(-3) intValue], -3);
  EQUAL([@2.75 intValue], 2);
  CHECK([@1 isEqual:@1.0] && ![@1 isEqual:@2] && [@(-1) compare:@(~0ull)] == NSOrderedAscending);
  CHECK([@YES boolValue] && ![@NO boolValue]);
}

TEST(arrays) {
  NSMutableArray<NSNumber*>* array = [NSMutableArray arrayWithArray:@[ @3, @1, @2 ]];
  [array addObject:@5];
  [array insertObject:@0 atIndex:0];
  array[1] = @4;
  [array removeObject:@2];
  EQUAL(text([array componentsJoinedByString:@" "]), "0 4 1 5");
  EQUAL([array indexOfObject:@1], 2u);
  EQUAL(text([[array sortedArrayUsingSelector:@selector(compare:)] componentsJoinedByString:@" "]),
        "0 1 4 5");
  int sum = 0;
  for (NSNumber* one in array) sum += one.intValue;
  EQUAL(sum, 10);
  RAISES("NSRangeException: -[NSArray objectAtIndexedSubscript:]: index 3 is beyond the 3 objects",
         (void)(@[ @1, @2, @3 ])[3]);
  RAISES("NSInvalidArgumentException", [array addObject:(NSNumber*)nil]);
  RAISES("was changed while a for loop", for (NSNumber* one in array)[array addObject:one]);
}

TEST(dictionaries) {
  NSMutableDictionary<NSString*, id>* map = [NSMutableDictionary dictionary];
  for (int i = 0; i < 40; ++i) map[[NSString stringWithFormat:@"key %d", i]] = @(i);
  EQUAL([map count], 40u);
  EQUAL([map[@"key 17"] intValue], 17);
  map[@"key 17"] = nil;
  CHECK(map[@"key 17"] == nil);
  int sum = 0;
  for (NSString* key in map) sum += [map[key] intValue];
  EQUAL(sum, 780 - 17);
  NSDictionary* fixed = @{@"a" : @1, @2 : @[ @"b" ]};
  CHECK([fixed isEqual:[[fixed mutableCopy] autorelease]]);
  EQUAL(text(fixed[@2][0]), "b");
  CHECK([[NSSet setWithArray:@[ @1, @1, @2 ]] count] == 2);
}

TEST(errors) {
  NSError* error = nil;
  NSString* read = [NSString stringWithContentsOfFile:@"/does/not/exist"
                                             encoding:NSUTF8StringEncoding
                                                error:&error];
  CHECK(read == nil && error.code == 260 && [error.domain isEqualToString:NSCocoaErrorDomain]);
  CHECK(check::has(text(error.localizedDescription), "/does/not/exist"));
  NSError* own = [NSError errorWithDomain:@"mine"
                                     code:7
                                 userInfo:@{NSLocalizedDescriptionKey : @"what"}];
  EQUAL(text(own.description), "Error Domain=mine Code=7 \"what\"");
}

TEST(files) {
  NSFileManager* files = [NSFileManager defaultManager];
  NSString* path = [NSTemporaryDirectory()
      stringByAppendingPathComponent:[NSString stringWithFormat:@"metalops-%d", getpid()]];
  CHECK([@"Grüße" writeToFile:path atomically:YES encoding:NSUTF8StringEncoding error:nil]);
  CHECK([files fileExistsAtPath:path]);
  EQUAL([[files attributesOfItemAtPath:path error:nil][NSFileSize] intValue], 7);
  EQUAL([[NSData dataWithContentsOfFile:path] length], 7u);
  CHECK([[NSURL fileURLWithPath:path] checkResourceIsReachableAndReturnError:nil]);
  CHECK([files removeItemAtPath:path error:nil] && ![files fileExistsAtPath:path]);
}
