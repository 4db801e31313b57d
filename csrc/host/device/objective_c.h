// Functions that torch's hooks ask of the Metal API in Objective-C (csrc/host/objc), which is a
// library of its own: nothing before an extension that uses it is loaded.
#pragma once

namespace metalops::device {

struct ObjectiveC {
  void* (*command_buffer)() = nullptr;  // of the default stream, as an MPSCommandBuffer*
  void* (*dispatch_queue)() = nullptr;
  void (*commit)() = nullptr;
  void (*synchronize)() = nullptr;
};
extern ObjectiveC objective_c;

}  // namespace metalops::device
