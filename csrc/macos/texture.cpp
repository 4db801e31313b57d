#include <csrc/macos/texture.h>

#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <cmath>
#include <limits>

namespace metalops {
namespace {

using objective_c::new_object;
using objective_c::Owned;
using objective_c::send;

// Values of MTLTextureType.
constexpr uint64_t kTexture2d = 2, kTextureBuffer = 9;

constexpr uint64_t field(uint64_t bits, unsigned offset, unsigned width) {
  return bits >> offset & ((uint64_t(1) << width) - 1);
}

// MTLSamplerAddressMode by msl::abi::AddressMode, and MTLCompareFunction by metal::compare_func.
constexpr uint64_t kAddressModes[] = {0, 4, 5, 2, 3, 1};
constexpr uint64_t kCompareFunctions[] = {0, 1, 3, 4, 6, 2, 5, 7, 0};

float level_limit(uint64_t half) {
  const float value = c10::Half(static_cast<uint16_t>(half), c10::Half::from_bits());
  return std::isinf(value) ? std::numeric_limits<float>::max() : value;
}

}  // namespace

Owned make_texture(void* buffer, const LinearTexture& texture) {
  void* device = send<void*>(buffer, "device");
  const auto alignment =
      send<uint64_t>(device,
                     texture.is_buffer ? "minimumTextureBufferAlignmentForPixelFormat:"
                                       : "minimumLinearTextureAlignmentForPixelFormat:",
                     texture.pixel_format);
  TORCH_CHECK_VALUE(texture.offset % alignment == 0,
                    "the first texel of a texture of this format must begin at a multiple of ",
                    alignment, " bytes of the storage on this GPU, but is at byte ",
                    texture.offset);
  uint64_t row_bytes = texture.row_bytes;
  if (texture.height == 1) {
    // A single row has any stride that holds it.
    row_bytes = texture.width * texture.texel_bytes;
    row_bytes = (row_bytes + alignment - 1) / alignment * alignment;
  }
  TORCH_CHECK_VALUE(row_bytes % alignment == 0,
                    "the rows of a texture of this format must be a multiple of ", alignment,
                    " bytes apart on this GPU, but are ", row_bytes,
                    "; make the tensor wider, and the texture of a part of it");
  const auto length = send<uint64_t>(buffer, "length");
  TORCH_CHECK_VALUE(
      texture.offset <= length && row_bytes * texture.height <= length - texture.offset,
      "the last row of the texture must have ", row_bytes,
      " bytes in the storage, as the others have; make the texture of a tensor that is longer");

  const Owned descriptor = new_object("MTLTextureDescriptor");
  const auto set = [&](const char* selector, uint64_t value) {
    send<void>(descriptor.get(), selector, value);
  };
  set("setTextureType:", texture.is_buffer ? kTextureBuffer : kTexture2d);
  set("setPixelFormat:", texture.pixel_format);
  set("setWidth:", texture.width);
  set("setHeight:", texture.height);
  set("setUsage:", texture.usage);
  // A texture has the options of its buffer.
  set("setResourceOptions:", send<uint64_t>(buffer, "resourceOptions"));
  Owned made(send<void*>(buffer, "newTextureWithDescriptor:offset:bytesPerRow:", descriptor.get(),
                         texture.offset, row_bytes));
  TORCH_CHECK(made != nullptr, "Metal makes no texture of this format over a buffer");
  return made;
}

Owned make_sampler(void* device, uint64_t sampler) {
  const Owned descriptor = new_object("MTLSamplerDescriptor");
  const auto set = [&](const char* selector, uint64_t value) {
    send<void>(descriptor.get(), selector, value);
  };
  set("setMagFilter:", field(sampler, 0, 1));
  set("setMinFilter:", field(sampler, 1, 1));
  set("setMipFilter:", field(sampler, 2, 2));
  set("setSAddressMode:", kAddressModes[field(sampler, 4, 3)]);
  set("setTAddressMode:", kAddressModes[field(sampler, 7, 3)]);
  set("setRAddressMode:", kAddressModes[field(sampler, 10, 3)]);
  send<void>(descriptor.get(), "setNormalizedCoordinates:", field(sampler, 13, 1) == 0);
  set("setCompareFunction:", kCompareFunctions[field(sampler, 14, 4)]);
  set("setBorderColor:", field(sampler, 18, 2));
  set("setMaxAnisotropy:", field(sampler, 20, 5));
  send<void>(descriptor.get(), "setLodMinClamp:", level_limit(field(sampler, 32, 16)));
  send<void>(descriptor.get(), "setLodMaxClamp:", level_limit(field(sampler, 48, 16)));
  Owned made(send<void*>(device, "newSamplerStateWithDescriptor:", descriptor.get()));
  TORCH_CHECK(made != nullptr, "Metal makes no such sampler");
  return made;
}

}  // namespace metalops
