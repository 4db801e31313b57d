"""metal_kernel: a Metal kernel body with a generated signature, called on mps and cuda tensors (the interface of MLX)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling
from torch.nn import Parameter

from ..._textures import Sampler, Texture
from ..._torch.internals import is_view, is_watched
from ..devices import DEVICES, place_of
from ..identifiers import check_distinct, check_identifier, check_text
from .call_arguments import (
    OutputTexture,
    Scalar,
    check_arguments,
    check_counts,
    check_init_value,
    describe,
    scalar_dtype,
)
from .differentiable import differentiable
from .launch import generated_source
from .operator_arguments import encode
from .program import outputs_of, program_of
from .signature import THREAD_ATTRIBUTES, Definition

_MATH_MODES = ("safe", "relaxed", "fast")
_NUMBERS = (int, float)
_THROUGH_DISPATCHER = (None, None, False)

_is_grad_enabled = torch.is_grad_enabled


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: dict[str, str] | None = None,
    *,
    inout_names: Sequence[str] = (),
    backward: Callable | None = None,
) -> MetalKernel:
    """A kernel from the body of a Metal function; its signature is generated. Takes what MLX's mx.fast.metal_kernel
    takes, and more. Needs no device.

    Args:
        name: an identifier, for errors and in the generated text. Another kernel may have the same name.
        input_names: the names of the inputs in the body. A tensor of fewer than 8 elements is
            ``const constant T*``, a larger one ``const device T*``, one without dimensions and a Python scalar
            ``const constant T&``.
        output_names: the names of the outputs in the body, ``device T*``. Empty only if there are inout_names.
        source: the body. Names that it mentions become parameters: thread attributes by Metal's names
            (``thread_position_in_grid``, a uint3, and 19 others), and for an input ``x`` of at least one dimension
            ``x_shape`` (``const constant int*``), ``x_strides`` (``const constant int64_t*``, in elements) and
            ``x_ndim`` (``const constant int&``). ``x_tensor``, and ``y_tensor`` for an output ``y``, is a Metal 4
            tensor over its memory, ``tensor<device T, dextents<int, rank>, tensor_inline>``, with extents listed
            innermost first; those of inputs must not be written to. Names count as whole identifiers outside comments
            and literals. ``elem_to_loc(elem, x_shape, x_strides, x_ndim)`` and MLX's other helpers are in scope.
        header: Metal text before the function: helper functions, macros, includes.
        ensure_row_contiguous: copy inputs that are not row-contiguous. Without it they are passed as they are, with
            their strides.
        atomic_outputs: outputs are ``device atomic<T>*``, for int32, uint32, float32, uint64 or bool.
        compile_options: ``{"math_mode": mode}`` with mode "safe" (the default), "relaxed" or "fast": what the compiler
            may assume of floating-point numbers. In the fast mode alone, where there are no infinities and NaN,
            ``__FAST_MATH__`` is defined, as 1. Before Metal 3.2, and on the software device, the arithmetic is that of
            the safe mode in all.
        inout_names: tensors that the kernel reads and writes in place, ``device T*``. They come after the inputs (a
            name that is also one of the input_names keeps its place there), must be row-contiguous where
            ensure_row_contiguous holds, and are not among the outputs that a call returns.
        backward: the gradient, ``backward(grad_outputs, inputs, outputs)`` -> a list with one gradient or None for
            each input (of a single input, also the gradient alone). All three arguments are lists of tensors; Python
            scalars come as tensors without dimensions. Tensors written in place are None in ``inputs`` and follow the
            outputs in ``outputs`` and ``grad_outputs``. It may call other kernels. Without it, backward through the
            kernel raises NotImplementedError.

    Returns:
        A MetalKernel. It can be pickled (with backward, if that can), copied and called from several threads, and is
        traced by torch.compile and torch.export as one operator; make it outside of the functions that they trace. An
        exported program can be loaded once the same kernel has been made.

    Raises:
        TypeError, ValueError: for an argument that is none of these; names that Metal cannot use or that occur twice.

    Example:

        >>> import torch, metalops
        >>> scale = metalops.metal_kernel(
        ...     name="scale",
        ...     input_names=["x", "factor"],
        ...     output_names=["y"],
        ...     source='''
        ...         uint i = thread_position_in_grid.x;
        ...         y[i] = T(x[i] * factor);
        ...     ''',
        ...     backward=lambda grads, inputs, outputs: [grads[0] * inputs[1], None],
        ... )
        >>> x = torch.tensor([1.0, 2.0, 3.0], device="mps", requires_grad=True)
        >>> (y,) = scale(
        ...     inputs=[x, 2.5],
        ...     template=[("T", x.dtype)],
        ...     output_shapes=[x.shape],
        ...     output_dtypes=[x.dtype],
        ...     grid=(x.numel(), 1, 1),
        ...     threadgroup=(256, 1, 1),
        ... )
        >>> y.tolist()
        [2.5, 5.0, 7.5]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [2.5, 2.5, 2.5]
    """
    owner = f"metal_kernel {name!r}"
    check_identifier(owner, "name", name)
    inputs = _names(owner, "input", input_names)
    outputs = _names(owner, "output", output_names)
    inouts = _names(owner, "inout", inout_names)
    if not outputs and not inouts:
        raise ValueError(f"{owner}: output_names must not be empty")
    placed = (*inputs, *[inout for inout in inouts if inout not in inputs])
    check_distinct(owner, [("inout_names", inouts)])
    check_distinct(owner, [("input_names", placed), ("output_names", outputs)])
    if backward is not None and not callable(backward):
        raise TypeError(f"{owner}: backward must be a function, but got {backward!r}")
    definition = Definition(
        name,
        placed,
        frozenset(inouts),
        outputs,
        check_text(owner, "header", header),
        check_text(owner, "source", source),
        bool(ensure_row_contiguous),
        bool(atomic_outputs),
        _math_mode(owner, compile_options),
    )
    return MetalKernel(definition, backward)


class MetalKernel:
    """The result of metal_kernel: call it with tensors."""

    def __init__(self, definition: Definition, backward: Callable | None):
        self._definition = definition
        self._program = program_of(definition, backward)
        self._launches = self._program.launches
        self._inouts = self._program.inouts

    def __call__(
        self,
        *,
        inputs: Sequence[Tensor | Scalar],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[torch.dtype | str],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, bool | int | torch.dtype]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        device: torch.device | str | None = None,
        stream: object = None,
    ) -> list[Tensor]:
        """Runs the kernel and returns its outputs, new row-contiguous tensors on the device of the inputs.

        Args:
            inputs: mps or cuda tensors, or Python scalars: a bool is a bool in Metal, an int an int (int64 beyond 32 bits), a
                float a float, a complex number a complex64_t. Also what metalops.texture and metalops.sampler make, to sample and read, without gradients. After them the tensors of inout_names.
            output_shapes: one shape for each output.
            output_dtypes: one dtype for each output. A pixel format, such as "rgba8unorm", for an output that is a
                texture, with access::write, of kind "2d"; "rgba8unorm 3d" for another kind. The output is the tensor
                of its texels, of such a shape as metalops.texture takes.
            grid: the number of threads in x, y and z. With a zero nothing runs.
            threadgroup: the threads of a threadgroup in x, y and z; no more than the grid has are used.
            template: pairs (name, value); the body sees the names as template parameters: a type for a torch.dtype,
                a constant for a bool or an int.
            init_value: the initial value of the outputs; without it they are uninitialised.
            verbose: print the generated Metal text; nothing is printed while torch.compile traces the call.
            device: where a kernel without tensors among its inputs runs: mps or cuda; by default mps if there is one.
            stream: accepted so that calls written for MLX run unchanged; work goes to torch's stream of the device.

        Returns:
            A list with one tensor for each output.

        Raises:
            ValueError: wrong numbers of inputs or outputs, template values, grids, threadgroups (also beyond the
                kernel's limit), more than 31 buffers, tensors that cannot be written in place.
            TypeError: values of a wrong type; dtypes that Metal has no type for.
            RuntimeError: tensors on other devices.
            NotImplementedError: textures and samplers in torch.compile or with gradients; textures that a Mac does not make of
                a buffer.
            SyntaxError: the Metal text does not compile; it counts lines from the first of source or header.
        """
        if device is not None:
            device = self._checked_device(device)
        if is_compiling():
            check_counts(self._definition, inputs, output_shapes, output_dtypes, grid, threadgroup)
            return self._call_operator(
                inputs,
                output_shapes,
                output_dtypes,
                grid,
                threadgroup,
                template,
                init_value,
                device,
            )
        if verbose:
            print(
                self.source(
                    inputs=inputs,
                    output_shapes=output_shapes,
                    output_dtypes=output_dtypes,
                    grid=grid,
                    threadgroup=threadgroup,
                    template=template,
                )
            )
        key, launch, graph = self._find(
            inputs, output_shapes, output_dtypes, grid, threadgroup, template, device
        )
        if launch is None or not (init_value is None or type(init_value) in _NUMBERS):
            arguments = check_arguments(
                self._definition, output_shapes, output_dtypes, grid, threadgroup, template
            )
            check_init_value(self._definition, init_value)
            if key is None:
                describe(self._definition, inputs)
                return self._call_operator(inputs, *arguments, init_value, device)
            launch = self._program.launch(key, inputs, arguments, place_of(inputs, device))
        if graph:
            return differentiable(
                self._definition,
                self._program.backward,
                lambda: launch(inputs, init_value),
                self._tensors(inputs, device),
            )
        outputs = launch(inputs, init_value)
        for position in self._inouts:
            increment_version(inputs[position])
        return outputs

    def source(
        self,
        *,
        inputs: Sequence[Tensor | Scalar],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[torch.dtype | str],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, bool | int | torch.dtype]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        device: torch.device | str | None = None,
        stream: object = None,
    ) -> str:
        """The Metal text that a call with these arguments runs. Neither compiles nor runs it.

        Example:

            >>> import torch, metalops
            >>> fill = metalops.metal_kernel("fill", [], ["y"], "y[thread_position_in_grid.x] = N;")
            >>> text = fill.source(
            ...     inputs=[], template=[("N", 7)], output_shapes=[(4,)], output_dtypes=[torch.int32],
            ...     grid=(4, 1, 1), threadgroup=(4, 1, 1),
            ... )
            >>> print(text[text.index("template") : text.index(" {")])
            template <int N>
            [[kernel]] void custom_kernel_fill(
                device int* y [[buffer(0)]],
                uint3 thread_position_in_grid [[thread_position_in_grid]])
        """
        if device is not None:
            self._checked_device(device)
        arguments = check_arguments(
            self._definition, output_shapes, output_dtypes, grid, threadgroup, template
        )
        return generated_source(self._definition, self._program.words, inputs, arguments)

    def _find(self, inputs, output_shapes, output_dtypes, grid, threadgroup, template, device):
        """Returns the key of a launch, the launch that was prepared for it, if there is one, and true if autograd
        records the call.

        Returns _THROUGH_DISPATCHER for calls that the dispatcher must see, and for wrong ones.
        """
        if is_watched():
            return _THROUGH_DISPATCHER
        grad = _is_grad_enabled()
        graph = handles = False
        facts = []
        try:
            for x in inputs:
                kind = type(x)
                if kind is Tensor or kind is Parameter:
                    dtype = x.dtype
                    if x.is_neg():
                        return _THROUGH_DISPATCHER
                    if not x.is_mps:
                        if not x.is_cuda:
                            return _THROUGH_DISPATCHER
                        facts.append(x.device)
                    if grad and x.requires_grad:
                        graph = True
                    if dtype.is_complex and x.is_conj():
                        return _THROUGH_DISPATCHER
                    facts += (dtype, x.shape, x.stride())
                elif kind is Texture or kind is Sampler:
                    handles = True
                    facts.append(x.parameter)
                elif kind is float or kind is bool or (kind is int and -(2**31) <= x < 2**31):
                    facts.append(kind)
                else:
                    return _THROUGH_DISPATCHER
            for position in self._inouts:
                x = inputs[position]
                # In-place writes that autograd and the dispatcher have to track.
                if x.is_inference() or graph or (grad and is_view(x)):
                    return _THROUGH_DISPATCHER
            if graph and (handles or any(isinstance(dtype, str) for dtype in output_dtypes)):
                return _THROUGH_DISPATCHER
            key = (
                tuple(facts),
                tuple(map(tuple, output_shapes)),
                tuple(output_dtypes),
                tuple(grid),
                tuple(threadgroup),
                template and tuple([(name, type(value), value) for name, value in template]),
                device,
            )
            return key, self._launches.get(key), graph
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return _THROUGH_DISPATCHER

    def _call_operator(
        self, inputs, output_shapes, output_dtypes, grid, threadgroup, template, init_value, device
    ) -> list[Tensor]:
        """Calls through the dispatcher. torch.compile traces this."""
        for name, dtype in zip(self._definition.outputs, output_dtypes, strict=True):
            if isinstance(dtype, str | OutputTexture):
                raise NotImplementedError(
                    f"{self._definition.owner}: output {name!r} is a texture, which autograd, torch.compile and the "
                    "transforms of torch.func do not take"
                )
        place = None if inputs else place_of((), device)
        encoded = encode(output_shapes, output_dtypes, grid, threadgroup, template or (), place)
        tensors = self._tensors(inputs, device)
        return outputs_of(self._program.operator(*tensors, *encoded, init_value))

    def _tensors(
        self, inputs: Sequence[Tensor | Scalar], device: torch.device | None
    ) -> list[Tensor]:
        """Returns the inputs, scalars among them as tensors without dimensions."""
        place = place_of(inputs, device)
        for name, value in zip(self._definition.inputs, inputs, strict=True):
            if isinstance(value, Texture | Sampler):
                raise NotImplementedError(
                    f"{self._definition.owner}: input {name!r} is a texture or a sampler, which autograd, torch.compile and "
                    "the transforms of torch.func do not take"
                )
        return [
            value
            if isinstance(value, Tensor)
            else torch.full(
                (), value, dtype=scalar_dtype(self._definition.owner, name, value), device=place
            )
            for name, value in zip(self._definition.inputs, inputs, strict=True)
        ]

    def _checked_device(self, device: torch.device | str) -> torch.device:
        checked = torch.device(device)
        if checked.type not in DEVICES:
            raise ValueError(
                f"{self._definition.owner}: runs on mps and on cuda, not on device={device!r}"
            )
        return checked

    def __reduce__(self):
        backward = self._program.backward
        try:
            pickle.dumps(backward)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise pickle.PicklingError(
                f"{self._definition.owner} cannot be pickled with its backward function: {error}"
            ) from error
        return MetalKernel, (self._definition, backward)

    def __copy__(self) -> MetalKernel:
        return self

    def __deepcopy__(self, memo) -> MetalKernel:
        # Nothing in it ever changes.
        return self

    def __repr__(self) -> str:
        definition = self._definition
        read = [name for name in definition.inputs if name not in definition.inouts]
        parts = [repr(definition.name), f"{', '.join(read)} -> {', '.join(definition.outputs)}"]
        if definition.inouts:
            written = [name for name in definition.inputs if name in definition.inouts]
            parts.append(f"in place: {', '.join(written)}")
        if self._program.backward is not None:
            parts.append("differentiable")
        return f"<MetalKernel {'; '.join(parts)}>"


def _names(owner: str, role: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"{owner}: {role}_names must be a list of names, but got {names!r}")
    for name in names:
        check_identifier(owner, f"{role} name", name)
        if name in THREAD_ATTRIBUTES:
            raise ValueError(f"{owner}: {role} name {name!r} is a thread attribute")
    return tuple(names)


def _math_mode(owner: str, options: object) -> str:
    if options is None:
        return _MATH_MODES[0]
    if not isinstance(options, dict):
        raise ValueError(f"{owner}: compile_options must be a dict, but got {options!r}")
    for key in options:
        if key != "math_mode":
            raise ValueError(f"{owner}: compile_options has the key 'math_mode' alone, got {key!r}")
    mode = options.get("math_mode", _MATH_MODES[0])
    if mode not in _MATH_MODES:
        raise ValueError(f"{owner}: math_mode must be safe, relaxed or fast, but got {mode!r}")
    return mode
