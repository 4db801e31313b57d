"""Calls in the autograd graph whose gradients are functions in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .internals import (
    SingleLevelFunction,
    below_autograd,
    compiled_autograd_key,
    single_level_functions,
    unwrap_ended_level,
)

Results = Tensor | Sequence[Tensor | None]


def _without_ended_levels(tensor: Tensor) -> Tensor:
    while (inner := unwrap_ended_level(tensor)) is not tensor:
        tensor = inner
    return tensor


class Recorded(SingleLevelFunction):
    """A node of the graph. Subclasses have forward(ctx, results, *args), which saves what the gradients need and
    returns results, and backward(ctx, *grads), whose first gradient, that of results, is None."""

    @classmethod
    def record(cls, run: Callable[[], Results], *args: Any) -> Any:
        """Returns the results of run(), as the results of a node with the inputs args.

        run() computes them before torch calls forward, where grad mode and forward-mode AD are off. Under nested
        transforms of torch.func run() is what reaches the level below; forward would record nothing there.
        """
        with below_autograd():
            results = run()
        is_tensor = isinstance(results, Tensor)
        # Under torch.func's transforms the dispatcher calls this once for each level.
        with single_level_functions():
            recorded = cls.apply((results,) if is_tensor else tuple(results), *args)
        return recorded[0] if is_tensor else recorded

    @staticmethod
    def saved(ctx) -> list[Tensor]:
        """Returns the tensors that forward saved, for backward. torch.func.vjp calls backward after the transform's
        level has ended."""
        return [_without_ended_levels(x) for x in ctx.saved_tensors]

    _compiled_autograd_key = staticmethod(compiled_autograd_key)
