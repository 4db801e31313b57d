"""The definition of a functor: its parts, checked as far as that is possible without compiling."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ...msl.analysis.restrictions import MAX_BUFFERS
from ..identifiers import check_distinct, check_identifier, check_text, without_comments

NAMESPACE = "metalops_functors"

INTEGERS = ("float", "stay", "refuse")
RESULTS = ("promote", "bool", "real")
AUTOCAST = ("promote", "float32", "lower_precision")
COMPLEX = (False, True, "only")

FLOAT_TYPES = ("float", "half", "bfloat")
INTEGER_TYPES = ("long", "int", "short", "char", "uchar", "bool")
COMPLEX_TYPES = ("float2", "half2")

# Buffers of a kernel besides its operands and scalars: sizes, strides and number of dimensions.
_LAYOUT_BUFFERS = 3

_STRUCT = re.compile(r"\bstruct\s+([A-Za-z_][A-Za-z0-9_]*)")
_BRACKETS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class Parameter:
    """A scalar argument. kind: bool, int or float. default: None if callers have to give it."""

    name: str
    kind: type
    default: bool | int | float | None

    @property
    def schema(self) -> str:
        default = "" if self.default is None else f"={self.default!r}"
        return f"{self.kind.__name__} {self.name}{default}"


@dataclass(frozen=True)
class Definition:
    """The arguments of metalops.functor, complete and normalised.

    expressions: one for each result, or the text of a struct if is_struct. outputs: the names of the results in the
    gradients. grad: one expression for each input, or None.
    """

    namespace: str
    name: str
    expressions: tuple[str, ...]
    is_struct: bool
    inputs: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    outputs: tuple[str, ...]
    grad: tuple[str, ...] | None
    torch_grad: Callable | None
    header: str
    integers: str
    complex: bool | str
    result: str
    autocast: str
    doc: str | None

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}::{self.name}"

    @property
    def gradient_names(self) -> tuple[str, ...]:
        """The names of the results' gradients in the expressions of grad."""
        return ("grad",) if len(self.outputs) == 1 else tuple(f"grad_{x}" for x in self.outputs)

    @property
    def has_inplace(self) -> bool:
        return len(self.outputs) == 1 and self.result == "promote"

    @property
    def input_types(self) -> tuple[str, ...]:
        """The Metal types of the elements that inputs may have."""
        real = FLOAT_TYPES + (INTEGER_TYPES if self.integers != "refuse" else ())
        return (real if self.complex != "only" else ()) + (COMPLEX_TYPES if self.complex else ())

    @property
    def schema(self) -> str:
        """The schema of the functional overload."""
        arguments = [f"Tensor {x}" for x in self.inputs]
        if self.parameters:
            arguments += ["*", *(p.schema for p in self.parameters)]
        return f"{self.qualified_name}({', '.join(arguments)}) -> {_returns(len(self.outputs))}"

    def backward_schema(self, needed: Sequence[str]) -> str:
        """Returns the schema of the operator that differentiates. needed: the inputs and parameters that it takes."""
        arguments = [f"Tensor {x}" for x in (*self.gradient_names, *self.inputs)]
        arguments = [x for x in arguments if x.split()[1] in (*self.gradient_names, *needed)]
        arguments += [f"{p.kind.__name__} {p.name}" for p in self.parameters if p.name in needed]
        return f"{self.qualified_name}_backward({', '.join(arguments)}) -> {_returns(len(self.inputs))}"


def _returns(count: int) -> str:
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


def define(
    name: str,
    text: str | Sequence[str],
    inputs: str | Sequence[str],
    params: Mapping[str, object] | None,
    grad: str | Sequence[str] | None,
    torch_grad: Callable | None,
    outputs: str | Sequence[str] | None,
    header: str,
    integers: str,
    complex: bool | str,
    result: str,
    autocast: str,
    doc: str | None,
) -> Definition:
    """Checks the arguments of metalops.functor. Raises TypeError or ValueError."""
    namespace, base = _split_name(name)
    owner = f"functor {base!r}"
    _choose(owner, "integers", integers, INTEGERS)
    _choose(owner, "complex", complex, COMPLEX)
    _choose(owner, "result", result, RESULTS)
    _choose(owner, "autocast", autocast, AUTOCAST)
    if doc is not None and not isinstance(doc, str):
        raise TypeError(f"{owner}: doc must be a string, but got {doc!r}")
    check_text(owner, "header", header)

    inputs = _strings(owner, "inputs", inputs)
    if not inputs:
        raise ValueError(f"{owner}: inputs must name at least one tensor")
    texts = _strings(owner, "text", text)
    if not texts:
        raise ValueError(f"{owner}: text must have at least one expression")
    is_struct = len(texts) == 1 and _check_struct(owner, base, texts[0])
    if not is_struct:
        for i, expression in enumerate(texts):
            _check_expression(
                owner, "expression" if len(texts) == 1 else f"expression {i}", expression
            )
    results = len(texts)
    if outputs is not None:
        outputs = _strings(owner, "outputs", outputs)
        if not outputs:
            raise ValueError(f"{owner}: outputs must name at least one result")
        if not is_struct and len(outputs) != results:
            raise ValueError(f"{owner}: {len(outputs)} outputs, but {results} expressions")
        results = len(outputs)
    else:
        outputs = ("out",) if results == 1 else tuple(f"out{i}" for i in range(results))
    parameters = _parameters(owner, params)

    definition = Definition(
        namespace=namespace,
        name=base,
        expressions=texts,
        is_struct=is_struct,
        inputs=inputs,
        parameters=parameters,
        outputs=outputs,
        grad=_gradients(owner, grad, inputs, result),
        torch_grad=_torch_gradient(owner, torch_grad, grad),
        header=header,
        integers=integers,
        complex=complex,
        result=result,
        autocast=autocast,
        doc=doc,
    )
    _check_names(owner, definition)
    _check_buffers(owner, definition)
    return definition


def _split_name(name: object) -> tuple[str, str]:
    if not isinstance(name, str):
        raise TypeError(f"functor: name must be a string, but got {name!r}")
    namespace, separator, base = name.rpartition("::")
    owner = f"functor {name!r}"
    check_identifier(owner, "name", base)
    if keyword.iskeyword(base):
        raise ValueError(f"{owner}: the name is a word that Python reserves")
    if base.endswith("_"):
        raise ValueError(
            f"{owner}: a name that ends in '_' is that of an in-place operator, which is made beside the functor"
        )
    if separator:
        check_identifier(owner, "namespace", namespace)
        if namespace in ("aten", "prim", "prims"):
            raise ValueError(f"{owner}: the namespace {namespace!r} belongs to torch")
    return namespace or NAMESPACE, base


def _choose(owner: str, role: str, value: object, choices: tuple) -> None:
    if not any(value is choice or (value == choice and type(value) is str) for choice in choices):
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{owner}: {role} must be one of {listed}, but got {value!r}")


def _strings(owner: str, role: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence) or not all(isinstance(x, str) for x in value):
        raise TypeError(
            f"{owner}: {role} must be a string or a sequence of strings, but got {value!r}"
        )
    return tuple(value)


def _check_struct(owner: str, base: str, text: str) -> bool:
    """Returns true if the text is a functor rather than an expression."""
    code = without_comments(text)
    structs = _STRUCT.findall(code)
    if not structs:
        return False
    if f"{base}_functor" not in structs:
        raise ValueError(
            f"{owner}: the text has no struct {base}_functor, but struct {', struct '.join(structs)}"
        )
    _check_brackets(owner, "text", code)
    return True


def _check_expression(owner: str, role: str, text: str) -> None:
    code = without_comments(text)
    if not code.strip():
        raise ValueError(f"{owner}: {role} is empty")
    for character in ";{}#\\":
        if character in code:
            raise ValueError(
                f"{owner}: {role} must be one Metal expression, but has a {character!r}: {text!r}"
            )
    _check_brackets(owner, role, code)


def _check_brackets(owner: str, role: str, code: str) -> None:
    open_brackets = []
    for character in code:
        if character in _BRACKETS.values():
            open_brackets.append(character)
        elif character in _BRACKETS and (
            not open_brackets or open_brackets.pop() != _BRACKETS[character]
        ):
            raise ValueError(f"{owner}: {role} has a {character!r} that closes nothing")
    if open_brackets:
        raise ValueError(f"{owner}: {role} has a {open_brackets[-1]!r} that is not closed")


def _parameters(owner: str, params: object) -> tuple[Parameter, ...]:
    if params is None:
        return ()
    if not isinstance(params, Mapping):
        raise TypeError(
            f"{owner}: params must be a dict from names to default values or to types, but got {params!r}"
        )
    result = []
    for name, default in params.items():
        check_identifier(owner, "parameter name", name)
        kind = default if isinstance(default, type) else type(default)
        if kind not in (bool, int, float):
            raise TypeError(
                f"{owner}: parameter {name!r} must have a bool, an int or a float as its default value, or one of "
                f"these types if it has none, but got {default!r}"
            )
        if kind is int and default is not int and not -(2**63) <= default < 2**63:
            raise ValueError(f"{owner}: the default of parameter {name!r} does not fit in 64 bits")
        if kind is float and default is not float and default - default != 0:
            raise ValueError(
                f"{owner}: the default of parameter {name!r} must be finite, as schemas have no {default!r}"
            )
        result.append(Parameter(name, kind, None if default is kind else default))
    return tuple(result)


def _gradients(
    owner: str, grad: object, inputs: tuple[str, ...], result: str
) -> tuple[str, ...] | None:
    if grad is None:
        return None
    if result == "bool":
        raise ValueError(f"{owner}: results of dtype bool have no gradients, but grad is given")
    grad = _strings(owner, "grad", grad)
    if len(grad) != len(inputs):
        raise ValueError(
            f"{owner}: grad must have one expression for each of the {len(inputs)} inputs, but has {len(grad)}"
        )
    for i, expression in enumerate(grad):
        _check_expression(owner, f"grad[{i}]", expression)
    return grad


def _torch_gradient(owner: str, function: object, grad: object) -> Callable | None:
    if function is not None and not callable(function):
        raise TypeError(f"{owner}: torch_grad must be a function, but got {function!r}")
    if function is not None and grad is None:
        raise ValueError(f"{owner}: torch_grad says once more what grad does, which is not given")
    return function


def _check_names(owner: str, d: Definition) -> None:
    for role, names in (("input name", d.inputs), ("output name", d.outputs)):
        for name in names:
            check_identifier(owner, role, name)
    parameters = [p.name for p in d.parameters]
    for name in (*d.inputs, *parameters):
        if name.startswith("metalops_"):
            raise ValueError(f"{owner}: names that start with 'metalops_' are taken, as {name!r}")
        if keyword.iskeyword(name):
            raise ValueError(f"{owner}: the name {name!r} is a word that Python reserves")
        if re.fullmatch(r"out[0-9]*|self", name):
            raise ValueError(f"{owner}: the name {name!r} has a meaning of its own")
    check_distinct(
        owner,
        [
            ("input names", d.inputs),
            ("parameter names", parameters),
            ("output names", d.outputs),
            ("the names of the gradients", d.gradient_names),
        ],
    )


def _check_buffers(owner: str, d: Definition) -> None:
    forward = len(d.outputs) + len(d.inputs)
    backward = 0 if d.grad is None else 2 * len(d.inputs) + len(d.outputs)
    for role, operands, mask in (("", forward, 0), ("its gradient, ", backward, len(d.inputs) > 1)):
        buffers = operands + len(d.parameters) + mask + _LAYOUT_BUFFERS
        if buffers > MAX_BUFFERS:
            raise ValueError(
                f"{owner}: {role}{operands} tensors and {len(d.parameters)} parameters, takes {buffers} buffers with "
                f"the layout, but a Metal kernel has at most {MAX_BUFFERS}"
            )


def dtypes(definition: Definition) -> list[torch.dtype]:
    """Returns the dtypes that inputs may have."""
    from ..dtypes import METAL_TYPES

    return [dtype for dtype, metal in METAL_TYPES.items() if metal in definition.input_types]
