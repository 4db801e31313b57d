"""A program with a wrong kernel, for the tests of how it ends."""

import sys

import metalops  # noqa: F401
import torch

kernel = torch.mps.compile_shader("""
kernel void smooth(device float* out, device const float* in, uint i [[thread_position_in_grid]]) {
  out[i] = in[int(i) - 1];
}
""").smooth
kernel(torch.zeros(8, device="mps"), torch.zeros(8, device="mps"))
print("launched")
if "synchronize" in sys.argv:
    torch.mps.synchronize()
    print("synchronized")
