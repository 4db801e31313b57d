"""Launching the kernels of a family by hand, to see what operators' launches never show, such as threads beyond the last
element."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from glob import glob

import metalops
import pytest
import torch
from metalops.build import paths
from metalops.msl.source.preprocess import preprocess

from .families import kernel_file

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_MAX_DIMENSIONS = 16  # c10::metal::max_ndim


def kernels(family: str):
    """The kernels of kernels/S/FAMILY.metal as they were built ahead of time, or for the sanitizer that there is."""
    folder = os.path.join(os.path.dirname(metalops._C.__file__), "_C.kernels")
    found = glob(os.path.join(folder, f"{family}.*"))
    if not found:
        pytest.skip("the build had no Metal compiler")
    try:
        return torch.mps.load_metallib(found[0])
    except RuntimeError as error:
        if "sanitizer" not in str(error):
            raise
    file = str(kernel_file(family))
    headers = os.path.join(_ROOT, "python", "metalops", "include")
    folders = [_ROOT, headers, *paths.include_paths(), paths.torch_include()]
    return torch.mps.compile_shader(preprocess(path=file, include_dirs=folders).portable_text())


def strided_layout(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> torch.Tensor:
    """A StridedLayout of <metalops/strided.h>, as bytes: the sizes, the fastest first, and each tensor's strides in bytes."""
    padding = [0] * (_MAX_DIMENSIONS - len(sizes))
    count = torch.tensor(sizes).prod().item()
    numbers = [count, *sizes, *padding]
    for of_tensor in strides:
        numbers += [*of_tensor, *padding]
    return as_bytes(f"{len(numbers)}qIxxxx", *numbers, len(sizes))


def as_bytes(layout: str, *values: float) -> torch.Tensor:
    """A structure as the struct module packs it."""
    return torch.frombuffer(bytearray(struct.pack(layout, *values)), dtype=torch.uint8).to("mps")
