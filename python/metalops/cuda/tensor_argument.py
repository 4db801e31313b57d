"""torch's tensors as arguments of kernels that take Metal 4's tensors by handles: the counterpart of
csrc/host/metal/tensor_argument.cpp on mps."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernel.dtypes import METAL_TYPES

_MAX_RANK = 16
# msl::abi::TensorArgument and msl::abi::Tensor of include/msl/tensor_abi.h.
_ARGUMENT = struct.Struct(f"<24s4I{_MAX_RANK}q")
_TENSOR = struct.Struct(f"<Q{2 * _MAX_RANK}q")
_FORMATS = {
    torch.float8_e4m3fn: "metal_fp8_e4m3_format",
    torch.float8_e5m2: "metal_fp8_e5m2_format",
    torch.float8_e8m0fnu: "metal_fp8_ue8m0_format",
}


@dataclass(frozen=True)
class TensorArgument:
    """A kernel's declaration of a tensor argument. element: its Metal type or format. element_bits: its size.
    index_bits: of an extent. extents: innermost first, -1 if they are dynamic."""

    element: str
    element_bits: int
    index_bits: int
    has_scales: bool
    extents: tuple[int, ...]

    def elements_in(self, dtype: torch.dtype) -> int:
        """Returns how many elements one of the dtype holds; 0 if it holds none."""
        if not self.element.endswith("_format"):
            return int(METAL_TYPES.get(dtype) == self.element)
        if dtype in (torch.uint8, torch.int8):
            return 8 // self.element_bits
        if dtype == torch.float4_e2m1fn_x2:
            return 2 * (self.element == "metal_fp4_e2m1_format")
        return int(_FORMATS.get(dtype) == self.element)


def unpack(facts: bytes, buffers: Sequence[int]) -> dict[int, TensorArgument]:
    """Returns, by buffer, the declarations of a kernel's tensor arguments from a module's table; other arguments are
    left out."""
    found = {}
    for buffer, row in zip(buffers, _ARGUMENT.iter_unpack(facts), strict=False):
        name, bits, rank, index_bits, has_scales, *extents = row
        if bits:
            element = name.rstrip(b"\0").decode()
            found[buffer] = TensorArgument(
                element, bits, index_bits, bool(has_scales), tuple(extents[:rank])
            )
    return found


def described(
    kernel: str, tensors: Mapping[int, TensorArgument], values: Sequence
) -> list[Tensor | bytes | int | None]:
    """Returns the values of a launch, with descriptors in place of tensors that the kernel takes by handles.

    Raises TypeError unless such a value is a tensor of the elements, ValueError for another rank or fixed extent, sizes
    that the index type does not hold, and rows whose elements are not contiguous; NotImplementedError for planes of
    scales.
    """
    values = list(values)
    for buffer, argument in tensors.items():
        if buffer < len(values):
            values[buffer] = _described(kernel, buffer, argument, values[buffer])
    return values


def _described(kernel: str, buffer: int, argument: TensorArgument, value: object) -> bytes:
    owner = f"Metal kernel '{kernel}': buffer {buffer}"
    if type(value) is bytes and len(value) == _TENSOR.size:
        return value  # a descriptor from a recorded launch
    if not isinstance(value, Tensor):
        raise TypeError(f"{owner} takes a tensor, but got {value!r}")
    if argument.has_scales:
        raise NotImplementedError(
            f"{owner} has a plane of scales, which no torch tensor has; make the tensor in the kernel, of tensor_inline"
        )
    packed = argument.elements_in(value.dtype)
    if not packed:
        raise TypeError(
            f"{owner} has elements of {argument.element}, but got a tensor of {value.dtype}"
        )
    rank = len(argument.extents)
    if value.dim() != rank:
        raise ValueError(
            f"{owner} has {rank} dimensions, but got a tensor of shape {list(value.shape)}"
        )
    extents, strides = list(reversed(value.shape)), list(reversed(value.stride()))
    if rank:
        if extents[0] > 1 and strides[0] != 1:
            raise ValueError(
                f"{owner}: the elements of a row must follow each other, but the strides are {list(value.stride())}"
            )
        extents[0] *= packed
        strides = [1, *(packed * stride for stride in strides[1:])]
    for dimension, (fixed, extent) in enumerate(zip(argument.extents, extents, strict=True)):
        if fixed not in (-1, extent):
            raise ValueError(
                f"{owner} has extent {fixed} in dimension {dimension}, counted from the innermost, but got a tensor of "
                f"shape {list(value.shape)}"
            )
    if max([0, *extents, *strides]) >= 2 ** (argument.index_bits - 1):
        raise ValueError(
            f"{owner} counts elements in {argument.index_bits} bits, which do not hold the sizes and strides of a tensor of "
            f"shape {list(value.shape)} and strides {list(value.stride())}"
        )
    none = [0] * (_MAX_RANK - rank)
    return _TENSOR.pack(value.data_ptr(), *extents, *none, *strides, *none)
