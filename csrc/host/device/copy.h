// Copies between the device and the host, as tests see them.
#pragma once

namespace metalops::device {

// Whether copies from the device to the host, in any thread, raise RuntimeError from now on;
// returns what held before.
bool refuse_host_copies(bool refuse);

// To be called before each of them: raises the errors that kernels have reported.
void before_copy_to_host();

}  // namespace metalops::device
