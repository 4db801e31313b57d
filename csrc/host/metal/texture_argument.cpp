// Checks a texture against a kernel's argument and completes its description.
#include <metal/texture_argument.h>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstring>
#include <sstream>

namespace metalops {
namespace {

using msl::abi::Argument;
using msl::abi::TexelEncoding;
using msl::abi::Texture;
using msl::abi::TextureAccess;
using msl::abi::TextureComponent;

constexpr const char* kKinds[] = {"1d", "1d_array", "2d",         "2d_array",
                                  "3d", "cube",     "cube_array", "buffer"};
constexpr const char* kComponents[] = {"floating-point", "signed integer", "unsigned integer"};

const Argument& argument_at(const exec::Kernel& kernel, unsigned index) {
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const Argument& argument = kernel.arguments[i];
    if (argument.kind == msl::abi::ArgumentKind::kTexture &&
        index - unsigned(argument.index) < argument.texture->count) {
      return argument;
    }
  }
  TORCH_CHECK(false, "Metal kernel '", kernel.name, "' has no texture ", index);
}

TextureComponent component_of(TexelEncoding encoding) {
  switch (encoding) {
    case TexelEncoding::kUint8:
    case TexelEncoding::kUint16:
    case TexelEncoding::kUint32:
    case TexelEncoding::kRgb10A2Uint:
      return TextureComponent::kUint;
    case TexelEncoding::kSint8:
    case TexelEncoding::kSint16:
    case TexelEncoding::kSint32:
      return TextureComponent::kInt;
    default:
      return TextureComponent::kFloat;
  }
}

std::string name_of(const Argument& argument, const exec::Kernel& kernel, unsigned index) {
  std::ostringstream text;
  text << "Metal kernel '" << kernel.name << "': argument '" << argument.name << "' (texture "
       << index << ", '" << argument.type << "')";
  return text.str();
}

// `name`: returns the argument's name, for errors.
template <class Name>
Texture checked_texture(const msl::abi::TextureArgument& wanted, const Name& name,
                        std::string_view description, c10::ArrayRef<at::Tensor> levels) {
  Texture texture = {};
  TORCH_CHECK(!levels.empty() && levels.size() <= msl::abi::kMaxTextureLevels &&
                  description.size() ==
                      offsetof(Texture, levels) + levels.size() * sizeof(msl::abi::TextureLevel),
              "not the description of a texture of ", levels.size(), " levels");
  std::memcpy(static_cast<void*>(&texture), description.data(), description.size());
  TORCH_CHECK(texture.level_count == levels.size());
  TORCH_CHECK_TYPE(texture.kind == wanted.kind, name(), " takes a texture of kind '",
                   kKinds[uint32_t(wanted.kind)], "', but got one of kind '",
                   kKinds[uint32_t(texture.kind)], "'");
  const TextureComponent component = component_of(texture.format.encoding);
  TORCH_CHECK_TYPE(component == wanted.component || wanted.component == kAnyComponent, name(),
                   " has ", kComponents[uint32_t(wanted.component)],
                   " components, but the format of the texture has ",
                   kComponents[uint32_t(component)], " ones");
  TORCH_CHECK_TYPE(wanted.access != TextureAccess::kWrite || texture.usage & msl::abi::kUsageWrite,
                   name(), " is written, but kernels cannot write the format of the texture");
  TORCH_CHECK_TYPE(
      wanted.access != TextureAccess::kReadWrite || texture.usage & msl::abi::kUsageReadWrite,
      name(), " has access::read_write, which the format of the texture does not have");
  for (size_t i = 0; i < levels.size(); ++i) {
    const at::Tensor& tensor = levels[i];
    msl::abi::TextureLevel& level = texture.levels[i];
    TORCH_CHECK(tensor.defined() && tensor.device().is_mps(), name(),
                " takes a texture over tensors on mps");
    const uint64_t slices = uint64_t(level.depth) * texture.layers;
    const uint64_t bytes = (slices - 1) * level.slice_bytes + (level.height - 1) * level.row_bytes +
                           uint64_t(level.width) * texture.format.bytes;
    const uint64_t offset = tensor.storage_offset() * tensor.element_size();
    const uint64_t size = tensor.storage().nbytes();
    TORCH_CHECK(offset <= size && bytes <= size - offset, name(), ": the storage of level ", i,
                " of the texture has become too small");
    level.texels = static_cast<unsigned char*>(const_cast<void*>(tensor.const_data_ptr()));
    exec::note_address_taken(tensor.storage().data(), size);
  }
  return texture;
}

}  // namespace

bool skips_texture(const exec::Kernel& kernel, unsigned index) {
  bool is_before_another = false;
  for (uint32_t i = 0; i < kernel.argument_count; ++i) {
    const Argument& argument = kernel.arguments[i];
    if (argument.kind != msl::abi::ArgumentKind::kTexture) continue;
    if (index - unsigned(argument.index) < argument.texture->count) return false;
    is_before_another |= unsigned(argument.index) > index;
  }
  return is_before_another;
}

Texture as_texture(const exec::Kernel& kernel, unsigned index, std::string_view description,
                   c10::ArrayRef<at::Tensor> levels) {
  const Argument& argument = argument_at(kernel, index);
  return checked_texture(
      *argument.texture, [&] { return name_of(argument, kernel, index); }, description, levels);
}

Texture as_texture(const msl::abi::TextureArgument& wanted, const std::string& name,
                   std::string_view description, c10::ArrayRef<at::Tensor> levels) {
  return checked_texture(wanted, [&] { return name; }, description, levels);
}

}  // namespace metalops
