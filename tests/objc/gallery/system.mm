// Headers of Apple's other frameworks and of its system, as far as metal-cpp and programs with it
// name them.
#import <CoreFoundation/CoreFoundation.h>
#import <CoreGraphics/CGColorSpace.h>
#import <CoreGraphics/CGGeometry.h>
#import <Foundation/Foundation.h>
#import <IOSurface/IOSurfaceRef.h>
#import <mach/mach.h>
#import <sys/sysctl.h>
#import <unistd.h>

#include "check.h"

TEST(types_have_apples_sizes) {
  EQUAL(sizeof(CGSize), 16u);
  EQUAL(sizeof(CGRect), 32u);
  EQUAL(sizeof(CFTimeInterval), 8u);
  EQUAL(sizeof(task_id_token_t), 4u);
  CGColorSpaceRef space = nullptr;
  IOSurfaceRef surface = nullptr;
  CHECK(space == nullptr && surface == nullptr && INFINITY > 0);
}

TEST(the_system_tells_of_the_machine) {
  uint64_t memory = 0;
  size_t length = sizeof memory;
  EQUAL(sysctlbyname("hw.memsize", &memory, &length, nullptr, 0), 0);
  EQUAL(memory, NSProcessInfo.processInfo.physicalMemory);
  EQUAL(length, 8u);
  int32_t processors = 0;
  length = sizeof processors;
  EQUAL(sysctlbyname("hw.ncpu", &processors, &length, nullptr, 0), 0);
  EQUAL(processors, int32_t(sysconf(_SC_NPROCESSORS_ONLN)));
}

TEST(text_from_the_system_has_a_length) {
  size_t length = 0;
  if (sysctlbyname("machdep.cpu.brand_string", nullptr, &length, nullptr, 0) != 0) {
    EQUAL(errno, ENOENT);  // a processor without a name
    return;
  }
  std::string name(length, ' ');
  size_t room = length - 1;
  EQUAL(sysctlbyname("machdep.cpu.brand_string", name.data(), &room, nullptr, 0), -1);
  EQUAL(errno, ENOMEM);
  EQUAL(sysctlbyname("machdep.cpu.brand_string", name.data(), &length, nullptr, 0), 0);
  EQUAL(name.find(char{0}) + 1, length);
}

TEST(names_that_the_system_does_not_have_are_errors) {
  size_t length = 8;
  uint64_t value = 7;
  EQUAL(sysctlbyname("iogpu.rsrc_limit", &value, &length, nullptr, 0), -1);
  EQUAL(errno, ENOENT);
  EQUAL(value, 7u);
  EQUAL(sysctlbyname("hw.memsize", nullptr, nullptr, &value, sizeof value), -1);
  EQUAL(errno, EPERM);
}
