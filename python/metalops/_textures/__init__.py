"""Textures over the memory of tensors, and samplers, as arguments of kernels."""

from .sampler import Sampler, sampler
from .texture import Texture, texture

__all__ = ["Sampler", "Texture", "sampler", "texture"]
