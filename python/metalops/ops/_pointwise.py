"""The decorator that makes a pointwise operator's Python face of its declaration.

A module of this package declares an operator by a function without a body::

    @pointwise
    def softcap(input: Tensor, cap: float) -> Tensor:
        \"\"\"``cap tanh(x / cap)``.\"\"\"

That is the only place in Python where its name stands. The dispatcher knows what else there is to say of it, from
``csrc/ops``: its overloads, how many of its arguments are tensors, whether it halves the only one (it is not tagged as
pointwise then), and the operators that autograd calls for it. From these follow the function with ``out=``, the in-place
form with a trailing underscore, fake kernels and rules for torch.vmap.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType

import torch
from torch import Tensor

from .._torch_internals import OpOverload, has_kernel, schema
from . import fake
from ._call import direct, is_dynamo_compiling, through_torch_ops
from .vmap import register_vmap


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
    declaration: FunctionType | None = None, *, integers_stay: bool = False
) -> Callable[..., Tensor]:
    """Makes the operator that a function without a body declares. integers_stay: see Operator."""
    if declaration is None:
        return functools.partial(pointwise, integers_stay=integers_stay)
    name = declaration.__name__
    overload = getattr(torch.ops.metalops, name).default
    operands = _tensors(overload)
    halving = torch.Tag.pointwise not in overload.tags
    function = _face(declaration, name, declaration.__doc__)
    inplace = None
    if _is_defined(f"{name}_"):
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
