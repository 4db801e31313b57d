// Textures: their descriptors, memory and views.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <metal/encoder.h>
#include <metal/texture_argument.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <csrc/host/objc/metal/pixel_formats.h>
#include <csrc/host/objc/metal/texture.h>

METALOPS_OBJC_CLASS(MTLTextureDescriptor)
METALOPS_OBJC_CLASS(MetalopsTexture)

namespace metalops::objc {
namespace {

using msl::abi::TextureKind;
using msl::abi::TextureLevel;

constexpr UInteger kShaderWrite = 2;  // MTLTextureUsageShaderWrite

PixelFormat format_of(UInteger value, id self, SEL method) {
  const auto found = find_pixel_format(value);
  TORCH_CHECK_NOT_IMPLEMENTED(found, written(self, method),
                              ": the software Metal device has no textures of MTLPixelFormat ",
                              value);
  return *found;
}

// ---- descriptors

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

uint64_t bytes_of(const TextureLevel& level, unsigned layers) {
  return uint64_t(level.slice_bytes) * level.depth * layers;
}

// Raises ValueError if a texture of the type does not have such sizes.
void check_dimensions(const TextureDescriptor& d, id self, SEL method) {
  const bool is_array = d.type == 1 || d.type == 3 || d.type == 6;
  const bool is_cube = d.type == 5 || d.type == 6;
  const bool has_one_dimension = d.type == 0 || d.type == 1 || d.type == 9;
  TORCH_CHECK_VALUE((is_array || d.layers == 1) && (d.type == 7 || d.depth == 1) &&
                        (!has_one_dimension || d.height == 1) && (!is_cube || d.width == d.height),
                    written(self, method), ": a texture of MTLTextureType ", d.type,
                    " cannot have ", d.width, "x", d.height, "x", d.depth, " texels and ", d.layers,
                    " array elements");
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
  check_dimensions(d, self, method);
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

at::Tensor bytes_at(char* memory, int64_t bytes) {
  return at::for_blob(memory, {bytes})
      .options(bytes_on_device())
      .target_device(at::Device(at::kMPS, 0))
      .make_tensor();
}

// Returns the size of a level in a heap: each begins at a multiple of kMemoryAlignment.
uint64_t room_of(const TextureLevel& level, unsigned layers) {
  return (bytes_of(level, layers) + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
}

Texture* described_texture(id descriptor, id self, SEL method) {
  auto* described = static_cast<TextureDescriptor*>(
      checked(descriptor, &class_MTLTextureDescriptor, "MTLTextureDescriptor", self, method));
  auto* made = make<Texture>(&class_MetalopsTexture);
  made->described = *described;
  return made;
}

// The types that a texture of a type can be seen as: those of the same number of dimensions.
int dimensions_of(UInteger type) { return type <= 1 ? 1 : type == 7 ? 3 : type == 9 ? 0 : 2; }

// A texture whose texels are those of some levels and slices of another.
id view_of(Texture* self, SEL method, UInteger format_value, UInteger type, Range levels,
           Range slices) {
  const PixelFormat format = format_of(format_value, self, method);
  const auto& layout = self->layout;
  TORCH_CHECK_VALUE(format.format.bytes == layout.format.bytes, written(self, method),
                    ": texels of MTLPixelFormat ", format_value, " have ", int(format.format.bytes),
                    " bytes, and those of the texture ", int(layout.format.bytes));
  const auto is_in = [](Range range, UInteger count) {
    return range.length > 0 && range.location < count && range.length <= count - range.location;
  };
  TORCH_CHECK_VALUE(is_in(levels, layout.level_count) && is_in(slices, layout.layers),
                    written(self, method), ": the texture has ", layout.level_count, " levels and ",
                    layout.layers, " slices, and not ", levels.length, " levels from ",
                    levels.location, " and ", slices.length, " slices from ", slices.location);
  TORCH_CHECK_VALUE(dimensions_of(type) == dimensions_of(self->described.type),
                    written(self, method), ": a texture of MTLTextureType ", self->described.type,
                    " has no view of type ", type);
  auto* made = make<Texture>(&class_MetalopsTexture);
  const Strong kept = Strong::taken(made);
  const TextureLevel& first = layout.levels[levels.location];
  const UInteger faces = type == 5 || type == 6 ? 6 : 1;
  TORCH_CHECK_VALUE(slices.length % faces == 0, written(self, method),
                    ": a cube has 6 slices, not ", slices.length);
  TextureDescriptor& described = made->described;
  described.type = type;
  described.format = format_value;
  described.width = first.width;
  described.height = first.height;
  described.depth = first.depth;
  described.levels = levels.length;
  described.layers = slices.length / faces;
  described.options = self->described.options;
  described.usage = self->described.usage;
  lay_out(made, first.row_bytes, self, method);
  for (UInteger i = 0; i < levels.length; ++i) {
    const TextureLevel& level = layout.levels[levels.location + i];
    made->layout.levels[i] = level;
    const UInteger number = levels.location + i;
    const auto begin = static_cast<int64_t>(slices.location * level.depth * level.slice_bytes);
    const auto bytes = static_cast<int64_t>(bytes_of(level, made->layout.layers));
    made->levels.push_back(bytes_at(self->texels(number) + begin,
                                    std::min(bytes, self->levels[number].numel() - begin)));
  }
  made->allocation = self->allocation_of(levels.location);
  made->buffer = self->buffer;
  made->buffer_offset = self->buffer_offset;
  made->buffer_row_bytes = self->buffer_row_bytes;
  made->parent = Strong(self);
  made->parent_level = levels.location;
  made->parent_slice = slices.location;
  return objc_retain(made);
}

id view_with_format(Texture* self, SEL method, UInteger format) {
  return view_of(self, method, format, self->described.type, {0, self->layout.level_count},
                 {0, self->layout.layers});
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
          {"storageMode", [](T* self, SEL) { return self->storage_mode(); }},
          {"cpuCacheMode", [](T* self, SEL) { return self->described.options & 0xF; }},
          {"hazardTrackingMode",
           [](T* self, SEL) -> UInteger {
             const UInteger mode = self->described.options >> 8 & 3;
             return mode == 0 ? 2 : mode;  // textures are tracked by default
           }},
          {"heap", Accessors<&T::heap>::get},
          {"heapOffset", Accessors<&T::heap_offset>::get},
          {"isAliasable", Accessors<&T::is_aliasable>::get},
          {"makeAliasable",
           [](T* self, SEL) {
             if (self->heap.get() == nullptr || self->is_aliasable) return;
             self->is_aliasable = true;
             release_of_heap(self->heap, self->heap_offset);
           }},
          {"parentTexture", Accessors<&T::parent>::get},
          {"parentRelativeLevel", Accessors<&T::parent_level>::get},
          {"parentRelativeSlice", Accessors<&T::parent_slice>::get},
          {"buffer", Accessors<&T::buffer>::get},
          {"bufferOffset", Accessors<&T::buffer_offset>::get},
          {"bufferBytesPerRow", Accessors<&T::buffer_row_bytes>::get},
          {"allocatedSize",
           [](T* self, SEL) {
             UInteger bytes = 0;
             for (const at::Tensor& level : self->levels) bytes += level.numel();
             return bytes;
           }},
          {"gpuResourceID",
           [](T* self, SEL method) {
             return texture_handle(self, {self->layout.kind, kAnyComponent}, "", self, method);
           }},
          {"newTextureViewWithPixelFormat:", view_with_format},
          {"newTextureViewWithPixelFormat:textureType:levels:slices:", view_of},
          {"replaceRegion:mipmapLevel:slice:withBytes:bytesPerRow:bytesPerImage:", replace_region},
          {"replaceRegion:mipmapLevel:withBytes:bytesPerRow:",
           [](T* self, SEL method, Region region, UInteger level, char* bytes, UInteger row_bytes) {
             replace_region(self, method, region, level, 0, bytes, row_bytes, 0);
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

UInteger new_texture_without_memory(id descriptor, id self, SEL method, Strong& texture) {
  texture = Strong::taken(described_texture(descriptor, self, method));
  auto* made = static_cast<Texture*>(texture.get());
  lay_out(made, 0, self, method);
  UInteger bytes = 0;
  for (unsigned i = 0; i < made->layout.level_count; ++i) {
    bytes += room_of(made->layout.levels[i], made->layout.layers);
  }
  return bytes;
}

void place_in_heap(id texture, char* memory, UInteger options, id heap, UInteger offset) {
  auto* made = static_cast<Texture*>(texture);
  made->described.options = options;
  made->heap = Strong(heap);
  made->heap_offset = offset;
  made->allocation = memory;
  for (unsigned i = 0; i < made->layout.level_count; ++i) {
    const TextureLevel& level = made->layout.levels[i];
    made->levels.push_back(
        bytes_at(memory, static_cast<int64_t>(bytes_of(level, made->layout.layers))));
    memory += room_of(level, made->layout.layers);
  }
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
  made->allocation = place.memory;
  made->levels.push_back(bytes_at(place.memory + offset, static_cast<int64_t>(bytes)));
  return objc_retain(made);
}

namespace {

std::string_view description_of(const Texture& texture) {
  const size_t size =
      offsetof(msl::abi::Texture, levels) + texture.levels.size() * sizeof(TextureLevel);
  return {reinterpret_cast<const char*>(&texture.layout), size};
}

bool writes_to(const msl::abi::TextureArgument& argument) {
  using msl::abi::TextureAccess;
  return argument.access == TextureAccess::kWrite || argument.access == TextureAccess::kReadWrite;
}

}  // namespace

void bind_texture(Encoder& encoder, const exec::Kernel& kernel, const msl::abi::Argument& argument,
                  unsigned index, id texture, id self, SEL method) {
  auto* one = static_cast<Texture*>(texture);
  TORCH_CHECK(!writes_to(*argument.texture) || one->described.usage & kShaderWrite,
              written(self, method), ": Metal kernel '", kernel.name, "' writes to texture ", index,
              " ('", argument.name, "'), which was made without MTLTextureUsageShaderWrite");
  encoder.set_texture(index, as_texture(kernel, index, description_of(*one), one->levels),
                      one->levels);
}

uint64_t texture_handle(id texture, const msl::abi::TextureArgument& wanted,
                        const std::string& name, id self, SEL method) {
  auto* one = static_cast<Texture*>(checked_texture(texture, self, method));
  TORCH_CHECK(!writes_to(wanted) || one->described.usage & kShaderWrite, name,
              " is written, but the texture was made without MTLTextureUsageShaderWrite");
  msl::abi::Texture made = as_texture(wanted, name, description_of(*one), one->levels);
  if (one->handle == nullptr) one->handle = std::make_unique<const msl::abi::Texture>(made);
  return reinterpret_cast<uint64_t>(one->handle.get());
}

id checked_texture(id texture, id self, SEL method) {
  return checked(texture, &class_MetalopsTexture, "MTLTexture", self, method);
}

void define_textures() {
  define_texture_descriptor();
  define_texture();
}

}  // namespace metalops::objc
