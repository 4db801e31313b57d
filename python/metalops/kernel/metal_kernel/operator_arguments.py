"""A metal_kernel's arguments in a form that the dispatcher can carry and torch.export can save."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..dtypes import METAL_TYPES
from .call_arguments import CallArguments, check_arguments
from .signature import Definition

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in METAL_TYPES}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

# The end of an operator's schema, after the inputs. Few arguments, since each costs the dispatcher a microsecond: all
# integers (grid, threadgroup, values of the template, sizes of the outputs), which may be symbolic, and a description
# of their meaning, such as "float32:2,int64:1;T=float16,N=constant_int" for outputs of two and one dimensions and two
# names in the template. For operators without inputs the device follows: ";cuda:0".
SCHEMA = "SymInt[] integers, str layout, Scalar? init_value"


def encode(
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    grid: Sequence[int],
    threadgroup: Sequence[int],
    template: Sequence[tuple[str, bool | int | torch.dtype]],
    device: torch.device | None = None,
) -> tuple[list[int], str]:
    """Returns the operator's arguments as in SCHEMA, without init_value. device: None if the inputs have one."""
    values = [_integer(value) for _, value in template]
    sizes = [size for shape in output_shapes for size in shape]
    outputs = [
        f"{_NAMES[dtype]}:{len(shape)}"
        for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
    ]
    kinds = [f"{name}={_kind(value)}" for name, value in template]
    place = f";{device}" if device is not None and device.type != "mps" else ""
    layout = f"{','.join(outputs)};{','.join(kinds)}{place}"
    return [*grid, *threadgroup, *values, *sizes], layout


def decode(definition: Definition, integers: Sequence[int], layout: str) -> CallArguments:
    """Decodes encode's result. Checks the arguments: only now are symbolic sizes numbers."""
    kinds = _kinds(layout)
    outputs = decode_outputs(integers, layout)
    return check_arguments(
        definition,
        [shape for shape, _ in outputs],
        [dtype for _, dtype in outputs],
        integers[:3],
        integers[3:6],
        [
            (name, _template_value(kind, integers[6 + position]))
            for position, (name, kind) in enumerate(kinds)
        ],
    )


def decode_outputs(integers: Sequence[int], layout: str) -> list[tuple[list[int], torch.dtype]]:
    """Returns the shapes, which may be symbolic, and dtypes of the outputs."""
    at = 6 + len(_kinds(layout))
    outputs = []
    for output in filter(None, layout.split(";")[0].split(",")):
        dtype, rank = output.split(":")
        outputs.append((list(integers[at : at + int(rank)]), _DTYPES[dtype]))
        at += int(rank)
    return outputs


def decode_device(layout: str) -> torch.device:
    """Returns the device of an operator without inputs."""
    _, _, *device = layout.split(";")
    return torch.device(device[0] if device else "mps")


def _kinds(layout: str) -> list[list[str]]:
    return [pair.split("=") for pair in filter(None, layout.split(";")[1].split(","))]


def _kind(value: bool | int | torch.dtype) -> str:
    if isinstance(value, torch.dtype):
        return _NAMES[value]
    return "constant_bool" if isinstance(value, bool) else "constant_int"


def _integer(value: bool | int | torch.dtype) -> int:
    if isinstance(value, torch.dtype):
        return 0
    # The dispatcher accepts no bool beside symbolic integers.
    return int(value) if isinstance(value, bool) else value


def _template_value(kind: str, value: int) -> bool | int | torch.dtype:
    if kind in _DTYPES:
        return _DTYPES[kind]
    return bool(value) if kind == "constant_bool" else value
