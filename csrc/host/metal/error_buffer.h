// The stream's error buffer (c10::metal::ErrorMessages), into which kernels report with
// TORCH_REPORT_ERROR.
#pragma once
#include <cstddef>

namespace metalops {

// Address to bind at the index a kernel gives with setErrorBufferIndex.
void* error_buffer();
size_t error_buffer_bytes();

// Called at every synchronisation: raises torch.AcceleratorError with the reported messages, and
// clears them.
void raise_reported_errors();

}  // namespace metalops
