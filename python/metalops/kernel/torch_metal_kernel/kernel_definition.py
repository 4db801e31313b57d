"""The state that the TorchMetalKernels of one name share: their code, their operator, and compiled kernels."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from ... import _locks
from ..._textures import Texture
from ..._textures.layout import Layout
from ..._textures.texture import contiguous_layout
from ..._torch.internals import constant_to_dynamo, is_watched_or_traced
from ..compile import compile_library, when_forgotten
from ..devices import DEVICES, place_of, shader_compiler
from ..dtypes import metal_type
from .annotations import INT32, Signature, scalar
from .metal_code import MetalCode, Operand
from .reference import Reference
from .torch_operator import TorchOperator

_SYMBOLS = frozenset({torch.SymInt, torch.SymFloat, torch.SymBool})
_NUMBERS = frozenset({int, float, bool})
# Booleans and integers may decide about shapes, which a plan has compared with the reference's. Asking the reference
# takes as long as hundreds of calls, so all large integers, such as seeds, share one key: their effect on shapes is
# checked only once for the same result_shapes.
_DISTINCT = range(-64, 65)
_UINT32 = range(2**32)
# The number of combinations of shapes and dtypes for which a kernel keeps plans.
_PLANS = 4096

_is_grad_enabled = torch.is_grad_enabled


class _Plan(NamedTuple):
    """The prepared launch of a call with given layouts and dtypes."""

    kernel: Callable | None  # None if there is nothing to compute
    like: list[torch.Tensor]  # for each result a tensor of its shape and dtype
    strided: list[int]  # inputs that must be made contiguous
    textures: list[tuple[int, Layout]]  # operands, inputs first, that are bound as textures
    extents: list[list[int]]  # one list, or none if the kernel has them as constants
    grid: tuple[int, int, int]
    group: tuple[int, int, int]

    def __call__(self, inputs: Sequence[object]) -> list[torch.Tensor]:
        results = [torch.empty_like(tensor) for tensor in self.like]
        if self.strided:
            inputs = list(inputs)
            for index in self.strided:
                inputs[index] = inputs[index].contiguous()
        if self.kernel is not None:
            operands = [*inputs, *results]
            for position, layout in self.textures:
                operands[position] = Texture((operands[position],), layout)
            self.kernel(*operands, *self.extents, threads=self.grid, group_size=self.group)
        return results


class Definition:
    """A kernel of some code. set_functions completes it."""

    def __init__(self, code: MetalCode, signature: Signature):
        self.code = code
        self.signature = signature
        self._kinds = signature.kinds
        self._did_not_compile = False
        self._has_compiled = False
        # By the device's type and the text.
        self._kernels: dict[tuple[str, str], Callable] = {}
        self._plans: dict[tuple, _Plan] = {}
        self._lock = _locks.lock()
        when_forgotten(self._forget)
        self.operator = TorchOperator(code, signature, self.compute, self.fake)

    def set_functions(self, torch_defn: Callable, backward: Callable | None) -> None:
        self._reference = Reference(self.code.owner, torch_defn, self.code.result_names)
        self.operator.backward = backward
        self._plans = {}

    @property
    def is_replaceable(self) -> bool:
        """True if the code has so far only led to errors of the compiler."""
        return self._did_not_compile and not self._has_compiled

    def call(self, inputs, grid, group, shapes) -> list[torch.Tensor]:
        """Returns the results, outside torch.compile. Raises what TorchMetalKernel.__call__ does."""
        if is_watched_or_traced():
            return self.trace(inputs, grid, group, shapes)
        with_gradients = _is_grad_enabled()
        is_recorded = False
        for value in inputs:
            kind = type(value)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                if with_gradients and value.requires_grad:
                    is_recorded = True
            elif kind not in _NUMBERS and _is_symbolic(kind):
                return self.trace(inputs, grid, group, shapes)
        if is_recorded:
            run = partial(self.compute, inputs, grid, group, shapes)
            return self.operator.record(run, inputs)
        return self.compute(inputs, grid, group, shapes)

    def compute(self, inputs, grid, group, shapes, device=None) -> list[torch.Tensor]:
        """Returns the results for real tensors. device: for a reference without tensors among its inputs."""
        try:
            key = self._key(inputs, grid, group, shapes, device)
            plan = self._plans.get(key)
        except (AttributeError, TypeError):  # arguments of wrong types
            key = plan = None
        if plan is not None:
            return plan(inputs)
        self._check_counts(inputs, grid, group, shapes)
        inputs = self._checked_inputs(inputs)
        key = self._key(inputs, grid, group, shapes, device)
        if key is not None:
            plan = self._plans.get(key) or self._plan(inputs, grid, group, shapes, device)
            if plan is not None:
                if len(self._plans) >= _PLANS:
                    self._plans.clear()
                self._plans[key] = plan
                return plan(inputs)
        return self._run_reference(inputs, grid, group, shapes, device)

    def _key(self, inputs, grid, group, shapes, device) -> tuple | None:
        """Returns the key of a plan. None for tensors on devices without kernels, and for tensors whose values differ
        from their memory (conjugate or negative views)."""
        facts = []
        for value in inputs:
            kind = type(value)
            if kind is int:
                facts.append(value if value in _DISTINCT else kind if value in INT32 else None)
            elif kind is float:
                facts.append(kind)
            elif kind is bool:
                facts.append("true" if value else "false")
            elif (value.is_mps or value.is_cuda) and not value.is_neg() and not value.is_conj():
                facts += (value.dtype, value.shape, value.stride())
                if not value.is_mps:
                    facts.append(value.device)
            else:
                return None
        return (
            *facts,
            tuple(grid),
            tuple(group),
            *[tuple(shape) for shape in shapes],
            device,
        )

    def _checked_inputs(self, inputs) -> list[object]:
        """Returns the inputs as the kernel takes them. Raises TypeError or ValueError for values of wrong types, also
        of several types under one name in template_dtypes, RuntimeError for tensors of several devices."""
        checked = []
        devices = set()
        for value, kind, name in zip(inputs, self._kinds, self.code.input_names, strict=True):
            if kind is not torch.Tensor:
                value = scalar(self.code.owner, name, kind, value)
            elif isinstance(value, torch.Tensor):
                devices.add(value.device)
                value = value.resolve_conj().resolve_neg()
            else:
                raise TypeError(
                    f"{self.code.owner}: input {name!r} must be a tensor, but got {value!r}"
                )
            checked.append(value)
        if len(devices) > 1:
            places = ", ".join(
                f"{name} on {value.device}"
                for name, value in zip(self.code.input_names, inputs, strict=True)
                if isinstance(value, torch.Tensor)
            )
            raise RuntimeError(
                f"{self.code.owner}: all tensors must be on one device, but got {places}"
            )
        self._check_templates(checked)
        return checked

    def _check_templates(self, inputs) -> None:
        self.code.check_templates(
            [
                value.dtype if kind is torch.Tensor else kind
                for value, kind in zip(inputs, self._kinds, strict=True)
            ]
        )

    def trace(self, inputs, grid, group, shapes) -> list[torch.Tensor]:
        """Returns the results by way of the operator, for torch.compile, other tracing, modes and autograd."""
        self._check_counts(inputs, grid, group, shapes)
        if not torch.compiler.is_compiling():
            inputs = [
                value
                if kind is torch.Tensor or _is_symbolic(type(value))
                else scalar(self.code.owner, name, kind, value)
                for value, kind, name in zip(
                    inputs, self._kinds, self.code.input_names, strict=True
                )
            ]
        device = None if torch.Tensor in self._kinds else _default_device()
        shapes = [list(shape) for shape in shapes]
        return self.operator(inputs, list(grid), list(group), shapes, device)

    def fake(self, inputs, grid, group, shapes, device) -> list[torch.Tensor]:
        """Returns the results for fake tensors: their shapes and dtypes, on the inputs' device."""
        self._check_counts(inputs, grid, group, shapes)
        self._check_templates(inputs)
        results = self._reference.infer(inputs, device)
        self._check_shapes(results, shapes)
        devices = [value.device for value in inputs if isinstance(value, torch.Tensor)]
        return [
            torch.empty(result.shape, dtype=result.dtype, device=(devices or [result.device])[0])
            for result in results
        ]

    def text(self, inputs, grid, group, shapes) -> str:
        """Returns the Metal source for a call."""
        self._check_counts(inputs, grid, group, shapes)
        inputs = self._checked_inputs(inputs)
        results = self._reference.infer(inputs)
        self._check_shapes(results, shapes)
        text, _ = self._text_for(inputs, results)
        return text

    def _check_counts(self, inputs, grid, group, shapes) -> None:
        """Raises TypeError or ValueError if a call has too few or too many of anything."""
        owner = self.code.owner
        if len(inputs) != len(self._kinds):
            raise TypeError(
                f"{owner} takes {len(self._kinds)} inputs ({', '.join(self.code.input_names)}), "
                f"but got {len(inputs)}"
            )
        for role, counts in (("threads_per_grid", grid), ("threads_per_thread_group", group)):
            if not hasattr(counts, "__len__") or len(counts) != 3:
                raise ValueError(
                    f"{owner}: {role} must be a 3-tuple of thread counts (x, y, z), but got {counts!r}"
                )
        if not isinstance(shapes, Sequence) or len(shapes) != len(self.code.result_names):
            raise ValueError(
                f"{owner}: result_shapes must be a list of one shape for each of the results "
                f"{', '.join(self.code.result_names)}, but got {shapes!r}"
            )
        for shape in shapes:
            if not isinstance(shape, Sequence):
                raise TypeError(
                    f"{owner}: each of result_shapes must be a list of sizes, but got {shape!r}"
                )

    def _run_reference(self, inputs, grid, group, shapes, device) -> list[torch.Tensor]:
        results = self._reference(inputs, device)
        self._check_shapes(results, shapes)
        self._threads("threads_per_thread_group", group)
        self._grid(grid, results)
        return results

    def _plan(self, inputs, grid, group, shapes, device) -> _Plan | None:
        """Prepares a launch. Returns None if there are no tensors among the inputs and the reference creates its
        results on a device without kernels."""
        inferred = self._reference.infer(inputs, device)
        place = place_of(inputs, inferred[0].device)
        if place.type not in DEVICES:
            return None
        self._check_shapes(inferred, shapes)
        for result, name in zip(inferred, self.code.result_names, strict=True):
            metal_type(self.code.owner, f"result {name!r}", result.dtype)
        grid = self._grid(grid, inferred)
        group = self._threads("threads_per_thread_group", group)
        like = [
            torch.empty((), dtype=result.dtype, device=place).expand(result.shape)
            for result in inferred
        ]
        if all(result.numel() == 0 for result in inferred):
            return _Plan(None, like, [], [], [], grid, group)
        text, extents = self._text_for(inputs, inferred)
        layouts = self._layouts((*inputs, *inferred))
        kernel = self._compiled(text, place)
        limit = kernel.max_threads_per_threadgroup
        if math.prod(group) > limit:
            raise ValueError(
                f"{self.code.owner}: threads_per_thread_group {group} is {math.prod(group)} threads, "
                f"but this kernel's threadgroups can have at most {limit}"
            )
        strided = [
            index
            for index, value in enumerate(inputs)
            if isinstance(value, torch.Tensor) and not value.is_contiguous()
        ]
        return _Plan(kernel, like, strided, list(layouts.items()), extents, grid, group)

    def _layouts(self, operands: Sequence[object]) -> dict[int, Layout]:
        """Returns the layouts of the operands that are textures, by position. Raises ValueError or TypeError for tensors
        that are none."""
        names = [*self.code.input_names, *self.code.result_names]
        found = {}
        for name, text in self.code.textures:
            position = names.index(name)
            is_result = position >= len(self.code.input_names)
            owner = f"{self.code.owner}: {'result' if is_result else 'input'} {name!r}"
            value = operands[position]
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"{owner} is a texture, which torch_defn must take as a tensor")
            found[position] = contiguous_layout(owner, text, value.shape, value.dtype, is_result)
        return dict(sorted(found.items()))

    def _text_for(self, inputs, results) -> tuple[str, list[list[int]]]:
        """Returns the Metal source, and the sizes of all tensors if the kernel takes them."""
        layouts = self._layouts((*inputs, *results))
        tensors = [
            value
            for position, value in enumerate((*inputs, *results))
            if isinstance(value, torch.Tensor) and position not in layouts
        ]
        # A list argument is never empty.
        extents = [size for tensor in tensors for size in reversed(tensor.shape)] or [0]
        operands = [
            Operand(value.dtype, value.dim())
            if isinstance(value, torch.Tensor)
            else Operand(kind, None)
            for value, kind in zip(
                (*inputs, *results), (*self._kinds, *[torch.Tensor] * len(results)), strict=True
            )
        ]
        for position, layout in layouts.items():
            access = "write" if position >= len(inputs) else "sample"
            if access == "sample" and layout.kind == "buffer":
                access = "read"
            operands[position] = operands[position]._replace(texture=layout.parameter(access))
        operands = operands[: len(inputs)], operands[len(inputs) :]
        if self.code.has_room_for_extents:
            return self.code.text(*operands, None), [extents]
        return self.code.text(*operands, extents), []

    def _compiled(self, text: str, device: torch.device) -> Callable:
        key = device.type, text
        with self._lock:
            kernel = self._kernels.get(key)
            if kernel is None:
                try:
                    library = compile_library(
                        self.code.owner, text, shader_compiler(device, bool(self.code.textures))
                    )
                except SyntaxError:
                    self._did_not_compile = True
                    raise
                self._has_compiled = True
                kernel = self._kernels[key] = getattr(library, self.code.function)
            return kernel

    def _forget(self, text: str) -> None:
        """Drops the kernels of a text's libraries, and the plans that use them."""
        forgotten = [self._kernels.pop((device, text), None) for device in DEVICES]
        if any(forgotten):
            self._plans = {
                key: x for key, x in self._plans.items() if x and x.kernel not in forgotten
            }

    def _check_shapes(self, results, shapes) -> None:
        for name, result, shape in zip(self.code.result_names, results, shapes, strict=True):
            sizes = (*result.shape, *shape)
            # Symbolic sizes are compared when the kernel runs.
            if all(isinstance(size, int) for size in sizes) and tuple(shape) != result.shape:
                raise ValueError(
                    f"{self.code.owner}: torch_defn gives {name!r} the shape {list(result.shape)}, "
                    f"but result_shapes says {list(shape)}"
                )

    def _grid(self, grid, results) -> tuple[int, int, int]:
        counts = self._threads("threads_per_grid", grid, least=0)
        if 0 in counts and any(result.numel() for result in results):
            raise ValueError(
                f"{self.code.owner}: threads_per_grid {counts} has no threads, "
                "but there are results to compute"
            )
        return counts

    def _threads(self, role: str, counts, least: int = 1) -> tuple[int, int, int]:
        try:
            counts = tuple(operator.index(count) for count in counts)
        except TypeError:
            raise TypeError(
                f"{self.code.owner}: {role} must be three integers, but got {counts!r}"
            ) from None
        if any(count not in _UINT32 or count < least for count in counts):
            raise ValueError(
                f"{self.code.owner}: {role} must be three integers from {least} to 2**32 - 1, but got {counts}"
            )
        return counts


@constant_to_dynamo
def _default_device() -> torch.device:
    return torch.get_default_device()


def _is_symbolic(kind: type) -> bool:
    """Returns true if values of this type are symbolic, or tensors of a subclass with its own dispatch."""
    return kind in _SYMBOLS or hasattr(kind, "__torch_function__")


_definitions: dict[str, Definition] = {}
_registry_lock = _locks.lock()


def define(
    code: MetalCode, signature: Signature, torch_defn: Callable, backward: Callable | None
) -> Definition:
    """Returns the kernel of this code, the one that exists under its name or a new one.

    Raises ValueError if another exists that has compiled or was not used yet.
    """
    with _registry_lock:
        existing = _definitions.get(code.name)
        if existing is not None and (existing.code, existing.signature) != (code, signature):
            if not existing.is_replaceable:
                raise ValueError(
                    f"{code.owner} exists already with another {_difference(existing, code)}; "
                    "choose another name"
                )
            existing.operator.remove()
            existing = None
        if existing is None:
            existing = _definitions[code.name] = Definition(code, signature)
        existing.set_functions(torch_defn, backward)
        return existing


def _difference(existing: Definition, code: MetalCode) -> str:
    for field in MetalCode._fields:
        if getattr(existing.code, field) != getattr(code, field):
            return field
    return "signature of torch_defn"
