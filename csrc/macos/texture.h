// Metal's textures over buffers, and its samplers, of what metalops.texture and metalops.sampler
// describe.
#pragma once
#include <csrc/macos/objective_c.h>

#include <cstdint>

namespace metalops {

// A texture of one level in a buffer. pixel_format: MTLPixelFormat. is_buffer: a texture buffer
// rather than one of two dimensions. usage: MTLTextureUsage.
struct LinearTexture {
  uint64_t pixel_format;
  bool is_buffer;
  uint64_t width, height;
  uint64_t row_bytes, texel_bytes;
  uint64_t offset;  // in the buffer, in bytes
  uint64_t usage;
};

// Returns an MTLTexture over an MTLBuffer. Raises ValueError if the offset or the rows lack the
// alignment that the GPU asks for, or a last row that is padded would reach beyond the buffer,
// RuntimeError if Metal makes no texture.
objective_c::Owned make_texture(void* buffer, const LinearTexture& texture);

// Returns an MTLSamplerState. sampler: bits as metalops/msl/include/msl/texture_abi.h defines them.
objective_c::Owned make_sampler(void* device, uint64_t sampler);

}  // namespace metalops
