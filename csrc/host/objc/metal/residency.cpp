// Residency sets. They keep their resources; all memory of the device is resident as it is.
#include <c10/util/Exception.h>

#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MTLResidencySetDescriptor)
METALOPS_OBJC_CLASS(MetalopsResidencySet)

namespace metalops::objc {
namespace {

struct ResidencyDescriptor : objc_object {
  Strong label;
  UInteger capacity = 0;
};

struct ResidencySet : objc_object {
  std::map<id, Strong> allocations;  // by address
  uint64_t committed_bytes = 0;
  Strong label;
};

void add(ResidencySet* self, SEL method, id allocation) {
  TORCH_CHECK_TYPE(
      allocation != nullptr && conforms_to(class_of(allocation), "MTLAllocation"),
      written(self, method), ": an MTLAllocation is expected, but this is ",
      allocation == nullptr ? "nil" : std::string("a ") + object_getClassName(allocation));
  self->allocations.try_emplace(allocation, allocation);
}

void remove(ResidencySet* self, SEL, id allocation) { self->allocations.erase(allocation); }

template <void (*each)(ResidencySet*, SEL, id)>
void for_all(ResidencySet* self, SEL method, const id* allocations, UInteger count) {
  for (UInteger i = 0; i < count; ++i) each(self, method, allocations[i]);
}

void commit_set(ResidencySet* self, SEL) {
  self->committed_bytes = 0;
  for (const auto& [allocation, kept] : self->allocations) {
    self->committed_bytes += send<UInteger>(allocation, "allocatedSize");
  }
}

id all_allocations(ResidencySet* self, SEL) {
  std::vector<id> all;
  for (const auto& [allocation, kept] : self->allocations) all.push_back(allocation);
  return array(all);
}

}  // namespace

id new_residency_set(id descriptor, id self, SEL method) {
  auto* described = static_cast<ResidencyDescriptor*>(checked(
      descriptor, &class_MTLResidencySetDescriptor, "MTLResidencySetDescriptor", self, method));
  auto* made = make<ResidencySet>(&class_MetalopsResidencySet);
  made->label = described->label;
  return made;
}

void define_residency_sets() {
  define<ResidencyDescriptor>(
      METALOPS_OBJC_SYMBOLS(MTLResidencySetDescriptor), &class_NSObject,
      {
          {"label", Accessors<&ResidencyDescriptor::label>::get},
          {"setLabel:", Accessors<&ResidencyDescriptor::label>::set_copy},
          {"initialCapacity", Accessors<&ResidencyDescriptor::capacity>::get},
          {"setInitialCapacity:", Accessors<&ResidencyDescriptor::capacity>::set},
          {"copy",
           [](ResidencyDescriptor* self, SEL) -> id {
             auto* made = make<ResidencyDescriptor>(&class_MTLResidencySetDescriptor);
             made->label = self->label;
             made->capacity = self->capacity;
             return made;
           }},
      },
      {}, {"NSCopying"});
  define<ResidencySet>(
      METALOPS_OBJC_SYMBOLS(MetalopsResidencySet), &class_NSObject,
      {
          {"device", get_device},
          {"label", Accessors<&ResidencySet::label>::get},
          {"allocatedSize", Accessors<&ResidencySet::committed_bytes>::get},
          {"allAllocations", all_allocations},
          {"allocationCount",
           [](ResidencySet* self, SEL) -> UInteger { return self->allocations.size(); }},
          {"containsAllocation:",
           [](ResidencySet* self, SEL, id allocation) {
             return self->allocations.contains(allocation);
           }},
          {"addAllocation:", add},
          {"addAllocations:count:", for_all<add>},
          {"removeAllocation:", remove},
          {"removeAllocations:count:", for_all<remove>},
          {"removeAllAllocations", [](ResidencySet* self, SEL) { self->allocations.clear(); }},
          {"commit", commit_set},
          {"requestResidency", nothing},
          {"endResidency", nothing},
      },
      {}, {"MTLResidencySet"});
}

}  // namespace metalops::objc
