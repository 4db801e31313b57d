// Argument encoders, which write the addresses of buffers, textures and samplers into structs that
// kernels read.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <metal/compile.h>
#include <metal/texture_argument.h>

#include <algorithm>
#include <cstring>

#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MetalopsArgumentEncoder)
METALOPS_OBJC_CLASS(MTLArgumentDescriptor)

namespace metalops::objc {
namespace {

// As argument_layout.py numbers them.
enum class MemberKind { kNumber, kPointer, kTexture, kSampler };
constexpr const char* kMemberNames[] = {"number", "pointer", "texture", "sampler"};

// A member of the struct, which has an index for each of its elements. What is no number has 8
// bytes.
struct ArgumentMember {
  UInteger first, offset, element_bytes, count;
  MemberKind kind;
  msl::abi::TextureArgument texture;
};

struct ArgumentEncoder : objc_object {
  std::vector<ArgumentMember> members;
  UInteger bytes = 0, alignment = 0;
  Strong buffer;
  char* memory = nullptr;  // where the struct is in that buffer
  Strong label;
};

// Returns the place of an argument in the struct, and its member.
std::pair<char*, const ArgumentMember*> argument_of(ArgumentEncoder* self, SEL method,
                                                    UInteger index, MemberKind kind) {
  TORCH_CHECK(self->memory != nullptr, written(self, method),
              ": no buffer to encode into; call setArgumentBuffer:offset: first");
  for (const ArgumentMember& member : self->members) {
    if (index < member.first || index >= member.first + member.count) continue;
    TORCH_CHECK_VALUE(member.kind == kind, written(self, method), ": the argument ", index,
                      " is a ", kMemberNames[static_cast<int>(member.kind)], " and no ",
                      kMemberNames[static_cast<int>(kind)]);
    return {self->memory + member.offset + (index - member.first) * member.element_bytes, &member};
  }
  TORCH_CHECK_INDEX(false, written(self, method), ": the struct has no argument ", index);
}

void encode_into(ArgumentEncoder* self, SEL method, id buffer, UInteger offset) {
  if (buffer == nullptr) {
    self->buffer = Strong();
    self->memory = nullptr;
    return;
  }
  const Place place = place_of(buffer, self, method);
  check_range(place, offset, self->bytes, self, method);
  TORCH_CHECK_VALUE(offset % self->alignment == 0, written(self, method), ": the offset ", offset,
                    " is not a multiple of the struct's alignment, ", self->alignment);
  self->buffer = Strong(buffer);
  self->memory = place.memory + offset;
}

void encode_buffer(ArgumentEncoder* self, SEL method, id buffer, UInteger offset, UInteger index) {
  char* const at = argument_of(self, method, index, MemberKind::kPointer).first;
  const char* address = nullptr;
  if (buffer != nullptr) {
    const Place place = place_of(buffer, self, method);
    check_range(place, offset, 0, self, method);
    exec::note_address_taken(place.memory, place.bytes);
    address = place.memory + offset;
  }
  std::memcpy(at, &address, sizeof address);
}

void encode_texture(ArgumentEncoder* self, SEL method, id texture, UInteger index) {
  const auto [at, member] = argument_of(self, method, index, MemberKind::kTexture);
  uint64_t handle = 0;  // of no texture: is_null_texture() tells
  if (texture != nullptr) {
    const std::string name = c10::str(written(self, method), ": the argument ", index);
    handle = texture_handle(texture, member->texture, name, self, method);
  }
  std::memcpy(at, &handle, sizeof handle);
}

void encode_sampler(ArgumentEncoder* self, SEL method, id sampler, UInteger index) {
  char* const at = argument_of(self, method, index, MemberKind::kSampler).first;
  const uint64_t bits =
      sampler == nullptr ? 0 : sampler_bits(checked_sampler(sampler, self, method));
  std::memcpy(at, &bits, sizeof bits);
}

template <auto encode>
void encode_all(ArgumentEncoder* self, SEL method, const id* objects, Range range) {
  for (UInteger i = 0; i < range.length; ++i) encode(self, method, objects[i], range.location + i);
}

msl::abi::TextureArgument texture_of_facts(int64_t facts) {
  return {static_cast<msl::abi::TextureKind>(facts & 15),
          static_cast<msl::abi::TextureComponent>(facts >> 4 & 15),
          static_cast<msl::abi::TextureAccess>(facts >> 8 & 15)};
}

// ---- encoders without a function

struct ArgumentDescriptor : objc_object {
  UInteger type = 0, index = 0, length = 0, access = 0;
  UInteger texture_type = 2, alignment = 0;
};

ArgumentMember described_member(const ArgumentDescriptor& d, id self, SEL method) {
  constexpr UInteger kTexture = 58, kSampler = 59, kPointer = 60;  // MTLDataType
  using msl::abi::TextureAccess;
  ArgumentMember member{d.index, 0, 8, std::max<UInteger>(d.length, 1), MemberKind::kPointer, {}};
  if (d.type == kTexture) {
    constexpr int kKinds[] = {0, 1, 2, 3, -1, 5, 6, 4, -1, 7};  // of MTLTextureType
    const int kind = d.texture_type < std::size(kKinds) ? kKinds[d.texture_type] : -1;
    TORCH_CHECK_NOT_IMPLEMENTED(kind >= 0, written(self, method),
                                ": the software Metal device has no textures of MTLTextureType ",
                                d.texture_type);
    constexpr TextureAccess kAccesses[] = {TextureAccess::kSample, TextureAccess::kReadWrite,
                                           TextureAccess::kWrite};
    member.kind = MemberKind::kTexture;
    member.texture = {static_cast<msl::abi::TextureKind>(kind), kAnyComponent,
                      kAccesses[std::min<UInteger>(d.access, 2)]};
  } else if (d.type == kSampler) {
    member.kind = MemberKind::kSampler;
  } else if (d.type != kPointer) {
    member.kind = MemberKind::kNumber;
    member.element_bytes = bytes_of_type(d.type, self, method);
  }
  return member;
}

// One argument after the other, each at a multiple of its size, as a struct of them in Metal.
void place_members(ArgumentEncoder* encoder, const std::vector<UInteger>& alignments) {
  UInteger end = 0;
  encoder->alignment = 1;
  for (size_t i = 0; i < alignments.size(); ++i) {
    ArgumentMember& member = encoder->members[i];
    const UInteger alignment = std::max(member.element_bytes, alignments[i]);
    member.offset = (end + alignment - 1) / alignment * alignment;
    end = member.offset + member.count * member.element_bytes;
    encoder->alignment = std::max(encoder->alignment, alignment);
  }
  encoder->bytes = (end + encoder->alignment - 1) / encoder->alignment * encoder->alignment;
}

void define_argument_descriptor() {
  using D = ArgumentDescriptor;
  define<D>(METALOPS_OBJC_SYMBOLS(MTLArgumentDescriptor), &class_NSObject,
            {
                {"dataType", Accessors<&D::type>::get},
                {"setDataType:", Accessors<&D::type>::set},
                {"index", Accessors<&D::index>::get},
                {"setIndex:", Accessors<&D::index>::set},
                {"arrayLength", Accessors<&D::length>::get},
                {"setArrayLength:", Accessors<&D::length>::set},
                {"access", Accessors<&D::access>::get},
                {"setAccess:", Accessors<&D::access>::set},
                {"textureType", Accessors<&D::texture_type>::get},
                {"setTextureType:", Accessors<&D::texture_type>::set},
                {"constantBlockAlignment", Accessors<&D::alignment>::get},
                {"setConstantBlockAlignment:", Accessors<&D::alignment>::set},
                {"copy",
                 [](D* self, SEL) -> id {
                   auto* made = make<D>(&class_MTLArgumentDescriptor);
                   *made = *self;
                   return made;
                 }},
            },
            {{"argumentDescriptor",
              [](id, SEL) -> id { return autoreleased(make<D>(&class_MTLArgumentDescriptor)); }}},
            {"NSCopying"});
}

}  // namespace

id argument_encoder_of_descriptors(id self, SEL method, id descriptors) {
  std::vector<const ArgumentDescriptor*> sorted;
  for (id one :
       static_cast<Array*>(checked(descriptors, &class_NSArray, "NSArray", self, method))->items) {
    sorted.push_back(static_cast<ArgumentDescriptor*>(
        checked(one, &class_MTLArgumentDescriptor, "MTLArgumentDescriptor", self, method)));
  }
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->index < b->index; });
  TORCH_CHECK_VALUE(!sorted.empty(), written(self, method), ": the array has no descriptors");
  const Strong kept = Strong::taken(make<ArgumentEncoder>(&class_MetalopsArgumentEncoder));
  auto* made = static_cast<ArgumentEncoder*>(kept.get());
  std::vector<UInteger> alignments;
  UInteger next = 0;
  for (const ArgumentDescriptor* one : sorted) {
    TORCH_CHECK_VALUE(one->index >= next, written(self, method), ": two arguments have the index ",
                      one->index);
    made->members.push_back(described_member(*one, self, method));
    alignments.push_back(one->alignment);
    next = one->index + made->members.back().count;
  }
  place_members(made, alignments);
  return objc_retain(made);
}

id new_argument_encoder(Function* self, SEL, UInteger index) {
  const exec::Library& library = *self->part->library;
  const std::vector<int64_t> layout =
      argument_layout(library.source(), library.table().language, self->described->name,
                      static_cast<uint32_t>(index));
  auto* made = make<ArgumentEncoder>(&class_MetalopsArgumentEncoder);
  made->bytes = static_cast<UInteger>(layout[0]);
  made->alignment = static_cast<UInteger>(layout[1]);
  for (size_t i = 2; i < layout.size(); i += 6) {
    made->members.push_back(
        {static_cast<UInteger>(layout[i]), static_cast<UInteger>(layout[i + 1]),
         static_cast<UInteger>(layout[i + 2]), static_cast<UInteger>(layout[i + 3]),
         static_cast<MemberKind>(layout[i + 4]), texture_of_facts(layout[i + 5])});
  }
  return made;
}

void define_argument_encoders() {
  define_argument_descriptor();
  define<ArgumentEncoder>(
      METALOPS_OBJC_SYMBOLS(MetalopsArgumentEncoder), &class_NSObject,
      {
          {"device", get_device},
          {"label", Accessors<&ArgumentEncoder::label>::get},
          {"setLabel:", Accessors<&ArgumentEncoder::label>::set_copy},
          {"encodedLength", Accessors<&ArgumentEncoder::bytes>::get},
          {"alignment", Accessors<&ArgumentEncoder::alignment>::get},
          {"setArgumentBuffer:offset:", encode_into},
          {"setArgumentBuffer:startOffset:arrayElement:",
           [](ArgumentEncoder* self, SEL method, id buffer, UInteger offset, UInteger element) {
             encode_into(self, method, buffer, offset + element * self->bytes);
           }},
          {"setBuffer:offset:atIndex:", encode_buffer},
          {"setBuffers:offsets:withRange:",
           [](ArgumentEncoder* self, SEL method, const id* buffers, const UInteger* offsets,
              Range range) {
             for (UInteger i = 0; i < range.length; ++i) {
               encode_buffer(self, method, buffers[i], offsets[i], range.location + i);
             }
           }},
          {"setTexture:atIndex:", encode_texture},
          {"setTextures:withRange:", encode_all<encode_texture>},
          {"setSamplerState:atIndex:", encode_sampler},
          {"setSamplerStates:withRange:", encode_all<encode_sampler>},
          {"constantDataAtIndex:",
           [](ArgumentEncoder* self, SEL method, UInteger index) -> void* {
             return argument_of(self, method, index, MemberKind::kNumber).first;
           }},
      },
      {}, {"MTLArgumentEncoder"});
}

}  // namespace metalops::objc
