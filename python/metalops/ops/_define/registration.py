"""Registration of operators that are not pointwise: their kernels on each device, and their rules for torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ... import _problem
from ..._torch.autograd import Recorded
from ..._torch.internals import (
    DispatchKey,
    DispatchKeySet,
    below_autograd,
    excluded_keys,
    forward_mode,
    keys_after_autograd,
    register_fake,
    schema,
)
from . import fake
from .arguments import checked


@dataclass(frozen=True)
class Operator:
    """schema: as in the compiled parts, which define the operator if they are there. cpu, cuda, fake: kernels, whose
    arguments have been checked (see arguments.py).

    gradients(args, results, grads, wanted): returns the gradients of the first arguments; grads of unused results are
    None. needs_results: true if it needs the results, which are saved then; else results is None. formula: the operator
    in differentiable operators, for forward mode. vmap: a rule. lowered(dtype, device, *args): the arguments after
    autocast.
    """

    schema: str
    cpu: Callable
    cuda: Callable
    fake: Callable
    gradients: Callable | None = None
    needs_results: bool = False
    formula: Callable | None = None
    vmap: Callable | None = None
    lowered: Callable | None = None


def register(*operators: Operator) -> None:
    """Registers the operators in the namespace metalops."""
    library = fake.fragment("metalops")
    for operator in operators:
        base = operator.schema.partition("(")[0]
        name = f"metalops::{base}"
        if _problem is not None:
            library.define(operator.schema, tags=[torch.Tag.pt2_compliant_tag])
        overload = getattr(torch.ops.metalops, base).default
        names = [argument.name for argument in schema(overload).arguments]
        cpu, cuda, fake_kernel = (
            checked(base, names, x) for x in (operator.cpu, operator.cuda, operator.fake)
        )
        library.impl(base, cpu, "CPU")
        library.impl(base, cuda, "CUDA")
        register_fake(name, fake_kernel, library)
        if not operator.schema.endswith("-> ()"):
            library.impl(
                base, partial(_differentiable, overload, operator), "Autograd", with_keyset=True
            )
        if operator.vmap is not None:
            torch.library.register_vmap(name, operator.vmap, lib=library)
        if operator.lowered is not None:
            for device in ("cpu", "cuda", "mps"):
                key = f"Autocast{device.upper()}"
                keys = DispatchKeySet(getattr(DispatchKey, key))
                kernel = partial(_autocast, overload, operator.lowered, device, keys)
                library.impl(base, kernel, key)


def _autocast(overload, lowered: Callable, device: str, keys: DispatchKeySet, *args):
    with excluded_keys(keys):
        return overload(*lowered(torch.get_autocast_dtype(device), device, *args))


def _differentiable(overload, operator: Operator, keyset: DispatchKeySet, *args):
    """Runs the operator's autograd kernel."""

    def run():
        with below_autograd():
            return overload.redispatch(keyset & keys_after_autograd, *args)

    tensors = [x for x in args if isinstance(x, Tensor)]
    if forward_mode() and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        if operator.formula is None:
            raise NotImplementedError(
                f"Trying to use forward AD with {overload.name()} that does not support it"
            )
        return operator.formula(*args)
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
        return run()
    if operator.gradients is None:
        return _NotDifferentiable.record(run, overload.name(), *args)
    return _Node.record(run, operator, *args)


def derivatives_of(formula: Callable) -> Callable:
    """Returns Operator.gradients for an operator that is equal to the formula."""

    def gradients(args, results, grads, wanted):
        places = [i for i, is_wanted in enumerate(wanted) if is_wanted]
        given = [i for i, x in enumerate(grads) if x is not None]

        def function(*tensors):
            changed = dict(zip(places, tensors, strict=True))
            values = formula(*(changed.get(i, x) for i, x in enumerate(args)))
            return tuple(values[i] for i in given)

        _, product = torch.func.vjp(function, *(args[i] for i in places))
        found = dict(zip(places, product(tuple(grads[i] for i in given)), strict=True))
        return [found.get(i) for i in range(len(args))]

    return gradients


class _NotDifferentiable(Recorded):
    """A call whose gradient raises."""

    @staticmethod
    def forward(ctx, results: tuple, name: str, *args):
        ctx.name = name
        return results

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(f"derivative for {ctx.name} is not implemented")


class _Node(Recorded):
    """A call in the autograd graph."""

    @staticmethod
    def forward(ctx, results: tuple, operator: Operator, *args):
        kept = (*args, *results) if operator.needs_results else args
        ctx.set_materialize_grads(False)
        ctx.operator = operator
        ctx.others = [None if isinstance(x, Tensor) else x for x in args]
        ctx.are_tensors = [isinstance(x, Tensor) for x in args]
        ctx.save_for_backward(*(x for x in kept if isinstance(x, Tensor)))
        return results

    @staticmethod
    def backward(ctx, *grads):
        saved = iter(_Node.saved(ctx))
        args = [
            next(saved) if is_tensor else other
            for is_tensor, other in zip(ctx.are_tensors, ctx.others, strict=True)
        ]
        results = list(saved) if ctx.operator.needs_results else None
        gradients = ctx.operator.gradients(args, results, grads, ctx.needs_input_grad[2:])
        return (None, None, *gradients, *[None] * (len(args) - len(gradients)))
