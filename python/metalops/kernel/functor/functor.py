"""Elementwise operators from Metal expressions: ``metalops.functor``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from ... import _locks, _problem
from ..._torch.internals import schema, schemas_of
from ...ops._define import elsewhere, fake, overloads
from ...ops._define.vmap import register_vmap
from ..compile import compile_library
from . import metal_text, torch_formula
from .cuda_launch import Launcher
from .definition import Definition, define, dtypes

_functors: dict[str, Functor] = {}
_lock = _locks.recursive_lock()


def functor(
    name: str,
    text: str | Sequence[str],
    *,
    inputs: str | Sequence[str] = ("x",),
    params: Mapping[str, bool | int | float | type] | None = None,
    grad: str | Sequence[str] | None = None,
    torch_grad: Callable[..., Tensor | Sequence[Tensor]] | None = None,
    outputs: str | Sequence[str] | None = None,
    header: str = "",
    integers: str = "float",
    complex: bool | str = False,
    result: str = "promote",
    autocast: str = "promote",
    doc: str | None = None,
) -> Functor:
    """Makes an elementwise operator out of a Metal expression.

    >>> import torch, metalops
    >>> mish = metalops.functor(
    ...     "mish",
    ...     "x * tanh(log(1 + exp(x)))",
    ...     grad="grad * (tanh(log(1 + exp(x))) + x * (1 - pow(tanh(log(1 + exp(x))), 2.0f)) / (1 + exp(-x)))",
    ... )
    >>> x = torch.linspace(-2, 2, 5, device="mps", requires_grad=True)
    >>> mish(x).sum().backward()
    >>> torch.allclose(x.grad.cpu(), torch.func.grad(lambda t: torch.nn.functional.mish(t).sum())(x.detach().cpu()))
    True
    >>> mish
    <metalops.functor metalops_functors::mish(Tensor x) -> Tensor>

    The result is a native operator: it broadcasts, promotes dtypes, takes strided tensors, Python numbers among tensors,
    tensors on the CPU without dimensions, ``out=``, runs in place (``mish.inplace``), can be differentiated, runs on mps and
    on cuda, and works under autocast, torch.vmap, torch.compile and torch.export (as ``torch.ops.<namespace>.<name>``).

    name: "mish", or "ns::mish" for another namespace than ``metalops_functors``. Operators live as long as the process:
    the same definition again returns the same functor, another one of the same name is a ValueError, because compiled
    graphs and saved programs refer to an operator by its name.

    text: a Metal expression over the inputs and the parameters; or one for each of several results; or a functor as in
    Metal files, the text of a ``struct <name>_functor`` with an ``operator()`` that takes the inputs and then the
    parameters (and returns a ``metal::array`` if there are several results). Elements of float32, float16 and bfloat16
    tensors are float in it, so half precision rounds once; elements of complex tensors (complex64 and complex32) are
    float2, for which ``c10::metal::mul`` and other helpers of torch are in scope.

    inputs: the names of the tensors. params: the names of scalars with their default values (or their types, if they
    have none); callers give them by keyword. A float is a ``float`` in Metal, an int a ``long``, a bool a ``bool``.

    grad: for each input an expression for its gradient, over the inputs, the parameters, ``out`` (recomputed) and
    ``grad``, the gradient of the result. With several results these are called ``out0``, ``out1`` ... or as
    ``outputs`` says, and their gradients ``grad_out0`` ... . For complex inputs the gradient is that of torch, the
    conjugate one. Tangents (forward mode) of real inputs come from it as well. Without grad, both raise
    NotImplementedError.

    torch_grad: the same gradient as grad in differentiable operators of torch, for derivatives of the gradient. It
    takes the gradients of the results, the inputs, in float32 or complex64, and the parameters by keyword, and returns the
    inputs' gradients, one or a sequence. Needed only where grad cannot be read: expressions of real inputs that consist of
    arithmetic, comparisons, ``?:``, Metal's mathematical functions and those of the header that return one expression, all
    in float, have derivatives of any order without it. The others raise NotImplementedError.

    header: Metal text before everything else: helper functions, constants, ``#include`` lines.

    integers: "float" if integer and bool inputs become the default dtype, as with torch.sigmoid; "stay" if results have
    their dtype, as with torch.square; "refuse" if they raise NotImplementedError. complex: whether complex inputs are
    accepted too; "only" rejects all others. result: "promote" for the common dtype of the inputs, "bool" for a
    predicate, "real" for its real dtype, as with torch.abs. autocast: what torch.autocast does with floating-point
    inputs: "promote" leaves them, and the widest decides, "float32" and "lower_precision" cast them. doc: the functor's
    docstring; its schema and text by default.

    Raises TypeError and ValueError for wrong arguments. Metal text that does not compile is a SyntaxError at the first
    call, at the line and column of ``<name>.expression``, ``<name>.grad[0]``, ``<name>.functor`` or ``<name>.header``.
    """
    definition = define(
        name,
        text,
        inputs,
        params,
        grad,
        torch_grad,
        outputs,
        header,
        integers,
        complex,
        result,
        autocast,
        doc,
    )
    return _functor_of(definition)


def _functor_of(definition: Definition) -> Functor:
    """Returns the functor of a definition, which is made unless there is one."""
    name = definition.qualified_name
    with _lock:
        known = _functors.get(name)
        if known is None:
            known = _functors[name] = Functor(definition)
    if known.definition != definition:
        raise ValueError(
            f"functor {definition.name!r} is already defined in this process as something else ({_difference(known.definition, definition)}); "
            f"operators cannot be redefined, choose another name"
        )
    return known


def _difference(one: Definition, other: Definition) -> str:
    names = [x for x in one.__dataclass_fields__ if getattr(one, x) != getattr(other, x)]
    return f"with other {' and '.join(names)}"


class Functor:
    """An elementwise operator made by metalops.functor, which also describes the arguments.

    Called with the tensors by position, the parameters by keyword, and ``out=`` (a tuple of tensors if there are several
    results). Functors are pickled by their definition.
    """

    def __init__(self, definition: Definition):
        d = definition
        self.definition = d
        self.__name__ = self.__qualname__ = d.name
        self.__doc__ = d.doc or f"{d.schema}, elementwise:\n\n{', '.join(d.expressions)}"
        namespace = getattr(torch.ops, d.namespace)
        for name in (d.name, f"{d.name}_", f"{d.name}_backward"):
            if schemas_of(f"{d.namespace}::{name}"):
                raise ValueError(
                    f"functor {d.name!r}: there already is an operator {d.namespace}::{name}"
                )
        needed = metal_text.needed_by_gradient(d)
        backward = "" if d.grad is None else d.backward_schema(needed)
        formula = torch_formula.formula(d, needed) if backward else ""
        if _problem is None:
            from ... import _C

            _C.define_functor(
                d.schema,
                backward,
                dtypes(d),
                d.integers,
                d.result,
                d.autocast,
                self._compiled,
                formula,
            )
        else:
            _define(d, backward, formula)
        _implement(d, backward, needed, "CUDA")
        if d.autocast != "promote":
            autocast = functools.partial(_autocast, d)
            fake.fragment(d.namespace).impl(d.name, autocast, "AutocastCUDA")
        _register_rules(d, backward)
        self.op = getattr(namespace, d.name)
        self._inplace_op = getattr(namespace, f"{d.name}_").default if d.has_inplace else None
        self._direct, self._direct_inplace = self._general, self._general_inplace
        if _problem is None:
            self._direct = _C.direct_call(d.qualified_name, self._general, numbers=True)
            if d.has_inplace:
                self._direct_inplace = _C.direct_call(
                    f"{d.qualified_name}_", self._general_inplace, numbers=True
                )
        self._out_names = (
            ("out",) if len(d.outputs) == 1 else tuple(f"out{i}" for i in range(len(d.outputs)))
        )

    def __call__(self, *args, **kwargs):
        if is_dynamo_compiling():
            return self._through_torch_ops(args, kwargs)
        return self._direct(*args, **kwargs)

    def inplace(self, *args, **kwargs) -> Tensor:
        """Computes the result in the first argument and returns it."""
        if self._inplace_op is None:
            raise NotImplementedError(
                f"{self.definition.name}: functors with several results or with results of another dtype do not work "
                "in place"
            )
        if is_dynamo_compiling():
            return self._inplace_op(*self._tensors(args), **kwargs)
        return self._direct_inplace(*args, **kwargs)

    def source(self, dtype: torch.dtype = torch.float32) -> str:
        """Returns the Metal source of the kernels for inputs of ``dtype``, without compiling it."""
        from ..dtypes import metal_type

        element = metal_type(self.definition.name, "dtype", dtype)
        if element not in self.definition.input_types:
            raise TypeError(f"{self.definition.name} does not take inputs of {dtype}")
        return metal_text.source(self.definition, element)

    @property
    def __signature__(self) -> inspect.Signature:
        d = self.definition
        parameter = inspect.Parameter
        parameters = [parameter(x, parameter.POSITIONAL_OR_KEYWORD) for x in d.inputs]
        for p in d.parameters:
            default = parameter.empty if p.default is None else p.default
            parameters.append(parameter(p.name, parameter.KEYWORD_ONLY, default=default))
        parameters.append(parameter("out", parameter.KEYWORD_ONLY, default=None))
        return inspect.Signature(parameters)

    def __repr__(self) -> str:
        return f"<metalops.functor {self.definition.schema}>"

    def __reduce__(self):
        return _functor_of, (self.definition,)

    def _compiled(self, element: str):
        from ... import _C

        source = metal_text.source(self.definition, element)
        owner = f"{self.definition.name} for {element}"
        return compile_library(owner, source, _C.ShaderLibrary)

    # The direct calls fall back to these for wrong arguments, and for those that torch.ops handles.

    def _general(self, *args, **kwargs):
        self._check(self.__signature__, args, kwargs)
        return self._through_torch_ops(args, kwargs)

    def _general_inplace(self, *args, **kwargs):
        signature = self.__signature__
        without_out = [p for p in signature.parameters.values() if p.name != "out"]
        self._check(signature.replace(parameters=without_out), args, kwargs)
        return self._inplace_op(*self._tensors(args), **kwargs)

    def _check(self, signature: inspect.Signature, args: tuple, kwargs: dict) -> None:
        d = self.definition
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{d.name}: {error}; it is called as {d.name}{signature}") from None
        for name in d.inputs:
            if not isinstance(given[name], (Tensor, bool, int, float, complex)):
                raise TypeError(
                    f"{d.name}: argument {name!r} must be a tensor or a number, but got {given[name]!r}"
                )
        if not any(isinstance(given[name], Tensor) for name in d.inputs):
            raise TypeError(f"{d.name}: at least one of {', '.join(d.inputs)} must be a tensor")
        for p in d.parameters:
            value = given.get(p.name, p.default)
            if not _is_number(value, p.kind):
                raise TypeError(
                    f"{d.name}: argument {p.name!r} must be a {p.kind.__name__}, but got {value!r}"
                )
        out = given.get("out")
        outs = (out,) if len(d.outputs) == 1 else out
        if out is not None and not (
            isinstance(outs, (tuple, list))
            and len(outs) == len(d.outputs)
            and all(isinstance(x, Tensor) for x in outs)
        ):
            wanted = "a tensor" if len(d.outputs) == 1 else f"{len(d.outputs)} tensors"
            raise TypeError(f"{d.name}: argument 'out' must be {wanted}, but got {out!r}")

    def _through_torch_ops(self, args: tuple, kwargs: dict):
        inputs = [
            kwargs.pop(name) for name in self.definition.inputs[len(args) :] if name in kwargs
        ]
        args = self._tensors((*args, *inputs))
        out = kwargs.pop("out", None)
        if out is None:
            return self.op.default(*args, **kwargs)
        outs = (out,) if len(self._out_names) == 1 else out
        return self.op.out(*args, **kwargs, **dict(zip(self._out_names, outs, strict=True)))

    @staticmethod
    def _tensors(args: tuple) -> tuple:
        """Returns the arguments with tensors in place of numbers, such that the result has the dtype that it has with
        them."""
        if all(isinstance(x, Tensor) for x in args):
            return args
        dimensionless = [x.dtype for x in args if isinstance(x, Tensor) and x.dim() == 0]
        return tuple(x if isinstance(x, Tensor) else _as_tensor(x, dimensionless) for x in args)


def _as_tensor(number: complex, dimensionless: list[torch.dtype]) -> Tensor:
    """Returns a tensor in place of a number among tensors; dimensionless: the dtypes of those without dimensions."""
    if not dimensionless:
        return torch.scalar_tensor(number, dtype=torch.tensor(number).dtype)
    dtype = functools.reduce(torch.promote_types, dimensionless)
    return torch.scalar_tensor(
        number, dtype=torch.result_type(torch.empty((), dtype=dtype), number)
    )


def _is_number(value: object, kind: type) -> bool:
    if kind is bool:
        return isinstance(value, bool)
    return isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)


def _arguments(schema: str) -> str:
    return schema[schema.index("(") + 1 : schema.index(") ->")]


def _define(d: Definition, backward: str, formula: Callable | str) -> None:
    """Defines the operators, if there are no compiled parts that do."""
    gradient = None
    if backward:
        name = f"{d.name}_backward"
        overloads.define_backward(d.namespace, name, _arguments(backward), len(d.inputs), formula)
        overload = getattr(getattr(torch.ops, d.namespace), name).default
        taken = [argument.name for argument in schema(overload).arguments]

        def gradient(wanted, grads, *inputs, **numbers):
            values = {p.name: p.default for p in d.parameters} | numbers
            values |= dict(zip((*d.gradient_names, *d.inputs), (*grads, *inputs), strict=True))
            if len(d.inputs) > 1:
                values["output_mask"] = list(wanted)
            results = overload(*(values[name] for name in taken))
            return results if len(d.inputs) > 1 else [results]

    overloads.define(
        d.namespace,
        d.name,
        _arguments(d.schema),
        results=len(d.outputs),
        has_inplace=d.has_inplace,
        gradient=gradient,
        is_differentiable=d.result != "bool",
    )


def _implement(d: Definition, backward: str, needed: frozenset[str], key: str) -> None:
    """Registers kernels that cuda_launch.py runs for a dispatch key."""
    library = fake.fragment(d.namespace)
    name = f"metalops_{d.name}"
    source = functools.partial(metal_text.source, d, for_mps=False)
    operator = elsewhere.Operator(
        d.name,
        len(d.inputs),
        [(p.name, p.default) for p in d.parameters],
        frozenset(dtypes(d)),
        Launcher(d.name, name, source, [p.kind for p in d.parameters], has_mask=False),
        results=len(d.outputs),
        integers_to_float=d.integers == "float",
        kind=d.result,
        uniform=True,
    )
    elsewhere.implement(library, operator, key)
    if backward:
        numbers = [p for p in d.parameters if p.name in needed]
        gradients = len(d.inputs)
        kernel = elsewhere.Backward(
            f"{d.name}_backward",
            _operands(backward),
            [(p.name, None) for p in numbers],
            gradients,
            Launcher(
                d.name,
                f"{name}_backward",
                functools.partial(source, is_backward=True),
                [p.kind for p in numbers],
                has_mask=gradients > 1,
            ),
        )
        library.impl(f"{d.name}_backward", kernel, key)


def _operands(schema: str) -> int:
    return _arguments(schema).count("Tensor ")


def _autocast(d: Definition, *args, **numbers):
    """Casts floating-point tensors as torch's autocast lists do, to float32 or to the lower precision."""
    dtype = torch.float32 if d.autocast == "float32" else torch.get_autocast_dtype("cuda")
    operator = getattr(getattr(torch.ops, d.namespace), d.name).default
    with torch.autocast("cuda", enabled=False):
        return operator(*(_cast(x, dtype) for x in args), **numbers)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    is_cast = x.is_cuda and x.is_floating_point() and x.dtype != torch.float64
    return x.to(dtype) if is_cast else x


def _register_rules(d: Definition, backward: str) -> None:
    """Registers fake kernels and vmap rules of all overloads."""
    name, inputs = d.qualified_name, len(d.inputs)
    fake.register_pointwise(
        name,
        inputs,
        integers_to_float=d.integers == "float",
        results=len(d.outputs),
        kind=d.result,
    )
    register_vmap(name, inputs)
    if backward:
        tensors = _operands(backward)
        fake.register_backward(f"{name}_backward", tensors, inputs)
        register_vmap(f"{name}_backward", tensors)
