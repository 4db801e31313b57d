// Heaps: memory of which buffers and textures are parts.
#include <ATen/mps/MPSAllocatorInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>

#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MTLHeapDescriptor)
METALOPS_OBJC_CLASS(MetalopsHeap)

namespace metalops::objc {
namespace {

constexpr UInteger kAlignment = 256;  // of what is in a heap, as heapBufferSizeAndAlign says
constexpr long kAutomatic = 0;        // MTLHeapTypeAutomatic
constexpr long kPlacement = 1;        // MTLHeapTypePlacement

UInteger rounded(UInteger bytes, UInteger alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

struct HeapDescriptor : objc_object {
  UInteger size = 0;
  UInteger options = 2 << 4 | 1 << 8;  // private and untracked, Metal's defaults for heaps
  long type = kAutomatic;
};

// A field of MTLResourceOptions, `bits` wide.
template <int shift, UInteger mask, class State>
struct Option {
  static UInteger get(State* self, SEL) { return self->options >> shift & mask; }
  static void set(State* self, SEL, UInteger value) {
    self->options = (self->options & ~(mask << shift)) | (value & mask) << shift;
  }
};
template <class State>
using CacheMode = Option<0, 0xF, State>;
template <class State>
using StorageMode = Option<4, 0xF, State>;
template <class State>
using Tracking = Option<8, 0x3, State>;

struct Heap : objc_object {
  c10::DataPtr memory;
  UInteger size = 0;
  UInteger options = 0;
  long type = kAutomatic;
  Strong label;
  std::mutex mutex;
  std::map<UInteger, UInteger> used;  // from the offset of what is there to its size
  UInteger used_bytes = 0;
};

// Calls `take(offset, bytes)` for the gaps between what is in an automatic heap, in order,
// until it returns true.
template <class F>
bool for_gaps(const Heap* heap, UInteger alignment, F take) {
  UInteger end = 0;
  for (const auto& [offset, bytes] : heap->used) {
    const UInteger begin = rounded(end, alignment);
    if (begin < offset && take(begin, offset - begin)) return true;
    end = offset + bytes;
  }
  const UInteger begin = rounded(end, alignment);
  return begin < heap->size && take(begin, heap->size - begin);
}

// Finds room in a heap; returns false if there is none.
bool reserve(Heap* self, SEL method, UInteger length, UInteger& place) {
  TORCH_CHECK_VALUE(self->type == kAutomatic, written(self, method),
                    ": a heap of type MTLHeapTypePlacement needs an offset");
  const UInteger bytes = rounded(length, kAlignment);
  std::lock_guard<std::mutex> lock(self->mutex);
  const bool found = for_gaps(self, kAlignment, [&](UInteger offset, UInteger room) {
    place = offset;
    return room >= bytes;
  });
  if (!found) return false;
  self->used[place] = bytes;
  self->used_bytes += bytes;
  return true;
}

// Raises ValueError unless the program may place something there.
void check_place(Heap* self, SEL method, UInteger length, UInteger offset) {
  TORCH_CHECK_VALUE(self->type == kPlacement, written(self, method),
                    ": only a heap of type MTLHeapTypePlacement takes an offset");
  TORCH_CHECK_VALUE(offset % kAlignment == 0, written(self, method), ": the offset ", offset,
                    " is not a multiple of ", kAlignment,
                    ", the alignment of heapBufferSizeAndAlignWithLength:options:");
  TORCH_CHECK_VALUE(offset <= self->size && length <= self->size - offset, written(self, method),
                    ": ", length, " bytes at offset ", offset, " are beyond the ", self->size,
                    " bytes of the heap");
}

char* memory_at(const Heap* heap, UInteger offset) {
  return static_cast<char*>(heap->memory.get()) + offset;
}

// The options of what is in a heap: its own, but for the cache mode.
UInteger options_in(const Heap* heap, UInteger options) {
  return (options & 0xF) | (heap->options & ~UInteger{0xF});
}

id buffer_at(Heap* heap, UInteger offset, UInteger length, UInteger options) {
  return new_buffer_of_heap(memory_at(heap, offset), length, options_in(heap, options), heap,
                            offset);
}

id new_buffer_anywhere(Heap* self, SEL method, UInteger length, UInteger options) {
  UInteger place = 0;
  if (length == 0 || !reserve(self, method, length, place)) return nullptr;
  return buffer_at(self, place, length, options);
}

id new_buffer_at(Heap* self, SEL method, UInteger length, UInteger options, UInteger offset) {
  check_place(self, method, length, offset);
  return length == 0 ? nullptr : buffer_at(self, offset, length, options);
}

id texture_at(Heap* heap, const Strong& texture, UInteger offset) {
  place_in_heap(texture, memory_at(heap, offset), options_in(heap, 0), heap, offset);
  return objc_retain(texture);
}

id new_texture_anywhere(Heap* self, SEL method, id descriptor) {
  Strong texture;
  const UInteger bytes = new_texture_without_memory(descriptor, self, method, texture);
  UInteger place = 0;
  if (!reserve(self, method, bytes, place)) return nullptr;
  return texture_at(self, texture, place);
}

id new_texture_at(Heap* self, SEL method, id descriptor, UInteger offset) {
  Strong texture;
  check_place(self, method, new_texture_without_memory(descriptor, self, method, texture), offset);
  return texture_at(self, texture, offset);
}

UInteger largest_gap(Heap* self, SEL, UInteger alignment) {
  std::lock_guard<std::mutex> lock(self->mutex);
  UInteger largest = 0;
  for_gaps(self, std::max(alignment, kAlignment), [&](UInteger, UInteger room) {
    largest = std::max(largest, room);
    return false;
  });
  return largest;
}

void define_heap_descriptor() {
  define<HeapDescriptor>(METALOPS_OBJC_SYMBOLS(MTLHeapDescriptor), &class_NSObject,
                         {
                             {"size", Accessors<&HeapDescriptor::size>::get},
                             {"setSize:", Accessors<&HeapDescriptor::size>::set},
                             {"storageMode", StorageMode<HeapDescriptor>::get},
                             {"setStorageMode:", StorageMode<HeapDescriptor>::set},
                             {"cpuCacheMode", CacheMode<HeapDescriptor>::get},
                             {"setCpuCacheMode:", CacheMode<HeapDescriptor>::set},
                             {"hazardTrackingMode", Tracking<HeapDescriptor>::get},
                             {"setHazardTrackingMode:", Tracking<HeapDescriptor>::set},
                             {"resourceOptions", Accessors<&HeapDescriptor::options>::get},
                             {"setResourceOptions:", Accessors<&HeapDescriptor::options>::set},
                             {"type", Accessors<&HeapDescriptor::type>::get},
                             {"setType:", Accessors<&HeapDescriptor::type>::set},
                             {"copy",
                              [](HeapDescriptor* self, SEL) -> id {
                                auto* made = make<HeapDescriptor>(&class_MTLHeapDescriptor);
                                made->size = self->size;
                                made->options = self->options;
                                made->type = self->type;
                                return made;
                              }},
                         },
                         {}, {"NSCopying"});
}

}  // namespace

void release_of_heap(id heap, UInteger offset) {
  auto* one = static_cast<Heap*>(heap);
  std::lock_guard<std::mutex> lock(one->mutex);
  const auto found = one->used.find(offset);  // none in a heap whose program places buffers
  if (found == one->used.end()) return;
  one->used_bytes -= found->second;
  one->used.erase(found);
}

SizeAndAlign heap_size_and_align(id, SEL, UInteger length, UInteger) {
  return {rounded(length, kAlignment), kAlignment};
}

SizeAndAlign heap_size_and_align_of_texture(id self, SEL method, id descriptor) {
  Strong texture;
  return {rounded(new_texture_without_memory(descriptor, self, method, texture), kAlignment),
          kAlignment};
}

id new_heap(id descriptor, id self, SEL method) {
  auto* described = static_cast<HeapDescriptor*>(
      checked(descriptor, &class_MTLHeapDescriptor, "MTLHeapDescriptor", self, method));
  TORCH_CHECK_VALUE(described->size > 0, written(self, method), ": the size of the heap is 0");
  TORCH_CHECK_NOT_IMPLEMENTED(described->type == kAutomatic || described->type == kPlacement,
                              written(self, method),
                              ": the software Metal device has no heaps of type MTLHeapTypeSparse");
  auto* made = make<Heap>(&class_MetalopsHeap);
  const Strong kept = Strong::taken(made);
  try {
    made->memory = at::mps::getIMPSAllocator()->allocate(described->size);
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;  // as on a Mac
  }
  std::memset(made->memory.get(), 0, described->size);
  made->size = described->size;
  made->options = described->options;
  made->type = described->type;
  return objc_retain(made);
}

void define_heaps() {
  define_heap_descriptor();
  define<Heap>(METALOPS_OBJC_SYMBOLS(MetalopsHeap), &class_NSObject,
               {
                   {"device", get_device},
                   {"label", Accessors<&Heap::label>::get},
                   {"setLabel:", Accessors<&Heap::label>::set_copy},
                   {"storageMode", StorageMode<Heap>::get},
                   {"cpuCacheMode", CacheMode<Heap>::get},
                   {"hazardTrackingMode", Tracking<Heap>::get},
                   {"resourceOptions", Accessors<&Heap::options>::get},
                   {"type", Accessors<&Heap::type>::get},
                   {"size", Accessors<&Heap::size>::get},
                   {"allocatedSize", Accessors<&Heap::size>::get},
                   {"currentAllocatedSize", Accessors<&Heap::size>::get},
                   {"usedSize",
                    [](Heap* self, SEL) {
                      std::lock_guard<std::mutex> lock(self->mutex);
                      return self->used_bytes;
                    }},
                   {"maxAvailableSizeWithAlignment:", largest_gap},
                   {"newBufferWithLength:options:", new_buffer_anywhere},
                   {"newBufferWithLength:options:offset:", new_buffer_at},
                   {"newTextureWithDescriptor:", new_texture_anywhere},
                   {"newTextureWithDescriptor:offset:", new_texture_at},
                   {"setPurgeableState:", [](id, SEL, UInteger) -> UInteger { return 2; }},
               },
               {}, {"MTLHeap", "MTLAllocation"});
}

}  // namespace metalops::objc
