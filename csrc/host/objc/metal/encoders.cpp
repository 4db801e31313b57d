// Encoders: launches of kernels, and copies.
#include <c10/util/Exception.h>
#include <metal/encoder.h>
#include <metal/streams.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MetalopsCommandEncoder)
METALOPS_OBJC_CLASS(MetalopsComputeCommandEncoder)
METALOPS_OBJC_CLASS(MetalopsBlitCommandEncoder)

namespace metalops::objc {
namespace {

// ---- what both encoders have in common

struct CommandEncoder : objc_object {
  Strong buffer;  // an MPSCommandBuffer
  Strong label;
  validation::EncoderLife life;
  std::vector<std::function<void()>> samples_of_end;

  CommandBuffer* commands() const { return static_cast<CommandBuffer*>(buffer.get()); }
  ~CommandEncoder() { validation::lose(life); }  // the commit says so
};

void check_use(CommandEncoder* self, SEL method) {
  validation::check_use(self->life, call_of(self, method));
}

void take_samples(CommandBuffer* buffer, const std::vector<std::function<void()>>& samples) {
  for (const auto& sample : samples) {
    buffer->add([sample] {
      sample();
      return true;
    });
  }
}

template <class Encoder>
id new_encoder(Class cls, id command_buffer) {
  auto* made = make<Encoder>(cls);
  made->buffer = Strong(command_buffer);
  validation::begin(made->commands()->life, made->life);
  return made;
}

void define_command_encoder() {
  define<CommandEncoder>(METALOPS_OBJC_SYMBOLS(MetalopsCommandEncoder), &class_NSObject,
                         {
                             {"device", get_device},
                             {"label", Accessors<&CommandEncoder::label>::get},
                             {"setLabel:", Accessors<&CommandEncoder::label>::set_copy},
                             {"insertDebugSignpost:", nothing_with_object},
                             {"pushDebugGroup:", nothing_with_object},
                             {"popDebugGroup", nothing},
                             // Commands run one after the other, so that all earlier ones are done.
                             {"updateFence:", nothing_with_object},
                             {"waitForFence:", nothing_with_object},
                             {"endEncoding",
                              [](CommandEncoder* self, SEL method) {
                                check_use(self, method);
                                end_encoding(self);
                              }},
                         },
                         {}, {"MTLCommandEncoder"});
}

// ---- compute

struct Bound {
  enum class Kind { kNothing, kMemory, kValue };
  Kind kind = Kind::kNothing;
  Place place;  // without memory for nil
  UInteger offset = 0;
  std::string value;

  // They keep the room of an earlier value for the next one.
  void set(Place memory, UInteger at) {
    kind = Kind::kMemory;
    place = std::move(memory);
    offset = at;
  }
  void set(const char* bytes, UInteger length) {
    kind = Kind::kValue;
    place = Place();
    value.assign(bytes, length);
  }
};

using Table = std::array<Bound, msl::abi::kMaxBuffers>;
using Lengths = std::array<uint32_t, msl::abi::kMaxBuffers>;

struct ComputeEncoder : CommandEncoder {
  UInteger dispatch_type = 0;
  Strong pipeline;
  Table table;
  uint32_t set = 0;  // bit i: entry i of the table has been set
  Lengths threadgroup{};
  std::map<UInteger, Strong> textures, samplers;
};

Bound& binding(ComputeEncoder* self, SEL method, UInteger index) {
  check_use(self, method);
  validation::check_index(index, call_of(self, method));
  self->set |= 1u << index;
  return self->table[index];
}

void set_bytes(ComputeEncoder* self, SEL method, const char* bytes, UInteger length,
               UInteger index) {
  Bound& to = binding(self, method, index);
  validation::check_bytes(length, index, call_of(self, method));
  to.set(bytes, length);
}

// The memory of a buffer that a command uses. If all rules are on, a command buffer that retains
// nothing does not.
Place kept_place(const CommandBuffer* commands, id buffer, id self, SEL method) {
  Place place = place_of(buffer, self, method);
  if (!validation::is_enabled() || commands->life.is_of_stream) return place;
  if (!commands->retains_references) {
    place.keeper = Strong();
  } else if (place.keeper.get() != nullptr) {
    const auto* queue = static_cast<const CommandQueue*>(commands->queue.get());
    exec::note_stream_use(place.memory, queue->number);
  }
  return place;
}

void set_buffer(ComputeEncoder* self, SEL method, id buffer, UInteger offset, UInteger index) {
  Bound& to = binding(self, method, index);
  if (buffer == nullptr) {  // of an empty tensor, or of an argument that the kernel does not use
    to.set(Place(), 0);
    return;
  }
  Place place = kept_place(self->commands(), buffer, self, method);
  check_range(place, offset, 0, self, method);
  to.set(std::move(place), offset);
}

void set_buffer_offset(ComputeEncoder* self, SEL method, UInteger offset, UInteger index) {
  Bound& to = binding(self, method, index);
  TORCH_CHECK(to.kind == Bound::Kind::kMemory, written(self, method),
              ": no buffer was set at index ", index);
  check_range(to.place, offset, 0, self, method);
  to.offset = offset;
}

void bind(Encoder& encoder, const ComputeEncoder& from) {
  for (uint32_t left = from.set; left != 0; left &= left - 1) {
    const auto index = static_cast<unsigned>(std::countr_zero(left));
    const Bound& one = from.table[index];
    if (one.kind == Bound::Kind::kValue) {
      encoder.set_bytes(index, one.value.data(), one.value.size());
    } else if (one.kind == Bound::Kind::kMemory) {
      // Observers of launches are told that there is no buffer.
      const bool is_nil = one.place.memory == nullptr && !exec::describes_buffers();
      char* const memory =
          is_nil ? static_cast<char*>(exec::memory_of_nothing()) : one.place.memory;
      encoder.set_buffer(index, memory + one.offset, one.place.bytes - one.offset);
    }
  }
}

template <std::map<UInteger, Strong> ComputeEncoder::* table, auto check, size_t limit>
void set_object(ComputeEncoder* self, SEL method, id object, UInteger index) {
  check_use(self, method);
  TORCH_CHECK_INDEX(index < limit, written(self, method), ": Metal kernels have the indices 0 to ",
                    limit - 1, ", not ", index);
  if (object != nullptr) check(object, self, method);
  (self->*table)[index] = Strong(object);
}
constexpr auto set_texture =
    set_object<&ComputeEncoder::textures, checked_texture, msl::abi::kMaxTextures>;
constexpr auto set_sampler =
    set_object<&ComputeEncoder::samplers, checked_sampler, msl::abi::kMaxSamplers>;

template <auto set>
void set_objects(ComputeEncoder* self, SEL method, const id* objects, Range range) {
  for (UInteger i = 0; i < range.length; ++i) set(self, method, objects[i], range.location + i);
}

// Binds the textures and samplers that a kernel takes.
void bind_handles(Encoder& encoder, ComputeEncoder* from, const exec::Kernel& kernel, SEL method) {
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const msl::abi::Argument& argument = kernel.arguments[i];
    if (argument.kind != msl::abi::ArgumentKind::kTexture) continue;
    for (uint32_t t = 0; t < argument.texture->count; ++t) {
      const unsigned index = static_cast<unsigned>(argument.index) + t;
      const auto found = from->textures.find(index);
      if (found == from->textures.end() || found->second.get() == nullptr) continue;
      bind_texture(encoder, kernel, argument, index, found->second, from, method);
    }
  }
  for (const auto& [index, sampler] : from->samplers) {
    if (sampler.get() == nullptr) continue;
    encoder.set_sampler(static_cast<unsigned>(index), sampler_bits(sampler));
  }
}

// Says what torch's classes, for which Encoder has its messages, lack.
void check_tensors(const exec::Kernel& kernel, bool takes_tensors) {
  TORCH_CHECK_NOT_IMPLEMENTED(!takes_tensors, "Metal kernel '", kernel.name,
                              "' takes tensors, which programs in Objective-C cannot bind on the "
                              "software Metal device");
}

// Divides what is left of a threadgroup's memory among the threadgroup arguments whose length was
// not set. Programs leave out those that a kernel does not use, which only Metal's API validation
// rejects; a kernel that does use them stays within its memory.
void share_rest(Lengths& lengths, const std::vector<uint32_t>& missing, uint64_t used,
                const exec::Kernel& kernel, const validation::Call& call) {
  const std::string what =
      c10::str(" has a threadgroup argument at index ", missing[0],
               ", whose length setThreadgroupMemoryLength:atIndex: did not set");
  if (validation::is_enabled()) validation::report_unbound(kernel.name, what, call);
  TORCH_WARN_ONCE("Metal kernel '", kernel.name, "'", what, ". Metal's API validation rejects it");
  constexpr uint32_t kAlignment = 16;
  const auto each = static_cast<uint32_t>((msl::abi::kMaxThreadgroupBytes - used) / missing.size() /
                                          kAlignment * kAlignment);
  for (const uint32_t index : missing) lengths[index] = std::max(each, kAlignment);
}

void check_buffer(const Bound& bound, const exec::Kernel& kernel,
                  const msl::abi::Argument& argument, const validation::Call& call) {
  if (bound.kind == Bound::Kind::kNothing) {
    validation::report_unbound(kernel.name,
                               c10::str(": nothing is bound to buffer ", argument.index, " ('",
                                        argument.type, " ", argument.name, "')"),
                               call);
  }
  validation::check_alignment({kernel.name, argument.name, argument.type,
                               static_cast<uint64_t>(argument.index), argument.element_bytes},
                              bound.offset, call);
}

// Checks what is bound to the arguments, and the size of threadgroups. Returns the lengths of the
// threadgroup arguments.
Lengths check_arguments(ComputeEncoder* self, SEL method, const exec::Kernel& kernel, Size group) {
  const validation::Call call = call_of(self, method);
  const exec::KernelNotes* notes = exec::notes_of(kernel);
  Lengths lengths = self->threadgroup;
  uint64_t memory = 0;
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const msl::abi::Argument& argument = kernel.arguments[i];
    if (notes != nullptr && !notes->is_on(i)) continue;
    if (argument.kind == msl::abi::ArgumentKind::kThreadgroup) {
      memory += lengths[argument.index];
    }
    if (!exec::is_used(argument)) continue;
    if (argument.kind == msl::abi::ArgumentKind::kThreadgroup) {
      if (lengths[argument.index] == 0) missing.push_back(argument.index);
    } else if (argument.kind == msl::abi::ArgumentKind::kBuffer) {
      check_buffer(self->table[argument.index], kernel, argument, call);
    }
  }
  const uint64_t declared = kernel.static_threadgroup_bytes;
  validation::check_threadgroup(kernel.name, {group.width, group.height, group.depth},
                                kernel.max_threads_per_threadgroup, call);
  validation::check_threadgroup_memory(kernel.name, declared, memory, call);
  if (!missing.empty()) share_rest(lengths, missing, declared + memory, kernel, call);
  return lengths;
}

void bind_arguments(Encoder& encoder, ComputeEncoder* from, const exec::Kernel& kernel,
                    const Lengths& lengths, SEL method) {
  bind(encoder, *from);
  encoder.set_threadgroup_bytes(lengths);
  bind_handles(encoder, from, kernel, method);
}

void add_textures(exec::StreamWork& work, const ComputeEncoder* self,
                  const msl::abi::Argument& argument) {
  using msl::abi::TextureAccess;
  const TextureAccess access = argument.texture->access;
  const bool writes = access == TextureAccess::kWrite || access == TextureAccess::kReadWrite;
  for (uint32_t t = 0; t < argument.texture->count; ++t) {
    const UInteger index = static_cast<unsigned>(argument.index) + t;
    const auto found = self->textures.find(index);
    if (found == self->textures.end() || found->second.get() == nullptr) continue;
    add_accesses(work, found->second, writes,
                 c10::str("texture ", index, " ('", argument.name, "')"));
  }
}

// Describes the memory that a launch accesses. How far it does is not known.
exec::StreamWork work_of(const ComputeEncoder* self, const exec::Kernel& kernel) {
  exec::StreamWork work{c10::str("kernel '", kernel.name, "'"), streams::kDefault, {}};
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const msl::abi::Argument& argument = kernel.arguments[i];
    if (argument.kind == msl::abi::ArgumentKind::kTexture) add_textures(work, self, argument);
    if (argument.kind != msl::abi::ArgumentKind::kBuffer) continue;
    const Bound& bound = self->table[argument.index];
    if (bound.kind != Bound::Kind::kMemory || bound.place.memory == nullptr) continue;
    const Place& place = bound.place;
    work.accesses.push_back({place.memory, place.memory + bound.offset, place.memory + place.bytes,
                             argument.writable != 0,
                             c10::str("buffer ", argument.index, " ('", argument.name, "')")});
  }
  return work;
}

using Threads = std::array<uint64_t, 3>;
Threads threads_of(Size size) { return {size.width, size.height, size.depth}; }

Threads times(Size groups, Size group) {
  return {groups.width * group.width, groups.height * group.height, groups.depth * group.depth};
}

const Pipeline& pipeline_for(ComputeEncoder* self, SEL method) {
  check_use(self, method);
  TORCH_CHECK(self->pipeline.get() != nullptr, written(self, method),
              ": no compute pipeline state was set");
  const auto& state = *static_cast<PipelineState*>(self->pipeline.get());
  check_tensors(*state.pipeline->described, state.pipeline->takes_tensors);
  return *state.pipeline;
}

void dispatch(ComputeEncoder* self, SEL method, Threads threads, Size group) {
  const Pipeline& pipeline = pipeline_for(self, method);
  const Lengths lengths = check_arguments(self, method, *pipeline.described, group);
  CommandBuffer* buffer = self->commands();
  if (validation::is_enabled()) buffer->check_order(work_of(self, *pipeline.described));
  if (buffer->life.is_of_stream) {
    Encoder encoder;
    bind_arguments(encoder, self, *pipeline.described, lengths, method);
    const OwnWork own;
    encoder.dispatch(pipeline.kernel(), threads, threads_of(group));
    return;
  }
  auto encoder = std::make_shared<Encoder>();
  bind_arguments(*encoder, self, *pipeline.described, lengths, method);
  encoder->check_dispatch(*pipeline.described, threads, threads_of(group));
  buffer->add([encoder, state = self->pipeline, buffers = self->table, textures = self->textures,
               threads, group] {
    const OwnWork own;
    const auto& pipeline = *static_cast<PipelineState*>(state.get())->pipeline;
    encoder->dispatch_in_order(pipeline.kernel(), threads, threads_of(group));
    return true;
  });
}

// The numbers of threadgroups are in a buffer, and are read when the command runs.
void dispatch_indirect(ComputeEncoder* self, SEL method, id buffer, UInteger offset, Size group) {
  const exec::Kernel& kernel = *pipeline_for(self, method).described;
  const Lengths lengths = check_arguments(self, method, kernel, group);
  const Place place = kept_place(self->commands(), buffer, self, method);
  check_range(place, offset, 3 * sizeof(uint32_t), self, method);
  validation::check_word_offset(offset, call_of(self, method));
  if (validation::is_enabled()) self->commands()->check_order(work_of(self, kernel));
  auto encoder = std::make_shared<Encoder>();
  bind_arguments(*encoder, self, kernel, lengths, method);
  const auto run = [encoder, state = self->pipeline, buffers = self->table,
                    textures = self->textures, place, offset, group] {
    const OwnWork own;
    uint32_t groups[3];
    std::memcpy(groups, place.memory + offset, sizeof groups);
    const auto& pipeline = *static_cast<PipelineState*>(state.get())->pipeline;
    encoder->dispatch_in_order(pipeline.kernel(), times({groups[0], groups[1], groups[2]}, group),
                               threads_of(group));
    return true;
  };
  if (self->commands()->life.is_of_stream) {
    streams::before_direct_work();
    run();
  } else {
    self->commands()->add(run);
  }
}

void define_compute_encoder() {
  define<ComputeEncoder>(
      METALOPS_OBJC_SYMBOLS(MetalopsComputeCommandEncoder), &class_MetalopsCommandEncoder,
      {
          {"dispatchType", Accessors<&ComputeEncoder::dispatch_type>::get},
          {"setComputePipelineState:",
           [](ComputeEncoder* self, SEL method, id state) {
             check_use(self, method);
             self->pipeline = Strong(checked(state, &class_MetalopsComputePipelineState,
                                             "MTLComputePipelineState", self, method));
           }},
          {"setBytes:length:atIndex:", set_bytes},
          {"setBuffer:offset:atIndex:", set_buffer},
          {"setBufferOffset:atIndex:", set_buffer_offset},
          {"setBuffers:offsets:withRange:",
           [](ComputeEncoder* self, SEL method, const id* buffers, const UInteger* offsets,
              Range range) {
             for (UInteger i = 0; i < range.length; ++i) {
               set_buffer(self, method, buffers[i], offsets[i], range.location + i);
             }
           }},
          {"setTexture:atIndex:", set_texture},
          {"setTextures:withRange:", set_objects<set_texture>},
          {"setSamplerState:atIndex:", set_sampler},
          {"setSamplerStates:withRange:", set_objects<set_sampler>},
          {"setThreadgroupMemoryLength:atIndex:",
           [](ComputeEncoder* self, SEL method, UInteger length, UInteger index) {
             check_use(self, method);
             validation::check_threadgroup_length(length, index, call_of(self, method));
             self->threadgroup[index] = static_cast<uint32_t>(length);
           }},
          {"dispatchThreads:threadsPerThreadgroup:",
           [](ComputeEncoder* self, SEL method, Size threads, Size group) {
             dispatch(self, method, threads_of(threads), group);
           }},
          {"dispatchThreadgroups:threadsPerThreadgroup:",
           [](ComputeEncoder* self, SEL method, Size groups, Size group) {
             dispatch(self, method, times(groups, group), group);
           }},
          {"dispatchThreadgroupsWithIndirectBuffer:indirectBufferOffset:"
           "threadsPerThreadgroup:",
           dispatch_indirect},
          // All memory is resident, and launches run one after the other.
          {"useResource:usage:",
           [](ComputeEncoder* self, SEL method, id, UInteger) { check_use(self, method); }},
          {"useResources:count:usage:", [](ComputeEncoder* self, SEL method, const id*, UInteger,
                                           UInteger) { check_use(self, method); }},
          {"useHeap:", [](ComputeEncoder* self, SEL method, id) { check_use(self, method); }},
          {"useHeaps:count:",
           [](ComputeEncoder* self, SEL method, const id*, UInteger) { check_use(self, method); }},
          {"memoryBarrierWithScope:",
           [](ComputeEncoder* self, SEL method, UInteger) { check_use(self, method); }},
          {"memoryBarrierWithResources:count:",
           [](ComputeEncoder* self, SEL method, const id*, UInteger) { check_use(self, method); }},
      },
      {}, {"MTLComputeCommandEncoder"});
}

// ---- copies

struct BlitEncoder : CommandEncoder {};

exec::StreamWork::Access range_of(const Place& place, UInteger offset, UInteger bytes, bool writes,
                                  const char* what) {
  const char* begin = place.memory + offset;
  return {place.memory, begin, begin + bytes, writes, what};
}

// Runs work on memory: at once on the stream, in order with its kernels, or with the buffer.
void encode(CommandBuffer* buffer, std::function<void()> work) {
  if (buffer->life.is_of_stream) {
    streams::before_direct_work();
    const Turn turn;
    work();
    return;
  }
  buffer->add([work = std::move(work)] {
    const Turn turn;
    work();
    return true;
  });
}

void encode(BlitEncoder* self, const char* name, TexelWork work) {
  self->commands()->check_order({name, streams::kDefault, std::move(work.accesses)});
  encode(self->commands(), std::move(work.run));
}

TexelPlace place_at(id texture, UInteger slice, UInteger level, Size at) {
  return {texture, slice, level, at.width, at.height, at.depth};
}

void buffer_to_texture(BlitEncoder* self, SEL method, id buffer, UInteger offset,
                       UInteger row_bytes, UInteger image_bytes, Size size, id texture,
                       UInteger slice, UInteger level, Size at) {
  check_use(self, method);
  encode(self, "copyFromBuffer",
         copy_to_texture(
             {kept_place(self->commands(), buffer, self, method), offset, row_bytes, image_bytes},
             place_at(texture, slice, level, at), size, self, method));
}

void texture_to_buffer(BlitEncoder* self, SEL method, id texture, UInteger slice, UInteger level,
                       Size at, Size size, id buffer, UInteger offset, UInteger row_bytes,
                       UInteger image_bytes) {
  check_use(self, method);
  encode(self, "copyFromTexture",
         copy_from_texture(
             place_at(texture, slice, level, at), size,
             {kept_place(self->commands(), buffer, self, method), offset, row_bytes, image_bytes},
             self, method));
}

void use_nothing(BlitEncoder* self, SEL method, id) { check_use(self, method); }
void use_no_slice(BlitEncoder* self, SEL method, id, UInteger, UInteger) {
  check_use(self, method);
}

void define_blit_encoder() {
  define<BlitEncoder>(
      METALOPS_OBJC_SYMBOLS(MetalopsBlitCommandEncoder), &class_MetalopsCommandEncoder,
      {
          {"copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
           [](BlitEncoder* self, SEL method, id from, UInteger from_offset, id to,
              UInteger to_offset, UInteger bytes) {
             check_use(self, method);
             const Place source = kept_place(self->commands(), from, self, method);
             const Place target = kept_place(self->commands(), to, self, method);
             check_range(source, from_offset, bytes, self, method);
             check_range(target, to_offset, bytes, self, method);
             validation::check_copy_alignment(from_offset, bytes, call_of(self, method));
             validation::check_copy_alignment(to_offset, bytes, call_of(self, method));
             encode_copy(self->commands(), source, from_offset, target, to_offset, bytes);
           }},
          {"fillBuffer:range:value:",
           [](BlitEncoder* self, SEL method, id buffer, Range range, uint8_t value) {
             check_use(self, method);
             const Place target = kept_place(self->commands(), buffer, self, method);
             check_range(target, range.location, range.length, self, method);
             validation::check_copy_alignment(range.location, range.length, call_of(self, method));
             self->commands()->check_order(
                 {"fillBuffer",
                  streams::kDefault,
                  {range_of(target, range.location, range.length, true, "the buffer")}});
             encode(self->commands(),
                    [=] { std::memset(target.memory + range.location, value, range.length); });
           }},
          {"copyFromBuffer:sourceOffset:sourceBytesPerRow:sourceBytesPerImage:sourceSize:"
           "toTexture:destinationSlice:destinationLevel:destinationOrigin:",
           buffer_to_texture},
          {"copyFromBuffer:sourceOffset:sourceBytesPerRow:sourceBytesPerImage:sourceSize:"
           "toTexture:destinationSlice:destinationLevel:destinationOrigin:options:",
           [](BlitEncoder* self, SEL method, id buffer, UInteger offset, UInteger row_bytes,
              UInteger image_bytes, Size size, id texture, UInteger slice, UInteger level, Size at,
              UInteger) {
             buffer_to_texture(self, method, buffer, offset, row_bytes, image_bytes, size, texture,
                               slice, level, at);
           }},
          {"copyFromTexture:sourceSlice:sourceLevel:sourceOrigin:sourceSize:toBuffer:"
           "destinationOffset:destinationBytesPerRow:destinationBytesPerImage:",
           texture_to_buffer},
          {"copyFromTexture:sourceSlice:sourceLevel:sourceOrigin:sourceSize:toBuffer:"
           "destinationOffset:destinationBytesPerRow:destinationBytesPerImage:options:",
           [](BlitEncoder* self, SEL method, id texture, UInteger slice, UInteger level, Size at,
              Size size, id buffer, UInteger offset, UInteger row_bytes, UInteger image_bytes,
              UInteger) {
             texture_to_buffer(self, method, texture, slice, level, at, size, buffer, offset,
                               row_bytes, image_bytes);
           }},
          {"copyFromTexture:sourceSlice:sourceLevel:sourceOrigin:sourceSize:toTexture:"
           "destinationSlice:destinationLevel:destinationOrigin:",
           [](BlitEncoder* self, SEL method, id from, UInteger from_slice, UInteger from_level,
              Size from_at, Size size, id to, UInteger slice, UInteger level, Size at) {
             check_use(self, method);
             encode(self, "copyFromTexture",
                    copy_texture(place_at(from, from_slice, from_level, from_at), size,
                                 place_at(to, slice, level, at), self, method));
           }},
          {"copyFromTexture:sourceSlice:sourceLevel:toTexture:destinationSlice:destinationLevel:"
           "sliceCount:levelCount:",
           [](BlitEncoder* self, SEL method, id from, UInteger from_slice, UInteger from_level,
              id to, UInteger slice, UInteger level, UInteger slices, UInteger levels) {
             check_use(self, method);
             encode(self, "copyFromTexture",
                    copy_slices(place_at(from, from_slice, from_level, {}),
                                place_at(to, slice, level, {}), slices, levels, self, method));
           }},
          {"copyFromTexture:toTexture:",
           [](BlitEncoder* self, SEL method, id from, id to) {
             check_use(self, method);
             encode(self, "copyFromTexture", copy_all(from, to, self, method));
           }},
          {"generateMipmapsForTexture:",
           [](BlitEncoder* self, SEL method, id texture) {
             check_use(self, method);
             TexelWork work = generate_mipmaps(texture, self, method);
             self->commands()->check_order(
                 {"generateMipmapsForTexture", streams::kDefault, std::move(work.accesses)});
             self->commands()->add([run = std::move(work.run)] {
               const OwnWork own;
               run();
               return true;
             });
           }},
          {"resolveCounters:inRange:destinationBuffer:destinationOffset:",
           [](BlitEncoder* self, SEL method, id samples, Range range, id buffer, UInteger offset) {
             check_use(self, method);
             const Place target = kept_place(self->commands(), buffer, self, method);
             const UInteger bytes = resolved_counters(samples, range, self, method).size();
             check_range(target, offset, bytes, self, method);
             self->commands()->check_order({"resolveCounters",
                                            streams::kDefault,
                                            {range_of(target, offset, bytes, true, "the buffer")}});
             encode(self->commands(), [=, kept = Strong(samples)] {
               const std::string values = resolved_counters(samples, range, samples, method);
               std::memcpy(target.memory + offset, values.data(), bytes);
             });
           }},
          // All memory is the CPU's and the GPU's.
          {"optimizeContentsForGPUAccess:", use_nothing},
          {"optimizeContentsForCPUAccess:", use_nothing},
          {"optimizeContentsForGPUAccess:slice:level:", use_no_slice},
          {"optimizeContentsForCPUAccess:slice:level:", use_no_slice},
          {"synchronizeTexture:slice:level:", use_no_slice},
          {"synchronizeResource:", use_nothing},
      },
      {}, {"MTLBlitCommandEncoder"});
}

}  // namespace

id new_compute_encoder(id command_buffer, UInteger dispatch_type) {
  auto* made = static_cast<ComputeEncoder*>(
      new_encoder<ComputeEncoder>(&class_MetalopsComputeCommandEncoder, command_buffer));
  made->dispatch_type = dispatch_type;
  return made;
}

id new_blit_encoder(id command_buffer) {
  return new_encoder<BlitEncoder>(&class_MetalopsBlitCommandEncoder, command_buffer);
}

void end_encoding(id encoder) {
  auto* one = static_cast<CommandEncoder*>(encoder);
  validation::end(one->life);
  take_samples(one->commands(), std::exchange(one->samples_of_end, {}));
}

void sample_bounds(id encoder, Sampling sampling) {
  auto* one = static_cast<CommandEncoder*>(encoder);
  take_samples(one->commands(), sampling.begin);
  one->samples_of_end = std::move(sampling.end);
}

bool is_open(id encoder) { return !static_cast<CommandEncoder*>(encoder)->life.has_ended; }
void mark_as_torchs(id encoder) { static_cast<CommandEncoder*>(encoder)->life.is_torchs = true; }
void cut(id encoder) { static_cast<CommandEncoder*>(encoder)->life.has_been_cut = true; }

void encode_copy(CommandBuffer* buffer, const Place& from, UInteger from_offset, const Place& to,
                 UInteger to_offset, UInteger bytes) {
  buffer->check_order({"copyFromBuffer",
                       streams::kDefault,
                       {range_of(from, from_offset, bytes, false, "the source"),
                        range_of(to, to_offset, bytes, true, "the destination")}});
  encode(buffer, [=] { std::memmove(to.memory + to_offset, from.memory + from_offset, bytes); });
}

void define_encoders() {
  define_command_encoder();
  define_compute_encoder();
  define_blit_encoder();
}

}  // namespace metalops::objc
