// The checks of the rules: of the lives of command buffers and encoders, and of arguments. Whoever
// implements Metal's methods, or stands before them, calls these with what it knows. What is wrong
// raises (rules.h).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include <csrc/validation/rules.h>

namespace metalops::validation {

// ---- lives of command buffers and encoders ------------------------------------------------------

struct EncoderLife;

struct CommandBufferLife {
  bool is_of_stream = false;  // torch's
  bool is_committed = false;
  bool has_work = false;
  EncoderLife* open = nullptr;
  const void* made_at = nullptr;  // if all rules are on
  const void* lost_at = nullptr;  // where an encoder was made that was released while open
  bool has_lost_encoder = false;
  // The kernel or operator for which torch opened its encoder, while it is open.
  const char* torchs_encoder = nullptr;
};

struct EncoderLife {
  CommandBufferLife* buffer = nullptr;
  bool has_ended = false;
  bool is_torchs = false;     // made by MPSStream::commandEncoder()
  bool has_been_cut = false;  // ended by a commit of torch's
  const void* made_at = nullptr;
};

// Returns the program's call, to be told of later, if all rules are on.
const void* noted_caller();

// Set by whoever knows: returns true if the calling thread runs on the queue of torch's stream.
void set_on_stream_queue(bool (*is_on)());

// torch's command buffer is handed out.
void check_taken(const char* function);
// torch's encoder is handed out.
void check_encoder_taken(const char* function);
// A command, handler or encoder is added to a command buffer.
void check_not_committed(const CommandBufferLife& buffer, const Call& call);
void check_encoding(const CommandBufferLife& buffer, const Call& call);
void begin(CommandBufferLife& buffer, EncoderLife& encoder);
// A message to an encoder.
void check_use(const EncoderLife& encoder, const Call& call);
void end(EncoderLife& encoder);
// An encoder is released.
void lose(EncoderLife& encoder);
void check_commit(CommandBufferLife& buffer, const Call& call);
void check_wait(const CommandBufferLife& buffer, const Call& call);
// A command buffer is released.
void abandon(const CommandBufferLife& buffer);
// torch encodes an operator on its stream.
void check_torchs_work(CommandBufferLife& buffer);

// ---- arguments ----------------------------------------------------------------------------------

inline constexpr uint64_t kMaxBytes = 4096;
inline constexpr uint64_t kBufferIndices = 31;
inline constexpr uint64_t kMaxThreadgroupBytes = 32768;

void check_bytes(uint64_t length, uint64_t index, const Call& call);
void check_index(uint64_t index, const Call& call);
void check_range(uint64_t offset, uint64_t bytes, uint64_t length, const Call& call);
// An offset into a buffer whose words are read by the device.
void check_word_offset(uint64_t offset, const Call& call);
void check_copy_alignment(uint64_t offset, uint64_t bytes, const Call& call);
void check_threadgroup_length(uint64_t length, uint64_t index, const Call& call);

struct Argument {
  const char* kernel;
  const char* name;
  const char* type;  // as written, e.g. "device const float4 *"
  uint64_t index;
  uint64_t element_bytes;
};
void check_alignment(const Argument& argument, uint64_t offset, const Call& call);
void report_unbound(const char* kernel, const std::string& what, const Call& call);

void check_threadgroup(const char* kernel, const std::array<uint64_t, 3>& size, uint64_t most,
                       const Call& call);
void check_threadgroup_memory(const char* kernel, uint64_t declared, uint64_t set,
                              const Call& call);

}  // namespace metalops::validation
