// Copies of texels, between textures, buffers and memory of the program, and mipmaps.
#include <c10/util/Exception.h>
#include <metal/compile.h>
#include <metal/encoder.h>
#include <metal/texture_argument.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include <csrc/host/objc/metal/pixel_formats.h>
#include <csrc/host/objc/metal/texture.h>

namespace metalops::objc {
namespace {

using msl::abi::TextureLevel;
using Access = exec::StreamWork::Access;

// Returns the level of a slice. Raises ValueError if the texture does not have it.
const TextureLevel& level_of(const Texture* texture, UInteger slice, UInteger level, id self,
                             SEL method) {
  const auto& layout = texture->layout;
  TORCH_CHECK_VALUE(level < layout.level_count && slice < layout.layers, written(self, method),
                    ": the texture has ", layout.level_count, " levels and ", layout.layers,
                    " slices, and no level ", level, " of slice ", slice);
  return layout.levels[level];
}

struct Rows {
  char* memory;
  UInteger row_bytes, image_bytes;
};

// Returns the rows of a region of a slice of a level. Raises ValueError if it is not in the level.
Rows rows_of(const Texture* texture, UInteger slice, UInteger number, const Region& region, id self,
             SEL method) {
  const TextureLevel& level = level_of(texture, slice, number, self, method);
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
  char* begin = texture->texels(number) + (slice * level.depth + region.z) * level.slice_bytes +
                region.y * level.row_bytes + region.x * texture->layout.format.bytes;
  return {begin, level.row_bytes, level.slice_bytes};
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

void check_shared(const Texture* self, SEL method) {
  TORCH_CHECK(self->storage_mode() != kPrivateStorage, written(const_cast<Texture*>(self), method),
              ": the CPU cannot access a texture of private storage; a Mac ends the process");
}

Texture* texture_of(const TexelPlace& place, id self, SEL method) {
  return static_cast<Texture*>(checked_texture(place.texture, self, method));
}

Region region_at(const TexelPlace& place, Size size) { return {place.x, place.y, place.z, size}; }

// Describes the part of a texture that a copy accesses.
Access access_to(const Texture* texture, UInteger level, const Rows& rows, Size size, bool writes) {
  return {texture->allocation_of(level), rows.memory,
          rows.memory +
              bytes_of_rows(size, rows.row_bytes, rows.image_bytes, texture->layout.format.bytes),
          writes, "the texture"};
}

TexelWork copy_with_buffer(const BufferRows& buffer, const TexelPlace& place, Size size,
                           bool to_texture, id self, SEL method) {
  const Texture* texture = texture_of(place, self, method);
  const Rows texels =
      rows_of(texture, place.slice, place.level, region_at(place, size), self, method);
  const UInteger bytes = texture->layout.format.bytes;
  const UInteger end = bytes_of_rows(size, buffer.row_bytes, buffer.image_bytes, bytes);
  check_range(buffer.place, buffer.offset, end, self, method);
  const Rows rows{buffer.place.memory + buffer.offset, buffer.row_bytes, buffer.image_bytes};
  return {{access_to(texture, place.level, texels, size, to_texture),
           {buffer.place.memory, rows.memory, rows.memory + end, !to_texture, "the buffer"}},
          [=, kept = Strong(place.texture), keeper = buffer.place.keeper] {
            copy_texels(to_texture ? texels : rows, to_texture ? rows : texels, size, bytes);
          }};
}

void check_same_format(const Texture* from, const Texture* to, id self, SEL method) {
  TORCH_CHECK_VALUE(from->layout.format.bytes == to->layout.format.bytes, written(self, method),
                    ": texels of the source have ", int(from->layout.format.bytes),
                    " bytes, and those of the destination ", int(to->layout.format.bytes));
}

// ---- mipmaps

// Each texel of a level is the mean of those of the level before that it covers.
constexpr const char* kHalve = R"METAL(
#include <metal_stdlib>
using namespace metal;
kernel void metalops_halve(texture2d_array<float, access::read> from [[texture(0)]],
                           texture2d_array<float, access::write> to [[texture(1)]],
                           constant uint& planes [[buffer(0)]],
                           uint3 at [[thread_position_in_grid]]) {
  const uint2 last(from.get_width() - 1, from.get_height() - 1);
  const uint2 a = min(2 * at.xy, last), b = min(a + 1, last);
  float4 sum = 0;
  for (uint plane = 0; plane < planes; ++plane) {
    const uint z = min(planes * at.z + plane, from.get_array_size() - 1);
    sum += from.read(a, z) + from.read(uint2(b.x, a.y), z) + from.read(uint2(a.x, b.y), z) +
           from.read(b, z);
  }
  to.write(sum / float(4 * planes), at.xy, at.z);
}
)METAL";

// Binds one level as an array of planes, whatever the kind of the texture.
void bind_level(Encoder& encoder, const exec::Kernel& kernel, const Texture* texture,
                unsigned level, unsigned index) {
  msl::abi::Texture layout = texture->layout;
  layout.kind = msl::abi::TextureKind::k2dArray;
  layout.levels[0] = layout.levels[level];
  layout.layers *= layout.levels[0].depth;
  layout.levels[0].depth = 1;
  layout.level_count = 1;
  const std::string_view description(reinterpret_cast<const char*>(&layout),
                                     offsetof(msl::abi::Texture, levels) + sizeof(TextureLevel));
  const std::vector<at::Tensor> memory{texture->levels[level]};
  encoder.set_texture(index, as_texture(kernel, index, description, memory), memory);
}

}  // namespace

UInteger bytes_of_rows(Size size, UInteger row_bytes, UInteger image_bytes, UInteger texel_bytes) {
  if (size.width == 0 || size.height == 0 || size.depth == 0) return 0;
  using Wide = unsigned __int128;
  const Wide bytes = Wide(size.depth - 1) * image_bytes + Wide(size.height - 1) * row_bytes +
                     Wide(size.width) * texel_bytes;
  constexpr UInteger kMost = std::numeric_limits<UInteger>::max();
  return bytes > kMost ? kMost : static_cast<UInteger>(bytes);
}

void replace_region(Texture* self, SEL method, Region region, UInteger level, UInteger slice,
                    char* bytes, UInteger row_bytes, UInteger image_bytes) {
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

void add_accesses(exec::StreamWork& work, id texture, bool writes, const std::string& role) {
  const auto* one = static_cast<const Texture*>(texture);
  for (size_t i = 0; i < one->levels.size(); ++i) {
    const char* begin = one->texels(i);
    work.accesses.push_back(
        {one->allocation_of(i), begin, begin + one->levels[i].numel(), writes, role});
  }
}

TexelWork copy_to_texture(const BufferRows& from, const TexelPlace& to, Size size, id self,
                          SEL method) {
  return copy_with_buffer(from, to, size, true, self, method);
}

TexelWork copy_from_texture(const TexelPlace& from, Size size, const BufferRows& to, id self,
                            SEL method) {
  return copy_with_buffer(to, from, size, false, self, method);
}

TexelWork copy_texture(const TexelPlace& from, Size size, const TexelPlace& to, id self,
                       SEL method) {
  const Texture* source = texture_of(from, self, method);
  const Texture* target = texture_of(to, self, method);
  check_same_format(source, target, self, method);
  const Rows in = rows_of(source, from.slice, from.level, region_at(from, size), self, method);
  const Rows out = rows_of(target, to.slice, to.level, region_at(to, size), self, method);
  return {{access_to(source, from.level, in, size, false),
           access_to(target, to.level, out, size, true)},
          [=, bytes = UInteger{source->layout.format.bytes}, kept = Strong(from.texture),
           kept_too = Strong(to.texture)] { copy_texels(out, in, size, bytes); }};
}

TexelWork copy_slices(const TexelPlace& from, const TexelPlace& to, UInteger slices,
                      UInteger levels, id self, SEL method) {
  TexelWork all;
  std::vector<std::function<void()>> runs;
  const Texture* source = texture_of(from, self, method);
  const Texture* target = texture_of(to, self, method);
  for (UInteger level = 0; level < levels; ++level) {
    for (UInteger slice = 0; slice < slices; ++slice) {
      const TexelPlace in{from.texture, from.slice + slice, from.level + level, 0, 0, 0};
      const TexelPlace out{to.texture, to.slice + slice, to.level + level, 0, 0, 0};
      const TextureLevel& one = level_of(source, in.slice, in.level, self, method);
      const TextureLevel& other = level_of(target, out.slice, out.level, self, method);
      TORCH_CHECK_VALUE(
          one.width == other.width && one.height == other.height && one.depth == other.depth,
          written(self, method), ": level ", in.level, " of the source has ", one.width, "x",
          one.height, "x", one.depth, " texels, and level ", out.level, " of the destination ",
          other.width, "x", other.height, "x", other.depth);
      TexelWork part = copy_texture(in, {one.width, one.height, one.depth}, out, self, method);
      all.accesses.insert(all.accesses.end(), part.accesses.begin(), part.accesses.end());
      runs.push_back(std::move(part.run));
    }
  }
  all.run = [runs = std::move(runs)] {
    for (const auto& run : runs) run();
  };
  return all;
}

TexelWork copy_all(id from, id to, id self, SEL method) {
  const TexelPlace source{from, 0, 0, 0, 0, 0}, target{to, 0, 0, 0, 0, 0};
  const auto& layout = texture_of(source, self, method)->layout;
  const auto& other = texture_of(target, self, method)->layout;
  TORCH_CHECK_VALUE(layout.level_count == other.level_count && layout.layers == other.layers,
                    written(self, method), ": the source has ", layout.level_count, " levels and ",
                    layout.layers, " slices, and the destination ", other.level_count, " and ",
                    other.layers);
  return copy_slices(source, target, layout.layers, layout.level_count, self, method);
}

TexelWork generate_mipmaps(id object, id self, SEL method) {
  auto* texture = static_cast<Texture*>(checked_texture(object, self, method));
  const auto& layout = texture->layout;
  TORCH_CHECK_VALUE(layout.level_count > 1, written(self, method),
                    ": the texture has one level only; its descriptor sets mipmapLevelCount");
  TORCH_CHECK_VALUE(!is_integer(layout.format.encoding) && layout.usage != 0, written(self, method),
                    ": texels of MTLPixelFormat ", texture->described.format,
                    " cannot be filtered and written");
  exec::StreamWork work;
  add_accesses(work, texture, true, "the texture");
  static const auto library = compile_metal(kHalve);
  const auto pipeline = c10::make_intrusive<Pipeline>(library, library->describe("metalops_halve"));
  return {std::move(work.accesses), [texture, kept = Strong(texture), pipeline] {
            const exec::Kernel& kernel = pipeline->kernel();
            for (unsigned i = 1; i < texture->layout.level_count; ++i) {
              const TextureLevel& level = texture->layout.levels[i];
              const uint32_t planes = texture->layout.levels[i - 1].depth > 1 ? 2 : 1;
              Encoder encoder;
              bind_level(encoder, kernel, texture, i - 1, 0);
              bind_level(encoder, kernel, texture, i, 1);
              encoder.set_value(0, planes);
              encoder.dispatch_in_order(
                  kernel,
                  {level.width, level.height, uint64_t(level.depth) * texture->layout.layers},
                  {32, 1, 1});
            }
          }};
}

}  // namespace metalops::objc
