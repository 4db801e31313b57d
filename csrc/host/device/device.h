// Shared by all files of the software mps device: the device, and the checks that torch makes on a
// Mac.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace metalops::device {

inline const c10::Device kDevice(c10::DeviceType::MPS, 0);

// Raises TypeError, with MPS's own message, for a dtype that no mps tensor may have.
void check_dtype(c10::ScalarType dtype);

// Raises TypeError also for a dtype that mps tensors may have but no kernel computes with (the
// 8-bit floats).
void check_computable(c10::ScalarType dtype);

// Raises RuntimeError for more dimensions than an mps tensor may have (16).
void check_dimensions(size_t dimensions);

// Called whenever the host is about to read device memory (synchronize, .cpu(), .item(), a recorded
// event): raises the errors that kernels have reported. All copies to the host pass here.
void before_host_read();

// Waits for the device as a whole: also raises what sanitized launches have found.
void synchronize();

}  // namespace metalops::device
