// Buffers.
#include "kernels.h"

TEST(length_contents_and_address) {
  id<MTLBuffer> buffer = [device() newBufferWithLength:100 options:MTLResourceStorageModeShared];
  EQUAL(buffer.length, 100u);
  EQUAL(buffer.gpuAddress, uint64_t(buffer.contents));
  bool zero = true;
  for (int i = 0; i < 100; ++i) zero = zero && ((char*)buffer.contents)[i] == 0;
  CHECK(zero);
  CHECK([buffer conformsToProtocol:@protocol(MTLBuffer)] && buffer.device == device());
  buffer.label = @"mine";
  CHECK([buffer.label isEqualToString:@"mine"]);
  CHECK([device() newBufferWithLength:0 options:0] == nil);
  [buffer release];
}

TEST(storage_modes) {
  id<MTLBuffer> buffer = [device()
      newBufferWithLength:16
                  options:MTLResourceStorageModePrivate | MTLResourceHazardTrackingModeUntracked];
  EQUAL(buffer.storageMode, MTLStorageModePrivate);
  EQUAL(buffer.hazardTrackingMode, MTLHazardTrackingModeUntracked);
  CHECK(buffer.contents == nullptr);
  id<MTLBuffer> shared = [device() newBufferWithLength:16 options:0];
  EQUAL(shared.storageMode, MTLStorageModeShared);
}

TEST(bytes_are_copied) {
  float values[] = {1, 2, 3};
  id<MTLBuffer> buffer = [device() newBufferWithBytes:values length:sizeof values options:0];
  values[0] = 9;
  EQUAL(floats(buffer)[0], 1);
  EQUAL(floats(buffer)[2], 3);
}

TEST(bytes_without_copy_are_given_back) {
  __block void* returned = nullptr;
  __block NSUInteger length = 0;
  void* pages = nullptr;
  CHECK(posix_memalign(&pages, 16384, 16384) == 0);
  id<MTLBuffer> buffer = [device() newBufferWithBytesNoCopy:pages
                                                     length:16384
                                                    options:0
                                                deallocator:^(void* pointer, NSUInteger bytes) {
                                                  returned = pointer;
                                                  length = bytes;
                                                }];
  CHECK(buffer.contents == pages);
  [buffer release];
  CHECK(returned == pages);
  EQUAL(length, 16384u);
  free(pages);
}
