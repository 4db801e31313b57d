// Metal's objects, for C++ code that makes and reads them.
#pragma once
#include <exec/sanitize/stream_order.h>
#include <metal/pipeline.h>
#include <metal/streams.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <csrc/host/objc/blocks.h>
#include <csrc/host/objc/dispatch.h>
#include <csrc/host/objc/foundation.h>
#include <csrc/validation/checks.h>

METALOPS_OBJC_DECLARE(MetalopsBuffer)
METALOPS_OBJC_DECLARE(MetalopsLibrary)
METALOPS_OBJC_DECLARE(MetalopsFunction)
METALOPS_OBJC_DECLARE(MetalopsComputePipelineState)
METALOPS_OBJC_DECLARE(MetalopsCommandQueue)
METALOPS_OBJC_DECLARE(MetalopsEvent)
METALOPS_OBJC_DECLARE(MPSCommandBuffer)

namespace metalops {
class Encoder;
}

namespace metalops::objc {

struct Size {
  UInteger width, height, depth;
};

// Returns `object` as the state of its class. Raises TypeError, as `method`, if it is nil or of
// another class.
id checked(id object, Class cls, const char* protocol, id self, SEL method);

// A message, for the checks of the rules (csrc/validation).
validation::Call call_of(id self, SEL method);

// The one device.
id device();
inline id get_device(id, SEL) { return device(); }

// Methods that have nothing to do here.
inline void nothing(id, SEL) {}
inline void nothing_with_object(id, SEL, id) {}
inline void nothing_with_objects(id, SEL, const id*, UInteger) {}

// ---- buffers

constexpr UInteger kPrivateStorage = 2;  // MTLStorageModePrivate

// The memory of a buffer, whether it is an object or the memory of a tensor. `keeper` keeps it.
struct Place {
  char* memory = nullptr;
  size_t bytes = 0;
  Strong keeper;
};
// Raises TypeError for other objects, ValueError for memory that is not of the device.
Place place_of(id buffer, id self, SEL method);
// Raises ValueError unless `bytes` bytes at `offset` are in the buffer.
inline void check_range(const Place& place, UInteger offset, UInteger bytes, id self, SEL method) {
  validation::check_range(offset, bytes, place.bytes, call_of(self, method));
}

id new_buffer(size_t bytes, UInteger options);  // nil for no bytes; contents are zero
id new_buffer_without_copy(void* memory, size_t bytes, UInteger options, id deallocator);
size_t allocated_bytes();

// ---- heaps and residency sets

struct SizeAndAlign {  // MTLSizeAndAlign
  UInteger size, align;
};
SizeAndAlign heap_size_and_align(id self, SEL method, UInteger length, UInteger options);
SizeAndAlign heap_size_and_align_of_texture(id self, SEL method, id descriptor);
id new_heap(id descriptor, id self, SEL method);
// A part of a heap, which it keeps. Its bytes are what the last buffer there left.
id new_buffer_of_heap(char* memory, size_t bytes, UInteger options, id heap, UInteger offset);
// Lets the heap use the place of a buffer or texture again.
void release_of_heap(id heap, UInteger offset);

id new_residency_set(id descriptor, id self, SEL method);

// ---- textures and samplers

// Methods of the device and of buffers.
id new_texture(id self, SEL method, id descriptor);
id new_texture_of_buffer(id self, SEL method, id descriptor, UInteger offset, UInteger row_bytes);
id new_sampler(id self, SEL method, id descriptor);
// Raise TypeError for other objects.
id checked_texture(id texture, id self, SEL method);
id checked_sampler(id sampler, id self, SEL method);
// Binds to a kernel's argument. Raises as metalops::as_texture does.
void bind_texture(Encoder& encoder, const exec::Kernel& kernel, const msl::abi::Argument& argument,
                  unsigned index, id texture, id self, SEL method);
uint64_t sampler_bits(id sampler);
// Returns what a kernel reads that finds a texture of such a declaration in memory. Raises as
// metalops::as_texture does; `name`: of the argument, for errors.
uint64_t texture_handle(id texture, const msl::abi::TextureArgument& wanted,
                        const std::string& name, id self, SEL method);

// Makes a texture of which only the memory is missing; returns how many bytes it needs.
UInteger new_texture_without_memory(id descriptor, id self, SEL method, Strong& texture);
// Gives it a place in a heap, which it keeps.
void place_in_heap(id texture, char* memory, UInteger options, id heap, UInteger offset);
// Adds the memory of a texture to what a work accesses.
void add_accesses(exec::StreamWork& work, id texture, bool writes, const std::string& role);

// A copy of texels that was checked: what it accesses, and what does it.
struct TexelWork {
  std::vector<exec::StreamWork::Access> accesses;
  std::function<void()> run;
};
// The first texel of a region of a slice of a texture's level.
struct TexelPlace {
  id texture;
  UInteger slice, level, x, y, z;
};
// Texels in a buffer.
struct BufferRows {
  Place place;
  UInteger offset, row_bytes, image_bytes;
};
TexelWork copy_to_texture(const BufferRows& from, const TexelPlace& to, Size size, id self,
                          SEL method);
TexelWork copy_from_texture(const TexelPlace& from, Size size, const BufferRows& to, id self,
                            SEL method);
TexelWork copy_texture(const TexelPlace& from, Size size, const TexelPlace& to, id self,
                       SEL method);
// Whole levels of slices, from those of the two places on.
TexelWork copy_slices(const TexelPlace& from, const TexelPlace& to, UInteger slices,
                      UInteger levels, id self, SEL method);
TexelWork copy_all(id from, id to, id self, SEL method);
// Launches kernels that compute all levels but the first.
TexelWork generate_mipmaps(id texture, id self, SEL method);

// ---- libraries

// A kernel library, and what was made of it with values of function constants.
struct LibraryPart {
  explicit LibraryPart(std::shared_ptr<exec::Library> library) : library(std::move(library)) {}
  const std::shared_ptr<exec::Library> library;
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<LibraryPart>> specialised;
};

// A metallib that was linked of several files has several parts.
struct Library : objc_object {
  std::vector<std::shared_ptr<LibraryPart>> parts;
  Strong label;
};

struct Function : objc_object {
  std::shared_ptr<LibraryPart> part;
  const exec::Kernel* described = nullptr;
  Strong specialized_name;  // of its descriptor
  Strong label;
};

struct PipelineState : objc_object {
  c10::intrusive_ptr<Pipeline> pipeline;
  Strong label;
};

// With one reference; nil and an NSError at *out if it cannot be.
id library_of_source(id source, id options, id* out);
id library_of_bytes(const void* data, size_t bytes, id* out);
id library_of_file(const std::string& path, id* out);
id pipeline_of_function(id function, id* out);
id pipeline_of_descriptor(id descriptor, id* out);
id reflection_of(id pipeline);
id new_argument_encoder(Function* self, SEL method, UInteger index);
id argument_encoder_of_descriptors(id self, SEL method, id descriptors);
size_t bytes_of_type(UInteger type, id self, SEL method);  // an MTLDataType: scalars and vectors
id new_pipeline_state(c10::intrusive_ptr<Pipeline> pipeline);

// ---- commands

// Memory that a work uses, by the start of its allocation.
struct UsedMemory {
  const void* memory;
  bool is_written;
};

// Runs one command; returns false if it has to wait, and then runs again later.
using Command = std::function<bool()>;

struct CommandBuffer : objc_object {
  enum Status : UInteger {
    kNotEnqueued,
    kEnqueued,
    kCommitted,
    kScheduled,
    kCompleted,
    kFailed,
  };
  // The state that the rules depend on. Commands of torch's stream run when they are encoded, in
  // order with everything else of the stream. Others run when the buffer is committed.
  validation::CommandBufferLife life;
  bool retains_references = true;
  std::atomic<UInteger> status{kNotEnqueued};
  std::atomic<bool> is_done{false};  // and its handlers have returned
  std::deque<Command> commands;
  std::vector<KeptBlock> scheduled, completed;
  Strong queue, error, label;
  std::exception_ptr failure;
  double start = 0, end = 0;

  // If all rules are on: checks of the order of its works, which the commit does, in so far as they
  // do not depend on events; the memory that its works use; and the clock of its queue after it.
  std::vector<std::function<void()>> checks;
  bool waits_for_events = false;
  std::vector<UsedMemory> used;
  exec::StreamClock clock{};

  ~CommandBuffer() { validation::abandon(life); }
  // Raises RuntimeError if nothing may be encoded any more, or while an encoder is open.
  void check_encoding(id self, SEL method);
  void add(Command command);
  // Checks the order of a work that has just been encoded, if all rules are on.
  void check_order(exec::StreamWork work);
};

struct CommandQueue : objc_object {
  Strong label;
  // Guarded by the mutex of commands.cpp.
  std::deque<Strong> buffers;  // enqueued and not done, in order
  bool is_running = false;
  bool runs_again = false;
  // If all rules are on, its work runs on a thread of its own, a while after the commit.
  dispatch_queue_t worker = nullptr;
  int64_t number = streams::kDefault;  // of its clock
  ~CommandQueue();
};

id new_command_queue(bool is_torchs = false);
id new_command_buffer(id queue);  // with one reference
void commit(id buffer, id self, SEL method);
void wait_until_completed(id buffer, id self, SEL method);
// Completes what was encoded on a buffer of the stream, and begins anew.
void commit_and_continue(CommandBuffer* buffer);

// Why torch's stream has an encoder of its own open, as it would have on a Mac; null if it has
// none.
extern std::atomic<const char*> torchs_encoder;

// Whether work of an own queue that was committed and is not done uses memory.
bool is_in_flight(const void* memory);
// Warns if a program asks for memory that such work writes.
void check_contents(const void* memory, id self, SEL method);
// Waits until no such work uses memory.
void wait_until_unused(const void* memory);

id new_event();
void signal(id event, uint64_t value);
// Calls `block` when an event has the value.
void notify(id event, uint64_t value, std::function<void()> call);

// ---- encoders

// RAII: a kernel that this thread launches is the program's, not one that torch would encode.
class OwnWork {
 public:
  OwnWork() { ++depth; }
  ~OwnWork() { --depth; }
  OwnWork(const OwnWork&) = delete;
  static bool is_running() { return depth != 0; }

 private:
  inline static thread_local int depth = 0;
};

id new_compute_encoder(id command_buffer, UInteger dispatch_type);  // with one reference
id new_blit_encoder(id command_buffer);
void end_encoding(id encoder);
bool is_open(id encoder);
// For MPSStream::commandEncoder(), and for a commit that ends its encoder.
void mark_as_torchs(id encoder);
void cut(id encoder);
// Copies on the stream or a queue.
void encode_copy(CommandBuffer* buffer, const Place& from, UInteger from_offset, const Place& to,
                 UInteger to_offset, UInteger bytes);

// ---- counters and captures

uint64_t timestamp();  // nanoseconds, as mach_absolute_time() of the headers
id counter_set();      // the one that there is: times
id new_counter_samples(id descriptor, id self, SEL method);
// The samples as resolveCounters writes them.
std::string resolved_counters(id samples, Range range, id self, SEL method);
// The samples that an encoder takes when it begins and ends, by an MTLComputePassDescriptor or an
// MTLBlitPassDescriptor.
struct Sampling {
  std::vector<std::function<void()>> begin, end;
};
Sampling sampling_of(id descriptor, bool is_compute, id self, SEL method);
UInteger dispatch_type_of(id descriptor);
// Takes the samples of an encoder that has just been made, and those of its end.
void sample_bounds(id encoder, Sampling sampling);

// The definitions of define_metal().
void define_buffers();
void define_heaps();
void define_residency_sets();
void define_argument_encoders();
void define_textures();
void define_samplers();
void define_libraries();
void define_commands();
void define_encoders();
void define_counters();
void define_captures();
void define_device();

}  // namespace metalops::objc
