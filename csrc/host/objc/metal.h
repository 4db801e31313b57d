// Metal's objects, for C++ code that makes and reads them.
#pragma once
#include <metal/pipeline.h>

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
#include <csrc/host/objc/foundation.h>

METALOPS_OBJC_DECLARE(MetalopsBuffer)
METALOPS_OBJC_DECLARE(MetalopsLibrary)
METALOPS_OBJC_DECLARE(MetalopsFunction)
METALOPS_OBJC_DECLARE(MetalopsComputePipelineState)
METALOPS_OBJC_DECLARE(MetalopsCommandQueue)
METALOPS_OBJC_DECLARE(MetalopsEvent)
METALOPS_OBJC_DECLARE(MPSCommandBuffer)

namespace metalops::objc {

struct Size {
  UInteger width, height, depth;
};

// Returns `object` as the state of its class. Raises TypeError, as `method`, if it is nil or of
// another class.
id checked(id object, Class cls, const char* protocol, id self, SEL method);

// The one device.
id device();
inline id get_device(id, SEL) { return device(); }

// Methods that have nothing to do here.
inline void nothing(id, SEL) {}
inline void nothing_with_object(id, SEL, id) {}

// ---- buffers

// The memory of a buffer, whether it is an object or the memory of a tensor. `keeper` keeps it.
struct Place {
  char* memory = nullptr;
  size_t bytes = 0;
  Strong keeper;
};
// Raises TypeError for other objects, ValueError for memory that is not of the device.
Place place_of(id buffer, id self, SEL method);
// Raises ValueError unless `bytes` bytes at `offset` are in the buffer.
void check_range(const Place& place, UInteger offset, UInteger bytes, id self, SEL method);

id new_buffer(size_t bytes, UInteger options);  // nil for no bytes; contents are zero
id new_buffer_without_copy(void* memory, size_t bytes, UInteger options, id deallocator);
size_t allocated_bytes();

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
id new_pipeline_state(c10::intrusive_ptr<Pipeline> pipeline);

// ---- commands

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
  // True for torch's stream: commands run when they are encoded, in order with everything else of
  // the stream. Others run when the buffer is committed.
  bool is_of_stream = false;
  std::atomic<UInteger> status{kNotEnqueued};
  std::atomic<bool> is_done{false};  // and its handlers have returned
  std::deque<Command> commands;
  std::vector<KeptBlock> scheduled, completed;
  Strong queue, error, label;
  std::exception_ptr failure;
  id encoder = nullptr;  // that is open; not counted
  bool has_lost_encoder = false;
  double start = 0, end = 0;

  // Raises RuntimeError if nothing may be encoded any more, or while an encoder is open.
  void check_encoding(id self, SEL method) const;
  void add(Command command);
};

struct CommandQueue : objc_object {
  Strong label;
  // Guarded by the mutex of commands.cpp.
  std::deque<Strong> buffers;  // enqueued and not done, in order
  bool is_running = false;
  bool runs_again = false;
};

id new_command_queue();
id new_command_buffer(id queue);  // with one reference
void commit(id buffer, id self, SEL method);
void wait_until_completed(id buffer, id self, SEL method);
// Completes what was encoded on a buffer of the stream, and begins anew.
void commit_and_continue(CommandBuffer* buffer);

id new_event();
void signal(id event, uint64_t value);
// Calls `block` when an event has the value.
void notify(id event, uint64_t value, std::function<void()> call);

// ---- encoders

id new_compute_encoder(id command_buffer, UInteger dispatch_type);  // with one reference
id new_blit_encoder(id command_buffer);
void end_encoding(id encoder);
// Copies on the stream or a queue.
void encode_copy(CommandBuffer* buffer, const Place& from, UInteger from_offset, const Place& to,
                 UInteger to_offset, UInteger bytes);

// The definitions of define_metal().
void define_buffers();
void define_libraries();
void define_commands();
void define_encoders();
void define_device();

}  // namespace metalops::objc
