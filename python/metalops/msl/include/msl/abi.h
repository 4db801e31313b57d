// The binary interface between a kernel library (C++ that metalops.msl emits from Metal source,
// compiled by any available compiler) and the software Metal device that runs it. Both sides
// include this file and nothing else of each other. No standard header is included here, because
// emitted code lives in a namespace that must stay free of libc's names. Any change of layout
// increments kAbiVersion, except for functions at the end of Runtime that only sanitized code
// calls, which is never kept from one device to the next.
#pragma once

#include <msl/tensor_abi.h>
#include <msl/texture_abi.h>

namespace msl::abi {

typedef __UINT8_TYPE__ u8;
typedef __INT32_TYPE__ i32;
typedef __INT64_TYPE__ i64;
typedef __UINT32_TYPE__ u32;
typedef __UINT64_TYPE__ u64;

constexpr u32 kAbiVersion = 13;
constexpr u32 kMaxBuffers = 31;              // Metal's buffer argument table
constexpr u32 kSimdWidth = 32;               // every Apple GPU
constexpr u32 kMaxThreadgroupBytes = 32768;  // Apple GPUs, family 4 and later

// ---- what the device tells a kernel -------------------------------------------------------------

// One dispatchThreads call. Shared by all its threads.
struct Launch {
  void* buffers[kMaxBuffers];     // device addresses, offset already applied; null where nothing is
                                  // bound
  u64 buffer_bytes[kMaxBuffers];  // bytes from that address to the end of the allocation
  u32 threadgroup_bytes[kMaxBuffers];  // length set for each dynamic [[threadgroup(i)]] argument
  u32 grid[3];                         // threads_per_grid
  u32 group[3];                        // dispatch_threads_per_threadgroup
  u32 groups[3];                       // threadgroups_per_grid, partial groups counted
  // By [[texture(n)]] and [[sampler(n)]]; null where the kernel has no such arguments.
  const Texture* const* textures;
  const u64* samplers;
};

// The threadgroup being run: its position, its actual size (smaller than Launch::group at the
// grid's end), its memory.
struct Group {
  const Launch* launch;
  u32 position[3];                    // threadgroup_position_in_grid
  u32 size[3];                        // threads_per_threadgroup
  void* dynamic_memory[kMaxBuffers];  // one block for each dynamic [[threadgroup(i)]] argument
  // Static threadgroup variables: variable number n of the kernel lives at static_memory +
  // offsets[n]. An offset of ~0u means "not yet placed": the first thread to reach the declaration
  // has it placed (Runtime::place_variable).
  u8* static_memory;
  u32 static_bytes;  // size of that block: Kernel::static_threadgroup_bytes
  u32 static_used;
  u32 offsets[64];
};

// One GPU thread, for engines that run threads one by one (fibers).
struct Thread {
  Group* group;
  u32 position[3];  // thread_position_in_threadgroup
  u32 index;        // thread_index_in_threadgroup, over the actual size of the group
};

// Memory for the privatised variables of a group's threads (context arrays), for engines that run a
// group with one call. Used as a stack.
struct Scratch {
  u8* next;
  u8* end;
  u32 lane;  // the lane for which a simdgroup function runs: the result of Runtime::lane
};

// ---- what a kernel asks of the device -----------------------------------------------------------

// The position in the Metal source of a synchronising call, or of a call or loop that contains one.
// Ids increase in the order in which a function reaches its positions; Library::sites maps an id to
// a line.
struct Site {
  u32 id;
  u32 mem_flags;  // of barriers: the memory that they order (metal::mem_flags)
  // The number of the variable (Runtime::declare) whose last values a shuffle takes from lanes that
  // take no part; 0 if there is none.
  u32 variable = 0;
};

// The calls and loops that a thread is in, outermost first, two steps each: the id, and the number
// of completed iterations of the loop, or of evaluated operands of the call. Together with the id
// of the operation at which it waits, that is the thread's point in the program, and points are
// ordered lexicographically: a GPU would now run the lanes at the first one. Diverged lanes
// reconverge at the end of the if, loop or call that split them.
struct Path {
  static constexpr u32 kMaxDepth = 126;
  u32 depth;
  u32 steps[kMaxDepth];
};

// Combines the operands of the lanes in `mask`. out[l] is valid for those lanes only. Of other
// lanes in[l] may be valid for shuffles, and points to the last value of their variable; otherwise
// it is null, unless all 32 lanes take part.
typedef void (*SimdFunction)(const void* const* in, void* const* out, u32 mask);

// Uses of a simdgroup operation that Metal leaves undefined.
enum class Undefined : u32 {
  kAbsentLane,  // the value of a lane that takes no part (value: that lane)
  kNoSuchLane,  // the value of a lane beyond the simdgroup or quadgroup (value: the lane requested)
  kNotUniform,  // an amount that must be the same for all lanes and is not (value: the other
                // amount)
  kNotAll,      // an operation that all lanes must take part in (value: how many do)
};

// Misuses of tensors, with the numbers that describe them.
enum class Misuse : u32 {
  kInnermostStride,  // the operand's innermost stride is not 1: {stride}
  kSmallOperand,     // the operand's static extent is less than the tile's: {dimension, extent,
                     // needed}
  kShortOperand,     // the operand is shorter than a static K: {dimension, extent, needed}
  kSliceOutside,   // the slice exceeds the tensor: {dimension, origin, extent of the slice, extent}
  kSliceInBlock,   // the slice splits a block of elements with one scale: {dimension, origin,
                   // elements of a block}
  kTexelOutside,   // a texel outside of the texture is read or written: {x, y, z, array element or
                   // face; -1 for what the texture does not have}
  kLevelOutside,   // the texture has no such level: {level, levels}
  kLinearInteger,  // a texture of integers is sampled with a linear filter
};

// Instructions for products of narrow types. Kernels choose among them when they run, so a library
// does not depend on them. Of AMX, the process has the system's permission to use the registers.
enum ProductInstruction : u32 {
  kVnniBytes = 1,   // AVX-512 VNNI: four products of bytes
  kAmxBytes = 2,    // AMX: tiles of bytes
  kAmxBfloats = 4,  // AMX: tiles of bfloat
  kWideFloats = 8,  // AVX-512: sixteen floats
};

enum class Access : u32 { kRead, kWrite, kUpdate };  // kUpdate: an atomic read and write

// Filled in by the device and passed to metalops_bind before any kernel of the library runs. These
// functions may throw (C++ exceptions cross kernel frames), for example when a kernel without a
// fiber reaches a barrier.
struct Runtime {
  u32 abi_version;
  void (*threadgroup_barrier)(Site);
  void (*simdgroup_barrier)(Site);
  void (*simd)(Site, const void* in, void* out, SimdFunction);
  u32 (*lane)();              // thread_index_in_simdgroup of the running thread
  const Thread* (*thread)();  // the running thread, on a fiber
  u32 (*active_mask)();       // lanes of its simdgroup that exist and have not returned
  Path* (*path)();            // of the running thread; constant while it runs
  // Returns the offset in Group::static_memory of a variable that has none yet.
  u32 (*place_variable)(Group*, u32 bytes, u32 alignment);
  // Called by SimdFunctions, for one of their lanes.
  void (*undefined)(Undefined, u32 lane, u32 value);
  void (*log)(const char* text, u32 length);
  void (*fail)(const char* message);  // throws; does not return
  // Called by the group engine's kernels when barriers do not match: threads of `simdgroup` are at
  // a barrier, and threads of `before_simdgroup`, perhaps the same one, at an earlier barrier that
  // the former did not reach. Throws.
  void (*different_barriers)(u32 simdgroup, Site, u32 before_simdgroup, Site before);

  // The running thread enters and leaves the scope of a variable whose last value shuffles take.
  // `number`: of the variable in the source; `kind`: equal for equal types.
  void (*declare)(u32 number, u32 kind, const void* address, u32 bytes);
  void (*leave_scope)(u32 number);
  u32 (*product_instructions)();  // the ProductInstruction bits of this CPU, and in use

  // Called by code that was compiled with a sanitizer (msl/instrument.h). `place` is an address of
  // machine code just after the access. These do not throw.
  void (*access)(const void* address, u64 bytes, Access, const void* place);
  void (*atomic)(const void* address, u64 bytes, Access, i32 order, const void* place);
  void (*fence)(u32 mem_flags, i32 order);
  void (*copy)(void* to, const void* from, u64 bytes, const void* place);  // as memmove
  void (*fill)(void* to, i32 byte, u64 bytes, const void* place);

  // Called by sanitized code for tensors (msl/tensor_checks.h). operand: "left operand" and so on.
  void (*misuse)(Misuse, const char* operand, const i64* numbers, const void* place);
  // The running thread reaches an operation that all threads of `simdgroups` simdgroups, one or
  // those of the threadgroup, run together. `kind` is equal for all threads that run the same
  // operation.
  void (*scope_operation)(u32 simdgroups, const char* name, u64 kind, const void* place);
  // elements_begin: declares the running thread's share of a cooperative tensor, `count` elements
  // that nothing has written, of which those with exists[i] != 0 exist. elements_copied: elements
  // copied from another tensor.
  void (*elements_begin)(void* elements, u32 element_bytes, const u8* exists, u32 count);
  void (*elements_copied)(void* to, const void* from);
};

// ---- what a library tells the device ------------------------------------------------------------

enum class ArgumentKind : u32 {
  kBuffer,       // device or constant pointer or reference; index: [[buffer(n)]]
  kThreadgroup,  // dynamic threadgroup pointer; index: [[threadgroup(n)]]
  kBuiltin,      // name: the attribute, e.g. "thread_position_in_grid"
  kTexture,      // index: the first [[texture(n)]]
  kSampler,      // index: [[sampler(n)]]
};

// How a builtin varies across threads (uniform, affine in the lane, varying), for vectorising
// engines.
enum class Variation : u32 { kNone, kUniformGrid, kUniformGroup, kAffineLane, kPerLane };

struct Argument {
  const char* name;  // the parameter's name in the source
  const char*
      attribute;     // "buffer", "threadgroup", "texture", "sampler" or the builtin's attribute
  const char* type;  // as written, e.g. "constant float *"
  ArgumentKind kind;
  i32 index;          // in its argument table; -1 for builtins
  u32 element_bytes;  // sizeof the pointee or referent; 0 for void
  u32 writable;       // 1 for device pointers and references that are not const, and for textures
                      // with write access
  Variation variation;
  // Whether the kernel uses the argument with the values that the function constants have; null if
  // it may, whatever these are.
  const bool* is_used;
  const TensorArgument* tensor;    // null for all other arguments
  const TextureArgument* texture;  // null for all other arguments
};

struct Kernel {
  const char* name;  // host_name if given, else the function's name
  const Argument* arguments;
  u32 argument_count;
  u32 static_threadgroup_bytes;
  u32 max_threads_per_threadgroup;  // 1024, or [[max_total_threads_per_threadgroup(n)]]
  // 1 if `loop` may run several threads at once only where no written buffer overlaps another one.
  u32 needs_separate_buffers;
  u32 may_have_unused;  // 1 if some argument has is_used
  // Entry points for the engines, null where an engine cannot run this kernel. `loop` runs threads
  // [begin, end) of the flattened grid (x fastest) and exists for kernels that never synchronise;
  // `group` runs a threadgroup, and `thread` one thread. Kernels that synchronise have at least one
  // of the last two; with `group`, `thread` may be compiled apart, when it is asked for.
  void (*loop)(const Launch*, u64 begin, u64 end);
  void (*group)(const Launch*, Group*, Scratch*);
  void (*thread)(const Launch*, const Thread*);
};

struct FunctionConstant {
  const char* name;
  i32 index;
  u32 bytes;
  void* value;     // storage of the constant in the library
  u8* is_defined;  // storage for is_function_constant_defined(name)
};

struct SourceLocation {
  const char* file;
  u32 line;
  u32 column;
};

// A kernel that the library leaves out: the device compiles it from the library's source when it is
// first asked for, together with the other kernels of its part.
struct LeftOut {
  const char* name;
  u32 part;
};

// A kernel of the source that the library does not have, and why: what it needs that this device
// lacks.
struct Absent {
  const char* name;
  const char* reason;
};

// A [[visible]] function, which tables of functions may hold. type: equal for functions of one
// type.
struct VisibleFunction {
  const char* name;
  const void* address;
  const void* type;
};

// A note about argument number `position` of a kernel. table: the type of the
// functions of a visible_function_table, or null. is_on: the function constant that switches the
// argument on, or null.
struct ArgumentNote {
  const char* kernel;
  u32 position;
  const void* table;
  const bool* is_on;
};

// Each list ends with an entry without a name.
struct Notes {
  const Absent* absent;
  const VisibleFunction* visible;
  const ArgumentNote* arguments;
};

// Instruction set extensions that the library was compiled for; the device rejects a library that
// its CPU cannot run.
enum CpuFeature : u32 {
  kAvx = 1,
  kAvx2 = 2,
  kFma = 4,
  kF16c = 8,
  kAvx512f = 16,
  kAvx512bw = 32,
  kAvx512vl = 64,
  kAvx512dq = 128,
  kAvx512vnni = 256,
  kAvx512bf16 = 512,
  kAvx512fp16 = 1024,
  kAvx512vbmi = 2048,
  kBmi2 = 4096
};

struct Library {
  u32 abi_version;
  u32 cpu_features;   // CpuFeature bits
  const char* build;  // compiler and flags, for `python -m metalops info`
  const Kernel* kernels;
  u32 kernel_count;
  const FunctionConstant* function_constants;
  u32 function_constant_count;
  const SourceLocation* sites;  // indexed by Site::id
  u32 site_count;
  u32 language;  // __METAL_VERSION__ of the source
  const LeftOut* left_out;
  u32 left_out_count;
};

}  // namespace msl::abi

// Every kernel library exports these symbols:
//   extern "C" const msl::abi::Library metalops_library;
//   extern "C" const msl::abi::Notes metalops_notes;
//   extern "C" void metalops_bind(const msl::abi::Runtime*);   // keeps the pointer in msl_runtime
