// Textures, for the files that make them and that copy their texels.
#pragma once
#include <ATen/core/Tensor.h>
#include <msl/texture_abi.h>

#include <vector>

#include <csrc/host/objc/metal.h>

namespace metalops::objc {

struct TextureDescriptor : objc_object {
  UInteger type = 2, format = 70;  // MTLTextureType2D, MTLPixelFormatRGBA8Unorm
  UInteger width = 1, height = 1, depth = 1;
  UInteger levels = 1, samples = 1, layers = 1;
  UInteger options = 0;
  UInteger usage = 1;  // MTLTextureUsageShaderRead
};

struct Texture : objc_object {
  TextureDescriptor described;
  msl::abi::Texture layout = {};  // without addresses
  std::vector<at::Tensor> levels;
  // The allocation that the texels are in, if all levels are in one; null if each has its own.
  const char* allocation = nullptr;
  Strong buffer;  // whose memory the texels are in, if any
  UInteger buffer_offset = 0, buffer_row_bytes = 0;
  Strong heap;
  UInteger heap_offset = 0;
  bool is_aliasable = false;
  Strong parent;  // of a view
  UInteger parent_level = 0, parent_slice = 0;
  Strong label;
  // The texture as kernels find it in memory, made when a program asks for it.
  std::unique_ptr<const msl::abi::Texture> handle;

  ~Texture() {
    if (heap.get() != nullptr && !is_aliasable) release_of_heap(heap, heap_offset);
  }
  char* texels(UInteger level) const {
    return static_cast<char*>(levels[level].mutable_data_ptr());
  }
  const char* allocation_of(UInteger level) const {
    return allocation != nullptr ? allocation : texels(level);
  }
  UInteger storage_mode() const { return described.options >> 4 & 0xF; }
};

struct Region {  // MTLRegion
  UInteger x, y, z;
  Size size;
};

// How many bytes the rows of a region take, from its first texel to its last; the largest number if
// none can have so many.
UInteger bytes_of_rows(Size size, UInteger row_bytes, UInteger image_bytes, UInteger texel_bytes);

// Methods of textures.
void replace_region(Texture* self, SEL method, Region region, UInteger level, UInteger slice,
                    char* bytes, UInteger row_bytes, UInteger image_bytes);
void get_bytes(Texture* self, SEL method, char* bytes, UInteger row_bytes, UInteger image_bytes,
               Region region, UInteger level, UInteger slice);

}  // namespace metalops::objc
