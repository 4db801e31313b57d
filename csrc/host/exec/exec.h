// Runs compiled Metal kernels on the CPU with Metal's execution model. The rest of csrc/host
// includes this header of exec/ and these, no others:
//   <exec/share_out.h>: shares work out among CPU threads.
//   <exec/sanitize/findings.h>: collects and raises what sanitized launches find.
//   <exec/sanitize/fresh_outputs.h>: notes memory that nothing has written yet.
//   <exec/sanitize/red_zones.h>: marks memory that nothing may touch.
//   <exec/sanitize/stream_order.h>: finds work of several streams that nothing orders.
#pragma once
#include <msl/abi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace metalops::exec {

using msl::abi::Kernel;
using msl::abi::Launch;

// A kernel library: a shared object that exports metalops_library. Kernels live as long as the
// Library does.
class Library {
 public:
  // Loads a library. Throws c10::Error when the file is not a kernel library, was emitted for
  // another ABI version, or needs instructions that this CPU lacks (the message says which).
  static std::shared_ptr<Library> open(const std::string& path);
  static std::shared_ptr<Library> from_bytes(const void* data, size_t size);
  ~Library();
  Library(const Library&) = delete;

  const msl::abi::Library& table() const;
  bool has(const std::string& name) const;
  // Returns null when there is no such kernel. Compiles a kernel that the library leaves out, the
  // first time; throws what compile_left_out throws.
  const Kernel* find(const std::string& name) const;
  // Returns what a kernel's arguments and limits are, without compiling it if the library describes
  // it. Only find() returns a kernel that can run.
  const Kernel* describe(const std::string& name) const;
  // Begins to compile a kernel that the library leaves out, for find().
  void begin(const std::string& name) const;
  std::vector<std::string> names() const;  // those that are compiled come first
  // Returns why a kernel of the source is not in the library; empty for any other name.
  std::string why_absent(const std::string& name) const;
  std::string_view source() const;  // the Metal source, deflated by zlib

  // Returns a copy of the library (with its own globals) in which function constants have the given
  // values.
  struct ConstantValue {
    int index;
    std::string bytes;
  };
  std::shared_ptr<Library> specialise(const std::vector<ConstantValue>& values) const;

 private:
  Library() = default;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Compiles kernels that a library leaves out, from its source (deflated by zlib) in that Metal
// version. `engines`: those that kernels that synchronise are compiled for, "auto" or "fiber". Set
// by the Python bindings. Null by default.
extern std::shared_ptr<Library> (*compile_left_out)(std::string_view source, uint32_t language,
                                                    const std::vector<std::string>& kernels,
                                                    const char* engines);

// Begins to do so, in another thread, and returns at once. Set by the Python bindings.
extern void (*begin_left_out)(std::string_view source, uint32_t language,
                              const std::vector<std::string>& kernels);

enum class Engine { kAutomatic, kLoop, kGroup, kFiber };

// The binding of a buffer, for observers of launches: sanitizers and the launch hook.
struct BoundBuffer {
  // kHandle: an msl::abi::Tensor, which describes the tensor.
  enum class Kind { kNothing, kMemory, kValue, kTensor, kHandle };
  Kind kind = Kind::kNothing;
  const void* begin = nullptr;  // of the allocation; for a handle, that of the tensor's elements
  uint64_t bytes = 0;           // of the allocation
  // Properties of a tensor, or of the tensor behind a handle.
  std::string dtype;
  uint64_t element_bytes = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;  // in elements
  bool is_contiguous = true;
};
struct BoundBuffers : std::array<BoundBuffer, msl::abi::kMaxBuffers> {
  // The tensors of bound textures, one for each level, by the index of the texture.
  std::vector<std::pair<uint32_t, BoundBuffer>> textures;
};

// Runs all threads of the launch; returns when all are done. Fills in launch.groups. `threads`: CPU
// threads to use (0: at::get_num_threads()). Throws what a kernel or the runtime throws (remaining
// threadgroups are not started), and what `check_interrupt` throws; the device stays usable in both
// cases. `bound`: given if describes_buffers().
void run(const Kernel& kernel, Launch& launch, Engine engine = Engine::kAutomatic, int threads = 0,
         const BoundBuffers* bound = nullptr);

// Raises for a launch that run() does not begin: a threadgroup or threadgroup memory of the wrong
// size.
void check_launch(const Kernel& kernel, const Launch& launch);

// Sets the engine of launches that leave it open, and returns the previous one. Initially it is
// that of the environment (METALOPS_ENGINE).
Engine prefer_engine(Engine engine);

// Called in place of every launch that leaves the engine open, unless it is sanitized; may run() it
// on the engines of its choice. `bound`: null if the caller did not describe the buffers. For tests
// that compare engines, and for traces. Null by default.
extern void (*launch_hook)(const Kernel& kernel, Launch& launch, int threads,
                           const BoundBuffers* bound);

// Returns true if callers of run() should describe the buffers that they bind.
bool describes_buffers();

// Records an allocation (begin, bytes) whose address host code has requested and may pass to
// kernels as a number. Recorded only while there is a launch hook; taking the addresses clears
// them.
void note_address_taken(const void* begin, uint64_t bytes);
std::vector<std::pair<const void*, uint64_t>> take_noted_addresses();

// Notes about the arguments, by their positions, of a kernel that has tables of functions or
// arguments that function constants switch on.
struct KernelNotes {
  std::vector<const void*> tables;  // the type of the functions; null for any other argument
  std::vector<const bool*> switches;
  std::unordered_map<std::string, msl::abi::VisibleFunction> visible;  // of its library

  bool is_on(uint32_t position) const {
    return switches[position] == nullptr || *switches[position];
  }
};
// Returns null for a kernel of which there is nothing to be known.
const KernelNotes* notes_of(const Kernel& kernel);

// Returns false for an argument that a kernel does not use with the values that the function
// constants of its library have. Nothing need be bound to it.
inline bool is_used(const msl::abi::Argument& argument) {
  return argument.is_used == nullptr || *argument.is_used;
}

// Returns an address to bind in place of none: an access there ends the launch with an error. Null
// if there is no address space for it.
void* memory_of_nothing();

// The source that a kernel was compiled from, and the values of its function constants.
struct Origin {
  std::string_view source;  // deflated by zlib; empty if the library does not contain it
  uint32_t language = 0;    // the Metal version
  std::vector<Library::ConstantValue> constants;
};
Origin origin_of(const Kernel& kernel);

// Returns the number of CPU threads that worked on this thread's last launch.
int threads_of_last_launch();

// Runs the host's pending signal handlers; may throw, and may launch kernels. Called now and then
// during a long launch of the process's main thread, while no thread works on it; the launch goes
// on when it returns. Set by the Python bindings. Null by default.
extern void (*check_interrupt)();

}  // namespace metalops::exec
