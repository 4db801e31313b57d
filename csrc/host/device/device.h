// Shared by all files of the software mps device: the device, and the checks that torch makes on a
// Mac.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <metal/streams.h>

namespace metalops::device {

inline const c10::Device kDevice(c10::DeviceType::MPS, 0);

// Raises TypeError, with MPS's own message, for a dtype that no mps tensor may have.
void check_dtype(c10::ScalarType dtype);

// Raises TypeError also for a dtype that mps tensors may have but no kernel computes with (the
// 8-bit floats).
void check_computable(c10::ScalarType dtype);

// Raises RuntimeError for more dimensions than an mps tensor may have (16).
void check_dimensions(size_t dimensions);

// Called whenever the host is about to read device memory (.cpu(), .item(), a recorded event):
// waits for the current stream, and raises the errors that kernels have reported. All copies to the
// host pass here.
void before_host_read();

// Wait for a stream, and for the device as a whole: also raise what sanitized launches have found.
void synchronize(streams::Id stream);
void synchronize();

}  // namespace metalops::device
