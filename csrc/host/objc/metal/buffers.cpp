// Buffers: objects, and the memory of tensors.
#include <ATen/mps/MPSAllocatorInterface.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstring>

#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MetalopsBuffer)
METALOPS_OBJC_CLASS(MetalopsMemory)

namespace metalops::objc {
namespace {

std::atomic<size_t> allocated{0};

struct Buffer : objc_object {
  char* memory = nullptr;
  size_t bytes = 0;
  c10::DataPtr owner;  // null for memory of the program
  KeptBlock deallocator;
  Strong label;
  UInteger options = 0;
  Strong heap;
  UInteger heap_offset = 0;
  bool is_aliasable = false;  // other buffers of the heap may have its place

  ~Buffer() {
    if (owner) allocated -= bytes;
    if (heap.get() != nullptr && !is_aliasable) release_of_heap(heap, heap_offset);
    if (deallocator) call_block<void, void*, UInteger>(deallocator.get(), memory, bytes);
  }
};

UInteger storage_mode(Buffer* self, SEL) { return self->options >> 4 & 0xF; }

// The size of a tensor's memory.
size_t bytes_of_memory(id memory, id self, SEL method) {
  const ssize_t bytes = at::mps::getIMPSAllocator()->getUnalignedBufferSize(memory);
  TORCH_CHECK_VALUE(bytes >= 0, written(self, method), ": the memory at ",
                    static_cast<void*>(memory),
                    " is not of the mps device; is it that of a CPU tensor?");
  return static_cast<size_t>(bytes);
}

UInteger length_of_memory(id self, SEL method) { return bytes_of_memory(self, self, method); }

}  // namespace

validation::Call call_of(id self, SEL method) {
  return {self, method, [](const void* receiver, const void* selector) {
            return written(static_cast<id>(const_cast<void*>(receiver)),
                           static_cast<SEL>(const_cast<void*>(selector)));
          }};
}

id checked(id object, Class cls, const char* protocol, id self, SEL method) {
  TORCH_CHECK_TYPE(is_kind_of(object, cls), written(self, method), ": an ", protocol,
                   " is expected, but this is ",
                   object == nullptr ? "nil" : std::string("a ") + object_getClassName(object));
  return object;
}

Place place_of(id object, id self, SEL method) {
  if (is_memory(object)) {
    return {reinterpret_cast<char*>(object), bytes_of_memory(object, self, method), Strong()};
  }
  auto* buffer =
      static_cast<Buffer*>(checked(object, &class_MetalopsBuffer, "MTLBuffer", self, method));
  return {buffer->memory, buffer->bytes, Strong(buffer)};
}

id new_buffer(size_t bytes, UInteger options) {
  if (bytes == 0) return nullptr;
  auto* made = make<Buffer>(&class_MetalopsBuffer);
  const Strong kept = Strong::taken(made);
  try {
    made->owner = at::mps::getIMPSAllocator()->allocate(bytes);
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;  // as on a Mac
  }
  made->memory = static_cast<char*>(made->owner.get());
  made->bytes = bytes;
  made->options = options;
  allocated += bytes;
  std::memset(made->memory, 0, bytes);
  return objc_retain(made);
}

id new_buffer_without_copy(void* memory, size_t bytes, UInteger options, id deallocator) {
  if (memory == nullptr || bytes == 0) return nullptr;
  auto* made = make<Buffer>(&class_MetalopsBuffer);
  made->memory = static_cast<char*>(memory);
  made->bytes = bytes;
  made->options = options;
  if (deallocator != nullptr) made->deallocator = keep_block(deallocator);
  return made;
}

id new_buffer_of_heap(char* memory, size_t bytes, UInteger options, id heap, UInteger offset) {
  auto* made = make<Buffer>(&class_MetalopsBuffer);
  made->memory = memory;
  made->bytes = bytes;
  made->options = options;
  made->heap = Strong(heap);
  made->heap_offset = offset;
  return made;
}

size_t allocated_bytes() { return allocated; }

void define_buffers() {
  const auto unmodified = [](id, SEL, Range) {};
  const auto keep_current = [](id, SEL, UInteger) -> UInteger { return 2; };  // NonVolatile
  define<Buffer>(
      METALOPS_OBJC_SYMBOLS(MetalopsBuffer), &class_NSObject,
      {
          {"contents",
           [](Buffer* self, SEL method) -> void* {
             if (storage_mode(self, method) == kPrivateStorage) return nullptr;
             check_contents(self->memory, self, method);
             return self->memory;
           }},
          {"length", [](Buffer* self, SEL) { return static_cast<UInteger>(self->bytes); }},
          {"allocatedSize", [](Buffer* self, SEL) { return static_cast<UInteger>(self->bytes); }},
          {"gpuAddress",
           [](Buffer* self, SEL) {
             exec::note_address_taken(self->memory, self->bytes);
             return reinterpret_cast<uint64_t>(self->memory);
           }},
          {"didModifyRange:", unmodified},
          {"setPurgeableState:", keep_current},
          {"device", get_device},
          {"label", Accessors<&Buffer::label>::get},
          {"setLabel:", Accessors<&Buffer::label>::set_copy},
          {"storageMode", storage_mode},
          {"cpuCacheMode", [](Buffer* self, SEL) { return self->options & 0xF; }},
          {"hazardTrackingMode",
           [](Buffer* self, SEL) -> UInteger {
             const UInteger mode = self->options >> 8 & 3;
             return mode == 0 ? 2 : mode;  // buffers are tracked by default
           }},
          {"resourceOptions", Accessors<&Buffer::options>::get},
          {"newTextureWithDescriptor:offset:bytesPerRow:", new_texture_of_buffer},
          {"heap", Accessors<&Buffer::heap>::get},
          {"heapOffset", Accessors<&Buffer::heap_offset>::get},
          {"isAliasable", Accessors<&Buffer::is_aliasable>::get},
          {"makeAliasable",
           [](Buffer* self, SEL) {
             if (self->heap.get() == nullptr || self->is_aliasable) return;
             self->is_aliasable = true;
             release_of_heap(self->heap, self->heap_offset);
           }},
      },
      {}, {"MTLBuffer", "MTLResource", "MTLAllocation"});

  // The memory of a tensor: self is its address. On a Mac torch makes shared, untracked buffers.
  define<objc_object>(METALOPS_OBJC_SYMBOLS(MetalopsMemory), &class_NSObject,
                      {
                          {"contents",
                           [](id self, SEL method) -> void* {
                             check_contents(self, self, method);
                             return self;
                           }},
                          {"length", length_of_memory},
                          {"allocatedSize", length_of_memory},
                          {"gpuAddress",
                           [](id self, SEL method) {
                             exec::note_address_taken(self, length_of_memory(self, method));
                             return reinterpret_cast<uint64_t>(self);
                           }},
                          {"didModifyRange:", unmodified},
                          {"setPurgeableState:", keep_current},
                          {"device", get_device},
                          {"label", [](id, SEL) -> id { return nullptr; }},
                          {"setLabel:", [](id, SEL, id) {}},
                          {"storageMode", [](id, SEL) -> UInteger { return 0; }},
                          {"cpuCacheMode", [](id, SEL) -> UInteger { return 0; }},
                          {"hazardTrackingMode", [](id, SEL) -> UInteger { return 2; }},
                          {"resourceOptions", [](id, SEL) -> UInteger { return 0; }},
                          {"newTextureWithDescriptor:offset:bytesPerRow:", new_texture_of_buffer},
                          {"heap", [](id, SEL) -> id { return nullptr; }},
                          {"heapOffset", [](id, SEL) -> UInteger { return 0; }},
                          {"isAliasable", [](id, SEL) { return false; }},
                          {"makeAliasable", nothing},
                      },
                      {}, {"MTLBuffer", "MTLResource", "MTLAllocation"});
  memory_class = &class_MetalopsMemory;
}

}  // namespace metalops::objc
