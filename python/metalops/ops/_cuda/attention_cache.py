"""KV cache on CUDA tensors: runs the plans of csrc/plans/attention/attention_cache.h, as
csrc/ops/attention/attention_cache.mm does on ``mps``. All functions raise TooLarge."""

from __future__ import annotations

import torch
from torch import Tensor

from . import plan


def store_at_slots(
    cache: Tensor, tokens: Tensor, slots: Tensor, scale: Tensor | None, number: float
) -> None:
    """Stores tokens at slots. tokens: (T, H, E). cache: (pages, page size, H, E). slots: (T,), int32 or int64. The
    tokens are divided by both scales."""
    plan.run(
        "attention_cache_store_at_slots",
        cache,
        cache=cache,
        tokens=tokens,
        slots=slots,
        scale=scale,
        number=number,
    )


def store_behind(
    cache: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    cosines: Tensor | None,
    sines: Tensor | None,
    interleaved: bool,
) -> None:
    """Appends tokens (B, L, H, E) to the tokens that their sequences have."""
    plan.run(
        "attention_cache_store_behind",
        cache,
        cache=cache,
        tokens=tokens,
        lengths=lengths,
        table=table,
        cosines=cosines,
        sines=sines,
        interleaved=interleaved,
    )


def rotate(
    result: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    cosines: Tensor,
    sines: Tensor,
    interleaved: bool,
    advances: bool,
) -> None:
    """Applies rotary embeddings. result: contiguous, shaped as tokens, (B, L, H, E)."""
    plan.run(
        "attention_cache_rotate",
        tokens,
        result=result,
        tokens=tokens,
        lengths=lengths,
        cosines=cosines,
        sines=sines,
        interleaved=interleaved,
        advances=advances,
    )


def gather(
    cache: Tensor,
    table: Tensor | None,
    lengths: Tensor,
    scale: Tensor | None,
    number: float,
    dtype: torch.dtype,
) -> Tensor:
    """Returns the tokens of each sequence, (B, length, H, E), padded with zeros."""
    length = cache.shape[1] * (1 if table is None else table.shape[1])
    tokens = cache.new_empty([lengths.shape[0], length, *cache.shape[2:]], dtype=dtype)
    plan.run(
        "attention_cache_gather",
        cache,
        tokens=tokens,
        cache=cache,
        lengths=lengths,
        table=table,
        scale=scale,
        number=number,
    )
    return tokens
