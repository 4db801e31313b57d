"""A metal_kernel's arguments in a form that the dispatcher can carry and torch.export can save."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .call_arguments import CallArguments, check_arguments
from .dtypes import METAL_TYPES
from .signature import Definition

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in METAL_TYPES}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

# The end of an operator's schema, after the inputs.
SCHEMA = (
    "SymInt[] output_sizes, int[] output_ranks, str[] output_dtypes, SymInt[] grid, SymInt[] threadgroup, "
    "str[] template, SymInt[] template_values, Scalar? init_value"
)


def encode(
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    grid: Sequence[int],
    threadgroup: Sequence[int],
    template: Sequence[tuple[str, bool | int | torch.dtype]],
) -> tuple:
    """The operator's arguments as SCHEMA has them, without init_value."""
    return (
        [size for shape in output_shapes for size in shape],
        [len(shape) for shape in output_shapes],
        [_NAMES[dtype] for dtype in output_dtypes],
        list(grid),
        list(threadgroup),
        [f"{name}={_kind(value)}" for name, value in template],
        [0 if isinstance(value, torch.dtype) else value for _, value in template],
    )


def decode(
    definition: Definition, sizes, ranks, dtypes, grid, threadgroup, template, template_values
) -> CallArguments:
    """The counterpart of encode. Checks the arguments: only now are symbolic sizes numbers."""
    return check_arguments(
        definition,
        _split(sizes, ranks),
        [_DTYPES[dtype] for dtype in dtypes],
        grid,
        threadgroup,
        [_template_argument(*pair) for pair in zip(template, template_values, strict=True)],
    )


def decode_outputs(sizes, ranks, dtypes) -> list[tuple[list[int], torch.dtype]]:
    """The shapes, which may be symbolic, and dtypes of the outputs."""
    return list(zip(_split(sizes, ranks), [_DTYPES[dtype] for dtype in dtypes], strict=True))


def _kind(value: bool | int | torch.dtype) -> str:
    if isinstance(value, torch.dtype):
        return _NAMES[value]
    return "constant_bool" if isinstance(value, bool) else "constant_int"


def _template_argument(text: str, value: int) -> tuple[str, bool | int | torch.dtype]:
    name, kind = text.split("=")
    if kind in _DTYPES:
        return name, _DTYPES[kind]
    return name, bool(value) if kind == "constant_bool" else value


def _split(sizes: Sequence[int], ranks: Sequence[int]) -> list[list[int]]:
    sizes = list(sizes)
    shapes = []
    for rank in ranks:
        shapes.append(sizes[:rank])
        del sizes[:rank]
    return shapes
