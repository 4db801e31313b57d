// Counters: the times at which encoders begin and end.
#include <c10/util/Exception.h>

#include <chrono>
#include <cstring>

#include <csrc/host/objc/metal.h>

METALOPS_OBJC_CLASS(MetalopsCounter)
METALOPS_OBJC_CLASS(MetalopsCounterSet)
METALOPS_OBJC_CLASS(MTLCounterSampleBufferDescriptor)
METALOPS_OBJC_CLASS(MetalopsCounterSampleBuffer)
METALOPS_OBJC_CLASS(MTLComputePassSampleBufferAttachmentDescriptor)
METALOPS_OBJC_CLASS(MTLBlitPassSampleBufferAttachmentDescriptor)
METALOPS_OBJC_CLASS(MetalopsSampleBufferAttachments)
METALOPS_OBJC_CLASS(MTLComputePassDescriptor)
METALOPS_OBJC_CLASS(MTLBlitPassDescriptor)

namespace metalops::objc {
namespace {

constexpr UInteger kNoSample = ~UInteger{0};                 // MTLCounterDontSample
constexpr uint64_t kErrorValue = ~uint64_t{0};               // MTLCounterErrorValue
constexpr UInteger kMostSamples = 32768 / sizeof(uint64_t);  // as on an Apple GPU

struct SampleDescriptor : objc_object {
  Strong set, label;
  UInteger storage = 0, count = 0;
};

struct Samples : objc_object {
  Strong label;
  // Nanoseconds; kErrorValue where no sample was taken.
  std::vector<std::atomic<uint64_t>> values;
};

void check_samples(const Samples* self, Range range, id receiver, SEL method) {
  TORCH_CHECK_INDEX(
      range.location <= self->values.size() && range.length <= self->values.size() - range.location,
      written(receiver, method), ": the ", range.length, " samples from ", range.location,
      " are beyond the ", self->values.size(), " of the buffer");
}

std::string values_in(const Samples* self, Range range) {
  std::string bytes;
  for (UInteger i = 0; i < range.length; ++i) {
    const uint64_t value = self->values[range.location + i];
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

// ---- the descriptors of encoders

struct Attachment : objc_object {
  Strong samples;
  UInteger begin = kNoSample, end = kNoSample;
};
constexpr UInteger kMostAttachments = 4;
struct Attachments : objc_object {
  Strong items[kMostAttachments];
};
struct PassDescriptor : objc_object {
  UInteger dispatch_type = 0;
  Strong attachments;
};

template <Class attachment_class>
id new_pass(id cls, SEL) {
  auto* made = make<PassDescriptor>(as_class(cls));
  auto* list = make<Attachments>(&class_MetalopsSampleBufferAttachments);
  for (Strong& item : list->items) item = Strong::taken(allocate(attachment_class));
  made->attachments = Strong::taken(list);
  return autoreleased(made);
}

id attachment(Attachments* self, SEL method, UInteger index) {
  TORCH_CHECK_INDEX(index < kMostAttachments, written(self, method), ": an encoder has ",
                    kMostAttachments, " sample buffers, and no index ", index);
  return self->items[index];
}

void define_attachment(ClassSymbols symbols) {
  using A = Attachment;
  define<A>(symbols, &class_NSObject,
            {
                {"sampleBuffer", Accessors<&A::samples>::get},
                {"setSampleBuffer:", Accessors<&A::samples>::set},
                {"startOfEncoderSampleIndex", Accessors<&A::begin>::get},
                {"setStartOfEncoderSampleIndex:", Accessors<&A::begin>::set},
                {"endOfEncoderSampleIndex", Accessors<&A::end>::get},
                {"setEndOfEncoderSampleIndex:", Accessors<&A::end>::set},
            });
}

void define_passes() {
  define_attachment(METALOPS_OBJC_SYMBOLS(MTLComputePassSampleBufferAttachmentDescriptor));
  define_attachment(METALOPS_OBJC_SYMBOLS(MTLBlitPassSampleBufferAttachmentDescriptor));
  define<Attachments>(METALOPS_OBJC_SYMBOLS(MetalopsSampleBufferAttachments), &class_NSObject,
                      {
                          {"objectAtIndexedSubscript:", attachment},
                          {"setObject:atIndexedSubscript:",
                           [](Attachments* self, SEL method, id object, UInteger index) {
                             attachment(self, method, index);
                             self->items[index] = Strong(object);
                           }},
                      });
  using P = PassDescriptor;
  define<P>(
      METALOPS_OBJC_SYMBOLS(MTLComputePassDescriptor), &class_NSObject,
      {
          {"dispatchType", Accessors<&P::dispatch_type>::get},
          {"setDispatchType:", Accessors<&P::dispatch_type>::set},
          {"sampleBufferAttachments", Accessors<&P::attachments>::get},
      },
      {{"computePassDescriptor", new_pass<&class_MTLComputePassSampleBufferAttachmentDescriptor>}});
  define<P>(METALOPS_OBJC_SYMBOLS(MTLBlitPassDescriptor), &class_NSObject,
            {{"sampleBufferAttachments", Accessors<&P::attachments>::get}},
            {{"blitPassDescriptor", new_pass<&class_MTLBlitPassSampleBufferAttachmentDescriptor>}});
}

void define_samples() {
  using D = SampleDescriptor;
  define<D>(METALOPS_OBJC_SYMBOLS(MTLCounterSampleBufferDescriptor), &class_NSObject,
            {
                {"counterSet", Accessors<&D::set>::get},
                {"setCounterSet:", Accessors<&D::set>::set},
                {"label", Accessors<&D::label>::get},
                {"setLabel:", Accessors<&D::label>::set_copy},
                {"storageMode", Accessors<&D::storage>::get},
                {"setStorageMode:", Accessors<&D::storage>::set},
                {"sampleCount", Accessors<&D::count>::get},
                {"setSampleCount:", Accessors<&D::count>::set},
            });
  define<Samples>(
      METALOPS_OBJC_SYMBOLS(MetalopsCounterSampleBuffer), &class_NSObject,
      {
          {"device", get_device},
          {"label", Accessors<&Samples::label>::get},
          {"sampleCount", [](Samples* self, SEL) -> UInteger { return self->values.size(); }},
          {"resolveCounterRange:",
           [](Samples* self, SEL method, Range range) {
             check_samples(self, range, self, method);
             auto* made = make<Data>(&class_NSData);
             made->bytes = values_in(self, range);
             return autoreleased(made);
           }},
      },
      {}, {"MTLCounterSampleBuffer"});
}

}  // namespace

uint64_t timestamp() {
  using std::chrono::nanoseconds;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<nanoseconds>(now).count());
}

id counter_set() {
  static id one = allocate(&class_MetalopsCounterSet);
  return one;
}

id new_counter_samples(id descriptor, id self, SEL method) {
  auto* described =
      static_cast<SampleDescriptor*>(checked(descriptor, &class_MTLCounterSampleBufferDescriptor,
                                             "MTLCounterSampleBufferDescriptor", self, method));
  TORCH_CHECK_VALUE(described->set.get() == counter_set(), written(self, method),
                    ": the counterSet is none of the device's counterSets");
  TORCH_CHECK_VALUE(described->count > 0 && described->count <= kMostSamples, written(self, method),
                    ": a buffer has from 1 to ", kMostSamples, " samples, not ", described->count);
  auto* made = make<Samples>(&class_MetalopsCounterSampleBuffer);
  made->label = described->label;
  made->values = std::vector<std::atomic<uint64_t>>(described->count);
  for (auto& value : made->values) value = kErrorValue;
  return made;
}

std::string resolved_counters(id samples, Range range, id self, SEL method) {
  auto* one = static_cast<Samples*>(
      checked(samples, &class_MetalopsCounterSampleBuffer, "MTLCounterSampleBuffer", self, method));
  check_samples(one, range, self, method);
  return values_in(one, range);
}

UInteger dispatch_type_of(id descriptor) {
  return static_cast<PassDescriptor*>(descriptor)->dispatch_type;
}

Sampling sampling_of(id descriptor, bool is_compute, id self, SEL method) {
  auto* described =
      static_cast<PassDescriptor*>(is_compute ? checked(descriptor, &class_MTLComputePassDescriptor,
                                                        "MTLComputePassDescriptor", self, method)
                                              : checked(descriptor, &class_MTLBlitPassDescriptor,
                                                        "MTLBlitPassDescriptor", self, method));
  Sampling sampling;
  for (const Strong& item : static_cast<Attachments*>(described->attachments.get())->items) {
    auto* one = static_cast<Attachment*>(item.get());
    if (one == nullptr || one->samples.get() == nullptr) continue;
    auto* samples = static_cast<Samples*>(checked(one->samples, &class_MetalopsCounterSampleBuffer,
                                                  "MTLCounterSampleBuffer", self, method));
    const auto add = [&](UInteger index, std::vector<std::function<void()>>& to) {
      if (index == kNoSample) return;
      check_samples(samples, {index, 1}, self, method);
      to.push_back(
          [samples, kept = Strong(samples), index] { samples->values[index] = timestamp(); });
    };
    add(one->begin, sampling.begin);
    add(one->end, sampling.end);
  }
  return sampling;
}

void define_counters() {
  define<objc_object>(METALOPS_OBJC_SYMBOLS(MetalopsCounter), &class_NSObject,
                      {{"name", [](id, SEL) { return string("GPUTimestamp"); }}}, {},
                      {"MTLCounter"});
  define<objc_object>(
      METALOPS_OBJC_SYMBOLS(MetalopsCounterSet), &class_NSObject,
      {
          {"name", [](id, SEL) { return string("timestamp"); }},
          {"counters",
           [](id, SEL) { return array({autoreleased(allocate(&class_MetalopsCounter))}); }},
      },
      {}, {"MTLCounterSet"});
  define_samples();
  define_passes();
}

}  // namespace metalops::objc
