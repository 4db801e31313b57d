"""Calls of operators on mps tensors, below autograd and autocast, with the modules that make them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .._compare.call import Operator, is_on_mps
from .._compare.dispatch import OperatorMode
from .._compare.modules import ModuleNames
from .._torch.internals import pytree


class Observer(contextlib.ContextDecorator):
    """Sees calls in the block, or in the decorated function. A subclass has `observe`, which makes the call."""

    def __init__(self, model: nn.Module | None) -> None:
        self._names = ModuleNames(model)
        self._depth = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        self._depth += 1
        if self._depth > 1:
            return self  # a decorated function that calls itself
        with contextlib.ExitStack() as stack:
            self._names.install()
            stack.callback(self._names.remove)
            self.begin(stack)
            stack.enter_context(_Mode(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._stack.__exit__(*error)

    def begin(self, stack: contextlib.ExitStack) -> None:
        """Is called when the block begins; what has to be done when it ends is left in the stack."""

    def observe(self, operator: Operator, tensors: list[Tensor], call: Callable[[], Any]) -> Any:
        """Makes a call of an operator on these tensors, which computes something, and returns its result."""
        raise NotImplementedError

    def module(self) -> tuple[str, bool]:
        """Returns the name of the module that runs in this thread, and whether the backward pass does."""
        return self._names.current()


class _Mode(OperatorMode, through_compiled=True):
    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def call(self, operator: Operator, args: tuple, kwargs: dict[str, Any]) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        if operator.is_silent or not is_on_mps(leaves):
            return operator.overload(*args, **kwargs)
        return self._observer.observe(
            operator, tensors_on_mps(leaves), lambda: operator.overload(*args, **kwargs)
        )


def tensors_on_mps(leaves: list[Any]) -> list[Tensor]:
    return [x for x in leaves if isinstance(x, Tensor) and x.is_mps]


def results_on_mps(result: Any) -> list[Tensor]:
    return tensors_on_mps(pytree.tree_leaves(result))
