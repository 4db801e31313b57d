"""The name of the module that a call belongs to, in the forward pass and in the backward pass."""

from __future__ import annotations

import bisect
import threading
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from .._torch.internals import (
    backward_node,
    next_sequence_number,
    run_uncompiled,
    sequence_number_of,
)

# Nodes of autograd are numbered in the order of the forward pass; so many changes of the module are remembered.
_MOST_MARKS = 2**20
# AccumulateGrad has the largest number of 64 bits, so that it runs as soon as it can.
_LARGEST_NUMBER = 2**63


class ModuleNames:
    """Follows the calls of modules while it is installed.

    model: the module whose parts give the names; None: the outermost module that is called. A module that is no part of
    it is named by its class.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self._names: dict[int, str] = {} if model is None else _names_in(model)
        self._stacks = threading.local()
        self._handles: list[Any] = []
        # The numbers of autograd's nodes are those of a thread.
        self._thread = 0
        self._numbers: list[int] = []
        self._marks: list[str] = []

    def install(self) -> None:
        self._thread = threading.get_ident()
        self._mark("")
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._stacks = threading.local()

    def _stack(self) -> list[tuple[nn.Module, str]]:
        if not hasattr(self._stacks, "modules"):
            self._stacks.modules = []
        return self._stacks.modules

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():  # a graph that is traced is no call
            self._entered(module)

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        if not torch.compiler.is_compiling():
            self._left(module)

    def _entered(self, module: nn.Module) -> None:
        stack = self._stack()
        if not stack and self._model is None and threading.get_ident() == self._thread:
            self._names = _names_in(module)
        name = self._names.get(id(module)) or type(module).__name__
        stack.append((module, name))
        self._mark(name)

    def _left(self, module: nn.Module) -> None:
        stack = self._stack()
        # Modules that compare() was entered inside of are left without having been seen.
        while any(module is one for one, _ in stack):
            if stack.pop()[0] is module:
                break
        self._mark(stack[-1][1] if stack else "")

    def _mark(self, name: str) -> None:
        if threading.get_ident() != self._thread or backward_node() is not None:
            return
        if len(self._numbers) >= _MOST_MARKS:
            del self._numbers[: _MOST_MARKS // 2], self._marks[: _MOST_MARKS // 2]
        self._numbers.append(next_sequence_number())
        self._marks.append(name)

    def current(self) -> tuple[str, bool]:
        """Returns the module's name, "" outside of modules, and whether autograd's backward pass runs."""
        node = backward_node()
        stack = self._stack()
        if stack or node is None:  # a checkpoint runs modules in the backward pass
            return stack[-1][1] if stack else "", node is not None
        at = bisect.bisect_right(self._numbers, sequence_number_of(node)) - 1
        is_known = 0 <= at < len(self._marks) and sequence_number_of(node) < _LARGEST_NUMBER
        return self._marks[at] if is_known else "", True


# The compiler follows hooks, also those of modules that run uncompiled.
run_uncompiled(ModuleNames._entered)
run_uncompiled(ModuleNames._left)


def _names_in(model: nn.Module) -> dict[int, str]:
    # torch.compile(module) has the module as _orig_mod.
    return {
        id(module): ".".join(part for part in name.split(".") if part != "_orig_mod")
        for name, module in model.named_modules()
    }
