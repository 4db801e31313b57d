"""Definitions of pointwise operators without compiled parts: the overloads that <metalops/pointwise.h> gives an
operator, and autograd. Forward-mode derivatives are not included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ..._torch.autograd import Recorded
from ..._torch.internals import (
    below_autograd,
    forward_mode,
    keys_after_autograd,
    keys_after_inplace_or_view,
)
from . import fake

# formula(tensors, numbers): gradients in differentiable operators of torch, from the arguments of a backward operator.
Formula = Callable[[list[Tensor], list[complex]], Sequence[Tensor]]


def define(
    namespace: str,
    name: str,
    arguments: str,
    *,
    results: int = 1,
    pointwise: bool = True,
    has_inplace: bool = True,
    gradient: Callable[..., Sequence[Tensor | None]] | None = None,
    is_differentiable: bool = True,
) -> None:
    """Defines the functional, the out= and, with has_inplace, the in-place overload.

    arguments: of the functional one, as in a schema, operands first. gradient(wanted, grads, *arguments): returns the
    gradients of the operands, None for those that are not wanted; defaulted numbers need not be among the arguments.
    is_differentiable: true if results can have gradients at all.
    """
    library = fake.fragment(namespace)
    tags = [torch.Tag.pt2_compliant_tag, *([torch.Tag.pointwise] if pointwise else [])]
    returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    library.define(f"{name}({arguments}) -> {returns}", tags=tags)
    outs = [f"Tensor({chr(97 + i)}!)" for i in range(results)]
    named = [f"{out} out{i if results > 1 else ''}" for i, out in enumerate(outs)]
    keywords = "" if "*, " in arguments else "*, "
    returned = outs[0] if results == 1 else f"({', '.join(outs)})"
    library.define(
        f"{name}.out({arguments}, {keywords}{', '.join(named)}) -> {returned}", tags=tags
    )
    if has_inplace:
        rest = arguments.partition(" ")[2]
        library.define(f"{name}_(Tensor(a!) {rest}) -> Tensor(a!)", tags=tags)
    packet = getattr(getattr(torch.ops, namespace), name)
    library.impl(f"{name}.out", _Bump(packet.out), "ADInplaceOrView", with_keyset=True)
    if has_inplace:
        written = getattr(getattr(torch.ops, namespace), f"{name}_").default
        library.impl(f"{name}_", _Bump(written), "ADInplaceOrView", with_keyset=True)
    if not is_differentiable:
        return
    functional = _Differentiable(f"{namespace}::{name}", packet.default, gradient)
    library.impl(name, functional, "Autograd", with_keyset=True)
    out = _Out(f"{namespace}::{name}", packet.out)
    library.impl(f"{name}.out", out, "Autograd", with_keyset=True)
    if has_inplace:
        library.impl(f"{name}_", _Inplace(packet.default, written), "Autograd", with_keyset=True)


def define_backward(
    namespace: str, name: str, arguments: str, gradients: int, formula: Formula | str
) -> None:
    """Defines the operator that a gradient calls, with an output_mask if it returns several.

    formula: for its own derivatives, or why it has none.
    """
    library = fake.fragment(namespace)
    mask = f", bool[{gradients}] output_mask=[{', '.join(['True'] * gradients)}]"
    returns = "Tensor" if gradients == 1 else f"({', '.join(['Tensor'] * gradients)})"
    library.define(
        f"{name}({arguments}{mask if gradients > 1 else ''}) -> {returns}",
        tags=[torch.Tag.pt2_compliant_tag],
    )
    overload = getattr(getattr(torch.ops, namespace), name).default
    library.impl(
        name, _DifferentiatedAgain(overload, gradients, formula), "Autograd", with_keyset=True
    )


def _records(overload, args: Sequence[object]) -> bool:
    """Returns true if autograd records a call. Raises NotImplementedError for tangents, which would be lost."""
    tensors = [x for x in args if isinstance(x, Tensor)]
    if forward_mode() and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(
            f"Trying to use forward AD with {overload.name()} that does not support it because metalops is not built."
        )
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _below(overload, keyset, args, keywords):
    with below_autograd():
        return overload.redispatch(keyset & keys_after_autograd, *args, **keywords)


class _Differentiable:
    def __init__(self, name: str, overload, gradient: Callable | None):
        self._name = name
        self._overload = overload
        self._gradient = gradient

    def __call__(self, keyset, *args, **keywords):
        def run():
            return _below(self._overload, keyset, args, keywords)

        if not _records(self._overload, args):
            return run()
        return _Node.record(run, self, keywords, *args)

    def gradients(self, wanted, grads, args, keywords) -> Sequence[Tensor | None]:
        if self._gradient is None:
            raise NotImplementedError(
                f"derivative for {self._name} is not implemented: it was defined without a gradient"
            )
        return self._gradient(wanted, grads, *args, **keywords)


class _Node(Recorded):
    """A call in the autograd graph."""

    @staticmethod
    def forward(ctx, results: tuple, operator: _Differentiable, keywords: dict, *args):
        ctx.operator, ctx.keywords = operator, keywords
        ctx.others = [None if isinstance(x, Tensor) else x for x in args]
        ctx.are_tensors = [isinstance(x, Tensor) for x in args]
        ctx.save_for_backward(*(x for x in args if isinstance(x, Tensor)))
        return results

    @staticmethod
    def backward(ctx, *grads):
        saved = iter(_Node.saved(ctx))
        args = [
            next(saved) if is_tensor else other
            for is_tensor, other in zip(ctx.are_tensors, ctx.others, strict=True)
        ]
        wanted = ctx.needs_input_grad[3:]
        gradients = list(ctx.operator.gradients(wanted, grads, args, ctx.keywords))
        gradients += [None] * (len(args) - len(gradients))
        results = [
            _like(x, arg) if needed and x is not None else None
            for x, arg, needed in zip(gradients, args, wanted, strict=True)
        ]
        return (None, None, None, *results)


def _like(gradient: Tensor, tensor: Tensor) -> Tensor:
    """Returns a gradient of broadcast and promoted operands, reduced and cast to that of one of them."""
    if gradient.is_complex() and not tensor.is_complex():
        gradient = gradient.real
    return gradient.sum_to_size(tensor.shape).to(tensor.dtype)


class _Out:
    def __init__(self, name: str, overload):
        self._name = name
        self._overload = overload

    def __call__(self, keyset, *args, **keywords):
        if _records(self._overload, [*args, *keywords.values()]):
            raise RuntimeError(
                f"{self._name.partition('::')[2]}(): functions with out=... arguments don't support automatic "
                "differentiation, but one of the arguments requires grad."
            )
        return _below(self._overload, keyset, args, keywords)


class _Inplace:
    def __init__(self, functional, overload):
        self._functional = functional
        self._overload = overload

    def __call__(self, keyset, written, *args, **keywords):
        if not _records(self._overload, [written, *args]):
            return _below(self._overload, keyset, (written, *args), keywords)
        # Tensors saved for the gradient must not be overwritten.
        result = self._functional(written.clone(), *args, **keywords)
        fake.check_shape(result, written)
        return written.copy_(result)


class _Bump:
    """Increments the versions of written tensors."""

    def __init__(self, overload):
        self._overload = overload

    def __call__(self, keyset, *args, **keywords):
        outs = [x for name, x in keywords.items() if name.startswith("out")]
        for written in outs or args[:1]:
            increment_version(written)
        return self._overload.redispatch(keyset & keys_after_inplace_or_view, *args, **keywords)


class _DifferentiatedAgain:
    def __init__(self, overload, gradients: int, formula: Formula | str):
        self._overload = overload
        self._gradients = gradients
        self._formula = formula

    def __call__(self, keyset, *args, **keywords):
        if not _records(self._overload, args):
            return _below(self._overload, keyset, args, keywords)
        if isinstance(self._formula, str):
            raise NotImplementedError(
                f"derivative for {self._overload.name()} is not implemented: {self._formula}"
            )
        mask = [True] * self._gradients
        if self._gradients > 1 and isinstance(args[-1], (list, tuple)):
            *args, mask = args
        mask = keywords.get("output_mask", mask)
        tensors = [x for x in args if isinstance(x, Tensor)]
        dtype = torch.promote_types(tensors[0].dtype, tensors[-1].dtype)
        wide = [x.to(torch.complex64 if x.is_complex() else torch.float32) for x in tensors]
        results = self._formula(wide, [x for x in args if not isinstance(x, Tensor)])
        results = [x.to(dtype) if wanted else None for x, wanted in zip(results, mask, strict=True)]
        return results[0] if self._gradients == 1 else tuple(results)
