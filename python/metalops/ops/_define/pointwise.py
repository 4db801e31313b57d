"""The decorator that makes a pointwise operator of its declaration.

A module of this package declares an operator by a function that computes it with torch's operators::

    @pointwise(gradient=_softcap_gradient)
    def softcap(input: Tensor, cap: float) -> Tensor:
        \"\"\"``cap tanh(x / cap)``.\"\"\"
        return cap * torch.tanh(input / cap)

This is the only place in Python that names the operator. The function runs for tensors of the CPU, in float32 for
floating-point operands of any precision; for those on ``cuda`` the functor of its kernel file does (see on_cuda.py).
The dispatcher knows the rest about the operator, from ``csrc/ops``: its overloads, and the operators that autograd
calls for it. From these follow the function with ``out=``, the in-place form with a trailing underscore, fake kernels
and rules for torch.vmap. Without the compiled parts of metalops the operator is defined from its declaration.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import NamedTuple

import torch
from torch import Tensor

from ... import _problem
from ..._torch.internals import OpOverload, has_kernel, schema
from . import elsewhere as _elsewhere
from . import fake, on_cuda, overloads
from .call import direct, is_dynamo_compiling, through_torch_ops
from .vmap import register_vmap

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# gradient(grad_output, *operands, *numbers): the gradients of the operands, all in float32.
Gradient = Callable[..., Sequence[Tensor]]


class Elsewhere(NamedTuple):
    """The implementation for tensors that are not on mps, and for their gradients, or None without an operator."""

    operator: _elsewhere.Operator
    backward: _elsewhere.Backward | None


@dataclass(frozen=True)
class Operator:
    """A declared operator.

    inplace: the in-place form, if there is one. operands: how many tensors it takes. halving: true if it takes the two
    halves of its only one. integers_stay: true if integers stay integers, and bool is rejected. elsewhere: by dispatch
    key. declaration: the function that computes it with torch's operators.
    """

    declaration: Callable[..., Tensor]
    function: Callable[..., Tensor]
    inplace: Callable[..., Tensor] | None
    operands: int
    halving: bool
    integers_stay: bool
    elsewhere: Mapping[str, Elsewhere]


# By name, in the order of declaration.
declared: dict[str, Operator] = {}


@dataclass(frozen=True)
class _Declaration:
    """The arguments of pointwise()."""

    gradient: Gradient
    integers_stay: bool = False
    halving: bool = False
    rounds: bool = False
    functor: str | None = None
    swapped: bool = False
    shares_backward: str | None = None
    check: Callable[..., None] | None = None


def pointwise(*, gradient: Gradient, **about) -> Callable[[FunctionType], Callable[..., Tensor]]:
    """Makes the operator that a function declares.

    gradient: for a halving operator, of the two halves. integers_stay: true if integers stay integers, and bool is
    rejected. halving: true if it takes the two halves of its only operand. rounds: true if the function takes
    floating-point operands in their common dtype. functor: of kernels/<module>.metal, without "_functor" at the end; by
    default the operator's name. swapped: true if it takes the operands in reverse order. shares_backward: another
    operator whose gradient operator it uses. check: raises for wrong numbers.
    """
    return functools.partial(_declare, _Declaration(gradient, **about))


def _declare(about: _Declaration, declaration: FunctionType) -> Callable[..., Tensor]:
    integers_stay, halving = about.integers_stay, about.halving
    name = declaration.__name__
    parameters = list(inspect.signature(declaration).parameters.values())
    operands = sum(p.annotation == "Tensor" for p in parameters)
    if _problem is not None:
        _define(name, parameters, about)
    numbers = [(p.name, p.default) for p in parameters[operands:]]
    elsewhere = _implement(name, declaration, about, operands, numbers)
    function = _face(declaration, name, declaration.__doc__)
    inplace = None
    if not halving:
        where = (
            "in place" if operands == 1 else f"written to ``{function.__code__.co_varnames[0]}``"
        )
        inplace = _face(declaration, f"{name}_", f":func:`{name}`, {where}.")
    declared[name] = Operator(
        declaration, function, inplace, operands, halving, integers_stay, elsewhere
    )
    if inplace is not None:
        setattr(sys.modules[declaration.__module__], f"{name}_", inplace)

    if halving:
        fake.register_halving(f"metalops::{name}", integers_to_float=not integers_stay)
    else:
        fake.register_pointwise(f"metalops::{name}", operands, integers_to_float=not integers_stay)
    register_vmap(f"metalops::{name}", operands, needs_dimension=halving)
    backward = f"{name}_backward"
    if _is_defined(backward):
        overload = getattr(torch.ops.metalops, backward).default
        if not halving:
            fake.register_backward(
                f"metalops::{backward}", _tensors(overload), len(schema(overload).returns)
            )
        register_vmap(f"metalops::{backward}", _tensors(overload), needs_dimension=halving)
    return function


def _implement(
    name: str,
    declaration: FunctionType,
    about: _Declaration,
    operands: int,
    numbers: _elsewhere.Numbers,
) -> dict[str, Elsewhere]:
    """Registers the kernels for tensors that are not on mps; returns them by dispatch key."""

    def compute(outputs, inputs, scalars) -> None:
        dtype = _elsewhere.promoted_dtype(inputs, not about.integers_stay)
        if dtype.is_floating_point and not about.rounds:
            dtype = torch.float32
        outputs[0].copy_(declaration(*(x.to(dtype) for x in inputs), *scalars))

    def compute_gradients(outputs, inputs, scalars) -> None:
        gradients = about.gradient(*(x.float() for x in inputs), *scalars)
        for output, value in zip(outputs, gradients, strict=False):
            output.copy_(value)

    backward = f"{name}_backward"
    tensors, gradients = 0, 0
    if _is_defined(backward):
        overload = getattr(torch.ops.metalops, backward).default
        tensors, gradients = _tensors(overload), len(schema(overload).returns)
    kernels = on_cuda.Kernels(
        file=declaration.__module__.rpartition(".")[2],
        functor=about.functor or name,
        operands=2 if about.halving else operands,
        numbers=len(numbers),
        gradients=2 if about.halving else gradients,
        halving=about.halving,
        swapped=about.swapped,
        integers_stay=about.integers_stay,
        rounds=about.rounds,
    )
    by_key = {
        "CPU": (compute, compute_gradients),
        "CUDA": (kernels.compute(compute), kernels.compute_gradients(compute_gradients)),
    }
    library = fake.fragment("metalops")
    result = {}
    for key, (computes, computes_gradients) in by_key.items():
        operator = _elsewhere.Operator(
            name,
            operands,
            numbers,
            frozenset([*_FLOATS, *_INTEGERS, *([] if about.integers_stay else [torch.bool])]),
            computes,
            integers_to_float=not about.integers_stay,
            halving=about.halving,
            uniform=key == "CUDA",
            check=about.check,
        )
        _elsewhere.implement(library, operator, key)
        kernel = None
        if gradients:
            kernel = _elsewhere.Backward(
                backward, tensors, numbers, gradients, computes_gradients, about.halving
            )
            library.impl(backward, kernel, key)
        result[key] = Elsewhere(operator, kernel)
    return result


def _define(name: str, parameters: list[inspect.Parameter], about: _Declaration) -> None:
    """Defines the operator and its gradient operator, if there are no compiled parts that do."""
    arguments = []
    for parameter in parameters:
        called = "self" if parameter.name == "input" else parameter.name
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        arguments.append(f"{parameter.annotation} {called}{default}")
    operands = sum(p.annotation == "Tensor" for p in parameters)
    # The gradient of an operand that the gradient function does not take is that of the result.
    kinds = [p.kind for p in inspect.signature(about.gradient).parameters.values()]
    taken = operands - kinds.count(inspect.Parameter.VAR_POSITIONAL)
    backward = f"{about.shares_backward or name}_backward"
    if about.shares_backward is None:
        given = [*arguments[:taken], *(a.partition("=")[0] for a in arguments[operands:])]
        overloads.define_backward(
            "metalops",
            backward,
            ", ".join(["Tensor grad_output", *given]),
            taken,
            functools.partial(_formula, name, about),
        )
    overload = getattr(torch.ops.metalops, backward).default

    def gradients(wanted, grads, *args) -> list[Tensor]:
        args = [*args, *(p.default for p in parameters[len(args) :])]
        mask = {"output_mask": list(wanted[:taken])} if taken > 1 else {}
        results = overload(*grads, *args[:taken], *args[operands:], **mask)
        return [*(results if taken > 1 else [results]), *(grads * (operands - taken))]

    overloads.define(
        "metalops",
        name,
        ", ".join(arguments),
        pointwise=not about.halving,
        has_inplace=not about.halving,
        gradient=gradients,
    )


def _formula(
    name: str, about: _Declaration, tensors: Sequence[Tensor], numbers: Sequence[float]
) -> list[Tensor]:
    """Returns the gradients in operators of torch, which can be differentiated again."""
    if not about.halving:
        return list(about.gradient(*tensors, *numbers))
    grad, whole = tensors
    return [torch.cat(about.gradient(grad, *fake.halves(name, whole), *numbers), dim=-1)]


def _is_defined(name: str) -> bool:
    return has_kernel(f"metalops::{name}")


def _tensors(overload: OpOverload) -> int:
    return sum(str(argument.type) == "Tensor" for argument in schema(overload).arguments)


def _face(declaration: FunctionType, name: str, doc: str | None) -> FunctionType:
    """Returns the function ``name`` with the declaration's parameters, and ``out`` unless it works in place."""
    count = declaration.__code__.co_argcount
    arguments = ", ".join(declaration.__code__.co_varnames[:count])
    inplace = name != declaration.__name__
    text = f"""
def make(is_dynamo_compiling, through_torch_ops, direct):
    def {name}({arguments}{"" if inplace else ", *, out=None"}):
        if is_dynamo_compiling():
            return through_torch_ops({name!r}, {arguments}{"" if inplace else ", out=out"})
        return direct({arguments}{"" if inplace else ", out"})
    return {name}
"""
    # Tracebacks show the declaration.
    code = declaration.__code__
    scope: dict[str, Callable] = {}
    exec(compile("\n" * (code.co_firstlineno - 3) + text, code.co_filename, "exec"), scope)
    function = scope["make"](is_dynamo_compiling, through_torch_ops, direct(name))
    function.__module__ = declaration.__module__
    function.__qualname__ = name
    function.__doc__ = doc
    function.__defaults__ = declaration.__defaults__
    function.__annotations__ = dict(declaration.__annotations__)
    if not inplace:
        function.__annotations__["out"] = "Tensor | None"
    return function
