// The stream's error buffer (c10::metal::ErrorMessages), into which kernels report with
// TORCH_REPORT_ERROR.
#pragma once
#include <cstddef>

namespace metalops {

// Returns the address to bind at the index that a kernel gives with setErrorBufferIndex.
void* error_buffer();
size_t error_buffer_bytes();

// Raises torch.AcceleratorError with the reported messages, and clears them. Called at every
// synchronisation.
void raise_reported_errors();

}  // namespace metalops
