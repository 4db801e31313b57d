// Replaces methods of Metal's classes. Each replacement checks, and calls the one before.
#include <csrc/validation/checks.h>
#include <csrc/validation/mac.h>

#import <Foundation/Foundation.h>
#import <objc/runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

using namespace metalops::validation;

// The lives are objects that belong to command buffers and encoders and die with them.
@interface MetalopsCommandBufferLife : NSObject {
 @public
  CommandBufferLife life;
}
@end
@implementation MetalopsCommandBufferLife
- (void)dealloc {
  abandon(life);
  [super dealloc];
}
@end

@interface MetalopsEncoderLife : NSObject {
 @public
  EncoderLife life;
  MetalopsCommandBufferLife* buffer;
  id<MTLComputePipelineState> pipeline;
  NSUInteger threadgroup[kBufferIndices];
}
@end
@implementation MetalopsEncoderLife
- (void)dealloc {
  lose(life);
  [buffer release];
  [pipeline release];
  [super dealloc];
}
@end

namespace {

const char key_of_life = 0;

Call call_of(id self, SEL method) {
  return {self, method, [](const void* receiver, const void* selector) {
            const id object = static_cast<id>(const_cast<void*>(receiver));
            const auto name = static_cast<SEL>(const_cast<void*>(selector));
            return std::string("-[") + class_getName(object_getClass(object)) + " " +
                   sel_getName(name) + "]";
          }};
}

MetalopsCommandBufferLife* buffer_life(id buffer) {
  id known = objc_getAssociatedObject(buffer, &key_of_life);
  if (known == nil) {
    known = [[MetalopsCommandBufferLife alloc] init];
    static_cast<MetalopsCommandBufferLife*>(known)->life.made_at = noted_caller();
    objc_setAssociatedObject(buffer, &key_of_life, known, OBJC_ASSOCIATION_RETAIN);
    [known release];
  }
  return static_cast<MetalopsCommandBufferLife*>(known);
}

// Nil for an encoder that was made before the methods were replaced.
MetalopsEncoderLife* encoder_life(id encoder) {
  return static_cast<MetalopsEncoderLife*>(objc_getAssociatedObject(encoder, &key_of_life));
}

void begin_encoder(id buffer, id encoder) {
  auto* made = [[MetalopsEncoderLife alloc] init];
  made->buffer = [buffer_life(buffer) retain];
  begin(made->buffer->life, made->life);
  objc_setAssociatedObject(encoder, &key_of_life, made, OBJC_ASSOCIATION_RETAIN);
  [made release];
}

MetalopsEncoderLife* use(id encoder, SEL method) {
  MetalopsEncoderLife* known = encoder_life(encoder);
  if (known == nil) return nil;
  check_use(known->life, call_of(encoder, method));
  known->buffer->life.has_work = true;
  return known;
}

// The functions that were replaced. A class may inherit the method of another one.
class Replaced {
 public:
  void add(Class cls, SEL method, IMP function) {
    if (!class_respondsToSelector(cls, method)) return;
    const IMP before = class_getMethodImplementation(cls, method);
    if (before == function) return;
    std::lock_guard<std::mutex> lock(mutex_);
    functions_[{cls, unique(method)}] = before;
    class_replaceMethod(cls, method, function, types_of(cls, method));
  }
  IMP before(id object, SEL method) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Class cls = object_getClass(object); cls != nil; cls = class_getSuperclass(cls)) {
      const auto found = functions_.find({cls, unique(method)});
      if (found != functions_.end()) return found->second;
    }
    std::abort();  // only replaced methods ask
  }

 private:
  // Each library has selectors of its own in other runtimes than Apple's.
  static SEL unique(SEL method) { return sel_registerName(sel_getName(method)); }

  static const char* types_of(Class cls, SEL method) {
#ifdef __APPLE__
    return method_getTypeEncoding(class_getInstanceMethod(cls, method));
#else
    (void)cls, (void)method;
    return "?";
#endif
  }
  std::mutex mutex_;
  std::map<std::pair<Class, SEL>, IMP> functions_;
};
Replaced& replaced() {
  static auto& one = *new Replaced;
  return one;
}

template <class R = void, class... A>
R before(id self, SEL method, A... arguments) {
  return reinterpret_cast<R (*)(id, SEL, A...)>(replaced().before(self, method))(self, method,
                                                                                 arguments...);
}

// ---- command buffers

id make_encoder(id self, SEL method) {
  check_encoding(buffer_life(self)->life, call_of(self, method));
  id made = before<id>(self, method);
  if (made != nil) begin_encoder(self, made);
  return made;
}
id make_encoder_of_type(id self, SEL method, NSUInteger type) {
  check_encoding(buffer_life(self)->life, call_of(self, method));
  id made = before<id>(self, method, type);
  if (made != nil) begin_encoder(self, made);
  return made;
}
void commit(id self, SEL method) {
  CommandBufferLife& life = buffer_life(self)->life;
  check_commit(life, call_of(self, method));
  life.is_committed = true;
  before(self, method);
}
void wait(id self, SEL method) {
  check_wait(buffer_life(self)->life, call_of(self, method));
  before(self, method);
}
void add_handler(id self, SEL method, id block) {
  check_not_committed(buffer_life(self)->life, call_of(self, method));
  before(self, method, block);
}

// ---- encoders

void end_encoding(id self, SEL method) {
  if (MetalopsEncoderLife* known = encoder_life(self)) {
    check_use(known->life, call_of(self, method));
    end(known->life);
  }
  before(self, method);
}
void set_pipeline(id self, SEL method, id pipeline) {
  if (MetalopsEncoderLife* known = use(self, method)) {
    [pipeline retain];
    [known->pipeline release];
    known->pipeline = pipeline;
  }
  before(self, method, pipeline);
}
void set_buffer(id self, SEL method, id buffer, NSUInteger offset, NSUInteger index) {
  use(self, method);
  const Call call = call_of(self, method);
  check_index(index, call);
  if (buffer != nil) check_range(offset, 0, [(id<MTLBuffer>)buffer length], call);
  before(self, method, buffer, offset, index);
}
void set_bytes(id self, SEL method, const void* bytes, NSUInteger length, NSUInteger index) {
  use(self, method);
  check_index(index, call_of(self, method));
  check_bytes(length, index, call_of(self, method));
  before(self, method, bytes, length, index);
}
void set_threadgroup_memory(id self, SEL method, NSUInteger length, NSUInteger index) {
  MetalopsEncoderLife* known = use(self, method);
  check_threadgroup_length(length, index, call_of(self, method));
  if (known != nil) known->threadgroup[index] = length;
  before(self, method, length, index);
}
void dispatch(id self, SEL method, MTLSize size, MTLSize group) {
  MetalopsEncoderLife* known = use(self, method);
  if (known != nil && known->pipeline != nil) {
    const char* name = known->pipeline.label.UTF8String;
    if (name == nullptr) name = "";
    const Call call = call_of(self, method);
    check_threadgroup(name, {group.width, group.height, group.depth},
                      known->pipeline.maxTotalThreadsPerThreadgroup, call);
    uint64_t set = 0;
    for (const NSUInteger length : known->threadgroup) set += length;
    check_threadgroup_memory(name, known->pipeline.staticThreadgroupMemoryLength, set, call);
  }
  before(self, method, size, group);
}

template <class Function>
IMP as_method(Function* function) {
  return reinterpret_cast<IMP>(function);
}

void replace_methods_of_encoder(id encoder) {
  const Class cls = object_getClass(encoder);
  Replaced& all = replaced();
  all.add(cls, @selector(endEncoding), as_method(end_encoding));
  all.add(cls, @selector(setComputePipelineState:), as_method(set_pipeline));
  all.add(cls, @selector(setBuffer:offset:atIndex:), as_method(set_buffer));
  all.add(cls, @selector(setBytes:length:atIndex:), as_method(set_bytes));
  all.add(cls, @selector(setThreadgroupMemoryLength:atIndex:), as_method(set_threadgroup_memory));
  all.add(cls, @selector(dispatchThreads:threadsPerThreadgroup:), as_method(dispatch));
  all.add(cls, @selector(dispatchThreadgroups:threadsPerThreadgroup:), as_method(dispatch));
}

void replace_methods_of_buffer(id buffer) {
  const Class cls = object_getClass(buffer);
  Replaced& all = replaced();
  all.add(cls, @selector(computeCommandEncoder), as_method(make_encoder));
  all.add(cls, @selector(blitCommandEncoder), as_method(make_encoder));
  all.add(cls, @selector(computeCommandEncoderWithDispatchType:), as_method(make_encoder_of_type));
  all.add(cls, @selector(commit), as_method(commit));
  all.add(cls, @selector(waitUntilCompleted), as_method(wait));
  all.add(cls, @selector(addScheduledHandler:), as_method(add_handler));
  all.add(cls, @selector(addCompletedHandler:), as_method(add_handler));
}

__attribute__((constructor)) void check_system_device() {
  const char* const text = std::getenv("METALOPS_VALIDATE");
  if (text == nullptr || std::strcmp(text, "1") != 0) return;
  @autoreleasepool {
    set_enabled(true);
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    if (device != nil) check_objects_of(device);
  }
}

}  // namespace

namespace metalops::validation {

void check_objects_of(id<MTLDevice> device) {
  @autoreleasepool {
    id<MTLCommandQueue> queue = [device newCommandQueue];
    id<MTLCommandBuffer> buffer = [queue commandBuffer];
    id<MTLComputeCommandEncoder> compute = [buffer computeCommandEncoder];
    [compute endEncoding];
    id<MTLBlitCommandEncoder> blit = [buffer blitCommandEncoder];
    [blit endEncoding];
    replace_methods_of_encoder(compute);
    replace_methods_of_encoder(blit);
    replace_methods_of_buffer(buffer);
    [queue release];
  }
}

}  // namespace metalops::validation
