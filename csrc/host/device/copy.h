// Copies between the device and the host, observable by tests.
#pragma once

namespace metalops::device {

// Sets whether copies from the device to the host raise RuntimeError, in all threads; returns the
// previous setting.
bool refuse_host_copies(bool refuse);

// Called before each copy to the host: raises the errors that kernels have reported.
void before_copy_to_host();

}  // namespace metalops::device
