"""The torch.library operator behind a metal_kernel, and the launches that were prepared for it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import astuple

import torch
from torch import _C
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.library import Library

from .call_arguments import CallArguments, Scalar, check_arguments, describe
from .dtypes import METAL_TYPES
from .identifiers import mentioned
from .launch import Launch, prepare
from .no_backward import no_backward
from .signature import Definition

NAMESPACE = "metal_kernel"

# Launches that are kept for each kernel; calls of ever new shapes must not fill the memory.
_KEPT = 1024

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in METAL_TYPES}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

_library = Library(NAMESPACE, "FRAGMENT")
_programs: dict[Definition, list[Program]] = {}
_guard = threading.Lock()


def program_of(definition: Definition, backward: Callable | None) -> Program:
    """The one program of this definition and gradient in the process."""
    with _guard:
        variants = _programs.setdefault(definition, [])
        for program in variants:
            if program.backward == backward:
                return program
        program = Program(definition, backward, len(variants))
        variants.append(program)
        return program


class Program:
    """What all metal_kernels of one definition share.

    operator: torch.ops.metal_kernel.NAME_DIGEST.default, with one Tensor argument for each input (Tensor(a!) for
    those written in place), then the call's arguments as encode_arguments writes them. Its name depends on the
    definition alone, so that an exported program finds it in another process.
    """

    def __init__(self, definition: Definition, backward: Callable | None, variant: int):
        self.definition = definition
        self.backward = backward
        self.words = mentioned(definition.source)
        self.inouts = tuple(
            position for position, name in enumerate(definition.inputs) if name in definition.inouts
        )
        self.launches: dict[tuple, Launch] = {}
        self.operator = self._register(_operator_name(definition, variant))

    def run(
        self,
        key: tuple,
        inputs: Sequence,
        arguments: CallArguments,
        init_value: Scalar | None,
    ) -> list[torch.Tensor]:
        """Runs the kernel, with the launch kept for the key: whatever tells two launches apart."""
        launch = self.launches.get(key)
        if launch is None:
            launch = prepare(self.definition, self.words, inputs, arguments)
            if len(self.launches) >= _KEPT:
                self.launches.clear()
            self.launches[key] = launch
        return launch(inputs, init_value)

    def _register(self, name: str):
        inputs = ", ".join(
            f"Tensor{f'(a{position}!)' if position in self.inouts else ''} {tensor}_"
            for position, tensor in enumerate(self.definition.inputs)
        )
        outputs = ", ".join(["Tensor"] * len(self.definition.outputs))
        if len(self.definition.outputs) != 1:
            outputs = f"({outputs})"
        tags = [torch.Tag.pt2_compliant_tag]
        if not self.definition.ensure_row_contiguous:
            tags.append(torch.Tag.needs_exact_strides)
        _library.define(
            f"{name}({inputs}{', ' if inputs else ''}{_ARGUMENTS}) -> {outputs}", tags=tags
        )
        _library.impl(name, self._execute, "CompositeExplicitAutograd")
        _library.impl(name, self._differentiate, "Autograd", with_keyset=True)
        if self.inouts:
            _library.impl(name, self._bump_versions, "ADInplaceOrView", with_keyset=True)
        torch.library.register_fake(f"{NAMESPACE}::{name}", self._describe_outputs, lib=_library)
        return getattr(getattr(torch.ops, NAMESPACE), name).default

    def _split(self, args: Sequence) -> tuple[Sequence, Sequence]:
        count = len(self.definition.inputs)
        return args[:count], args[count:]

    def _execute(self, *args):
        inputs, encoded = self._split(args)
        inputs = [
            tensor if position in self.inouts else tensor.resolve_conj().resolve_neg()
            for position, tensor in enumerate(inputs)
        ]
        *encoded, init_value = encoded
        arguments = decode_arguments(self.definition, *encoded)
        described = tuple([(x.dtype, x.shape, x.stride(), x.device) for x in inputs])
        template = tuple([(name, type(value), value) for name, value in arguments.template])
        key = (described, *arguments[:-1], template)
        return _results(self.run(key, inputs, arguments, init_value))

    def _describe_outputs(self, *args):
        inputs, (sizes, ranks, dtypes, *_) = self._split(args)
        describe(self.definition, inputs)
        return _results(
            [
                torch.empty(shape, dtype=_DTYPES[dtype], device="mps")
                for shape, dtype in zip(_split_sizes(sizes, ranks), dtypes, strict=True)
            ]
        )

    def _differentiate(self, keyset, *args):
        inputs, _ = self._split(args)
        if forward_ad._current_level >= 0 and any(
            forward_ad.unpack_dual(x).tangent is not None for x in inputs
        ):
            raise NotImplementedError(f"{self.definition.owner} has no forward-mode gradient")
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs)):
            with _C._AutoDispatchBelowAutograd():
                return self.operator.redispatch(keyset & _C._after_autograd_keyset, *args)
        for position in self.inouts:
            if inputs[position].requires_grad and inputs[position].is_leaf:
                raise RuntimeError(
                    f"{self.definition.owner}: {self.definition.inputs[position]!r} is a leaf tensor that requires "
                    "grad, which cannot be written in place"
                )
        # Under torch.func's transforms the dispatcher comes here once for each level.
        with enable_single_level_autograd_function():
            results = _Differentiable.apply(self, keyset, *args)
        return _results(results[: len(self.definition.outputs)])

    def _bump_versions(self, keyset, *args):
        for position in self.inouts:
            increment_version(args[position])
        return self.operator.redispatch(keyset & _C._after_ADInplaceOrView_keyset, *args)


class _Differentiable(torch.autograd.function._SingleLevelFunction):
    """The operator in the autograd graph. Its outputs are the kernel's outputs, then the tensors written in place."""

    @staticmethod
    def forward(ctx, program: Program, keyset, *args):
        with _C._AutoDispatchBelowAutograd():
            results = program.operator.redispatch(keyset & _C._after_autograd_keyset, *args)
        outputs = [results] if isinstance(results, torch.Tensor) else list(results or ())
        inputs, rest = program._split(args)
        written = [inputs[position] for position in program.inouts]
        ctx.mark_dirty(*written)
        ctx.program, ctx.rest = program, len(rest)
        if program.backward is not None:
            read = [x for position, x in enumerate(inputs) if position not in program.inouts]
            ctx.save_for_backward(*read, *outputs, *written)
        else:
            ctx.described = [(x.shape, x.dtype) for x in inputs]
        return (*outputs, *written)

    @staticmethod
    def backward(ctx, *grad_outputs):
        program = ctx.program
        owner = program.definition.owner
        if program.backward is None:
            grad_output = next(grad for grad in grad_outputs if grad is not None)
            grads = [
                no_backward(owner, grad_output, *described) if needed else None
                for described, needed in zip(ctx.described, ctx.needs_input_grad[2:], strict=False)
            ]
            return (None, None, *grads, *[None] * ctx.rest)
        names = program.definition.inputs
        saved = list(ctx.saved_tensors)
        inputs = [
            None if position in program.inouts else saved.pop(0) for position in range(len(names))
        ]
        grads = program.backward(list(grad_outputs), inputs, saved)
        if isinstance(grads, torch.Tensor) and len(names) == 1:
            grads = [grads]
        if not isinstance(grads, list | tuple) or len(grads) != len(names):
            got = f"{len(grads)}" if isinstance(grads, list | tuple) else type(grads).__name__
            raise ValueError(
                f"{owner}: backward must return a list with one gradient or None for each of "
                f"{', '.join(names)}, but returned {got}"
            )
        for name, grad in zip(names, grads, strict=True):
            if not isinstance(grad, torch.Tensor | None):
                raise TypeError(
                    f"{owner}: backward must return tensors or None, but returned {grad!r} for {name!r}"
                )
        return (None, None, *grads, *[None] * ctx.rest)


# The call's arguments as the dispatcher can carry and torch.export can save them.
_ARGUMENTS = (
    "SymInt[] output_sizes, int[] output_ranks, str[] output_dtypes, SymInt[] grid, SymInt[] threadgroup, "
    "str[] template, SymInt[] template_values, Scalar? init_value"
)


def encode_arguments(
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    grid: Sequence[int],
    threadgroup: Sequence[int],
    template: Sequence[tuple[str, bool | int | torch.dtype]],
) -> tuple:
    """The operator's arguments after the inputs, without init_value."""
    return (
        [size for shape in output_shapes for size in shape],
        [len(shape) for shape in output_shapes],
        [_NAMES[dtype] for dtype in output_dtypes],
        list(grid),
        list(threadgroup),
        [f"{name}={_kind(value)}" for name, value in template],
        [0 if isinstance(value, torch.dtype) else value for _, value in template],
    )


def decode_arguments(
    definition: Definition, sizes, ranks, dtypes, grid, threadgroup, template, template_values
) -> CallArguments:
    """The counterpart of encode_arguments."""
    return check_arguments(
        definition,
        _split_sizes(sizes, ranks),
        [_DTYPES[dtype] for dtype in dtypes],
        grid,
        threadgroup,
        [_decode(*pair) for pair in zip(template, template_values, strict=True)],
    )


def _kind(value: bool | int | torch.dtype) -> str:
    if isinstance(value, torch.dtype):
        return _NAMES[value]
    return "constant_bool" if isinstance(value, bool) else "constant_int"


def _decode(text: str, value: int) -> tuple[str, bool | int | torch.dtype]:
    name, kind = text.split("=")
    if kind in _DTYPES:
        return name, _DTYPES[kind]
    return name, bool(value) if kind == "constant_bool" else value


def _split_sizes(sizes: Sequence[int], ranks: Sequence[int]) -> list[list[int]]:
    sizes = list(sizes)
    shapes = []
    for rank in ranks:
        shapes.append(sizes[:rank])
        del sizes[:rank]
    return shapes


def _results(outputs: Sequence[torch.Tensor]):
    """Outputs as the schema has them: nothing, one tensor or a tuple."""
    if len(outputs) == 1:
        return outputs[0]
    return tuple(outputs) or None


def _operator_name(definition: Definition, variant: int) -> str:
    parts = [sorted(part) if isinstance(part, frozenset) else part for part in astuple(definition)]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    suffix = f"_{variant}" if variant else ""
    return f"{definition.name}_{digest}{suffix}"
