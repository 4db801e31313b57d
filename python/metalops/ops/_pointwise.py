"""The decorator that makes a pointwise operator of its declaration.

A module of this package declares an operator by a function that computes it with torch's operators::

    @pointwise(gradient=_softcap_gradient)
    def softcap(input: Tensor, cap: float) -> Tensor:
        \"\"\"``cap tanh(x / cap)``.\"\"\"
        return cap * torch.tanh(input / cap)

That is the only place in Python where its name stands. The function runs for tensors that are not on ``mps``, of float32
for floating-point operands of whatever precision. What else there is to say of the operator the dispatcher knows, from
``csrc/ops``: its overloads, and the operators that autograd calls for it. From these follow the function with ``out=``, the
in-place form with a trailing underscore, fake kernels and rules for torch.vmap. Without the compiled parts of metalops the
operator is defined from its declaration.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType

import torch
from torch import Tensor

from .. import _problem
from .._torch_internals import OpOverload, has_kernel, schema
from . import _definition, _elsewhere, fake
from ._call import direct, is_dynamo_compiling, through_torch_ops
from .vmap import register_vmap

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# Where operators of this package run besides mps.
_KEYS = ("CPU", "CUDA")

# gradient(grad_output, *operands, *numbers): the gradients of the operands, in float32 all.
Gradient = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class Operator:
    """A declared operator.

    inplace: the in-place form, if there is one. operands: how many tensors it takes. halving: whether it takes the two
    halves of its only one. integers_stay: whether integers stay integers, and bool is refused.
    """

    function: Callable[..., Tensor]
    inplace: Callable[..., Tensor] | None
    operands: int
    halving: bool
    integers_stay: bool


# By name, in the order of declaration.
declared: dict[str, Operator] = {}


def pointwise(
    *, gradient: Gradient, integers_stay: bool = False, halving: bool = False, rounds: bool = False
) -> Callable[[FunctionType], Callable[..., Tensor]]:
    """Makes the operator that a function declares. gradient: of a halving operator, of the two halves. rounds: whether the
    function takes floating-point operands in the dtype that they have in common.
    """
    return functools.partial(_declare, gradient, integers_stay, halving, rounds)


def _declare(
    gradient: Gradient,
    integers_stay: bool,
    halving: bool,
    rounds: bool,
    declaration: FunctionType,
) -> Callable[..., Tensor]:
    name = declaration.__name__
    parameters = list(inspect.signature(declaration).parameters.values())
    operands = sum(p.annotation == "Tensor" for p in parameters)
    if _problem is not None:
        _define(name, parameters, gradient, halving)
    numbers = [(p.name, p.default) for p in parameters[operands:]]
    _implement(name, declaration, gradient, operands, numbers, integers_stay, halving, rounds)
    function = _face(declaration, name, declaration.__doc__)
    inplace = None
    if not halving:
        where = (
            "in place" if operands == 1 else f"written to ``{function.__code__.co_varnames[0]}``"
        )
        inplace = _face(declaration, f"{name}_", f":func:`{name}`, {where}.")
    declared[name] = Operator(function, inplace, operands, halving, integers_stay)
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
    gradient: Gradient,
    operands: int,
    numbers: _elsewhere.Numbers,
    integers_stay: bool,
    halving: bool,
    rounds: bool,
) -> None:
    """Registers the kernels for tensors that are not on mps."""

    def compute(outputs, inputs, scalars) -> None:
        dtype = _elsewhere.promoted_dtype(inputs, not integers_stay)
        if dtype.is_floating_point and not rounds:
            dtype = torch.float32
        outputs[0].copy_(declaration(*(x.to(dtype) for x in inputs), *scalars))

    def compute_gradients(outputs, inputs, scalars) -> None:
        gradients = gradient(*(x.float() for x in inputs), *scalars)
        for output, value in zip(outputs, gradients, strict=False):
            output.copy_(value)

    operator = _elsewhere.Operator(
        name,
        operands,
        numbers,
        frozenset([*_FLOATS, *_INTEGERS, *([] if integers_stay else [torch.bool])]),
        compute,
        integers_to_float=not integers_stay,
        halving=halving,
    )
    backward = f"{name}_backward"
    library = fake.fragment("metalops")
    for key in _KEYS:
        _elsewhere.implement(library, operator, key)
        if _is_defined(backward):
            overload = getattr(torch.ops.metalops, backward).default
            kernel = _elsewhere.Backward(
                backward,
                _tensors(overload),
                numbers,
                len(schema(overload).returns),
                compute_gradients,
                halving,
            )
            library.impl(backward, kernel, key)


def _define(
    name: str, parameters: list[inspect.Parameter], gradient: Gradient, halving: bool
) -> None:
    """Makes the operator, where there are no compiled parts that do."""

    def gradients(wanted, grads, *args) -> list[Tensor]:
        missing = [p.default for p in parameters[len(args) :]]
        wide = [x.float() if isinstance(x, Tensor) else x for x in (*grads, *args, *missing)]
        if not halving:
            return list(gradient(*wide))
        grad, whole, *numbers = wide
        return [torch.cat(gradient(grad, *fake.halves(name, whole), *numbers), dim=-1)]

    arguments = []
    for parameter in parameters:
        called = "self" if parameter.name == "input" else parameter.name
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        arguments.append(f"{parameter.annotation} {called}{default}")
    _definition.define(
        "metalops",
        name,
        ", ".join(arguments),
        pointwise=not halving,
        has_inplace=not halving,
        gradient=gradients,
    )


def _is_defined(name: str) -> bool:
    return has_kernel(f"metalops::{name}")


def _tensors(overload: OpOverload) -> int:
    return sum(str(argument.type) == "Tensor" for argument in schema(overload).arguments)


def _face(declaration: FunctionType, name: str, doc: str | None) -> FunctionType:
    """The function ``name`` with the declaration's parameters, and ``out`` unless it works in place."""
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
