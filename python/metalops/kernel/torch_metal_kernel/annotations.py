"""Reads the signature of an operator from the annotations of the Python function that defines it."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import get_args, get_origin

import torch

_SCALARS = (int, float, bool)
# The values of an int in Metal.
INT32 = range(-(2**31), 2**31)


@dataclass(frozen=True)
class Signature:
    """The signature of torch_defn. kinds: torch.Tensor, int, float or bool of each parameter. container: torch.Tensor
    for a function that returns one tensor, list or tuple for one that returns several."""

    kinds: tuple[type, ...]
    container: type

    def __str__(self) -> str:
        result = (
            "Tensor" if self.container is torch.Tensor else f"{self.container.__name__}[Tensor]"
        )
        return f"({', '.join(kind.__name__ for kind in self.kinds)}) -> {result}"


def read_signature(
    owner: str, function: Callable, input_names: Sequence[str], result_names: Sequence[str]
) -> Signature:
    """Returns the signature of torch_defn. Raises TypeError for annotations that a kernel does not support, ValueError
    for wrong counts."""
    if not callable(function):
        raise TypeError(f"{owner}: torch_defn must be a function, but got {function!r}")
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise TypeError(
            f"{owner}: an annotation of torch_defn cannot be evaluated ({error})"
        ) from error
    kinds = tuple(_kind(owner, parameter) for parameter in signature.parameters.values())
    if len(kinds) != len(input_names):
        raise ValueError(
            f"{owner}: torch_defn has {len(kinds)} parameters, but there are {len(input_names)} input names"
        )
    return Signature(kinds, _container(owner, signature.return_annotation, result_names))


def _kind(owner: str, parameter: inspect.Parameter) -> type:
    if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
        raise TypeError(
            f"{owner}: parameter {str(parameter)!r} of torch_defn is {parameter.kind.description}, "
            "but each parameter must be one positional input"
        )
    if parameter.annotation is torch.Tensor or parameter.annotation in _SCALARS:
        return parameter.annotation
    raise TypeError(
        f"{owner}: parameter {parameter.name!r} of torch_defn must be annotated torch.Tensor, int, float or bool, "
        f"but {_described(parameter.annotation)}"
    )


def _container(owner: str, annotation: object, result_names: Sequence[str]) -> type:
    count = len(result_names)
    if annotation is torch.Tensor:
        if count != 1:
            raise ValueError(
                f"{owner}: torch_defn returns one torch.Tensor, but there are {count} result names"
            )
        return torch.Tensor
    container, members = get_origin(annotation), get_args(annotation)
    if container not in (list, tuple) or any(member is not torch.Tensor for member in members):
        raise TypeError(
            f"{owner}: torch_defn must be annotated to return torch.Tensor, list[torch.Tensor] or "
            f"tuple[torch.Tensor, torch.Tensor] with one entry for each result, but {_described(annotation)}"
        )
    if container is tuple and len(members) != count:
        raise ValueError(
            f"{owner}: torch_defn returns a tuple of {len(members)} tensors, "
            f"but there are {count} result names"
        )
    return container


def _described(annotation: object) -> str:
    if annotation is inspect.Parameter.empty:
        return "there is no annotation"
    return f"the annotation is {inspect.formatannotation(annotation)}"


def scalar(owner: str, name: str, kind: type, value: object) -> int | float | bool:
    """Returns ``value`` as the int, float or bool that ``kind`` asks for. Raises TypeError for others, ValueError
    beyond int32."""
    if kind is float and isinstance(value, Real):
        return float(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and not isinstance(value, torch.Tensor):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if number not in INT32:
                raise ValueError(
                    f"{owner}: input {name!r} is {number}, which an int of Metal cannot hold"
                )
            return number
    raise TypeError(f"{owner}: input {name!r} must be of type {kind.__name__}, but got {value!r}")
