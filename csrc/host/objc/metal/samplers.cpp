// Sampler states.
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MTLSamplerDescriptor)
METALOPS_OBJC_CLASS(MetalopsSamplerState)

namespace metalops::objc {
namespace {

struct SamplerDescriptor : objc_object {
  UInteger min_filter = 0, mag_filter = 0, mip_filter = 0;
  UInteger anisotropy = 1;
  UInteger s = 0, t = 0, r = 0;
  UInteger border = 0;
  bool normalized = true;
  bool averages = false;
  bool supports_argument_buffers = false;
  float least_lod = 0, most_lod = 3.402823466e+38f;
  UInteger compare = 0;
  Strong label;
};

struct Sampler : objc_object {
  uint64_t bits = 0;
  Strong label;
};

template <size_t n>
uint64_t translated(const unsigned (&table)[n], UInteger value, const char* property, id self,
                    SEL method) {
  TORCH_CHECK_VALUE(value < n, written(self, method), ": the ", property, " of the descriptor is ",
                    value);
  return table[value];
}

void put(uint64_t& bits, msl::abi::SamplerField field, uint64_t value) {
  bits |= value << field.offset;
}

uint64_t bits_of(const SamplerDescriptor& d, id self, SEL method) {
  constexpr unsigned kFilters[] = {0, 1}, kMipFilters[] = {0, 1, 2}, kBorders[] = {0, 1, 2};
  // From MTLSamplerAddressMode to AddressMode, and from MTLCompareFunction to metal::compare_func.
  constexpr unsigned kAddresses[] = {0, 5, 3, 4, 1, 2};
  constexpr unsigned kComparisons[] = {8, 1, 5, 2, 3, 6, 4, 7};
  uint64_t bits = 0;
  put(bits, msl::abi::kMagFilter, translated(kFilters, d.mag_filter, "magFilter", self, method));
  put(bits, msl::abi::kMinFilter, translated(kFilters, d.min_filter, "minFilter", self, method));
  put(bits, msl::abi::kMipFilter, translated(kMipFilters, d.mip_filter, "mipFilter", self, method));
  unsigned axis = 0;
  for (const UInteger mode : {d.s, d.t, d.r}) {
    const uint64_t address = translated(kAddresses, mode, "address mode", self, method);
    put(bits, {msl::abi::kAddress.offset + msl::abi::kAddress.width * axis++, 3}, address);
    TORCH_CHECK_VALUE(d.normalized || mode == 0 || mode >= 4, written(self, method),
                      ": a sampler without normalizedCoordinates clamps; its address mode is ",
                      mode);
  }
  TORCH_CHECK_VALUE(d.normalized || (d.mip_filter == 0 && d.mag_filter == d.min_filter),
                    written(self, method),
                    ": a sampler without normalizedCoordinates has no mipFilter, and one filter");
  TORCH_CHECK_VALUE(d.anisotropy >= 1 && d.anisotropy <= 16, written(self, method),
                    ": maxAnisotropy must be from 1 to 16, but is ", d.anisotropy);
  TORCH_CHECK_VALUE(0 <= d.least_lod && d.least_lod <= d.most_lod, written(self, method),
                    ": lodMinClamp and lodMaxClamp must not be negative, and be in order");
  put(bits, msl::abi::kPixelCoordinates, d.normalized ? 0 : 1);
  put(bits, msl::abi::kCompare,
      translated(kComparisons, d.compare, "compareFunction", self, method));
  put(bits, msl::abi::kBorder, translated(kBorders, d.border, "borderColor", self, method));
  put(bits, msl::abi::kMaxAnisotropy, d.anisotropy);
  put(bits, msl::abi::kMinLod, c10::Half(d.least_lod).x);
  put(bits, msl::abi::kMaxLod, c10::Half(d.most_lod).x);
  return bits;
}

void define_sampler_descriptor() {
  using D = SamplerDescriptor;
  define<D>(METALOPS_OBJC_SYMBOLS(MTLSamplerDescriptor), &class_NSObject,
            {
                {"minFilter", Accessors<&D::min_filter>::get},
                {"setMinFilter:", Accessors<&D::min_filter>::set},
                {"magFilter", Accessors<&D::mag_filter>::get},
                {"setMagFilter:", Accessors<&D::mag_filter>::set},
                {"mipFilter", Accessors<&D::mip_filter>::get},
                {"setMipFilter:", Accessors<&D::mip_filter>::set},
                {"maxAnisotropy", Accessors<&D::anisotropy>::get},
                {"setMaxAnisotropy:", Accessors<&D::anisotropy>::set},
                {"sAddressMode", Accessors<&D::s>::get},
                {"setSAddressMode:", Accessors<&D::s>::set},
                {"tAddressMode", Accessors<&D::t>::get},
                {"setTAddressMode:", Accessors<&D::t>::set},
                {"rAddressMode", Accessors<&D::r>::get},
                {"setRAddressMode:", Accessors<&D::r>::set},
                {"borderColor", Accessors<&D::border>::get},
                {"setBorderColor:", Accessors<&D::border>::set},
                {"normalizedCoordinates", Accessors<&D::normalized>::get},
                {"setNormalizedCoordinates:", Accessors<&D::normalized>::set},
                {"lodAverage", Accessors<&D::averages>::get},
                {"setLodAverage:", Accessors<&D::averages>::set},
                {"lodMinClamp", Accessors<&D::least_lod>::get},
                {"setLodMinClamp:", Accessors<&D::least_lod>::set},
                {"lodMaxClamp", Accessors<&D::most_lod>::get},
                {"setLodMaxClamp:", Accessors<&D::most_lod>::set},
                {"compareFunction", Accessors<&D::compare>::get},
                {"setCompareFunction:", Accessors<&D::compare>::set},
                {"supportArgumentBuffers", Accessors<&D::supports_argument_buffers>::get},
                {"setSupportArgumentBuffers:", Accessors<&D::supports_argument_buffers>::set},
                {"label", Accessors<&D::label>::get},
                {"setLabel:", Accessors<&D::label>::set_copy},
            });
}

}  // namespace

id new_sampler(id self, SEL method, id descriptor) {
  auto* described = static_cast<SamplerDescriptor*>(
      checked(descriptor, &class_MTLSamplerDescriptor, "MTLSamplerDescriptor", self, method));
  const uint64_t bits = bits_of(*described, self, method);
  auto* made = make<Sampler>(&class_MetalopsSamplerState);
  made->bits = bits;
  made->label = described->label;
  return made;
}

uint64_t sampler_bits(id sampler) { return static_cast<Sampler*>(sampler)->bits; }

id checked_sampler(id sampler, id self, SEL method) {
  return checked(sampler, &class_MetalopsSamplerState, "MTLSamplerState", self, method);
}

void define_samplers() {
  define_sampler_descriptor();
  define<Sampler>(METALOPS_OBJC_SYMBOLS(MetalopsSamplerState), &class_NSObject,
                  {
                      {"device", get_device},
                      {"label", Accessors<&Sampler::label>::get},
                      {"gpuResourceID", [](Sampler* self, SEL) { return self->bits; }},
                  },
                  {}, {"MTLSamplerState"});
}

}  // namespace metalops::objc
