// Copies between the device and the host, as tests see them.
#pragma once

namespace metalops::device {

// Whether copies from the device to the host, in any thread, raise RuntimeError from now on;
// returns what held before.
bool refuse_host_copies(bool refuse);

}  // namespace metalops::device
