// Blocks: copies, captured variables, C++ objects in them.
#import <Foundation/Foundation.h>

#include <memory>
#include <string>

#include "check.h"

typedef int (^Adder)(int);

static Adder adder(int n) {
  return [[^(int x) {
    return x + n;
  } copy] autorelease];
}

TEST(copies_outlive_the_function) {
  EQUAL(adder(3)(4), 7);
  Adder global = ^(int x) {
    return x;
  };
  CHECK([global copy] == (id)global);
}

TEST(variables_with_block_storage_are_shared) {
  __block int count = 0;
  void (^add)(void) = [^{
    ++count;
  } copy];
  add();
  add();
  EQUAL(count, 2);
  [add release];
  count += 1;
  EQUAL(count, 3);
}

TEST(cpp_objects_are_copied_and_destroyed) {
  auto owner = std::make_shared<std::string>("text");
  std::string (^read)(void) = [^{
    return *owner;
  } copy];
  EQUAL(owner.use_count(), 3);  // the block in this frame has one, too
  EQUAL(read(), "text");
  [read retain];
  [read release];
  EQUAL(owner.use_count(), 3);
  [read release];
  EQUAL(owner.use_count(), 2);
}

TEST(captured_objects_are_retained_by_copies) {
  NSMutableString* text = [[NSMutableString alloc] initWithUTF8String:"text"];
  void (^use)(void) = [^{
    [text length];
  } copy];
  EQUAL([text retainCount], 2u);
  [use release];
  EQUAL([text retainCount], 1u);
  [text release];
}

TEST(blocks_are_objects) {
  NSArray* blocks = @[ adder(1), adder(2) ];
  int sum = 0;
  for (Adder one in blocks) sum += one(10);
  EQUAL(sum, 23);
  CHECK([adder(1) isKindOfClass:[NSObject class]]);
}

TEST(blocks_nest) {
  __block std::string text;
  Adder (^make)(int) = ^(int n) {
    return adder(n * 2);
  };
  void (^outer)(void) = ^{
    void (^inner)(void) = ^{
      text += "in";
    };
    inner();
    text += "out";
  };
  outer();
  EQUAL(text, "inout");
  EQUAL(make(4)(1), 9);
}
