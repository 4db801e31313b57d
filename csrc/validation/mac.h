// The rules on a Mac: methods of Metal's own classes check before they act.
//
// A library of this folder is loaded into any program, which then ends with the message where it
// breaks a rule; it needs neither torch nor the rest of metalops:
//
//   clang++ -std=c++20 -O1 -dynamiclib -I. csrc/validation/*.cpp csrc/validation/mac.mm
//     -framework Foundation -framework Metal -o libvalidation.dylib
//   DYLD_INSERT_LIBRARIES=libvalidation.dylib METALOPS_VALIDATE=1 python program.py
//
// A Mac does not tell when work accesses which memory, or what torch encodes, so that the rules
// about memory in flight and about torch's queue are left to the software device.
#pragma once
#import <Metal/Metal.h>

namespace metalops::validation {

// Replaces the methods of the classes that the device's queues, command buffers and encoders have.
// Called once when the library is loaded, if METALOPS_VALIDATE is 1.
void check_objects_of(id<MTLDevice> device);

}  // namespace metalops::validation
