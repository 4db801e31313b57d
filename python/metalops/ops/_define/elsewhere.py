"""Pointwise operators on tensors that are not on ``mps``: kernels in Python with TensorIterator's semantics.

They broadcast, promote dtypes, take strided tensors and tensors without dimensions of the CPU, write to ``out=`` and in
place, and raise what the operators of <metalops/pointwise.h> raise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._torch.internals import (
    PromotionKind,
    elementwise_dtypes,
    is_cpu_scalar_tensor,
    maybe_resize_out,
)
from . import fake

# The names and defaults of an operator's scalar arguments.
Numbers = Sequence[tuple[str, complex | None]]

# compute(outputs, inputs, scalars) writes the results. The outputs are of one shape, to which the inputs broadcast, and
# are not empty.
Compute = Callable[[list[Tensor], list[Tensor], list[complex]], None]


@dataclass(frozen=True)
class Operator:
    """The properties of an operator.

    name: without its namespace. operands: the number of tensors it takes. numbers: its other arguments, with their
    defaults or None. dtypes: that the operands may have. kind: see fake.pointwise_result. halving: true if it takes the
    halves of its only operand. uniform: true if compute takes only inputs of one dtype. check: raises for wrong
    numbers.
    """

    name: str
    operands: int
    numbers: Numbers
    dtypes: frozenset[torch.dtype]
    compute: Compute
    results: int = 1
    integers_to_float: bool = True
    kind: str = "promote"
    halving: bool = False
    uniform: bool = False
    check: Callable[..., None] | None = None

    def functional(self, *args, **scalars) -> Tensor | tuple[Tensor, ...]:
        inputs, numbers = _split(args, scalars, self.operands, self.numbers)
        outputs = self._run(None, inputs, numbers)
        return outputs[0] if self.results == 1 else tuple(outputs)

    def out(self, *args, **keywords) -> Tensor | tuple[Tensor, ...]:
        names = ["out"] if self.results == 1 else [f"out{i}" for i in range(self.results)]
        outs = [keywords.pop(name) for name in names]
        inputs, numbers = _split(args, keywords, self.operands, self.numbers)
        self._run(outs, inputs, numbers, resizes=True)
        return outs[0] if self.results == 1 else tuple(outs)

    def inplace(self, *args, **scalars) -> Tensor:
        inputs, numbers = _split(args, scalars, self.operands, self.numbers)
        return self._run(args[:1], inputs, numbers)[0]

    def _run(
        self,
        outs: Sequence[Tensor] | None,
        inputs: list[Tensor | complex],
        scalars: list[complex],
        resizes: bool = False,
    ) -> Sequence[Tensor]:
        """Returns the outputs; allocated unless outs are given. Numbers among the inputs promote as scalars."""
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        check_dtypes(self.name, tensors, self.dtypes)
        if self.check is not None:
            self.check(*scalars)
        inputs = on_one_device(outs or (), inputs)
        check_broadcast(tensors)
        parts = fake.halves(self.name, inputs[0]) if self.halving else inputs
        results = outs or [self._result(parts) for _ in range(self.results)]
        expected = results[0] if outs is None else self._result(parts)
        for out in outs or ():
            fake.check_out(self.name, expected, out)
            if resizes:
                maybe_resize_out(out, expected.shape)
            else:
                fake.check_shape(expected, out)
        common = promoted_dtype(inputs, self.integers_to_float)
        if self.uniform and any(x.dtype != tensors[0].dtype for x in tensors):
            inputs = [x.to(common) if isinstance(x, Tensor) else x for x in inputs]
        if len(tensors) < len(inputs):
            inputs = [torch.as_tensor(x, dtype=common, device=expected.device) for x in inputs]
        natural = self._natural(common)
        # A written tensor may alias an input, so results are computed in a temporary.
        computed = [
            x if outs is None and x.dtype == natural else torch.empty_like(expected, dtype=natural)
            for x in results
        ]
        if expected.numel() > 0:
            self.compute(computed, inputs, scalars)
        for result, value in zip(results, computed, strict=True):
            if result is not value:
                result.copy_(value)
        return results

    def _result(self, parts: Sequence[Tensor | complex]) -> Tensor:
        return fake.pointwise_result(
            *parts, integers_to_float=self.integers_to_float, kind=self.kind
        )

    def _natural(self, common: torch.dtype) -> torch.dtype:
        """Returns the dtype in which compute writes. common: the dtype that the inputs are promoted to."""
        if self.kind == "bool":
            return torch.bool
        return common.to_real() if self.kind == "real" and common.is_complex else common


@dataclass(frozen=True)
class Backward:
    """An operator that autograd calls: takes the gradients of the results and operands, all of them read in one dtype.

    numbers: as in an Operator. gradients: how many it returns. halving: true if the gradients of the halves of its last
    operand form one tensor.
    """

    name: str
    operands: int
    numbers: Numbers
    gradients: int
    compute: Compute
    halving: bool = False

    def __call__(self, *args, output_mask: Sequence[bool] | None = None, **keywords):
        if len(args) > self.operands + len(self.numbers):
            *args, output_mask = args
        inputs, scalars = _split(args, keywords, self.operands, self.numbers)
        inputs = on_one_device((), inputs)
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        common = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
        inputs = [torch.as_tensor(x, dtype=common, device=tensors[0].device) for x in inputs]
        if self.halving:
            return self._of_halves(inputs, scalars)
        expected = fake.pointwise_result(*inputs, integers_to_float=False)
        results = [
            torch.empty_like(expected) if wanted else None
            for wanted in output_mask or [True] * self.gradients
        ]
        if expected.numel() > 0 and any(x is not None for x in results):
            outputs = [torch.empty_like(expected) if x is None else x for x in results]
            self.compute(outputs, inputs, scalars)
        return tuple(results) if self.gradients > 1 else results[0]

    def _of_halves(self, inputs: list[Tensor], scalars: list[complex]) -> Tensor:
        *grads, whole = inputs
        shape = list(torch.broadcast_shapes(grads[0].shape, fake.halves(self.name, whole)[0].shape))
        shape[-1] = whole.shape[-1]
        same = shape == list(whole.shape)
        result = torch.empty_like(whole) if same else whole.new_empty(shape)
        if result.numel() > 0:
            outputs = list(fake.halves(self.name, result))
            self.compute(outputs, [*grads, *fake.halves(self.name, whole)], scalars)
        return result


def _split(
    args: Sequence, keywords: Mapping[str, complex], operands: int, numbers: Numbers
) -> tuple[list[Tensor | complex], list[complex]]:
    """Returns the operands, some of which torch passes as Python numbers, and the numbers, of which defaulted ones need
    not have been passed."""
    given = args[operands:]
    missing = numbers[len(given) :]
    return list(args[:operands]), [*given, *(keywords.get(name, x) for name, x in missing)]


def promoted_dtype(inputs: Sequence[Tensor | complex], integers_to_float: bool) -> torch.dtype:
    """Returns the common dtype of the inputs; float32 instead of an integer dtype if integers become floats."""
    _, dtype = elementwise_dtypes(*inputs, type_promotion_kind=PromotionKind.DEFAULT)
    is_integer = not dtype.is_floating_point and not dtype.is_complex
    return torch.float32 if is_integer and integers_to_float else dtype


_SCALAR_TYPES = {
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.bfloat16: "BFloat16",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def scalar_type(dtype: torch.dtype) -> str:
    """Returns torch's C++ name of a dtype."""
    return _SCALAR_TYPES.get(dtype, str(dtype).removeprefix("torch."))


def check_dtypes(name: str, inputs: Sequence[Tensor], dtypes: Collection[torch.dtype]) -> None:
    """Raises NotImplementedError, in torch's words, for inputs of other dtypes."""
    for x in inputs:
        if x.dtype not in dtypes:
            raise NotImplementedError(f"\"{name}\" not implemented for '{scalar_type(x.dtype)}'")


def check_devices(**tensors: Tensor | None) -> None:
    """Raises RuntimeError, in torch's words, for tensors on another device than the first. Keywords are the arguments'
    names."""
    (first, like), *others = tensors.items()
    for name, x in others:
        if x is not None and x.device != like.device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {name} is on {x.device} and {first} on {like.device}"
            )


def check_broadcast(inputs: Sequence[Tensor]) -> None:
    """Raises RuntimeError, in torch's words, for shapes that do not broadcast."""
    shape = inputs[0].shape
    for x in inputs[1:]:
        for back in range(1, min(len(shape), x.dim()) + 1):
            if shape[-back] != x.shape[-back] and 1 not in (shape[-back], x.shape[-back]):
                raise RuntimeError(
                    f"The size of tensor a ({shape[-back]}) must match the size of tensor b ({x.shape[-back]}) at "
                    f"non-singleton dimension {max(len(shape), x.dim()) - back}"
                )
        shape = torch.broadcast_shapes(shape, x.shape)


def on_one_device(outs: Sequence[Tensor], inputs: list[Tensor | complex]) -> list[Tensor | complex]:
    """Returns the inputs, with dimensionless CPU tensors moved to the others' device. Raises RuntimeError for several
    devices."""
    placed = [x for x in (*outs, *inputs) if isinstance(x, Tensor) and not is_cpu_scalar_tensor(x)]
    if not placed:
        return inputs
    device = placed[0].device
    moved = [
        x.to(device) if isinstance(x, Tensor) and is_cpu_scalar_tensor(x) else x for x in inputs
    ]
    for x in placed:
        if x.device != device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {device} and {x.device}!"
            )
    return moved


def implement(library: torch.library.Library, operator: Operator, key: str) -> None:
    """Registers the kernels of an operator's overloads for a dispatch key."""
    library.impl(operator.name, operator.functional, key)
    library.impl(f"{operator.name}.out", operator.out, key)
    if operator.results == 1 and operator.kind == "promote" and not operator.halving:
        library.impl(f"{operator.name}_", operator.inplace, key)
