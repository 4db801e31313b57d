"""KV cache on CUDA tensors: the host side of kernels/attention/attention_cache.metal, the counterpart of
csrc/ops/attention/attention_cache.mm on ``mps``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .kernel_file import MOST_THREADS, TYPES, KernelFile, errors_of, header

_KERNELS = KernelFile("attention_cache")


class Rotation(NamedTuple):
    cosines: Tensor
    sines: Tensor
    interleaved: bool


def takes(tokens: Tensor, cache: Tensor) -> bool:
    """Returns true if the sizes fit the kernels' integers."""
    return max(tokens.numel(), *cache.shape) <= min(MOST_THREADS, 2**31 - 1)


def store_at_slots(
    cache: Tensor, tokens: Tensor, slots: Tensor, scale: Tensor | None, number_of: float
) -> None:
    """Stores tokens at slots. tokens: (T, H, E). cache: (pages, page size, H, E). slots: (T,), int32 or int64. The
    tokens are divided by both scales."""
    tokens = tokens.unsqueeze(1)
    places = header("attention_cache").CachePlaces.kSlots
    p = _parameters(tokens, cache, places)
    p.has_wide_slots = slots.dtype == torch.int64
    p.scale, p.has_scale = number_of, scale is not None
    _store(cache, tokens, p, slots=slots.contiguous(), scale=scale)


def store_behind(
    cache: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    table: Tensor | None,
    rotation: Rotation | None,
) -> None:
    """Appends tokens (B, L, H, E) to the tokens that their sequences have."""
    p = _parameters(tokens, cache, header("attention_cache").CachePlaces.kBehind)
    p.slots = cache.shape[1]
    if table is not None:
        table = table.contiguous()
        p.has_table, p.table_stride = True, table.stride(0)
        p.slots *= table.shape[1]
    _store(cache, tokens, p, lengths=lengths, table=table, rotation=rotation)


def rotate(result: Tensor, tokens: Tensor, lengths: Tensor, rotation: Rotation, advances: bool):
    """Applies rotary embeddings. result: contiguous, shaped as tokens, (B, L, H, E)."""
    p = _parameters(tokens, result, header("attention_cache").CachePlaces.kOwn)
    p.advances = advances
    _store(result, tokens, p, lengths=lengths, rotation=rotation)


def gather(
    cache: Tensor,
    table: Tensor | None,
    lengths: Tensor,
    scale: Tensor | None,
    number_of: float,
    dtype: torch.dtype,
) -> Tensor:
    """Returns the tokens of each sequence, (B, length, H, E), padded with zeros. lengths: int32."""
    length = cache.shape[1] * (1 if table is None else table.shape[1])
    tokens = cache.new_empty([lengths.shape[0], length, *cache.shape[2:]], dtype=dtype)
    p = _parameters(tokens, cache, header("attention_cache").CachePlaces.kOwn)
    p.scale, p.has_scale = number_of, scale is not None
    if table is not None:
        table = table.contiguous()
        p.has_table, p.table_stride = True, table.stride(0)
    _KERNELS.grid(
        f"attention_cache_gather_{TYPES[dtype]}_{TYPES[cache.dtype]}",
        _grid(tokens),
        *(tokens, cache, lengths.contiguous(), _or_nothing(table), _or_nothing(scale)),
        *(p, errors_of(cache)),
    )
    return tokens


def _parameters(tokens: Tensor, cache: Tensor, places: int):
    types = header("attention_cache")
    batch, length, heads, features = tokens.shape
    return types.CacheParameters(
        tokens=types.CacheStrides(*tokens.stride()),
        cache=types.CacheStrides(*cache.stride()),
        slots=cache.shape[0] * cache.shape[1],
        batch=batch,
        length=length,
        heads=heads,
        features=features,
        page_size=cache.shape[1],
        pages=cache.shape[0],
        places=places,
        scale=1,
        advances=True,
    )


def _grid(tokens: Tensor) -> tuple[int, int, int]:
    batch, length, heads, features = tokens.shape
    return features, heads, batch * length


def _or_nothing(x: Tensor | None) -> Tensor | int:
    return 0 if x is None else x


def _store(cache, tokens, p, slots=None, lengths=None, table=None, rotation=None, scale=None):
    cosines = sines = None
    if rotation is not None:
        cosines, sines = rotation.cosines.contiguous(), rotation.sines.contiguous()
        p.angles, p.rotated = min(cosines.shape[0], 2**31 - 1), 2 * cosines.shape[1]
        p.interleaved = rotation.interleaved
    if lengths is not None:
        lengths = lengths.int().contiguous()
    _KERNELS.grid(
        f"attention_cache_store_{TYPES[tokens.dtype]}_{TYPES[cache.dtype]}",
        _grid(tokens),
        *(cache, tokens, *map(_or_nothing, (slots, lengths, table, cosines, sines, scale))),
        *(p, errors_of(cache)),
    )
