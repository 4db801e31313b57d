"""Rules for torch.vmap. For pointwise operators: one call for the whole batch, whose dimension comes first.

Other packages that define operators with ``<metalops/pointwise.h>`` use :func:`register_vmap`, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import fake


def _without_batch(tensor: Tensor, dim: int | None) -> Tensor:
    """Returns a meta tensor with the shape of one element of the batch."""
    shape = [n for i, n in enumerate(tensor.shape) if i != dim]
    return torch.empty(shape, dtype=tensor.dtype, device="meta")


def _batch_first(tensors: Sequence[Tensor], dims: Sequence[int | None]) -> list[Tensor]:
    """Returns the tensors with the batch dimension first, aligned so that the others broadcast as they do in one
    element."""
    elements = [_without_batch(x, dim) for x, dim in zip(tensors, dims, strict=True)]
    rank = max(x.dim() for x in elements)
    result = []
    for tensor, dim, element in zip(tensors, dims, elements, strict=True):
        if dim is not None:
            if rank > 0 and element.dim() == 0:
                # A dimensionless tensor does not decide the dtype; with the batch dimension it would.
                tensor = tensor.to(fake.pointwise_result(*elements, integers_to_float=False).dtype)
            tensor = tensor.movedim(dim, 0)[(slice(None),) + (None,) * (rank - element.dim())]
        result.append(tensor)
    return result


def sequence_of_calls(overload, info, in_dims: Sequence[int | None], args: Sequence):
    """Returns a rule's result if the samples cannot be combined in one call: a call for each, whose results are
    stacked."""
    results = []
    for i in range(info.batch_size):
        one = [
            x.select(d, i) if isinstance(x, Tensor) and d is not None else x
            for x, d in zip(args, in_dims, strict=True)
        ]
        results.append(overload(*one))
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    stacked = [None if x[0] is None else torch.stack(x) for x in zip(*results, strict=True)]
    return tuple(stacked), tuple(None if x is None else 0 for x in stacked)


def register_vmap(name: str, tensors: int, *, needs_dimension: bool = False) -> None:
    """Registers the rule for the operator ``name`` ("namespace::name"), whose first ``tensors`` arguments are operands.

    needs_dimension: true if it rejects operands without dimensions, as those that halve the last one do.
    """
    namespace, base = name.split("::")
    op = getattr(getattr(torch.ops, namespace), base).default

    def rule(info, in_dims, *args, **scalars):
        operands = [x if isinstance(x, Tensor) else torch.tensor(x) for x in args[:tensors]]
        others = args[tensors:]
        dims = in_dims[:tensors]
        if needs_dimension and operands[-1].dim() == int(dims[-1] is not None):
            raise RuntimeError(f"{base} does not support 0-dimensional tensors")
        result = op(*_batch_first(operands, dims), *others, **scalars)
        if not isinstance(result, tuple):
            return result, 0
        return result, tuple(None if x is None else 0 for x in result)

    torch.library.register_vmap(name, rule, lib=fake.fragment(namespace))
