"""Checks and normalises the arguments of a metal_kernel call."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..._textures import Sampler, Texture
from ..._textures.layout import Layout
from ..._textures.texture import contiguous_layout
from ...msl.analysis.restrictions import MAX_BUFFERS
from ..devices import DEVICES
from ..dtypes import metal_type
from ..identifiers import check_distinct, check_identifier
from .signature import SMALL, THREAD_ATTRIBUTES, Definition, Input, Output, metadata

Scalar = bool | int | float | complex
Template = tuple[tuple[str, bool | int | torch.dtype], ...]


class OutputTexture(NamedTuple):
    """An output that the kernel writes as a texture: a tensor of the dtype with that layout."""

    dtype: torch.dtype
    layout: Layout


class CallArguments(NamedTuple):
    """The arguments of one call besides its inputs and init_value."""

    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[torch.dtype | OutputTexture, ...]
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    template: Template


def check_arguments(
    definition: Definition,
    output_shapes: object,
    output_dtypes: object,
    grid: object,
    threadgroup: object,
    template: object,
) -> CallArguments:
    """Returns the normalised arguments. Raises TypeError or ValueError that says which one is wrong."""
    owner = definition.owner
    shapes = _listed(owner, "output_shapes", output_shapes, definition.outputs)
    dtypes = _listed(owner, "output_dtypes", output_dtypes, definition.outputs)
    sizes = tuple(
        _integers(owner, f"the shape of output {name!r}", shape, least=0)
        for name, shape in zip(definition.outputs, shapes, strict=True)
    )
    described = []
    for name, shape, dtype in zip(definition.outputs, sizes, dtypes, strict=True):
        if isinstance(dtype, str):
            described.append(_output_texture(owner, name, shape, dtype))
            continue
        role = f"the dtype of output {name!r}"
        metal_type(owner, role, dtype)
        if definition.atomic_outputs and dtype not in _ATOMIC:
            raise TypeError(f"{owner}: {role} is {dtype}, which Metal has no atomic type for")
        described.append(dtype)
    return CallArguments(
        sizes,
        tuple(described),
        _extent(owner, "grid", grid, least=0),
        _extent(owner, "threadgroup", threadgroup, least=1),
        _check_template(definition, template),
    )


def _output_texture(owner: str, name: str, shape: tuple[int, ...], text: str) -> OutputTexture:
    layout = contiguous_layout(f"{owner}: output {name!r}", text, shape, is_written=True)
    return OutputTexture(layout.format.dtype, layout)


# The types for which metal_atomic has atomic<T>.
_ATOMIC = frozenset({torch.int32, torch.uint32, torch.float32, torch.uint64, torch.bool})


def check_init_value(definition: Definition, value: object) -> None:
    """Raises TypeError if the outputs cannot be initialised with ``value``."""
    if not isinstance(value, Scalar | None):
        raise TypeError(f"{definition.owner}: init_value must be a number, but got {value!r}")


def check_counts(
    definition: Definition,
    inputs: object,
    output_shapes: object,
    output_dtypes: object,
    grid: object,
    threadgroup: object,
) -> None:
    """Raises TypeError unless the arguments are lists, ValueError for lists of a wrong length."""
    _listed(definition.owner, "inputs", inputs, definition.inputs)
    _listed(definition.owner, "output_shapes", output_shapes, definition.outputs)
    _listed(definition.owner, "output_dtypes", output_dtypes, definition.outputs)
    _check_three(definition.owner, "grid", grid)
    _check_three(definition.owner, "threadgroup", threadgroup)


def describe(definition: Definition, inputs: Sequence) -> tuple[Input, ...]:
    """Returns the properties of the inputs that the generated text depends on. Raises TypeError, ValueError or
    RuntimeError for inputs that cannot be bound."""
    inputs = _listed(definition.owner, "inputs", inputs, definition.inputs)
    return tuple(
        _describe(definition, name, value)
        for name, value in zip(definition.inputs, inputs, strict=True)
    )


def check_buffers(
    definition: Definition,
    words: frozenset[str],
    inputs: tuple[Input, ...],
    outputs: tuple[Output, ...],
) -> list[tuple[int, str]]:
    """Returns the metadata parameters (signature.metadata). Raises ValueError beyond Metal's number of buffers."""
    extra = metadata(definition, words, [described.rank for described in (*inputs, *outputs)])
    handles = sum(bool(described.handle) for described in (*inputs, *outputs))
    count = len(inputs) + len(outputs) - handles + len(extra)
    if count > MAX_BUFFERS:
        raise ValueError(
            f"{definition.owner}: needs {count} buffers ({len(inputs)} inputs, {len(definition.outputs)} outputs, "
            f"{len(extra)} shapes, strides, ndims and tensors), but Metal has {MAX_BUFFERS}"
        )
    return extra


def scalar_dtype(owner: str, name: str, value: Scalar) -> torch.dtype:
    """Returns the dtype of a Python scalar among the inputs: as in MLX, where the value of an int decides."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return torch.int32
        if -(2**63) <= value < 2**63:
            return torch.int64
        raise ValueError(f"{owner}: input {name!r} is {value}, which is no 64-bit integer")
    return torch.float32 if isinstance(value, float) else torch.complex64


def _check_handle(owner: str, name: str, value: Texture | Sampler) -> None:
    """Raises RuntimeError for a texture on another device."""
    if isinstance(value, Texture) and value.device.type not in DEVICES:
        raise RuntimeError(
            f"{owner}: input {name!r} must be a texture of mps or cuda tensors, but is on {value.device}"
        )


def _describe(definition: Definition, name: str, value: object) -> Input:
    owner = definition.owner
    if isinstance(value, torch.Tensor):
        if value.device.type not in DEVICES:
            raise RuntimeError(
                f"{owner}: input {name!r} must be an mps or cuda tensor, but is on {value.device}"
            )
        if value.layout != torch.strided:
            raise ValueError(f"{owner}: input {name!r} must be strided, but is {value.layout}")
        metal_type(owner, f"input {name!r}", value.dtype)
        if name in definition.inouts:
            _check_writable(definition, name, value)
        return Input(value.dtype, value.numel() < SMALL, value.dim())
    if name in definition.inouts:
        raise TypeError(
            f"{owner}: {name!r} is written in place and must be a tensor, but got {value!r}"
        )
    if isinstance(value, Texture | Sampler):
        _check_handle(owner, name, value)
        return Input(None, small=False, rank=0, handle=value.parameter)
    if not isinstance(value, Scalar):
        raise TypeError(
            f"{owner}: input {name!r} must be an mps or cuda tensor, a texture, a sampler or a Python scalar, "
            f"but got {type(value).__name__}"
        )
    return Input(scalar_dtype(owner, name, value), small=True, rank=0)


def _check_writable(definition: Definition, name: str, tensor: torch.Tensor) -> None:
    owner = definition.owner
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"{owner}: {name!r} is written in place, but is a conjugate or negative view"
        )
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{owner}: {name!r} is an inference tensor, which is written in place only in inference mode"
        )
    if definition.ensure_row_contiguous:
        if not tensor.is_contiguous():
            raise ValueError(
                f"{owner}: {name!r} is written in place and must be row-contiguous, but has shape "
                f"{tuple(tensor.shape)} and strides {tensor.stride()}; ensure_row_contiguous=False takes any strides"
            )
    elif any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        raise ValueError(
            f"{owner}: {name!r} is written in place, but several of its elements lie in the same place (strides "
            f"{tensor.stride()}); clone it first"
        )


def _listed(owner: str, argument: str, values: object, names: tuple[str, ...]) -> list:
    if isinstance(values, str | torch.Tensor) or not isinstance(values, Sequence):
        raise TypeError(f"{owner}: {argument} must be a list, but got {type(values).__name__}")
    if len(values) != len(names):
        expected = f" ({', '.join(names)})" if names else ""
        raise ValueError(
            f"{owner}: {argument} must have {len(names)} entries{expected}, but has {len(values)}"
        )
    return list(values)


def _integers(owner: str, role: str, values: object, least: int) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{owner}: {role} must be a list of integers, but got {values!r}")
    integers = []
    for value in values:
        # A symbolic size stays symbolic; when the kernel runs it is a number, and is checked.
        if not isinstance(value, torch.SymInt):
            try:
                value = operator.index(value)
            except TypeError:
                raise TypeError(f"{owner}: {role} must hold integers, but got {value!r}") from None
            if value < least:
                raise ValueError(
                    f"{owner}: {role} must hold integers of at least {least}, but got {value}"
                )
        integers.append(value)
    return tuple(integers)


def _extent(owner: str, role: str, values: object, least: int) -> tuple[int, int, int]:
    extent = _integers(owner, role, values, least)
    _check_three(owner, role, values)
    for value in extent:
        if not isinstance(value, torch.SymInt) and value >= 2**32:
            raise ValueError(f"{owner}: {role} must hold 32-bit integers, but got {value}")
    return extent


def _check_three(owner: str, role: str, values: Sequence) -> None:
    if len(values) != 3:
        raise ValueError(f"{owner}: {role} must have 3 entries (x, y, z), but got {values!r}")


def _check_template(definition: Definition, template: object) -> Template:
    owner = definition.owner
    if template is None:
        return ()
    if isinstance(template, str) or not isinstance(template, Sequence):
        raise TypeError(
            f"{owner}: template must be a list of pairs (name, value), but got {template!r}"
        )
    checked = []
    for pair in template:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ValueError(f"{owner}: template must hold pairs (name, value), but got {pair!r}")
        name = check_identifier(owner, "template name", pair[0])
        if name in THREAD_ATTRIBUTES:
            raise ValueError(f"{owner}: template name {name!r} is a thread attribute")
        checked.append((name, _check_template_value(owner, name, pair[1])))
    check_distinct(
        owner,
        [
            ("input names", definition.inputs),
            ("output names", definition.outputs),
            ("template names", [name for name, _ in checked]),
        ],
    )
    return tuple(checked)


def _check_template_value(owner: str, name: str, value: object) -> bool | int | torch.dtype:
    if isinstance(value, torch.dtype):
        metal_type(owner, f"template argument {name!r}", value)
    elif not isinstance(value, bool | int):
        raise ValueError(
            f"{owner}: template argument {name!r} must be a bool, an int or a torch.dtype, but got {value!r}"
        )
    elif not -(2**31) <= value < 2**31:
        raise ValueError(f"{owner}: template argument {name!r} is {value}, which is no 32-bit int")
    return value
