"""Attention over a KV cache (paged attention, flash decoding), the cache itself, and the combination of results over
different keys.

A cache has sizes ``(pages, page size, Hkv, features)``: slot s is position ``s % page size`` of page ``s // page
size``. Its dtype is that of the tokens (float32, float16 or bfloat16), or int8, float8_e4m3fn or float8_e5m2 with one
scale for the keys and one for the values: an element is its quant times the scale, and values out of range saturate.
Scores, their softmax and sums are in float32. Other dtypes raise NotImplementedError. Caches are for inference: only
:func:`merge_attention` has a derivative.

On ``mps`` and on CUDA tensors one kernel reads keys and values once for all queries that share them, in splits that
another one combines (Dao et al., "Flash-Decoding for long-context inference", 2023); elsewhere several operators of
torch do. Elements beyond a sequence's length are never read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ._cuda import attention as _attention_on_cuda
from ._cuda import attention_cache as caching
from ._cuda import attention_decode as decoding
from ._cuda.attention_call import Call
from ._cuda.plan import TooLarge
from ._define.fake import delivered
from ._define.registration import Operator, derivatives_of, register

_CODES = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)

Scale = float | Tensor | None


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float | None = None,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    k_scale: Scale = None,
    v_scale: Scale = None,
    out: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of the last tokens of sequences over all of their tokens, whose keys and values are in pages of a
    cache.

    query: ``(B, Hq, E)``, or ``(B, L, Hq, E)`` for the last L tokens of each sequence, with causal attention among
    them. key_cache: ``(pages, page size, Hkv, E)``. value_cache: ``(pages, page size, Hkv, Ev)``. block_table: int32,
    ``(B, pages of a sequence)``; entries after a sequence's last page are ignored. seq_lens: int32 or int64, ``(B,)``,
    the tokens of each sequence, with the queries' own. Returns ``(B, Hq, Ev)`` or ``(B, L, Hq, Ev)``. scale: ``1 /
    sqrt(E)`` unless given. window_size: how many keys before the token are seen, -1 for all; its second number has no
    effect. softcap, sinks and alibi_slopes: as in :func:`~metalops.ops.attention`. k_scale, v_scale: of the quants, a
    number or a float32 tensor without dimensions. out: is resized and cast to as with torch's own functions.
    return_lse: also returns the lse (log-sum-exp), float32, with the sizes of the result without the features.
    Sequences without tokens have the result zero and -inf.

    Raises RuntimeError for other shapes, dtypes that do not fit together, several devices, and pages that the cache
    does not have; ValueError for other options.
    """
    name = "paged_attention"
    if query.dim() not in (3, 4):
        raise RuntimeError(
            f"{name}: query must have 3 or 4 dimensions, but has sizes {list(query.shape)}"
        )
    if len(window_size) != 2:
        raise ValueError(f"{name}: window_size must be two numbers, but is {window_size!r}")
    k_scale, k_number = _scale(name, "k_scale", k_scale)
    v_scale, v_number = _scale(name, "v_scale", v_scale)
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    result, lse = torch.ops.metalops.paged_attention.default(
        query.unsqueeze(1) if query.dim() == 3 else query,
        key_cache,
        value_cache,
        block_table,
        seq_lens,
        None,
        sinks,
        alibi_slopes,
        k_scale,
        v_scale,
        scale * k_number,
        v_number,
        max(window_size[0], -1),
        0,
        softcap,
    )
    lse = lse.transpose(1, 2)
    if query.dim() == 3:
        result, lse = result.squeeze(1), lse.squeeze(1)
    result = delivered(name, result, out)
    return (result, lse) if return_lse else result


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Scale = None,
    v_scale: Scale = None,
) -> None:
    """Stores the keys and values of tokens in slots of a cache.

    key: ``(T, Hkv, E)``. value: ``(T, Hkv, Ev)``. key_cache, value_cache: ``(pages, page size, Hkv, E or Ev)``, which
    are written to. slot_mapping: int32 or int64, ``(T,)``; a token whose slot is -1 is skipped. k_scale, v_scale: the
    divisors of keys and values, a number or a float32 tensor without dimensions.

    Raises RuntimeError for other shapes, dtypes that do not fit together, several devices, and slots that the cache
    does not have.
    """
    k_scale, k_number = _scale("reshape_and_cache", "k_scale", k_scale)
    v_scale, v_number = _scale("reshape_and_cache", "v_scale", v_scale)
    torch.ops.metalops.reshape_and_cache.default(
        key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale, k_number, v_number
    )


def merge_attention(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Combines the results of attention over two sets of keys by their lse: returns the result and the lse over both
    sets.

    out_a, out_b: ``(..., Ev)``, of one dtype. lse_a, lse_b: float32, ``(...)``, natural logarithms. A result whose lse
    is -inf does not contribute; if both are -inf, the result is zero. Differentiable.

    Raises RuntimeError for other shapes, dtypes and several devices.
    """
    return torch.ops.metalops.merge_attention.default(out_a, lse_a, out_b, lse_b)


OPERATORS = (paged_attention, reshape_and_cache, merge_attention)


def _scale(name: str, argument: str, scale: Scale) -> tuple[Tensor | None, float]:
    """Returns a scale as a tensor and a number, whose product it is."""
    if scale is None:
        return None, 1.0
    if not isinstance(scale, Tensor):
        return None, float(scale)
    if scale.dtype != torch.float32 or scale.numel() != 1:
        raise RuntimeError(
            f"{name}: {argument} must be a number or a float32 tensor of one element, but is {scale.dtype} of sizes "
            f"{list(scale.shape)}"
        )
    return scale, 1.0


# ---- in operators of torch -------------------------------------------------------------------------


def _check_pages(name: str, pages: Tensor, matter: Tensor, count: int) -> None:
    wrong = matter & ((pages < 0) | (pages >= count))
    if wrong.any():
        raise RuntimeError(
            f"{name}: block_table has page {pages[wrong][0].item()}, but there are {count} pages"
        )


def _bytes(cache: Tensor) -> Tensor:
    """Returns a cache of a dtype that torch cannot index as one that it can."""
    return cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache


def _tokens(cache: Tensor, table: Tensor | None, lengths: Tensor) -> Tensor:
    """Returns the tokens of each sequence, ``(B, tokens, Hkv, features)``, as they are stored; beyond their lengths
    they are arbitrary."""
    if table is None:
        return cache
    places = torch.arange(table.shape[1], device=table.device) * cache.shape[1]
    _check_pages("paged_attention", table, places < lengths[:, None], cache.shape[0])
    found = _bytes(cache)[table.clamp(0, max(cache.shape[0] - 1, 0))].flatten(1, 2)
    return found.view(cache.dtype)


def _paged(
    query,
    key,
    value,
    table,
    lengths,
    starts,
    sinks,
    slopes,
    k_scale,
    v_scale,
    scale,
    value_scale,
    window_left,
    window_right,
    softcap,
):
    capacity = key.shape[1] * (1 if table is None else table.shape[1])
    lengths = lengths.clamp(0, capacity)
    key, value = (_tokens(cache, table, lengths).float() for cache in (key, value))
    if starts is not None:
        starts = torch.minimum(starts.clamp(min=0), lengths)
        places = torch.arange(capacity, device=key.device) + starts[:, None]
        places = places.clamp(max=max(capacity - 1, 0))[..., None, None]
        key, value = (x.gather(1, places.expand(-1, -1, *x.shape[2:])) for x in (key, value))
        lengths = lengths - starts
    seen = (torch.arange(capacity, device=key.device) < lengths[:, None])[..., None, None]
    key, value = (torch.where(seen, x, 0) for x in (key, value))
    if k_scale is not None:
        key = key * k_scale
    if v_scale is not None:
        value = value * v_scale
    out, lse = torch.ops.metalops.attention_forward.default(
        query.float().transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2) * value_scale,
        None,
        sinks if sinks is None else sinks.float(),
        slopes,
        None,
        None,
        lengths.int(),
        None,
        query.shape[1],
        capacity,
        scale,
        window_left,
        window_right,
        True,
        softcap,
        0.0,
    )
    return out.transpose(1, 2).to(query.dtype).contiguous(), lse


def _encoded(tokens: Tensor, dtype: torch.dtype, scale: Tensor | None, number: float) -> Tensor:
    if scale is not None or number != 1 or dtype in _CODES:
        tokens = tokens.float() / ((1.0 if scale is None else scale) * number)
    if dtype == torch.int8:
        tokens = torch.where(tokens.isnan(), 0, tokens).round().clamp(-128, 127)
    elif dtype in _CODES:
        most = torch.finfo(dtype).max
        tokens = tokens.clamp(-most, most)
    return _bytes(tokens.to(dtype))


def _put(cache: Tensor, pages: Tensor, slots: Tensor, encoded: Tensor) -> None:
    _bytes(cache)[pages, slots] = encoded


def _reshape_and_cache(
    key, value, key_cache, value_cache, slots, k_scale, v_scale, k_number, v_number
):
    name = "reshape_and_cache"
    for tokens, cache, scale, number in (
        (key, key_cache, k_scale, k_number),
        (value, value_cache, v_scale, v_number),
    ):
        count = cache.shape[0] * cache.shape[1]
        wrong = (slots < -1) | (slots >= count)
        if wrong.any():
            raise RuntimeError(
                f"{name}: slot_mapping has slot {slots[wrong][0].item()}, but there are {count} slots"
            )
        taken = slots >= 0
        places = slots[taken].long()
        encoded = _encoded(tokens[taken], cache.dtype, scale, number)
        _put(cache, places // cache.shape[1], places % cache.shape[1], encoded)


def _rotated(tokens: Tensor, places: Tensor, cosines, sines, interleaved: bool) -> Tensor:
    """Applies rotary embeddings. places: positions of the tokens, ``(B, L)``."""
    wrong = (places < 0) | (places >= cosines.shape[0])
    if wrong.any():
        raise RuntimeError(
            f"flash_attn_with_kvcache: cache_seqlens puts a token at {places[wrong][0].item()}, but rotary_cos has "
            f"{cosines.shape[0]} places"
        )
    half = cosines.shape[1]
    cosines, sines = (x[places].float().unsqueeze(2) for x in (cosines, sines))
    turned, rest = tokens[..., : 2 * half].float(), tokens[..., 2 * half :]
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned[..., :half], turned[..., half:]
    parts = (first * cosines - second * sines, second * cosines + first * sines)
    turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([turned.to(tokens.dtype), rest], -1)


def _append_to_cache(cache, tokens, lengths, table, cosines, sines, interleaved):
    name = "flash_attn_with_kvcache"
    size = cache.shape[1]
    room = size * (1 if table is None else table.shape[1])
    places = lengths.long()[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
    wrong = (places < 0) | (places >= room)
    if wrong.any():
        raise RuntimeError(
            f"{name}: cache_seqlens puts a key at {places[wrong][0].item()}, but there is room for {room} keys"
        )
    if table is None:
        pages = torch.arange(tokens.shape[0], device=tokens.device)[:, None].expand_as(places)
    else:
        pages = table.gather(1, places // size).long()
        _check_pages(name, pages, torch.ones_like(pages, dtype=torch.bool), cache.shape[0])
    if cosines is not None:
        tokens = _rotated(tokens, places, cosines, sines, interleaved)
    _put(cache, pages, places % size, _encoded(tokens, cache.dtype, None, 1.0))


def _rotate_tokens(tokens, lengths, cosines, sines, interleaved, advances):
    places = lengths.long()[:, None]
    if advances:
        places = places + torch.arange(tokens.shape[1], device=tokens.device)
    places = places.expand(tokens.shape[:2])
    return _rotated(tokens, places, cosines, sines, interleaved).contiguous()


def _share(lse: Tensor, other: Tensor) -> Tensor:
    # inf - inf is NaN, and so would its derivative be, even where it is not selected.
    is_same = (lse == other) & lse.isinf()
    share = torch.sigmoid(torch.where(is_same, 0, lse) - torch.where(is_same, 0, other))
    return torch.where(lse == -torch.inf, 0, share)[..., None]


def _merge_attention(out_a, lse_a, out_b, lse_b):
    a, b = _share(lse_a, lse_b), _share(lse_b, lse_a)
    out = torch.where(a == 0, 0, a * out_a.float()) + torch.where(b == 0, 0, b * out_b.float())
    return out.to(out_a.dtype).contiguous(), torch.logaddexp(lse_a, lse_b).contiguous()


def _merge_attention_backward(grad_out, grad_lse, out_a, lse_a, out_b, lse_b):
    a, b = _share(lse_a, lse_b), _share(lse_b, lse_a)
    grad = grad_out.float()
    difference = (grad * (out_a.float() - out_b.float())).sum(-1)
    difference = torch.where(a * b == 0, 0, a * b * difference[..., None])[..., 0]
    return (
        (a * grad).to(out_a.dtype).contiguous(),
        (difference + a[..., 0] * grad_lse).contiguous(),
        (b * grad).to(out_a.dtype).contiguous(),
        (b[..., 0] * grad_lse - difference).contiguous(),
    )


# ---- in kernels on CUDA tensors ----------------------------------------------------------------------


def _paged_on_cuda(*args):
    try:
        return _paged_in_kernels(*args)
    except TooLarge:
        return _paged(*args)


def _paged_in_kernels(
    query,
    key,
    value,
    table,
    lengths,
    starts,
    sinks,
    slopes,
    k_scale,
    v_scale,
    scale,
    value_scale,
    window_left,
    window_right,
    softcap,
):
    batch, queries, heads, _ = query.shape
    out = query.new_empty([batch, queries, heads, value.shape[3]])
    lse = query.new_empty([batch, heads, queries], dtype=torch.float32)
    if queries * heads > decoding.MOST_ROWS * key.shape[2] and starts is None:
        lengths = lengths.int()
        # Quants are exact in the query's dtype, which their products with the scale would not be.
        key = caching.gather(key, table, lengths, None, 1.0, query.dtype)
        value = caching.gather(value, table, lengths, v_scale, value_scale, query.dtype)
        tokens = (x.transpose(1, 2) for x in (query, key, value))
        options = (None, sinks, slopes, None, None, lengths, None, queries, key.shape[1])
        call = Call(*tokens, *options, scale, window_left, window_right, True, softcap, 0.0)
        _attention_on_cuda.forward(call, out.transpose(1, 2), lse, k_scale)
        return out, lse
    options = decoding.Options(
        sinks=sinks,
        alibi_slopes=slopes,
        seqused_k=lengths,
        first_k=starts,
        block_table=table,
        k_scale=k_scale,
        v_scale=v_scale,
        scale=scale,
        value_scale=value_scale,
        window_left=window_left,
        window_right=window_right,
        softcap=softcap,
    )
    tokens = (x.transpose(1, 2) for x in (query, key, value))
    decoding.decode(*tokens, options, out.transpose(1, 2), lse)
    return out, lse


def _reshape_and_cache_on_cuda(*args):
    key, value, key_cache, value_cache, slots, k_scale, v_scale, k_number, v_number = args
    try:
        caching.store_at_slots(key_cache, key, slots, k_scale, k_number)
        caching.store_at_slots(value_cache, value, slots, v_scale, v_number)
    except TooLarge:
        _reshape_and_cache(*args)


def _append_to_cache_on_cuda(cache, tokens, lengths, table, cosines, sines, interleaved):
    try:
        caching.store_behind(cache, tokens, lengths, table, cosines, sines, interleaved)
    except TooLarge:
        _append_to_cache(cache, tokens, lengths, table, cosines, sines, interleaved)


def _rotate_tokens_on_cuda(tokens, lengths, cosines, sines, interleaved, advances):
    result = tokens.new_empty(tokens.shape)
    try:
        caching.rotate(result, tokens, lengths, cosines, sines, interleaved, advances)
    except TooLarge:
        return _rotate_tokens(tokens, lengths, cosines, sines, interleaved, advances)
    return result


def _merge_on_cuda(*parts):
    out, lse = _fake_merge(*parts)
    if out.shape[-1] == 0:
        return out, torch.logaddexp(parts[1], parts[3])
    decoding.merge(parts, out, lse)
    return out, lse


def _merge_backward_on_cuda(grad_out, grad_lse, *parts):
    results = _fake_merge_backward(grad_out, grad_lse, *parts)
    decoding.merge_backward([grad_out, grad_lse], parts, results)
    return results


# ---- torch.compile and autograd --------------------------------------------------------------------


def _fake_paged(query, key, value, table, lengths, starts, sinks, slopes, *numbers):
    batch, queries, heads, _ = query.shape
    return (
        query.new_empty([batch, queries, heads, value.shape[3]]),
        query.new_empty([batch, heads, queries], dtype=torch.float32),
    )


def _fake_store(*args) -> None:
    pass


def _fake_rotate_tokens(tokens, *others):
    return tokens.new_empty(tokens.shape)


def _fake_merge(out_a, lse_a, out_b, lse_b):
    return out_a.new_empty(out_a.shape), lse_a.new_empty(lse_a.shape)


def _fake_merge_backward(grad_out, grad_lse, out_a, lse_a, out_b, lse_b):
    return tuple(x.new_empty(x.shape) for x in (out_a, lse_a, out_b, lse_b))


def _derivatives(args, results, grads, wanted):
    grads = [torch.zeros_like(x) if grad is None else grad for grad, x in zip(grads, args[:2], strict=True)]  # fmt: skip
    return torch.ops.metalops.merge_attention_backward.default(*grads, *args)


# ---- registration ----------------------------------------------------------------------------------

# The schemas agree with csrc/ops/attention/attention_decode.mm and csrc/ops/attention/attention_cache.mm.
register(
    Operator(
        "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor? block_table, Tensor seq_lens, "
        "Tensor? seq_starts, Tensor? sinks, Tensor? alibi_slopes, Tensor? k_scale, Tensor? v_scale, float scale, "
        "float value_scale, SymInt window_left, SymInt window_right, float softcap) -> (Tensor, Tensor)",
        cpu=_paged,
        cuda=_paged_on_cuda,
        fake=_fake_paged,
    ),
    Operator(
        "reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, "
        "Tensor? k_scale, Tensor? v_scale, float key_number, float value_number) -> ()",
        cpu=_reshape_and_cache,
        cuda=_reshape_and_cache_on_cuda,
        fake=_fake_store,
    ),
    Operator(
        "append_to_cache(Tensor(a!) cache, Tensor tokens, Tensor seq_lens, Tensor? block_table, Tensor? rotary_cos, "
        "Tensor? rotary_sin, bool interleaved) -> ()",
        cpu=_append_to_cache,
        cuda=_append_to_cache_on_cuda,
        fake=_fake_store,
    ),
    Operator(
        "rotate_tokens(Tensor tokens, Tensor seq_lens, Tensor rotary_cos, Tensor rotary_sin, bool interleaved, "
        "bool advances) -> Tensor",
        cpu=_rotate_tokens,
        cuda=_rotate_tokens_on_cuda,
        fake=_fake_rotate_tokens,
    ),
    Operator(
        "merge_attention(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) -> (Tensor, Tensor)",
        cpu=_merge_attention,
        cuda=_merge_on_cuda,
        fake=_fake_merge,
        gradients=_derivatives,
        formula=_merge_attention,
    ),
    Operator(
        "merge_attention_backward(Tensor grad_out, Tensor grad_lse, Tensor out_a, Tensor lse_a, Tensor out_b, "
        "Tensor lse_b) -> (Tensor, Tensor, Tensor, Tensor)",
        cpu=_merge_attention_backward,
        cuda=_merge_backward_on_cuda,
        fake=_fake_merge_backward,
        gradients=derivatives_of(_merge_attention_backward),
        formula=_merge_attention_backward,
    ),
)
