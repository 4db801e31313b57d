// Automatic reference counting.  flags: -fobjc-arc
#import <Foundation/Foundation.h>

#include <vector>

#include "check.h"

static int alive = 0;

@interface Node : NSObject
@property(strong) Node* next;
@property(weak) Node* previous;
@property(copy) void (^block)(void);
@end
@implementation Node
- (instancetype)init {
  self = [super init];
  ++alive;
  return self;
}
- (void)dealloc {
  --alive;
}
@end

struct Holder {
  Node* node = [Node new];
  __weak Node* weak = node;
};

TEST(variables_own_objects) {
  @autoreleasepool {
    Node* node = [[Node alloc] init];
    Node* same = node;
    node = nil;
    EQUAL(alive, 1);
    CHECK(same != nil);
  }
  EQUAL(alive, 0);
}

TEST(weak_references_become_nil) {
  __weak Node* weak = nil;
  @autoreleasepool {
    Node* node = [Node new];
    weak = node;
    CHECK(weak == node);
  }
  CHECK(weak == nil);
  EQUAL(alive, 0);
}

TEST(cycles_are_broken_by_weak_properties) {
  @autoreleasepool {
    Node* first = [Node new];
    first.next = [Node new];
    first.next.previous = first;
    CHECK(first.next.previous == first);
  }
  EQUAL(alive, 0);
}

TEST(structs_and_containers_of_cpp_own_objects) {
  @autoreleasepool {
    std::vector<Holder> holders(3);
    EQUAL(alive, 3);
    std::vector<Holder> copies = holders;
    holders.clear();
    EQUAL(alive, 3);
    CHECK(copies[2].weak == copies[2].node);
  }
  EQUAL(alive, 0);
}

TEST(blocks_own_what_they_capture) {
  @autoreleasepool {
    Node* node = [Node new];
    __weak Node* weak = node;
    node.block = ^{
      CHECK(weak != nil);
    };
    node.block();
    int (^count)(void) = ^{
      return node != nil ? alive : -1;
    };
    node = nil;
    EQUAL(count(), 1);
  }
  EQUAL(alive, 0);
}

TEST(collections_own_their_objects) {
  @autoreleasepool {
    NSMutableArray<Node*>* nodes = [NSMutableArray array];
    for (int i = 0; i < 5; ++i) [nodes addObject:[Node new]];
    [nodes removeLastObject];
    NSDictionary* map = @{@"a" : nodes[0]};
    [nodes removeAllObjects];
    EQUAL([map count], 1u);
  }
  EQUAL(alive, 0);
}
