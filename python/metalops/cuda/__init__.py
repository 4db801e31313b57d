"""Metal kernels on CUDA tensors.

    shader = metalops.cuda.compile_shader(source)
    shader.my_kernel(out, x, 3.0)

as with torch.mps.compile_shader on a Mac. Kernels are compiled by NVRTC, which comes with torch's CUDA builds, for the
GPU that they are first run on, kept in the cache on disk, and launched on torch's current stream. A launch can be
captured in a CUDA graph once the kernel has run on the GPU before. Errors that kernels report with TORCH_REPORT_ERROR
are raised by the next launch that finds them, at the latest by metalops.cuda.synchronize(). Nothing here needs the
compiled parts of metalops.
"""

from __future__ import annotations

from .errors import synchronize
from .nvrtc import NvrtcNotFound
from .shader import Kernel, Shader, compile_shader

__all__ = ["Kernel", "NvrtcNotFound", "Shader", "compile_shader", "synchronize"]
