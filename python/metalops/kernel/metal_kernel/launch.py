"""A prepared launch of a metal_kernel, shared by all calls with the same shapes and arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from ..._textures import Texture
from ..compile import compile_library
from ..devices import shader_compiler
from .call_arguments import CallArguments, OutputTexture, Scalar, check_buffers, describe
from .signature import TENSOR, Definition, Output, generate


class Launch:
    """A prepared call on a device.

    kernel: runs on the inputs, outputs and metadata; None if there is nothing to do. text: its Metal source. converted:
    the inputs that cannot be bound as they are.
    """

    __slots__ = ("_converted", "_empty", "_full", "_kernel", "_metadata", "_textures", "text")

    def __init__(
        self,
        kernel: Callable | None,
        text: str,
        arguments: CallArguments,
        converted: tuple[int, ...],
        metadata: tuple[int | list[int], ...],
        device: torch.device,
    ):
        self._textures = [
            (position, output.layout)
            for position, output in enumerate(arguments.output_dtypes)
            if isinstance(output, OutputTexture)
        ]
        dtypes = [described.dtype for described in _outputs(arguments)]
        outputs = list(zip(arguments.output_shapes, dtypes, strict=True))
        # empty_strided parses its arguments faster than empty.
        self._empty = [
            partial(torch.empty_strided, shape, _row_strides(shape), dtype=dtype, device=device)
            for shape, dtype in outputs
        ]
        self._full = [
            partial(torch.full, shape, dtype=dtype, device=device) for shape, dtype in outputs
        ]
        self._kernel = kernel
        self.text = text
        self._converted = converted
        self._metadata = metadata

    def __call__(self, inputs: Sequence, init_value: Scalar | None) -> list[torch.Tensor]:
        """Allocates the outputs, fills them with init_value if there is one, and runs the kernel."""
        if self._converted:
            inputs = list(inputs)
            for position in self._converted:
                inputs[position] = _bindable(inputs[position])
        if init_value is None:
            outputs = [empty() for empty in self._empty]
        else:
            outputs = [full(fill_value=init_value) for full in self._full]
        if self._kernel is not None:
            bound = outputs
            if self._textures:
                bound = list(outputs)
                for position, layout in self._textures:
                    bound[position] = Texture((outputs[position],), layout)
            self._kernel(*inputs, *bound, *self._metadata)
        return outputs


def generated_source(
    definition: Definition, words: frozenset[str], inputs: Sequence, arguments: CallArguments
) -> str:
    """Returns the Metal text that a call runs. words: the names that the kernel's source mentions."""
    return _Call(definition, words, inputs, arguments).text


def prepare(
    definition: Definition,
    words: frozenset[str],
    inputs: Sequence,
    arguments: CallArguments,
    device: torch.device,
) -> Launch:
    """Compiles the kernel for such inputs. words: the names that its source mentions. device: of the inputs.

    Raises TypeError, ValueError or RuntimeError for inputs that cannot be bound, SyntaxError for Metal that does not
    compile, ValueError for a threadgroup that is too large.
    """
    call = _Call(definition, words, inputs, arguments)
    converted = tuple(
        position
        for position, name in enumerate(definition.inputs)
        if name not in definition.inouts and _needs_conversion(definition, inputs[position])
    )
    metadata = tuple(
        _metadata_value(definition, *_placed(call, position, position in converted), ending)
        for position, ending in call.metadata
    )
    return Launch(_kernel(call, device), call.text, arguments, converted, metadata, device)


class _Call:
    """A call's inputs as its text describes them. metadata: the parameters after the outputs (signature.metadata)."""

    def __init__(self, definition, words, inputs, arguments: CallArguments):
        # A template parameter of such a name takes precedence in the body.
        words = words.difference(name for name, _ in arguments.template)
        self.definition = definition
        self.inputs = inputs
        self.arguments = arguments
        self.described = describe(definition, inputs)
        self.outputs = _outputs(arguments)
        self.metadata = check_buffers(definition, words, self.described, self.outputs)
        self.text = generate(definition, words, self.described, self.outputs, arguments.template)


def _outputs(arguments: CallArguments) -> tuple[Output, ...]:
    return tuple(
        Output(x.dtype, 0, x.layout.parameter("write"))
        if isinstance(x, OutputTexture)
        else Output(x, len(shape))
        for shape, x in zip(arguments.output_shapes, arguments.output_dtypes, strict=True)
    )


def _kernel(call: _Call, device: torch.device) -> Callable | None:
    """Returns the compiled kernel with its grid; None if it would do nothing."""
    definition, arguments = call.definition, call.arguments
    written = [math.prod(shape) for shape in arguments.output_shapes]
    written += [
        value.numel()
        for name, value in zip(definition.inputs, call.inputs, strict=True)
        if name in definition.inouts
    ]
    if 0 in arguments.grid or not any(written):
        return None
    has_textures = any(described.handle for described in (*call.described, *call.outputs))
    library = compile_library(definition.owner, call.text, shader_compiler(device, has_textures))
    kernel = getattr(library, definition.function)
    grid = arguments.grid
    group = tuple(min(pair) for pair in zip(arguments.threadgroup, grid, strict=True))
    most = kernel.max_threads_per_threadgroup
    if math.prod(group) > most:
        raise ValueError(
            f"{definition.owner}: a threadgroup of {group} has {math.prod(group)} threads, but the kernel takes at "
            f"most {most}"
        )
    options = {}
    if grid[1] != 1 or grid[2] != 1:
        options.update(threads=grid, group_size=group)
    elif device.type != "mps" or _elements(call) != grid[0] or group[0] != min(grid[0], most):
        # Without these a kernel on mps takes as many threads as the first tensor has elements, in groups as large as
        # possible, and calling it costs half as much.
        options.update(threads=grid[0], group_size=group[0])
    return partial(kernel, **options) if options else kernel


def _elements(call: _Call) -> int | None:
    """Returns the number of elements of the kernel's first tensor argument; None without one."""
    for value in call.inputs:
        if isinstance(value, torch.Tensor):
            return value.numel()
    for shape, described in zip(call.arguments.output_shapes, call.outputs, strict=True):
        if not described.handle:
            return math.prod(shape)
    return None


def _needs_conversion(definition: Definition, value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return definition.ensure_row_contiguous and not value.is_contiguous()
    return isinstance(value, complex)


def _bindable(value: torch.Tensor | complex) -> torch.Tensor | list[float]:
    if isinstance(value, complex):
        return [value.real, value.imag]
    return value.contiguous()


def _placed(
    call: _Call, position: int, is_converted: bool
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Returns the name, shape and strides of what is bound for an input, or for an output after them."""
    inputs = call.definition.inputs
    if position < len(inputs):
        value = call.inputs[position]
        shape = tuple(value.shape)
        return inputs[position], shape, _row_strides(shape) if is_converted else value.stride()
    position -= len(inputs)
    shape = call.arguments.output_shapes[position]
    return call.definition.outputs[position], shape, _row_strides(shape)


def _metadata_value(
    definition: Definition,
    name: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    ending: str,
) -> int | list[int]:
    """Returns a metadata value as a kernel of torch.mps.compile_shader takes it. shape, strides: of the bound tensor.

    An int becomes 64 bits there. Apple's and the host's processors are little-endian, so that Metal code that asks for
    an int, or a bool, finds it; calls with casts instead cost a third more.
    """
    if ending == TENSOR:
        layout = [*reversed(shape), *reversed(strides)]
        if max(layout) >= 2**31:
            raise ValueError(
                f"{definition.owner}: {name}_tensor counts elements in 32 bits, which do not hold the shape {shape} and "
                f"strides {strides}"
            )
        return layout
    if ending == "ndim":
        return len(shape)
    if ending == "strides":
        return list(strides)
    if max(shape) >= 2**31:
        raise ValueError(
            f"{definition.owner}: {name}_shape holds 32-bit integers, but the shape is {shape}"
        )
    padded = [*shape, 0][: len(shape) + len(shape) % 2]
    return [low | high << 32 for low, high in zip(padded[::2], padded[1::2], strict=True)]


def _row_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
