"""Handlers for DTensors that operators of metalops write into: results given with out=, and caches of keys and values.

These keep their placements, which DTensor's rules do not provide for: it would write into a redistributed copy. So
these operators have DTensor handlers, which place everything else to match the written tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .internals import OpOverload, handle_dtensors


def register() -> None:
    from ..ops._define.pointwise import declared

    operators = torch.ops.metalops
    for name in (*declared, "linear_act"):
        packet = getattr(operators, name)
        handle_dtensors(packet.out, _Out(packet.default))
    handle_dtensors(operators.reshape_and_cache.default, _reshape_and_cache)
    handle_dtensors(operators.append_to_cache.default, _append_to_cache)


class _Out:
    """Handler of an operator with an out= result."""

    def __init__(self, functional: OpOverload):
        self._functional = functional

    def __call__(self, overload: OpOverload, args: tuple, keywords: dict) -> Tensor:
        out, others = keywords["out"], {k: x for k, x in keywords.items() if k != "out"}
        result = self._functional(*args, **others)
        if out.shape != result.shape:
            raise RuntimeError(
                f"{overload.name()}: out is a DTensor of sizes {list(out.shape)}, which is not resized to {list(result.shape)}"
            )
        return out.copy_(result)


def _reshape_and_cache(overload: OpOverload, args: tuple, keywords: dict) -> None:
    """Writes over heads: the second dimension of tokens, the third of caches."""
    caches = args[2:4]

    def place(placement):
        if placement.is_shard(2):
            return [_shard(1)] * 2 + [_shard(2)] * 2 + [_replicate()] * 3
        return None

    _write(overload, args, caches, place)


def _append_to_cache(overload: OpOverload, args: tuple, keywords: dict) -> None:
    """Writes over heads, the third dimension, and over sequences, which have pages of their own if there are no page
    tables."""
    cache, tokens, lengths, table, cosines, sines, *_ = args

    def place(placement):
        if placement.is_shard(2):
            return [_shard(2)] * 2 + [_replicate()] * 4
        if placement.is_shard(0) and table is None:
            return [_shard(0)] * 3 + [_replicate()] * 3
        return None

    _write(overload, args, (cache,), place)


def _write(
    overload: OpOverload,
    args: tuple,
    caches: tuple,
    place: Callable,
) -> None:
    """Calls the operator on the local part of each rank. place(placement of the caches): returns those of the tensors
    among the arguments."""
    from torch.distributed.tensor import DTensor

    tensors = [x for x in args if isinstance(x, Tensor)]
    if not all(isinstance(x, DTensor) for x in tensors):
        raise RuntimeError(
            f"{overload.name()}: got torch.Tensor and DTensor, but all have to be DTensors"
        )
    placements = caches[0].placements
    placed = []
    for placement in placements:
        of_arguments = [_replicate()] * len(args) if placement.is_replicate() else place(placement)
        if of_arguments is None or any(x.placements != placements for x in caches):
            raise NotImplementedError(
                f"{overload.name()}: caches are replicated or sharded over heads, but have placements "
                f"{[x.placements for x in caches]}"
            )
        placed.append([*of_arguments, *[None] * (len(args) - len(of_arguments))])

    def local(x, wanted):
        if not isinstance(x, Tensor):
            return x
        return x.redistribute(placements=wanted).to_local()

    overload(*map(local, args, zip(*placed)))


def _shard(dim: int):
    from torch.distributed.tensor import Shard

    return Shard(dim)


def _replicate():
    from torch.distributed.tensor import Replicate

    return Replicate()
