// Heaps and residency sets.
#include "kernels.h"

static id<MTLHeap> heap(NSUInteger size, MTLHeapType type) {
  MTLHeapDescriptor* descriptor = [[[MTLHeapDescriptor alloc] init] autorelease];
  descriptor.size = size;
  descriptor.type = type;
  descriptor.storageMode = MTLStorageModeShared;
  return [device() newHeapWithDescriptor:descriptor];
}

TEST(a_heap_is_full_and_has_room_again) {
  id<MTLHeap> one = heap(1024, MTLHeapTypeAutomatic);
  CHECK([one conformsToProtocol:@protocol(MTLHeap)]);
  EQUAL(one.size, 1024u);
  EQUAL([one maxAvailableSizeWithAlignment:1], 1024u);
  id<MTLBuffer> a = [one newBufferWithLength:300 options:0];
  id<MTLBuffer> b = [one newBufferWithLength:512 options:0];
  EQUAL(a.length, 300u);
  EQUAL(b.heapOffset, 512u);
  CHECK(a.heap == one && b.heap == one);
  EQUAL(one.usedSize, 1024u);
  CHECK([one newBufferWithLength:1 options:0] == nil);
  [a release];
  EQUAL(one.usedSize, 512u);
  EQUAL([one maxAvailableSizeWithAlignment:256], 512u);
  id<MTLBuffer> c = [one newBufferWithLength:512 options:0];
  EQUAL(c.heapOffset, 0u);
  [b release];
  [c release];
  [one release];
}

TEST(a_buffer_keeps_its_heap) {
  id<MTLHeap> one = heap(4096, MTLHeapTypeAutomatic);
  id<MTLBuffer> buffer = [one newBufferWithLength:4096 options:MTLResourceStorageModeShared];
  [one release];
  EQUAL(floats(buffer)[1023], 0);
  floats(buffer)[1023] = 1;
  EQUAL(buffer.heap.size, 4096u);
  [buffer release];
}

TEST(an_aliasable_buffer_gives_its_place_away) {
  id<MTLHeap> one = heap(256, MTLHeapTypeAutomatic);
  id<MTLBuffer> a = [one newBufferWithLength:256 options:0];
  CHECK(!a.isAliasable);
  [a makeAliasable];
  CHECK(a.isAliasable);
  id<MTLBuffer> b = [one newBufferWithLength:256 options:0];
  CHECK(a.contents == b.contents);
  [a release];  // does not free the place of b
  EQUAL(one.usedSize, 256u);
  [b release];
  EQUAL(one.usedSize, 0u);
}

TEST(the_program_places_buffers) {
  id<MTLHeap> one = heap(2048, MTLHeapTypePlacement);
  const MTLSizeAndAlign needed = [device() heapBufferSizeAndAlignWithLength:100 options:0];
  EQUAL(needed.size % needed.align, 0u);
  id<MTLBuffer> a = [one newBufferWithLength:100 options:0 offset:2 * needed.align];
  EQUAL((char*)a.contents - (char*)[one newBufferWithLength:4 options:0 offset:0].contents,
        long(2 * needed.align));
  RAISES("the offset 4 is not a multiple of 256", [one newBufferWithLength:4 options:0 offset:4]);
  RAISES("300 bytes at offset 1792 are beyond the 2048 bytes of the heap",
         [one newBufferWithLength:300 options:0 offset:1792]);
  RAISES("needs an offset", [one newBufferWithLength:4 options:0]);
  RAISES("only a heap of type MTLHeapTypePlacement takes an offset",
         [heap(256, MTLHeapTypeAutomatic) newBufferWithLength:4 options:0 offset:0]);
}

TEST(storage_modes_are_those_of_the_heap) {
  MTLHeapDescriptor* descriptor = [[MTLHeapDescriptor alloc] init];
  EQUAL(descriptor.storageMode, MTLStorageModePrivate);
  RAISES("the size of the heap is 0", [device() newHeapWithDescriptor:descriptor]);
  descriptor.size = 256;
  id<MTLHeap> one = [device() newHeapWithDescriptor:descriptor];
  EQUAL(one.hazardTrackingMode, MTLHazardTrackingModeUntracked);
  id<MTLBuffer> buffer = [one newBufferWithLength:256 options:0];
  CHECK(buffer.contents == nullptr);
  descriptor.resourceOptions = MTLResourceStorageModeShared;
  EQUAL(descriptor.storageMode, MTLStorageModeShared);
  CHECK([[device() newHeapWithDescriptor:descriptor] newBufferWithLength:1 options:0].contents);
  RAISES("MTLHeapDescriptor is expected, but this is nil", [device() newHeapWithDescriptor:nil]);
}

TEST(kernels_write_into_a_heap) {
  id<MTLHeap> one = heap(1024, MTLHeapTypeAutomatic);
  id<MTLBuffer> in = counting(8), out = [one newBufferWithLength:32 options:0];
  id<MTLCommandBuffer> commands = [[device() newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder useHeap:one];
  encode_scale(encoder, in, out, 2, 8);
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  EQUAL(floats(out)[7], 14);
}

TEST(a_residency_set) {
  MTLResidencySetDescriptor* descriptor = [[MTLResidencySetDescriptor alloc] init];
  descriptor.label = @"mine";
  descriptor.initialCapacity = 4;
  NSError* error = (NSError*)1;
  id<MTLResidencySet> set = [device() newResidencySetWithDescriptor:descriptor error:&error];
  CHECK(error == nil && [set.label isEqualToString:@"mine"]);
  id<MTLBuffer> a = [device() newBufferWithLength:100 options:0];
  id<MTLHeap> b = heap(256, MTLHeapTypeAutomatic);
  const id<MTLAllocation> both[] = {a, b};
  [set addAllocation:a];
  [set addAllocations:both count:2];
  EQUAL(set.allocationCount, 2u);
  CHECK([set containsAllocation:b]);
  EQUAL(set.allocatedSize, 0u);
  [set commit];
  [set requestResidency];
  EQUAL(set.allocatedSize, 356u);
  EQUAL(set.allAllocations.count, 2u);
  [set removeAllocation:a];
  [set removeAllocations:both count:1];
  CHECK(![set containsAllocation:a]);
  EQUAL(set.allocatedSize, 356u);
  id<MTLCommandQueue> queue = [device() newCommandQueue];
  [queue addResidencySet:set];
  [[queue commandBuffer] useResidencySet:set];
  [queue removeResidencySet:set];
  [set removeAllAllocations];
  [set commit];
  EQUAL(set.allocatedSize, 0u);
  RAISES("an MTLAllocation is expected, but this is a ", [set addAllocation:(id) @"text"]);
  [set endResidency];
}

TEST(textures_have_places_in_heaps) {
  MTLTextureDescriptor* descriptor =
      [MTLTextureDescriptor texture2DDescriptorWithPixelFormat:MTLPixelFormatR32Float
                                                         width:16
                                                        height:16
                                                     mipmapped:YES];
  const MTLSizeAndAlign needed = [device() heapTextureSizeAndAlignWithDescriptor:descriptor];
  CHECK(needed.size >= 4 * (256 + 64 + 16 + 4 + 1) && needed.size % needed.align == 0);
  id<MTLHeap> one = heap(needed.size + 256, MTLHeapTypeAutomatic);
  id<MTLBuffer> buffer = [one newBufferWithLength:256 options:0];
  id<MTLTexture> texture = [one newTextureWithDescriptor:descriptor];
  CHECK(texture.heap == one && texture.heapOffset == 256);
  EQUAL(texture.storageMode, MTLStorageModeShared);
  EQUAL(one.usedSize, one.size);
  CHECK([one newTextureWithDescriptor:descriptor] == nil);
  const float texel = 3;
  [texture replaceRegion:MTLRegionMake2D(0, 0, 1, 1) mipmapLevel:4 withBytes:&texel bytesPerRow:4];
  EQUAL(floats(buffer)[63], 0);
  [texture release];
  EQUAL(one.usedSize, 256u);
  id<MTLHeap> other = heap(needed.size + 256, MTLHeapTypePlacement);
  texture = [other newTextureWithDescriptor:descriptor offset:256];
  [texture replaceRegion:MTLRegionMake2D(0, 0, 1, 1) mipmapLevel:0 withBytes:&texel bytesPerRow:4];
  EQUAL(floats([other newBufferWithLength:4 options:0 offset:256])[0], 3);
  RAISES("are beyond the", [other newTextureWithDescriptor:descriptor offset:512]);
}
