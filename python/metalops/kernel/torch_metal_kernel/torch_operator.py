"""A kernel with a reference as a torch.library operator, for tracing, torch.export, torch.compile and autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import forward_ad

from ..._torch.autograd import Recorded
from ..._torch.internals import below_autograd, forward_mode, keys_after_autograd, remove_library
from ..no_backward import no_backward
from .annotations import Signature
from .metal_code import MetalCode

NAMESPACE = "metalops_torch_kernel"
# int is SymInt, so that sizes stay symbolic under torch.compile and torch.export.
_SCHEMA_TYPES = {torch.Tensor: "Tensor", int: "SymInt", float: "float", bool: "bool"}
_LAUNCH = ("threads_per_grid", "threads_per_thread_group")


class TorchOperator:
    """The operator metalops_torch_kernel::NAME, which takes the inputs, the two thread counts, a shape for each result,
    and without tensors among the inputs the default device.

    compute(inputs, grid, group, shapes, device) and infer, with the same arguments, return the list of results; the
    latter of fake tensors. The attribute backward is None or as TorchMetalKernel takes it.
    """

    def __init__(self, code: MetalCode, signature: Signature, compute: Callable, infer: Callable):
        self.backward: Callable | None = None
        self._owner = code.owner
        self._kinds = signature.kinds
        self._results = len(code.result_names)
        # Prefixes avoid clashes with the schema's own words: an input may be called `in`.
        arguments = [
            *(
                f"{_SCHEMA_TYPES[kind]} input_{name}"
                for kind, name in zip(signature.kinds, code.input_names, strict=True)
            ),
            *(f"SymInt[] {name}" for name in _LAUNCH),
            *(f"SymInt[] result_shape_{name}" for name in code.result_names),
            "Device? device=None",
        ]
        results = "Tensor" if self._results == 1 else f"({', '.join(['Tensor'] * self._results)})"
        name, qualified = code.name, f"{NAMESPACE}::{code.name}"
        self._library = torch.library.Library(NAMESPACE, "FRAGMENT")
        self._library.define(
            f"{name}({', '.join(arguments)}) -> {results}",
            tags=(torch.Tag.pt2_compliant_tag,),
        )
        self._library.impl(name, self._unpacked(compute), "CompositeExplicitAutograd")
        torch.library.register_fake(qualified, self._unpacked(infer), lib=self._library)
        self._library.impl(name, self._differentiate, "Autograd", with_keyset=True)
        self.overload = getattr(getattr(torch.ops, NAMESPACE), name).default

    def remove(self) -> None:
        """Removes the operator from the dispatcher."""
        remove_library(self._library)

    def __call__(self, inputs, grid, group, shapes, device) -> list[torch.Tensor]:
        results = self.overload(*inputs, grid, group, *shapes, device)
        return self._listed(results)

    def _unpacked(self, function: Callable) -> Callable:
        count = len(self._kinds)

        def call(*arguments):
            inputs, (grid, group, *shapes) = arguments[:count], arguments[count:]
            device = shapes.pop() if len(shapes) > self._results else None
            results = function(inputs, grid, group, shapes, device)
            return self._returned(results)

        return call

    def _differentiate(self, keyset, *arguments):
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        if forward_mode() and any(
            forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
        ):
            raise NotImplementedError(f"{self._owner} has no forward-mode gradient")

        def run():
            with below_autograd():
                below = keyset & keys_after_autograd
                return self._listed(self.overload.redispatch(below, *arguments))

        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            results = self.record(run, arguments[: len(self._kinds)])
        else:
            results = run()
        return self._returned(results)

    def record(self, run: Callable, inputs) -> list[torch.Tensor]:
        """Returns the results of run(), which runs the kernel on the inputs, as part of the autograd graph."""
        return list(_Node.record(run, self, *inputs))

    def refused_gradients(self, grad_outputs, described) -> list[torch.Tensor | None]:
        """Raises for the missing gradients, or returns placeholders that raise when the graph being traced runs.
        described: the shapes and dtypes of tensors, None for scalars."""
        grad_output = next(gradient for gradient in grad_outputs if gradient is not None)
        return [
            None if tensor is None else no_backward(self._owner, grad_output, *tensor)
            for tensor in described
        ]

    def _listed(self, returned) -> list[torch.Tensor]:
        return [returned] if self._results == 1 else list(returned)

    def _returned(self, results):
        return results[0] if self._results == 1 else tuple(results)

    def checked_gradients(self, returned, inputs) -> list[torch.Tensor | None]:
        """Returns the gradient of each input, None for scalars, which the result of backward may leave out."""
        gradients = [returned] if isinstance(returned, torch.Tensor) else list(returned)
        if len(gradients) == self._kinds.count(torch.Tensor):
            of_tensors = iter(gradients)
            gradients = [next(of_tensors) if kind is torch.Tensor else None for kind in self._kinds]
        if len(gradients) != len(inputs):
            raise ValueError(
                f"{self._owner}: backward must return one gradient or None for each of the {len(inputs)} inputs, "
                f"but returned {len(gradients)}"
            )
        for gradient, value in zip(gradients, inputs, strict=True):
            if gradient is None:
                continue
            if not isinstance(value, torch.Tensor) or gradient.shape != value.shape:
                wanted = list(value.shape) if isinstance(value, torch.Tensor) else "none, a scalar"
                raise ValueError(
                    f"{self._owner}: backward returned a gradient of shape {list(gradient.shape)} for an input of shape "
                    f"{wanted}"
                )
        return gradients


class _Node(Recorded):
    """A call of a TorchOperator in the autograd graph."""

    @staticmethod
    def forward(ctx, results: tuple, operator: TorchOperator, *inputs):
        ctx.operator, ctx.function = operator, operator.backward
        are_tensors = [isinstance(value, torch.Tensor) for value in inputs]
        if ctx.function is None:
            ctx.described = [
                (value.shape, value.dtype) if is_tensor else None
                for value, is_tensor in zip(inputs, are_tensors, strict=True)
            ]
        else:
            ctx.are_tensors = are_tensors
            ctx.scalars = [value for value in inputs if not isinstance(value, torch.Tensor)]
            tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
            ctx.save_for_backward(*tensors, *results)
        return results

    @staticmethod
    def backward(ctx, *grad_outputs):
        if ctx.function is None:
            return (None, None, *ctx.operator.refused_gradients(grad_outputs, ctx.described))
        saved, scalars = _Node.saved(ctx), list(ctx.scalars)
        inputs = [saved.pop(0) if is_tensor else scalars.pop(0) for is_tensor in ctx.are_tensors]
        returned = ctx.function(list(grad_outputs), inputs, saved)
        return (None, None, *ctx.operator.checked_gradients(returned, inputs))
