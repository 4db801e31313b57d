"""Metal kernel bodies with a generated signature, called on mps tensors: `metal_kernel`."""

from .metal_kernel import MetalKernel, metal_kernel

__all__ = ["MetalKernel", "metal_kernel"]
