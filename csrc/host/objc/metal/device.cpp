// The device.
#include <ATen/mps/MPSAllocatorInterface.h>
#include <c10/util/Exception.h>
#include <dispatch/dispatch.h>
#include <unistd.h>

#include <cstring>

#include <csrc/host/objc/dispatch.h>
#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MTLArchitecture)
METALOPS_OBJC_CLASS(MetalopsDevice)

namespace metalops::objc {
namespace {

// ---- the device

size_t memory_of_machine() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
}

// As an M3 with macOS 26, whose features the front end has.
bool supports_family(id, SEL, long family) {
  const bool apple = 1001 <= family && family <= 1009;
  const bool mac = family == 2001 || family == 2002;
  const bool common = 3001 <= family && family <= 3003;
  return apple || mac || common || family == 5001 || family == 5002;
}

id default_library(const std::string& folder, id* out) {
  return library_of_file(join(folder, "default.metallib"), out);
}

// Calls a block with what `make` returns and its error, on another thread as on a Mac.
template <class F>
void later(id block, F make) {
  submit(dispatch_get_global_queue(0, 0), [block = keep_block(block), make] {
    void* pool = objc_autoreleasePoolPush();
    id failure = nullptr;
    const Strong made = Strong::taken(make(&failure));
    call_block<void, id, id>(block.get(), made.get(), failure);
    objc_autoreleasePoolPop(pool);
  });
}

void define_the_device() {
  define<objc_object>(METALOPS_OBJC_SYMBOLS(MTLArchitecture), &class_NSObject,
                      {{"name", [](id, SEL) { return string("applegpu_g15s"); }}});

  define<objc_object>(
      METALOPS_OBJC_SYMBOLS(MetalopsDevice), &class_NSObject,
      {
          {"name", [](id, SEL) { return string("Apple software Metal device"); }},
          {"registryID", [](id, SEL) -> uint64_t { return 1; }},
          {"architecture",
           [](id, SEL) {
             static id one = allocate(&class_MTLArchitecture);
             return one;
           }},
          {"maxThreadsPerThreadgroup", [](id, SEL) { return Size{1024, 1024, 1024}; }},
          {"maxThreadgroupMemoryLength",
           [](id, SEL) -> UInteger { return msl::abi::kMaxThreadgroupBytes; }},
          {"maxBufferLength", [](id, SEL) -> UInteger { return memory_of_machine(); }},
          {"recommendedMaxWorkingSetSize", [](id, SEL) -> uint64_t { return memory_of_machine(); }},
          {"currentAllocatedSize",
           [](id, SEL) -> UInteger {
             return at::mps::getIMPSAllocator()->getDriverAllocatedMemory();
           }},
          {"hasUnifiedMemory", [](id, SEL) { return true; }},
          {"isLowPower", [](id, SEL) { return false; }},
          {"isHeadless", [](id, SEL) { return true; }},
          {"isRemovable", [](id, SEL) { return false; }},
          {"location", [](id, SEL) -> UInteger { return 0; }},
          {"locationNumber", [](id, SEL) -> UInteger { return 0; }},
          {"maxTransferRate", [](id, SEL) -> uint64_t { return 0; }},
          {"argumentBuffersSupport", [](id, SEL) -> UInteger { return 1; }},
          {"readWriteTextureSupport", [](id, SEL) -> UInteger { return 2; }},
          {"supports32BitFloatFiltering", [](id, SEL) { return true; }},
          {"supportsFamily:", supports_family},
          {"newCommandQueue", [](id, SEL) { return new_command_queue(); }},
          {"newCommandQueueWithMaxCommandBufferCount:",
           [](id, SEL, UInteger) { return new_command_queue(); }},
          {"newBufferWithLength:options:",
           [](id, SEL, UInteger length, UInteger options) { return new_buffer(length, options); }},
          {"newBufferWithBytes:length:options:",
           [](id self, SEL method, const void* bytes, UInteger length, UInteger options) {
             id made = new_buffer(length, options);
             if (made != nullptr) {
               std::memcpy(place_of(made, self, method).memory, bytes, length);
             }
             return made;
           }},
          {"newBufferWithBytesNoCopy:length:options:deallocator:",
           [](id, SEL, void* bytes, UInteger length, UInteger options, id deallocator) {
             return new_buffer_without_copy(bytes, length, options, deallocator);
           }},
          // A Mac looks into the program's bundle. An extension has no bundle of its own there, so
          // the folder of the library that asks comes first here.
          {"newDefaultLibrary",
           [](id, SEL) -> id {
             const std::string own = folder_of(image_of(__builtin_return_address(0)));
             for (const std::string& folder : {own, folder_of(executable())}) {
               if (exists(join(folder, "default.metallib"))) {
                 return default_library(folder, nullptr);
               }
             }
             return nullptr;
           }},
          {"newDefaultLibraryWithBundle:error:",
           [](id self, SEL method, id bundle, id* out) {
             checked(bundle, &class_NSBundle, "NSBundle", self, method);
             return default_library(static_cast<Url*>(bundle)->path, out);
           }},
          {"newLibraryWithSource:options:error:",
           [](id, SEL, id source, id options, id* out) {
             return library_of_source(source, options, out);
           }},
          {"newLibraryWithSource:options:completionHandler:",
           [](id, SEL, id source, id options, id block) {
             later(block, [source = Strong(source), options = Strong(options)](id* out) {
               return library_of_source(source, options, out);
             });
           }},
          {"newLibraryWithData:error:",
           [](id, SEL, dispatch_data_t data, id* out) {
             const void* bytes = nullptr;
             size_t size = 0;
             dispatch_data_t map = dispatch_data_create_map(data, &bytes, &size);
             id made = library_of_bytes(bytes, size, out);
             dispatch_release(map);
             return made;
           }},
          {"newLibraryWithFile:error:",
           [](id, SEL, id path, id* out) { return library_of_file(text_of(path), out); }},
          {"newLibraryWithURL:error:",
           [](id self, SEL method, id url, id* out) {
             checked(url, &class_NSURL, "NSURL", self, method);
             return library_of_file(static_cast<Url*>(url)->path, out);
           }},
          {"newComputePipelineStateWithFunction:error:",
           [](id, SEL, id function, id* out) { return pipeline_of_function(function, out); }},
          {"newComputePipelineStateWithFunction:options:reflection:error:",
           [](id, SEL, id function, UInteger, id* reflection, id* out) {
             id made = pipeline_of_function(function, out);
             if (reflection != nullptr && made != nullptr) *reflection = reflection_of(made);
             return made;
           }},
          {"newComputePipelineStateWithFunction:completionHandler:",
           [](id, SEL, id function, id block) {
             later(block, [function = Strong(function)](id* out) {
               return pipeline_of_function(function, out);
             });
           }},
          {"newComputePipelineStateWithDescriptor:options:reflection:error:",
           [](id, SEL, id descriptor, UInteger, id* reflection, id* out) {
             id made = pipeline_of_descriptor(descriptor, out);
             if (reflection != nullptr && made != nullptr) *reflection = reflection_of(made);
             return made;
           }},
          {"newComputePipelineStateWithDescriptor:options:completionHandler:",
           [](id, SEL, id descriptor, UInteger, id block) {
             submit(dispatch_get_global_queue(0, 0), [descriptor = Strong(descriptor),
                                                      block = keep_block(block)] {
               void* pool = objc_autoreleasePoolPush();
               id failure = nullptr;
               const Strong made = Strong::taken(pipeline_of_descriptor(descriptor, &failure));
               id reflection = made.get() != nullptr ? reflection_of(made) : nullptr;
               call_block<void, id, id, id>(block.get(), made.get(), reflection, failure);
               objc_autoreleasePoolPop(pool);
             });
           }},
          {"newArgumentEncoderWithArguments:", argument_encoder_of_descriptors},
          {"newHeapWithDescriptor:",
           [](id self, SEL method, id descriptor) { return new_heap(descriptor, self, method); }},
          {"heapBufferSizeAndAlignWithLength:options:", heap_size_and_align},
          {"heapTextureSizeAndAlignWithDescriptor:", heap_size_and_align_of_texture},
          {"newTextureWithDescriptor:", new_texture},
          {"newSamplerStateWithDescriptor:", new_sampler},
          {"supportsTextureSampleCount:", [](id, SEL, UInteger count) { return count == 1; }},
          {"minimumLinearTextureAlignmentForPixelFormat:",
           [](id, SEL, UInteger) -> UInteger { return 16; }},
          {"newResidencySetWithDescriptor:error:",
           [](id self, SEL method, id descriptor, id* out) {
             if (out != nullptr) *out = nullptr;
             return new_residency_set(descriptor, self, method);
           }},
          {"counterSets", [](id, SEL) { return array({counter_set()}); }},
          // As Apple's GPUs: at the bounds of encoders only.
          {"supportsCounterSampling:", [](id, SEL, UInteger point) { return point == 0; }},
          {"newCounterSampleBufferWithDescriptor:error:",
           [](id self, SEL method, id descriptor, id* out) {
             if (out != nullptr) *out = nullptr;
             return new_counter_samples(descriptor, self, method);
           }},
          {"sampleTimestamps:gpuTimestamp:",
           [](id, SEL, uint64_t* cpu, uint64_t* gpu) { *cpu = *gpu = timestamp(); }},
          {"newEvent", [](id, SEL) { return new_event(); }},
          {"newSharedEvent", [](id, SEL) { return new_event(); }},
          {"newFence", [](id, SEL) { return new_event(); }},
      },
      {}, {"MTLDevice"});
}

}  // namespace

id device() {
  static id one = allocate(&class_MetalopsDevice);
  return one;
}

void define_device() { define_the_device(); }

void define_metal() {
  define_buffers();
  define_heaps();
  define_residency_sets();
  define_textures();
  define_samplers();
  define_libraries();
  define_argument_encoders();
  define_commands();
  define_encoders();
  define_counters();
  define_captures();
  define_device();
}

}  // namespace metalops::objc

extern "C" {

id MTLCreateSystemDefaultDevice(void) { return objc_retain(metalops::objc::device()); }
id MTLCopyAllDevices(void) {
  return objc_retain(metalops::objc::array({metalops::objc::device()}));
}

}  // extern "C"
