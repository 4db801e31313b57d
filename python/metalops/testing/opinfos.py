"""OpInfo entries of pointwise operators, for torch's own generic tests and for those of metalops."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .._torch.internals import opinfo_classes
from .operators import Operator
from .samples import FLOATS, Case, to_device

__all__ = ["MetalOpInfo", "opinfo"]

ErrorInput, OpInfo, SampleInput = opinfo_classes()


class MetalOpInfo(OpInfo):
    """An OpInfo that knows the Operator it was made from."""

    operator: Operator


def _to_sample(case: Case, device: str, requires_grad: bool) -> SampleInput:
    first, *others = (
        x.detach().requires_grad_(requires_grad and x.is_floating_point())
        for x in to_device(case.args, device)
    )
    return SampleInput(first, args=tuple(others), kwargs=dict(case.kwargs), name=case.name)


def _sample_inputs(
    op: MetalOpInfo, device, dtype, requires_grad, **kwargs
) -> Iterator[SampleInput]:
    operator = op.operator
    shapes = [(4, 6), (8,), (2, 3, 4), (0, 2), (2,)]
    if not operator.halving:
        shapes += [(), (33,)]
    for shape in shapes:
        for arguments in operator.arguments:
            args = tuple(
                operator.sample(*shape, dtype=dtype, seed=i) for i in range(operator.operands)
            )
            yield _to_sample(Case(str(shape), args, arguments), device, requires_grad)
    if operator.operands > 1:
        args = [operator.sample(4, 6, dtype=dtype, seed=i) for i in range(operator.operands)]
        args[0] = operator.sample(6, dtype=dtype)
        yield _to_sample(Case("broadcast", tuple(args), arguments), device, requires_grad)


def _reference_inputs(op: MetalOpInfo, device, dtype, requires_grad, **kwargs):
    yield from _sample_inputs(op, device, dtype, requires_grad, **kwargs)
    for case in op.operator.cases(dtype):
        if case.precise:
            yield _to_sample(case, device, requires_grad)


def _error_inputs(op: MetalOpInfo, device, **kwargs) -> Iterator[ErrorInput]:
    operator = op.operator
    arguments = operator.arguments[-1]

    def error(*args, regex, error_type=RuntimeError, arguments=arguments) -> ErrorInput:
        sample = SampleInput(args[0], args=args[1:], kwargs=dict(arguments))
        return ErrorInput(sample, error_type=error_type, error_regex=regex)

    def operands(*shape: int, dtype: torch.dtype = torch.float32):
        args = tuple(operator.sample(*shape, dtype=dtype, seed=i) for i in range(operator.operands))
        return to_device(args, device)

    unsupported = [torch.complex64] + ([torch.bool] if operator.integers_stay else [])
    for dtype in unsupported:
        yield error(
            *operands(4, dtype=dtype), regex="not implemented for", error_type=NotImplementedError
        )
    if operator.halving:
        yield error(*operands(2, 3), regex="must be even, but dimension 1 is size 3")
        yield error(*operands(), regex="0-dimensional tensors")
    for i in range(1, operator.operands):
        args = list(operands(4, 3))
        args[i] = operands(5)[0]
        yield error(*args, regex=r"must match the size of tensor|doesn't match")
        args[i] = operands(4, 3)[0].to("mps" if device == "cpu" else "cpu")
        yield error(*args, regex="same device")
    for bad, message in operator.bad_arguments:
        yield error(*operands(4), regex=message, error_type=ValueError, arguments=bad)


def opinfo(operator: Operator) -> MetalOpInfo:
    """Returns the OpInfo entry of an operator."""
    info = MetalOpInfo(
        f"metalops.ops.{operator.name}",
        op=operator.function,
        ref=operator.reference,
        dtypes=set(operator.dtypes),
        backward_dtypes=set(FLOATS),
        method_variant=None,
        inplace_variant=operator.inplace,
        operator_variant=None,
        inplace_operator_variant=None,
        supports_out=True,
        supports_forward_ad=False,
        supports_gradgrad=False,
        supports_inplace_autograd=operator.inplace is not None,
        assert_autodiffed=False,
        sample_inputs_func=_sample_inputs,
        reference_inputs_func=_reference_inputs,
        error_inputs_func=_error_inputs,
    )
    info.operator = operator
    return info
