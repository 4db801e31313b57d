// Classes of a program, messages, exceptions and reference counts by hand.
#import <Foundation/Foundation.h>

#include <string>
#include <thread>
#include <vector>

#include "check.h"

static int loaded = 0, initialized = 0, deallocated = 0;

@protocol Shape <NSObject>
- (double)area;
@optional
- (double)volume;
@end

@interface Square : NSObject <Shape, NSCopying> {
  double _side;
  std::string _text;
}
@property(nonatomic, copy) NSString* name;
@property(retain) NSNumber* number;
+ (instancetype)squareWithSide:(double)side;
- (double)side;
- (std::string&)text;
@end
@implementation Square
+ (void)load {
  ++loaded;
}
+ (void)initialize {
  if (self == [Square class]) ++initialized;
}
+ (instancetype)squareWithSide:(double)side {
  Square* made = [[[self alloc] init] autorelease];
  made->_side = side;
  made->_text = "a text that does not fit into a small string";
  return made;
}
- (double)area {
  return _side * _side;
}
- (double)side {
  return _side;
}
- (std::string&)text {
  return _text;
}
- (id)copyWithZone:(NSZone*)zone {
  return [[Square squareWithSide:_side] retain];
}
- (void)dealloc {
  ++deallocated;
  [_name release];
  [_number release];
  [super dealloc];
}
@end

@interface Cube : Square {
  char _padding[3];
  double _height;
}
@end
@implementation Cube
- (double)area {
  return 6 * [super area];
}
- (double)volume {
  _height = [self side];
  return [self side] * [self side] * _height;
}
@end

@interface NSString (Doubled)
- (NSString*)doubled;
@end
@implementation NSString (Doubled)
- (NSString*)doubled {
  return [self stringByAppendingString:self];
}
@end

struct Large {
  double values[6];
};
@interface Returns : NSObject
@end
@implementation Returns
- (Large)large:(int)n {
  Large result = {};
  for (double& value : result.values) value = n++;
  return result;
}
- (float)sum:(float)a
        with:(double)b
         and:(int)c
         and:(long)d
         and:(short)e
         and:(float)f
         and:(int)g
         and:(int)h {
  return a + b + c + d + e + f + g + h;
}
@end

TEST(classes_are_loaded_and_initialized_once) {
  EQUAL(loaded, 1);
  [Square squareWithSide:1];
  [Cube squareWithSide:1];
  EQUAL(initialized, 1);
}

TEST(methods_are_inherited_and_overridden) {
  Square* square = [Square squareWithSide:3];
  Square* cube = [Cube squareWithSide:2];
  EQUAL([square area], 9);
  EQUAL([cube area], 24);
  EQUAL([(Cube*)cube volume], 8);
  EQUAL([cube text].size(), square.text.size());
  CHECK([cube isKindOfClass:[Square class]] && ![cube isMemberOfClass:[Square class]]);
  CHECK([cube respondsToSelector:@selector(volume)]);
  CHECK(![square respondsToSelector:@selector(volume)]);
  CHECK([Cube conformsToProtocol:@protocol(Shape)] &&
        [square conformsToProtocol:@protocol(NSCopying)]);
  CHECK(![@"x" conformsToProtocol:@protocol(Shape)]);
  EQUAL(std::string(NSStringFromClass([cube class]).UTF8String), "Cube");
  CHECK(NSClassFromString(@"Cube") == [Cube class] && [Cube superclass] == [Square class]);
}

TEST(categories_add_methods) { CHECK([[@"ab" doubled] isEqualToString:@"abab"]); }

TEST(structs_and_many_arguments_pass) {
  Returns* object = [[Returns new] autorelease];
  const Large large = [object large:2];
  EQUAL(large.values[0], 2);
  EQUAL(large.values[5], 7);
  EQUAL([object sum:0.5f with:0.25 and:1 and:2 and:3 and:4 and:5 and:6], 21.75f);
  Returns* nothing = nil;
  EQUAL([nothing sum:1 with:1 and:1 and:1 and:1 and:1 and:1 and:1], 0);
}

TEST(objects_are_freed_with_the_last_reference) {
  deallocated = 0;
  Square* square = [[Square alloc] init];
  [square retain];
  EQUAL([square retainCount], 2u);
  [square release];
  EQUAL(deallocated, 0);
  @autoreleasepool {
    [square autorelease];
    EQUAL(deallocated, 0);
  }
  EQUAL(deallocated, 1);
}

TEST(properties_copy_and_retain) {
  deallocated = 0;
  @autoreleasepool {
    Square* square = [Square squareWithSide:1];
    NSMutableString* text = [NSMutableString stringWithString:@"before"];
    square.name = text;
    [text appendString:@" and after"];
    EQUAL(std::string(square.name.UTF8String), "before");
    square.number = @42;
    EQUAL(square.number.intValue, 42);
    Square* copy = [[square copy] autorelease];
    EQUAL([copy side], 1);
  }
  EQUAL(deallocated, 2);
}

TEST(unknown_methods_are_named) {
  id object = @"text";
  RAISES("newTextureWithDescriptor:]: the software Metal device does not have this method",
         [object performSelector:@selector(newTextureWithDescriptor:) withObject:nil]);
  RAISES("-[Square volume]", [(Cube*)[Square squareWithSide:1] volume]);
}

TEST(exceptions_are_caught_by_class) {
  int caught = 0;
  @try {
    @throw [NSException exceptionWithName:@"Mine" reason:@"because" userInfo:nil];
  } @catch (Square* square) {
    caught = 1;
  } @catch (NSException* e) {
    caught = [e.name isEqualToString:@"Mine"] && [e.reason isEqualToString:@"because"] ? 2 : 3;
  } @finally {
    caught += 10;
  }
  EQUAL(caught, 12);
  @try {
    [@[ @1 ] objectAtIndex:1];
  } @catch (NSException* e) {
    caught = [e.name isEqualToString:NSRangeException] ? 20 : 21;
  }
  EQUAL(caught, 20);
  @try {
    @throw [Square squareWithSide:5];
  } @catch (id object) {
    caught = int([object side]);
  }
  EQUAL(caught, 5);
}

TEST(exceptions_are_rethrown_and_seen_by_cpp) {
  RAISES("Mine: because", {
    @try {
      [NSException raise:@"Mine" format:@"%@", @"because"];
    } @catch (NSException* e) {
      @throw;
    }
  });
  bool passed = false;
  try {
    @try {
      throw 7;
    } @catch (NSException* e) {
      passed = false;
    }
  } catch (int number) {
    passed = number == 7;
  }
  CHECK(passed);
}

TEST(synchronized_excludes_other_threads) {
  Square* lock = [Square squareWithSide:1];
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        @synchronized(lock) {
          @synchronized(lock) {
            ++count;
          }
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EQUAL(count, 4000);
}
