"""A metal_kernel in the autograd graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..._torch.autograd import Recorded
from ..no_backward import no_backward
from .signature import Definition


def differentiable(
    definition: Definition, backward: Callable | None, run: Callable, inputs: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Adds the gradient that backward computes to the outputs of run(), which runs the kernel on the inputs.

    Tensors that it writes in place become part of the graph, too. Raises RuntimeError if that is a leaf that requires
    grad.
    """
    for name, tensor in zip(definition.inputs, inputs, strict=True):
        if name in definition.inouts and tensor.requires_grad and tensor.is_leaf:
            raise RuntimeError(
                f"{definition.owner}: {name!r} is a leaf tensor that requires grad, which cannot be written in place"
            )
    written = [
        x for name, x in zip(definition.inputs, inputs, strict=True) if name in definition.inouts
    ]
    results = _Node.record(lambda: (*run(), *written), definition, backward, *inputs)
    return list(results[: len(definition.outputs)])


class _Node(Recorded):
    """The graph node, whose outputs are the kernel's outputs, then the tensors written in place."""

    @staticmethod
    def forward(ctx, results: tuple, definition: Definition, backward: Callable | None, *inputs):
        named = list(zip(definition.inputs, inputs, strict=True))
        ctx.mark_dirty(*(tensor for name, tensor in named if name in definition.inouts))
        ctx.definition, ctx.function = definition, backward
        if backward is None:
            ctx.described = [(tensor.shape, tensor.dtype) for tensor in inputs]
        else:
            read = [tensor for name, tensor in named if name not in definition.inouts]
            ctx.save_for_backward(*read, *results)
        return results

    @staticmethod
    def backward(ctx, *grad_outputs):
        return (None, None, None, *_gradients(ctx, grad_outputs))


def _gradients(ctx, grad_outputs) -> list[torch.Tensor | None]:
    definition = ctx.definition
    names, owner = definition.inputs, definition.owner
    if ctx.function is None:
        grad_output = next(grad for grad in grad_outputs if grad is not None)
        return [
            no_backward(owner, grad_output, *described) if needed else None
            for described, needed in zip(ctx.described, ctx.needs_input_grad[3:], strict=True)
        ]
    saved = _Node.saved(ctx)
    inputs = [None if name in definition.inouts else saved.pop(0) for name in names]
    grads = ctx.function(list(grad_outputs), inputs, saved)
    if isinstance(grads, torch.Tensor) and len(names) == 1:
        grads = [grads]
    if not isinstance(grads, list | tuple) or len(grads) != len(names):
        got = f"{len(grads)}" if isinstance(grads, list | tuple) else type(grads).__name__
        raise ValueError(
            f"{owner}: backward must return a list with one gradient or None for each of {', '.join(names)}, "
            f"but returned {got}"
        )
    for name, grad in zip(names, grads, strict=True):
        if not isinstance(grad, torch.Tensor | None):
            raise TypeError(
                f"{owner}: backward must return tensors or None, but returned {grad!r} for {name!r}"
            )
    return list(grads)
