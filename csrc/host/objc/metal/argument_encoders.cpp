// Argument encoders, which write the addresses of buffers into structs that kernels read.
#include <c10/util/Exception.h>
#include <metal/compile.h>

#include <cstring>

#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MetalopsArgumentEncoder)

namespace metalops::objc {
namespace {

// A member of the struct, which has an index for each of its elements.
struct ArgumentMember {
  UInteger first, offset, element_bytes, count;
  bool is_pointer;
};

struct ArgumentEncoder : objc_object {
  std::vector<ArgumentMember> members;
  UInteger bytes = 0, alignment = 0;
  Strong buffer;
  char* memory = nullptr;  // where the struct is in that buffer
  Strong label;
};

// Returns the place of an argument in the struct.
char* place_of_argument(ArgumentEncoder* self, SEL method, UInteger index, bool is_pointer) {
  TORCH_CHECK(self->memory != nullptr, written(self, method),
              ": no buffer to encode into; call setArgumentBuffer:offset: first");
  for (const ArgumentMember& member : self->members) {
    if (index < member.first || index >= member.first + member.count) continue;
    TORCH_CHECK_VALUE(member.is_pointer == is_pointer, written(self, method), ": the argument ",
                      index, " is ", member.is_pointer ? "a pointer" : "no pointer");
    return self->memory + member.offset + (index - member.first) * member.element_bytes;
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
  char* const at = place_of_argument(self, method, index, true);
  const char* address = nullptr;
  if (buffer != nullptr) {
    const Place place = place_of(buffer, self, method);
    check_range(place, offset, 0, self, method);
    exec::note_address_taken(place.memory, place.bytes);
    address = place.memory + offset;
  }
  std::memcpy(at, &address, sizeof address);
}

}  // namespace

id new_argument_encoder(Function* self, SEL, UInteger index) {
  const exec::Library& library = *self->part->library;
  const std::vector<int64_t> layout =
      argument_layout(library.source(), library.table().language, self->described->name,
                      static_cast<uint32_t>(index));
  auto* made = make<ArgumentEncoder>(&class_MetalopsArgumentEncoder);
  made->bytes = static_cast<UInteger>(layout[0]);
  made->alignment = static_cast<UInteger>(layout[1]);
  for (size_t i = 2; i < layout.size(); i += 4) {
    const int64_t count = layout[i + 3];
    made->members.push_back({static_cast<UInteger>(layout[i]), static_cast<UInteger>(layout[i + 1]),
                             static_cast<UInteger>(layout[i + 2]),
                             static_cast<UInteger>(count < 0 ? -count : count), count < 0});
  }
  return made;
}

void define_argument_encoders() {
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
          {"constantDataAtIndex:",
           [](ArgumentEncoder* self, SEL method, UInteger index) -> void* {
             return place_of_argument(self, method, index, false);
           }},
      },
      {}, {"MTLArgumentEncoder"});
}

}  // namespace metalops::objc
