// Textures: their descriptors, memory, and copies of texels.
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <metal/encoder.h>
#include <metal/texture_argument.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include <csrc/host/objc/metal.h>
#include <csrc/host/objc/metal/pixel_formats.h>

METALOPS_OBJC_CLASS(MTLTextureDescriptor)
METALOPS_OBJC_CLASS(MetalopsTexture)

namespace metalops::objc {
namespace {

using msl::abi::TextureKind;
using msl::abi::TextureLevel;

constexpr UInteger kShaderRead = 1;   // MTLTextureUsageShaderRead
constexpr UInteger kShaderWrite = 2;  // MTLTextureUsageShaderWrite

PixelFormat format_of(UInteger value, id self, SEL method) {
  const auto found = find_pixel_format(value);
  TORCH_CHECK_NOT_IMPLEMENTED(found, written(self, method),
                              ": the software Metal device has no textures of MTLPixelFormat ",
                              value);
  return *found;
}

// ---- descriptors

struct TextureDescriptor : objc_object {
  UInteger type = 2, format = 70;  // MTLTextureType2D, MTLPixelFormatRGBA8Unorm
  UInteger width = 1, height = 1, depth = 1;
  UInteger levels = 1, samples = 1, layers = 1;
  UInteger options = 0;
  UInteger usage = kShaderRead;
};

UInteger levels_for(UInteger width, UInteger height) {
  UInteger levels = 1;
  for (UInteger size = std::max(width, height); size > 1; size /= 2) ++levels;
  return levels;
}

id descriptor_2d(id, SEL, UInteger format, UInteger width, UInteger height, bool has_levels) {
  auto* made = make<TextureDescriptor>(&class_MTLTextureDescriptor);
  made->format = format;
  made->width = width;
  made->height = height;
  if (has_levels) made->levels = levels_for(width, height);
  return autoreleased(made);
}

id descriptor_cube(id self, SEL method, UInteger format, UInteger size, bool has_levels) {
  auto* made =
      static_cast<TextureDescriptor*>(descriptor_2d(self, method, format, size, size, has_levels));
  made->type = 5;  // MTLTextureTypeCube
  return made;
}

id descriptor_of_buffer(id self, SEL method, UInteger format, UInteger width, UInteger options,
                        UInteger usage) {
  auto* made =
      static_cast<TextureDescriptor*>(descriptor_2d(self, method, format, width, 1, false));
  made->type = 9;  // MTLTextureTypeTextureBuffer
  made->options = options;
  made->usage = usage;
  return made;
}

void define_texture_descriptor() {
  using D = TextureDescriptor;
  define<D>(METALOPS_OBJC_SYMBOLS(MTLTextureDescriptor), &class_NSObject,
            {
                {"textureType", Accessors<&D::type>::get},
                {"setTextureType:", Accessors<&D::type>::set},
                {"pixelFormat", Accessors<&D::format>::get},
                {"setPixelFormat:", Accessors<&D::format>::set},
                {"width", Accessors<&D::width>::get},
                {"setWidth:", Accessors<&D::width>::set},
                {"height", Accessors<&D::height>::get},
                {"setHeight:", Accessors<&D::height>::set},
                {"depth", Accessors<&D::depth>::get},
                {"setDepth:", Accessors<&D::depth>::set},
                {"mipmapLevelCount", Accessors<&D::levels>::get},
                {"setMipmapLevelCount:", Accessors<&D::levels>::set},
                {"sampleCount", Accessors<&D::samples>::get},
                {"setSampleCount:", Accessors<&D::samples>::set},
                {"arrayLength", Accessors<&D::layers>::get},
                {"setArrayLength:", Accessors<&D::layers>::set},
                {"usage", Accessors<&D::usage>::get},
                {"setUsage:", Accessors<&D::usage>::set},
                {"resourceOptions", Accessors<&D::options>::get},
                {"setResourceOptions:", Accessors<&D::options>::set},
                {"storageMode", [](D* self, SEL) { return self->options >> 4 & 0xF; }},
                {"setStorageMode:",
                 [](D* self, SEL, UInteger mode) {
                   self->options = (self->options & ~UInteger{0xF0}) | mode << 4;
                 }},
                {"copy",
                 [](D* self, SEL) -> id {
                   auto* made = make<D>(&class_MTLTextureDescriptor);
                   *made = *self;
                   return made;
                 }},
            },
            {
                {"texture2DDescriptorWithPixelFormat:width:height:mipmapped:", descriptor_2d},
                {"textureCubeDescriptorWithPixelFormat:size:mipmapped:", descriptor_cube},
                {"textureBufferDescriptorWithPixelFormat:width:resourceOptions:usage:",
                 descriptor_of_buffer},
            },
            {"NSCopying"});
}

// ---- textures

struct Texture : objc_object {
  TextureDescriptor described;
  msl::abi::Texture layout = {};  // without addresses
  std::vector<at::Tensor> levels;
  Strong buffer;  // whose memory the texels are in, if any
  UInteger buffer_offset = 0, buffer_row_bytes = 0;
  Strong label;

  char* texels(UInteger level) const {
    return static_cast<char*>(levels[level].mutable_data_ptr());
  }
};

uint64_t bytes_of(const TextureLevel& level, unsigned layers) {
  return uint64_t(level.slice_bytes) * level.depth * layers;
}

// Sets the kind and the sizes, in texels and bytes.
void lay_out(Texture* texture, UInteger row_bytes, id self, SEL method) {
  constexpr int kKinds[] = {0, 1, 2, 3, -1, 5, 6, 4, -1, 7};  // of MTLTextureType
  const TextureDescriptor& d = texture->described;
  const int kind = d.type < std::size(kKinds) ? kKinds[d.type] : -1;
  TORCH_CHECK_NOT_IMPLEMENTED(kind >= 0, written(self, method),
                              ": the software Metal device has no textures of MTLTextureType ",
                              d.type);
  const PixelFormat format = format_of(d.format, self, method);
  const bool is_cube = d.type == 5 || d.type == 6;
  TORCH_CHECK_VALUE(d.width > 0 && d.height > 0 && d.depth > 0 && d.layers > 0 && d.levels > 0,
                    written(self, method), ": a size of the texture is 0");
  constexpr UInteger kMost = 16384, kMostLayers = 2048;  // of an Apple GPU
  TORCH_CHECK_VALUE((d.type == 9 || d.width <= kMost) && d.height <= kMost && d.depth <= kMost,
                    written(self, method), ": textures have at most ", kMost,
                    " texels in a dimension, and not ", d.width, "x", d.height, "x", d.depth);
  TORCH_CHECK_VALUE(d.layers <= kMostLayers, written(self, method), ": textures have at most ",
                    kMostLayers, " array elements, and not ", d.layers);
  TORCH_CHECK_VALUE(d.levels <= std::min<UInteger>(levels_for(std::max(d.width, d.depth), d.height),
                                                   msl::abi::kMaxTextureLevels),
                    written(self, method), ": ", d.levels,
                    " mipmap levels are more than the texture can have");
  auto& layout = texture->layout;
  layout.kind = static_cast<TextureKind>(kind);
  layout.format = format.format;
  layout.usage = format.usage;
  layout.layers = static_cast<unsigned>(d.layers * (is_cube ? 6 : 1));
  layout.level_count = static_cast<unsigned>(d.levels);
  for (unsigned i = 0; i < layout.level_count; ++i) {
    TextureLevel& level = layout.levels[i];
    level.width = std::max<unsigned>(static_cast<unsigned>(d.width) >> i, 1);
    level.height = std::max<unsigned>(static_cast<unsigned>(d.height) >> i, 1);
    level.depth = std::max<unsigned>(static_cast<unsigned>(d.depth) >> i, 1);
    level.row_bytes = row_bytes != 0 ? row_bytes : uint64_t(level.width) * format.format.bytes;
    level.slice_bytes = level.row_bytes * level.height;
  }
}

at::TensorOptions bytes_on_device() {
  return at::TensorOptions().dtype(at::kByte).device(at::Device(at::kMPS, 0));
}

Texture* described_texture(id descriptor, id self, SEL method) {
  auto* described = static_cast<TextureDescriptor*>(
      checked(descriptor, &class_MTLTextureDescriptor, "MTLTextureDescriptor", self, method));
  auto* made = make<Texture>(&class_MetalopsTexture);
  made->described = *described;
  return made;
}

id view_with_format(Texture* self, SEL method, UInteger value) {
  const PixelFormat format = format_of(value, self, method);
  TORCH_CHECK_VALUE(format.format.bytes == self->layout.format.bytes, written(self, method),
                    ": texels of MTLPixelFormat ", value, " have ", int(format.format.bytes),
                    " bytes, and those of the texture ", int(self->layout.format.bytes));
  auto* made = make<Texture>(&class_MetalopsTexture);
  made->described = self->described;
  made->described.format = value;
  made->layout = self->layout;
  made->layout.format = format.format;
  made->layout.usage = format.usage;
  made->levels = self->levels;
  made->buffer = self->buffer;
  made->buffer_offset = self->buffer_offset;
  made->buffer_row_bytes = self->buffer_row_bytes;
  return made;
}

// ---- copies of texels

struct Region {  // MTLRegion
  UInteger x, y, z;
  Size size;
};

// Where a region of a slice of a level begins. Raises ValueError if it is not in the level.
char* begin_of(const Texture* texture, UInteger slice, UInteger number, const Region& region,
               id self, SEL method) {
  const auto& layout = texture->layout;
  TORCH_CHECK_VALUE(number < layout.level_count && slice < layout.layers, written(self, method),
                    ": the texture has ", layout.level_count, " levels and ", layout.layers,
                    " slices, and no level ", number, " of slice ", slice);
  const TextureLevel& level = layout.levels[number];
  const auto is_in = [](UInteger begin, UInteger size, UInteger all) {
    return begin <= all && size <= all - begin;
  };
  TORCH_CHECK_VALUE(is_in(region.x, region.size.width, level.width) &&
                        is_in(region.y, region.size.height, level.height) &&
                        is_in(region.z, region.size.depth, level.depth),
                    written(self, method), ": the region of ", region.size.width, "x",
                    region.size.height, "x", region.size.depth, " texels at ", region.x, ",",
                    region.y, ",", region.z, " is beyond the ", level.width, "x", level.height, "x",
                    level.depth, " texels of level ", number);
  return texture->texels(number) + (slice * level.depth + region.z) * level.slice_bytes +
         region.y * level.row_bytes + region.x * layout.format.bytes;
}

struct Rows {
  char* memory;
  UInteger row_bytes, image_bytes;
};

// How many bytes the rows of a region take, from its first texel to its last; the largest number if
// none can have so many.
UInteger bytes_of_rows(Size size, UInteger row_bytes, UInteger image_bytes, UInteger texel_bytes) {
  if (size.width == 0 || size.height == 0 || size.depth == 0) return 0;
  using Wide = unsigned __int128;
  const Wide bytes = Wide(size.depth - 1) * image_bytes + Wide(size.height - 1) * row_bytes +
                     Wide(size.width) * texel_bytes;
  constexpr UInteger kMost = std::numeric_limits<UInteger>::max();
  return bytes > kMost ? kMost : static_cast<UInteger>(bytes);
}

void copy_texels(Rows to, Rows from, Size size, UInteger texel_bytes) {
  for (UInteger z = 0; z < size.depth; ++z) {
    for (UInteger y = 0; y < size.height; ++y) {
      std::memmove(to.memory + z * to.image_bytes + y * to.row_bytes,
                   from.memory + z * from.image_bytes + y * from.row_bytes,
                   size.width * texel_bytes);
    }
  }
}

Rows rows_of(const Texture* texture, UInteger slice, UInteger level, const Region& region, id self,
             SEL method) {
  char* begin = begin_of(texture, slice, level, region, self, method);
  return {begin, texture->layout.levels[level].row_bytes,
          texture->layout.levels[level].slice_bytes};
}

void check_shared(const Texture* self, SEL method) {
  TORCH_CHECK(static_cast<UInteger>(self->described.options >> 4 & 0xF) != kPrivateStorage,
              written(const_cast<Texture*>(self), method),
              ": the CPU cannot access a texture of private storage; a Mac ends the process");
}

void replace(Texture* self, SEL method, Region region, UInteger level, UInteger slice, char* bytes,
             UInteger row_bytes, UInteger image_bytes) {
  check_shared(self, method);
  copy_texels(rows_of(self, slice, level, region, self, method), {bytes, row_bytes, image_bytes},
              region.size, self->layout.format.bytes);
}

void get_bytes(Texture* self, SEL method, char* bytes, UInteger row_bytes, UInteger image_bytes,
               Region region, UInteger level, UInteger slice) {
  check_shared(self, method);
  copy_texels({bytes, row_bytes, image_bytes}, rows_of(self, slice, level, region, self, method),
              region.size, self->layout.format.bytes);
}

void define_texture() {
  using T = Texture;
  define<T>(
      METALOPS_OBJC_SYMBOLS(MetalopsTexture), &class_NSObject,
      {
          {"device", get_device},
          {"label", Accessors<&T::label>::get},
          {"setLabel:", Accessors<&T::label>::set_copy},
          {"textureType", [](T* self, SEL) { return self->described.type; }},
          {"pixelFormat", [](T* self, SEL) { return self->described.format; }},
          {"width", [](T* self, SEL) { return self->described.width; }},
          {"height", [](T* self, SEL) { return self->described.height; }},
          {"depth", [](T* self, SEL) { return self->described.depth; }},
          {"mipmapLevelCount", [](T* self, SEL) { return self->described.levels; }},
          {"sampleCount", [](T* self, SEL) { return self->described.samples; }},
          {"arrayLength", [](T* self, SEL) { return self->described.layers; }},
          {"usage", [](T* self, SEL) { return self->described.usage; }},
          {"isFramebufferOnly", [](T*, SEL) { return false; }},
          {"resourceOptions", [](T* self, SEL) { return self->described.options; }},
          {"storageMode", [](T* self, SEL) { return self->described.options >> 4 & 0xF; }},
          {"buffer", Accessors<&T::buffer>::get},
          {"bufferOffset", Accessors<&T::buffer_offset>::get},
          {"bufferBytesPerRow", Accessors<&T::buffer_row_bytes>::get},
          {"allocatedSize",
           [](T* self, SEL) {
             UInteger bytes = 0;
             for (const at::Tensor& level : self->levels) bytes += level.numel();
             return bytes;
           }},
          {"newTextureViewWithPixelFormat:", view_with_format},
          {"replaceRegion:mipmapLevel:slice:withBytes:bytesPerRow:bytesPerImage:", replace},
          {"replaceRegion:mipmapLevel:withBytes:bytesPerRow:",
           [](T* self, SEL method, Region region, UInteger level, char* bytes, UInteger row_bytes) {
             replace(self, method, region, level, 0, bytes, row_bytes, 0);
           }},
          {"getBytes:bytesPerRow:bytesPerImage:fromRegion:mipmapLevel:slice:", get_bytes},
          {"getBytes:bytesPerRow:fromRegion:mipmapLevel:",
           [](T* self, SEL method, char* bytes, UInteger row_bytes, Region region, UInteger level) {
             get_bytes(self, method, bytes, row_bytes, 0, region, level, 0);
           }},
          {"setPurgeableState:", [](id, SEL, UInteger) -> UInteger { return 2; }},
      },
      {}, {"MTLTexture", "MTLResource", "MTLAllocation"});
}

}  // namespace

id new_texture(id self, SEL method, id descriptor) {
  const Strong kept = Strong::taken(described_texture(descriptor, self, method));
  auto* made = static_cast<Texture*>(kept.get());
  lay_out(made, 0, self, method);
  for (unsigned i = 0; i < made->layout.level_count; ++i) {
    const auto bytes = static_cast<int64_t>(bytes_of(made->layout.levels[i], made->layout.layers));
    made->levels.push_back(at::empty({bytes}, bytes_on_device()));
    std::memset(made->texels(i), 0, bytes);
  }
  return objc_retain(made);
}

id new_texture_of_buffer(id self, SEL method, id descriptor, UInteger offset, UInteger row_bytes) {
  const Strong kept = Strong::taken(described_texture(descriptor, self, method));
  auto* made = static_cast<Texture*>(kept.get());
  lay_out(made, row_bytes, self, method);
  const TextureLevel& level = made->layout.levels[0];
  const UInteger texels = UInteger{level.width} * made->layout.format.bytes;
  TORCH_CHECK_VALUE(row_bytes >= texels, written(self, method), ": rows of ", level.width,
                    " texels have ", texels, " bytes, and not ", row_bytes);
  TORCH_CHECK_VALUE(made->layout.level_count == 1 && level.depth == 1 && made->layout.layers == 1,
                    written(self, method), ": a texture of a buffer has one level and one slice");
  const Place place = place_of(self, self, method);
  const UInteger bytes =
      bytes_of_rows({level.width, level.height, 1}, row_bytes, 0, made->layout.format.bytes);
  check_range(place, offset, bytes, self, method);
  made->buffer = Strong(self);
  made->buffer_offset = offset;
  made->buffer_row_bytes = row_bytes;
  made->levels.push_back(at::for_blob(place.memory + offset, {static_cast<int64_t>(bytes)})
                             .options(bytes_on_device())
                             .target_device(at::Device(at::kMPS, 0))
                             .make_tensor());
  return objc_retain(made);
}

void bind_texture(Encoder& encoder, const exec::Kernel& kernel, const msl::abi::Argument& argument,
                  unsigned index, id texture, id self, SEL method) {
  auto* one = static_cast<Texture*>(texture);
  using msl::abi::TextureAccess;
  const TextureAccess access = argument.texture->access;
  const bool writes = access == TextureAccess::kWrite || access == TextureAccess::kReadWrite;
  TORCH_CHECK(!writes || one->described.usage & kShaderWrite, written(self, method),
              ": Metal kernel '", kernel.name, "' writes to texture ", index, " ('", argument.name,
              "'), which was made without MTLTextureUsageShaderWrite");
  const size_t size =
      offsetof(msl::abi::Texture, levels) + one->levels.size() * sizeof(TextureLevel);
  const std::string_view description(reinterpret_cast<const char*>(&one->layout), size);
  encoder.set_texture(index, as_texture(kernel, index, description, one->levels), one->levels);
}

id checked_texture(id texture, id self, SEL method) {
  return checked(texture, &class_MetalopsTexture, "MTLTexture", self, method);
}

std::function<void()> copy_of_texels(const TexelCopy& copy, id self, SEL method) {
  const Region region{copy.x, copy.y, copy.z, copy.size};
  auto* texture = static_cast<Texture*>(checked_texture(copy.texture, self, method));
  const Rows texels = rows_of(texture, copy.slice, copy.level, region, self, method);
  const Place place = place_of(copy.buffer, self, method);
  const UInteger bytes = texture->layout.format.bytes;
  check_range(place, copy.offset, bytes_of_rows(copy.size, copy.row_bytes, copy.image_bytes, bytes),
              self, method);
  const Rows rows{place.memory + copy.offset, copy.row_bytes, copy.image_bytes};
  return [=, size = copy.size, to_texture = copy.to_texture, kept = Strong(texture)] {
    copy_texels(to_texture ? texels : rows, to_texture ? rows : texels, size, bytes);
  };
}

void define_textures() {
  define_texture_descriptor();
  define_texture();
}

}  // namespace metalops::objc
