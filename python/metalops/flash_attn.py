"""The functions of FlashAttention-2 under their names and with their signatures, for code that imports ``flash_attn``.

Tensors are ``(B, L, H, E)`` instead of :func:`metalops.ops.attention`'s ``(B, H, L, E)``, and diagonals end in the last
key (bottom-right aligned). float32, too; results are bitwise reproducible whatever ``deterministic`` and ``num_splits``
say. The lse (log-sum-exp) of rows that see nothing is -inf. The interface is from Dao, "FlashAttention-2: Faster
Attention with Better Parallelism and Work Partitioning" (2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from . import ops

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """Attention of q ``(B, L, Hq, E)`` over k ``(B, S, Hkv, E)`` and v ``(B, S, Hkv, Ev)``.

    Query i sees key j if ``i + S - L - window_size[0] <= j <= i + S - L + window_size[1]``, where -1 is no bound, and
    if ``j <= i + S - L`` with causal. softmax_scale: ``1 / sqrt(E)`` unless given. softcap: 0 for none. alibi_slopes:
    float32, ``(Hq,)`` or ``(B, Hq)``. Returns ``(B, L, Hq, Ev)``; with return_attn_probs also the lse, float32 ``(B,
    Hq, L)``, and None for the probabilities, which nothing stores. Differentiable. Raises what
    :func:`metalops.ops.attention` raises.
    """
    out, lse = ops.attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=causal,
        causal_alignment="bottom_right",
        scale=softmax_scale,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
        return_lse=True,
    )
    out = out.transpose(1, 2)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """:func:`flash_attn_func` with kv ``(B, S, 2, Hkv, E)``: keys and values."""
    return flash_attn_func(
        q,
        *kv.unbind(2),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """:func:`flash_attn_func` with qkv ``(B, L, 3, H, E)``: queries, keys and values."""
    return flash_attn_func(
        *qkv.unbind(2),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """:func:`flash_attn_func` of packed sequences: q ``(Tq, Hq, E)``, k ``(Tk, Hkv, E)``, v ``(Tk, Hkv, Ev)``.

    cu_seqlens_q, cu_seqlens_k: int32, ``(sequences + 1,)``, where they begin, with the end of the last one.
    max_seqlen_q, max_seqlen_k: upper bounds of their lengths. block_table: int32, ``(sequences, pages of a sequence)``;
    k and v are then ``(pages, page size, Hkv, E or Ev)``. Returns ``(Tq, Hq, Ev)``; with return_attn_probs also the lse
    ``(Hq, Tq)`` and None.
    """
    out, lse = ops.varlen_attention(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        is_causal=causal,
        scale=softmax_scale,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
        block_table=block_table,
        return_lse=True,
    )
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """:func:`flash_attn_varlen_func` with kv ``(Tk, 2, Hkv, E)``: keys and values."""
    return flash_attn_varlen_func(
        q,
        *kv.unbind(1),
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """:func:`flash_attn_varlen_func` with qkv ``(T, 3, H, E)``: queries, keys and values."""
    return flash_attn_varlen_func(
        *qkv.unbind(1),
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q ``(B, L, Hq, E)`` over a cache, to which k and v are appended first. Not differentiable.

    k_cache, v_cache: ``(samples, S, Hkv, E or Ev)``, or with a block_table, int32 ``(B, pages of a sequence)``,
    ``(pages, page size, Hkv, E or Ev)``. k, v: ``(B, new, Hkv, E or Ev)``, written to the caches after the
    cache_seqlens tokens that these hold: a number or int32 ``(B,)``, all of the cache unless given. cache_batch_idx:
    int32, ``(B,)``, the sample of the caches that belongs to each query, without a block_table. cache_leftpad: int32,
    ``(B,)``, the first token of each sequence that counts. rotary_cos, rotary_sin: ``(positions, at most E / 2)``, of
    q's dtype: k is rotated by the angles of its positions in the cache; q by those from cache_seqlens on if attention
    is causal or has a window, else all of it by that of cache_seqlens. rotary_interleaved: features 2i and 2i + 1 form
    a pair, else i and i + half. The other arguments are those of :func:`flash_attn_func`, with the tokens in the cache
    as keys. Returns ``(B, L, Hq, Ev)``; with return_softmax_lse also the lse ``(B, Hq, L)``.

    Raises ValueError for arguments that need or exclude one another, RuntimeError for wrong shapes, dtypes, pages and
    lengths.
    """
    name = "flash_attn_with_kvcache"
    if (k is None) != (v is None):
        raise ValueError(f"{name}: k and v must be given together")
    if (rotary_cos is None) != (rotary_sin is None):
        raise ValueError(f"{name}: rotary_cos and rotary_sin must be given together")
    if k is not None and cache_seqlens is None:
        raise ValueError(f"{name}: k needs cache_seqlens")
    if rotary_cos is not None and k is None:
        raise ValueError(f"{name}: rotary_cos needs k")
    if block_table is not None and cache_batch_idx is not None:
        raise ValueError(f"{name}: block_table and cache_batch_idx exclude each other")
    if len(window_size) != 2:
        raise ValueError(f"{name}: window_size must be two numbers, but is {window_size!r}")
    if q.dim() != 4:
        raise RuntimeError(f"{name}: q must have 4 dimensions, but has sizes {list(q.shape)}")
    if cache_batch_idx is not None:
        block_table = cache_batch_idx.to(torch.int32)[:, None]  # a page is a whole sample
    if not isinstance(cache_seqlens, Tensor):
        pages = 1 if block_table is None else block_table.shape[1]
        length = pages * k_cache.shape[1] if cache_seqlens is None else cache_seqlens
        cache_seqlens = torch.full((q.shape[0],), length, dtype=torch.int32, device=q.device)
    left, right = (max(size, -1) for size in window_size)
    if causal:
        right = 0
    seq_lens = cache_seqlens
    if k is not None:
        # Nothing is written before both are known to be valid.
        for argument, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
            sizes = [q.shape[0], k.shape[1] if k.dim() > 1 else 0, *cache.shape[2:]]
            if list(new.shape) != sizes or new.dtype != q.dtype:
                raise RuntimeError(
                    f"{name}: {argument} must have sizes {sizes} and dtype {q.dtype}, but has sizes {list(new.shape)} and dtype {new.dtype}"
                )
        for cache, new, cosines, sines in (
            (k_cache, k, rotary_cos, rotary_sin),
            (v_cache, v, None, None),
        ):
            torch.ops.metalops.append_to_cache.default(
                cache, new, cache_seqlens, block_table, cosines, sines, rotary_interleaved
            )
        seq_lens = cache_seqlens + k.shape[1]
    if rotary_cos is not None:
        q = torch.ops.metalops.rotate_tokens.default(
            q, cache_seqlens, rotary_cos, rotary_sin, rotary_interleaved, left >= 0 or right >= 0
        )
    out, lse = torch.ops.metalops.paged_attention.default(
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        cache_leftpad,
        None,
        alibi_slopes,
        None,
        None,
        1 / math.sqrt(max(q.shape[-1], 1)) if softmax_scale is None else softmax_scale,
        1.0,
        left,
        right,
        softcap,
    )
    return (out, lse) if return_softmax_lse else out
