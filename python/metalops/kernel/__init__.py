"""Kernels authored from Python: Metal text in a Python string that becomes a native operator.

Everything here runs through ``torch.mps.compile_shader`` or torch's own library classes, on an Apple GPU and on the
software device alike, and through ``metalops.cuda.compile_shader`` on NVIDIA's GPUs. ``docs/kernels.md`` compares the ways and says which to choose.
"""

from .functor import Functor, functor
from .metal_kernel import MetalKernel, metal_kernel
from .torch_metal_kernel import MetalParameter, TorchMetalKernel

__all__ = [
    "Functor",
    "MetalKernel",
    "MetalParameter",
    "TorchMetalKernel",
    "functor",
    "metal_kernel",
]
