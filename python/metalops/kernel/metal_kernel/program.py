"""The torch.library operator behind a metal_kernel, and the launches that were prepared for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import astuple

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.library import Library

from ... import _locks
from ..._torch.internals import (
    below_autograd,
    forward_mode,
    keys_after_autograd,
    keys_after_inplace_or_view,
)
from ..compile import when_forgotten
from ..identifiers import mentioned
from .call_arguments import CallArguments, describe
from .differentiable import differentiable
from .launch import Launch, prepare
from .operator_arguments import SCHEMA, decode, decode_device, decode_outputs
from .signature import Definition

NAMESPACE = "metal_kernel"

# Launches that are kept for each kernel; calls with ever new shapes must not fill the memory.
_KEPT = 1024

_library = Library(NAMESPACE, "FRAGMENT")
_programs: dict[Definition, list[Program]] = {}
_guard = _locks.lock()


def program_of(definition: Definition, backward: Callable | None) -> Program:
    """Returns the one program of this definition and gradient in the process, for each Metal version."""
    from ...msl.source import (
        languages,
    )  # takes longer to import than the modules that metalops imports

    language = languages.current()
    with _guard:
        variants = _programs.setdefault(definition, [])
        for program in variants:
            if program.backward == backward and program.language == language:
                return program
        program = Program(definition, backward, language, len(variants))
        variants.append(program)
        return program


class Program:
    """The state that all metal_kernels of one definition share.

    operator: torch.ops.metal_kernel.NAME_DIGEST.default, with one Tensor argument for each input (Tensor(a!) for those
    written in place), then the call's arguments as in operator_arguments. Its name depends on the definition alone, so
    that an exported program finds it in another process.
    """

    def __init__(
        self, definition: Definition, backward: Callable | None, language: int, variant: int
    ):
        self.definition = definition
        self.backward = backward
        self.language = language
        self.words = mentioned(definition.source)
        self.inouts = tuple(
            position for position, name in enumerate(definition.inputs) if name in definition.inouts
        )
        self.launches: dict[tuple, Launch] = {}
        when_forgotten(self._forget)
        self.operator = self._register(_operator_name(definition, variant))

    def launch(
        self, key: tuple, inputs: Sequence, arguments: CallArguments, device: torch.device
    ) -> Launch:
        """Returns the launch of a key, preparing it if needed."""
        launch = self.launches.get(key)
        if launch is None:
            launch = prepare(self.definition, self.words, inputs, arguments, device)
            if len(self.launches) >= _KEPT:
                self.launches.clear()
            self.launches[key] = launch
        return launch

    def _forget(self, text: str) -> None:
        """Drops the launches of a library's kernels."""
        for key in [key for key, launch in list(self.launches.items()) if launch.text == text]:
            self.launches.pop(key, None)

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
        _library.define(f"{name}({inputs}{', ' if inputs else ''}{SCHEMA}) -> {outputs}", tags=tags)
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
        inputs, (integers, layout, init_value) = self._split(args)
        inputs = [
            tensor if position in self.inouts else tensor.resolve_conj().resolve_neg()
            for position, tensor in enumerate(inputs)
        ]
        described = tuple([(x.dtype, x.shape, x.stride(), x.device) for x in inputs])
        key = (described, tuple(integers), layout)
        launch = self.launches.get(key) or self.launch(
            key, inputs, decode(self.definition, integers, layout), _place(inputs, layout)
        )
        return _results(launch(inputs, init_value))

    def _describe_outputs(self, *args):
        inputs, (integers, layout, _) = self._split(args)
        describe(self.definition, inputs)
        return _results(
            [
                torch.empty(shape, dtype=dtype, device=_place(inputs, layout))
                for shape, dtype in decode_outputs(integers, layout)
            ]
        )

    def _differentiate(self, keyset, *args):
        inputs, _ = self._split(args)
        if forward_mode() and any(forward_ad.unpack_dual(x).tangent is not None for x in inputs):
            raise NotImplementedError(f"{self.definition.owner} has no forward-mode gradient")

        def run():
            with below_autograd():
                return self.operator.redispatch(keyset & keys_after_autograd, *args)

        if not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs)):
            return run()
        return _results(
            differentiable(self.definition, self.backward, lambda: outputs_of(run()), inputs)
        )

    def _bump_versions(self, keyset, *args):
        for position in self.inouts:
            increment_version(args[position])
        return self.operator.redispatch(keyset & keys_after_inplace_or_view, *args)


def _place(inputs: Sequence[torch.Tensor], layout: str) -> torch.device:
    return inputs[0].device if inputs else decode_device(layout)


def outputs_of(results: torch.Tensor | tuple[torch.Tensor, ...] | None) -> list[torch.Tensor]:
    """Returns the outputs as a list, from an operator's results."""
    if results is None:
        return []
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _results(outputs: Sequence[torch.Tensor]):
    """Returns outputs as the schema has them: nothing, one tensor or a tuple."""
    if len(outputs) == 1:
        return outputs[0]
    return tuple(outputs) or None


def _operator_name(definition: Definition, variant: int) -> str:
    parts = [sorted(part) if isinstance(part, frozenset) else part for part in astuple(definition)]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    suffix = f"_{variant}" if variant else ""
    return f"{definition.name}_{digest}{suffix}"
