"""Metal kernels over tensor views that become torch operators: `TorchMetalKernel`."""

from .metal_parameter import MetalParameter
from .torch_metal_kernel import TorchMetalKernel

__all__ = ["MetalParameter", "TorchMetalKernel"]
