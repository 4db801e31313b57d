// The checks of the rules.
#include <csrc/validation/caller.h>
#include <csrc/validation/checks.h>

#include <atomic>
#include <cctype>
#include <string>
#include <string_view>

namespace metalops::validation {
namespace {

std::atomic<bool (*)()> on_stream_queue{nullptr};

bool is_off_queue() {
  bool (*const is_on)() = on_stream_queue;
  return is_enabled() && is_on != nullptr && !is_on();
}

std::string text(uint64_t number) { return std::to_string(number); }

// " It was made at X." if that is known.
std::string made_at(const char* thing, const void* address) {
  return address == nullptr ? ""
                            : std::string(". The ") + thing + " was made at " + place_of(address);
}

// Forgets an encoder that a violation is reported of: torch's stream goes on in a program that has
// caught the error.
void give_up(CommandBufferLife& buffer) {
  if (buffer.open != nullptr) buffer.open->has_ended = true;
  buffer.open = nullptr;
  buffer.has_lost_encoder = false;
}

// The alignment of a scalar or vector of Metal; 1 for types that it does not know.
uint64_t alignment_of(std::string_view type, uint64_t bytes) {
  // The last word before the asterisk or ampersand.
  while (!type.empty() && std::isalnum(static_cast<unsigned char>(type.back())) == 0) {
    type.remove_suffix(1);
  }
  std::string_view word = type.substr(type.find_last_of(" \t") + 1);
  const bool is_vector = word.size() > 1 && '2' <= word.back() && word.back() <= '4' &&
                         std::isdigit(static_cast<unsigned char>(word[word.size() - 2])) == 0;
  if (is_vector) word.remove_suffix(1);
  constexpr std::string_view kScalars[] = {"float",  "half", "bfloat", "int",  "uint",  "short",
                                           "ushort", "char", "uchar",  "long", "ulong", "bool"};
  for (const std::string_view scalar : kScalars) {
    if (word == scalar) return bytes;
  }
  return 1;
}

}  // namespace

// ---- lives of command buffers and encoders ------------------------------------------------------

const void* noted_caller() { return is_enabled() ? caller() : nullptr; }

void set_on_stream_queue(bool (*is_on)()) { on_stream_queue = is_on; }

void check_taken(const char* function) {
  if (is_off_queue()) {
    report(Rule::kCommandBufferOffQueue, std::string(function) + " was called off the queue");
  }
}

void check_encoder_taken(const char* function) {
  if (is_off_queue()) {
    report(Rule::kEncoderOffQueue, std::string(function) + " was called off the queue");
  }
}

void check_not_committed(const CommandBufferLife& buffer, const Call& call) {
  if (!buffer.is_committed) return;
  report(Rule::kCommandBufferAfterCommit,
         call.written() + ": the command buffer was already committed" +
             (buffer.is_of_stream ? "; torch commits the command buffer of its stream itself: call "
                                    "torch::mps::commit() or MPSStream::synchronize()"
                                  : ""));
}

void check_encoding(const CommandBufferLife& buffer, const Call& call) {
  check_not_committed(buffer, call);
  if (buffer.is_of_stream && is_off_queue()) {
    report(Rule::kEncoderOffQueue, call.written() + " was sent off the queue");
  }
  const bool is_torchs =
      buffer.open != nullptr ? buffer.open->is_torchs : buffer.torchs_encoder != nullptr;
  if (buffer.open == nullptr && !is_torchs) return;
  std::string happened =
      call.written() + ": a command encoder is already encoding to this command buffer";
  if (buffer.open == nullptr) happened += std::string(": torch's, for ") + buffer.torchs_encoder;
  happened += is_torchs ? "; for the encoder of torch's stream, call "
                          "MPSStream::endKernelCoalescing(), or take the one of "
                          "MPSStream::commandEncoder()"
                        : "; send endEncoding to it first";
  if (buffer.open != nullptr) happened += made_at("other one", buffer.open->made_at);
  report(Rule::kSecondEncoder, happened);
}

void begin(CommandBufferLife& buffer, EncoderLife& encoder) {
  encoder.buffer = &buffer;
  encoder.made_at = noted_caller();
  buffer.open = &encoder;
}

void check_use(const EncoderLife& encoder, const Call& call) {
  if (encoder.has_been_cut) {
    report(Rule::kEncoderAfterCommit,
           call.written() + ": torch has committed the command buffer of this encoder");
  }
  if (encoder.has_ended) {
    const bool is_committed = encoder.buffer->is_committed;
    report(is_committed ? Rule::kEncoderAfterCommit : Rule::kEncoderAfterEnd,
           call.written() + (is_committed
                                 ? ": the encoder was used after the commit of its command buffer"
                                 : ": the encoder was used after endEncoding"));
  }
  if (encoder.buffer->is_of_stream && is_off_queue()) {
    report(Rule::kEncoderOffQueue, call.written() + " was sent off the queue");
  }
}

void end(EncoderLife& encoder) {
  encoder.has_ended = true;
  encoder.buffer->open = nullptr;
}

void lose(EncoderLife& encoder) {
  if (encoder.has_ended || encoder.buffer == nullptr) return;
  encoder.buffer->open = nullptr;
  encoder.buffer->has_lost_encoder = true;
  encoder.buffer->lost_at = encoder.made_at;
}

void check_commit(CommandBufferLife& buffer, const Call& call) {
  check_not_committed(buffer, call);
  if (buffer.open != nullptr) {
    const std::string where = made_at("encoder", buffer.open->made_at);
    if (buffer.is_of_stream) give_up(buffer);
    report(Rule::kEncoderNotEnded, call.written() +
                                       ": an encoder of the command buffer is still open; send "
                                       "endEncoding to it first" +
                                       where);
  }
  if (buffer.has_lost_encoder) {
    give_up(buffer);
    report(Rule::kEncoderNotEnded,
           call.written() + ": an encoder of the command buffer was released without endEncoding" +
               made_at("encoder", buffer.lost_at));
  }
}

void check_wait(const CommandBufferLife& buffer, const Call& call) {
  if (buffer.is_committed) return;
  report(Rule::kWaitBeforeCommit,
         call.written() + ": the command buffer was not committed; on a Mac this blocks forever");
}

void abandon(const CommandBufferLife& buffer) {
  if (buffer.is_of_stream || buffer.is_committed || !buffer.has_work || !is_enabled()) return;
  warn(Rule::kNotCommitted, "A command buffer with commands was released without commit",
       buffer.made_at);
}

void check_torchs_work(CommandBufferLife& buffer) {
  const bool is_open = buffer.open != nullptr && !buffer.open->is_torchs;
  if (!is_open && !buffer.has_lost_encoder) return;
  const void* const address = is_open ? buffer.open->made_at : buffer.lost_at;
  give_up(buffer);
  report(Rule::kEncoderNotEnded,
         std::string("torch encodes an operator while an encoder on its command buffer ") +
             (is_open ? "is open" : "was released without endEncoding"),
         address);
}

// ---- arguments ----------------------------------------------------------------------------------

void check_bytes(uint64_t length, uint64_t index, const Call& call) {
  if (length == 0) {
    report(Rule::kBytesTooLong, call.written() + ": the length for index " + text(index) + " is 0");
  }
  if (length > kMaxBytes) {
    report(Rule::kBytesTooLong, call.written() +
                                    ": Metal passes at most 4096 bytes by value, but index " +
                                    text(index) + " was given " + text(length) + "; use a buffer");
  }
}

void check_index(uint64_t index, const Call& call) {
  if (index < kBufferIndices) return;
  report(Rule::kIndexTooLarge,
         call.written() + ": Metal kernels have the indices 0 to 30, not " + text(index));
}

void check_range(uint64_t offset, uint64_t bytes, uint64_t length, const Call& call) {
  if (offset <= length && bytes <= length - offset) return;
  report(Rule::kOutOfBounds, call.written() + ": " + text(bytes) + " bytes at offset " +
                                 text(offset) + " are beyond the " + text(length) +
                                 " bytes of the buffer");
}

void check_word_offset(uint64_t offset, const Call& call) {
  if (offset % 4 == 0) return;
  report(Rule::kUnalignedOffset,
         call.written() + ": the offset " + text(offset) + " is no multiple of 4");
}

void check_copy_alignment(uint64_t offset, uint64_t bytes, const Call& call) {
  if (offset % 4 == 0 && bytes % 4 == 0) return;
  report(Rule::kUnalignedCopy, call.written() + ": " + text(bytes) + " bytes at offset " +
                                   text(offset) + " are no multiples of 4");
}

void check_threadgroup_length(uint64_t length, uint64_t index, const Call& call) {
  check_index(index, call);
  if (length > kMaxThreadgroupBytes) {
    report(Rule::kThreadgroupMemory,
           call.written() + ": threadgroups have at most 32768 bytes of memory, but index " +
               text(index) + " was given " + text(length));
  }
  if (length % 16 != 0) {
    report(Rule::kThreadgroupMemoryAlignment, call.written() + ": the length for index " +
                                                  text(index) + ", " + text(length) +
                                                  ", is no multiple of 16");
  }
}

void check_alignment(const Argument& argument, uint64_t offset, const Call& call) {
  if (!is_enabled() || offset == 0) return;
  const std::string_view type = argument.type;
  uint64_t alignment = alignment_of(type, argument.element_bytes);
  if (type.starts_with("constant") && alignment < 4) alignment = 4;
  if (offset % alignment == 0) return;
  report(Rule::kUnalignedOffset,
         call.written() + ": Metal kernel '" + argument.kernel + "' reads '" + argument.type + " " +
             argument.name + "' at offset " + text(offset) + " of buffer " + text(argument.index) +
             ", which is no multiple of " + text(alignment));
}

void report_unbound(const char* kernel, const std::string& what, const Call& call) {
  report(Rule::kUnboundBuffer, call.written() + ": Metal kernel '" + kernel + "'" + what);
}

void check_threadgroup(const char* kernel, const std::array<uint64_t, 3>& size, uint64_t most,
                       const Call& call) {
  const bool is_empty = size[0] == 0 || size[1] == 0 || size[2] == 0;
  const bool is_huge = size[0] > most || size[1] > most || size[2] > most;
  if (!is_empty && !is_huge && size[0] * size[1] * size[2] <= most) return;
  const std::string sizes = text(size[0]) + " x " + text(size[1]) + " x " + text(size[2]);
  report(Rule::kThreadgroupTooLarge, call.written() + ": a threadgroup of " + sizes +
                                         " threads is too " + (is_empty ? "small" : "large") +
                                         " for kernel '" + kernel + "', which allows " +
                                         text(most));
}

void check_threadgroup_memory(const char* kernel, uint64_t declared, uint64_t set,
                              const Call& call) {
  if (declared + set <= kMaxThreadgroupBytes) return;
  report(Rule::kThreadgroupMemory, call.written() + ": Metal kernel '" + kernel + "' needs " +
                                       text(declared + set) + " bytes of threadgroup memory, " +
                                       text(declared) + " declared in the kernel and " + text(set) +
                                       " set for its arguments");
}

}  // namespace metalops::validation
