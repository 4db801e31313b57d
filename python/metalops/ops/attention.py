"""Scaled dot product attention without materialised scores (FlashAttention): grouped heads (GQA, MQA), masks, causal
and sliding windows, softcap, sinks, ALiBi, dropout, packed sequences and paged caches.

Dtypes: float32, float16 and bfloat16, the same for query, key and value, of at most 256 features; scores, their softmax
and sums are in float32 and the result is rounded once. Complex tensors, float64 and integers raise NotImplementedError.
Derivatives of any order and forward mode work, and autocast lowers the precision as that of torch's own attention. On
``mps`` and on CUDA tensors kernels compute result and gradients in memory that grows with the tokens, not with their
product; elsewhere several operators of torch do, which store the scores, as second derivatives and forward mode do
everywhere.

A score is ``scale * (q . k)``; then ``softcap * tanh(score / softcap)`` if there is a softcap; then less ``slope * |i +
d - j|`` with ALiBi, for query i and key j, where d is 0 if diagonals begin in the first key ("top_left") and keys minus
queries if they end in the last one ("bottom_right"); then plus a floating-point mask. Hidden are keys for which a bool
mask is False, those after the diagonal if attention is causal, and those outside of the window around it. Rows that see
nothing are zero, their lse (log-sum-exp) is -inf and their gradients are zero; heads without features see nothing. A
sink of -inf has no effect, one of inf has all the weight: rows are zero and their lse is inf. A score that is NaN or
inf makes its row NaN, as in torch, unless the key is hidden. Scale and softcap are finite in float32. Elements beyond
the length of the keys are never read; a NaN that a mask hides may spread.

The method is from Dao et al., "FlashAttention" (2022); softcap from Gemma 2 (2024), sinks from Xiao et al., "Efficient
Streaming Language Models with Attention Sinks" (2023), ALiBi from Press et al., "Train Short, Test Long" (2021).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._torch.internals import detect_fake_mode
from .._torch.when_loaded import when_loaded
from ._cuda import attention as _attention_on_cuda
from ._cuda.attention_call import LEAST_SOFTCAP, Call
from ._cuda.plan import TooLarge
from ._define.registration import Operator, derivatives_of, register
from ._define.vmap import sequence_of_calls

_ALIGNMENTS = ("top_left", "bottom_right")


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    causal_alignment: str = "top_left",
    scale: float | None = None,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """``softmax(scores) value``, with scores as defined above.

    query: ``(..., Hq, L, E)``. key: ``(..., Hkv, S, E)``. value: ``(..., Hkv, S, Ev)``. Returns ``(..., Hq, L, Ev)`` in
    the order of query's dimensions in memory. Hq is a multiple of Hkv: query head h sees head ``h // (Hq / Hkv)``. The
    dimensions before the heads broadcast, heads of size 1 too; tensors of two dimensions have one head.

    attn_mask: broadcasts to ``(..., Hq, L, S)``; bool, True where query and key attend, or float32 or of query's dtype,
    which is added. is_causal: hides the keys after the diagonal that causal_alignment names, in addition to what
    attn_mask hides. scale: ``1 / sqrt(E)`` unless given. window_size: how many keys before and after the diagonal are
    seen, -1 for all. softcap: 0 for none. sinks: ``(Hq,)``, float32 or of query's dtype, one more score of each head,
    which has no value. alibi_slopes: float32, ``(Hq,)`` or ``(..., Hq)``. dropout_p: the probability with which a
    weight is dropped after the softmax, by the default generator. return_lse: also returns the lse, the natural
    logarithms of the rows' sums of exponentials, with the sink, ``(..., Hq, L)`` in float32.

    Raises RuntimeError for other shapes and for tensors of several dtypes or devices, ValueError for other options.
    """
    if causal_alignment not in _ALIGNMENTS:
        known = " or ".join(map(repr, _ALIGNMENTS))
        raise ValueError(
            f"attention: causal_alignment must be {known}, but is {causal_alignment!r}"
        )
    left, right = _window("attention", window_size, is_causal)
    shape = _common_shape(query, key, value)
    query, key, value = _with_four_dimensions(query, key, value, shape)
    if attn_mask is not None:
        attn_mask = _mask_of_four_dimensions(attn_mask, shape)
    if alibi_slopes is not None and alibi_slopes.dim() > 1:
        slopes = alibi_slopes.expand(*shape[:-3], shape[-3])
        alibi_slopes = slopes.reshape(math.prod(shape[:-3]), shape[-3])
    out, lse = torch.ops.metalops.attention_forward.default(
        query,
        key,
        value,
        attn_mask,
        sinks,
        alibi_slopes,
        None,
        None,
        None,
        _random_numbers(query, dropout_p),
        query.shape[2],
        key.shape[2],
        _scale(query, scale),
        left,
        right,
        causal_alignment == "bottom_right",
        softcap,
        dropout_p,
    )
    if len(shape) != 4:
        out = out.reshape(*shape[:-1], out.shape[-1])
        lse = lse.reshape(shape[:-1])
    return (out, lse) if return_lse else out


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    dropout_p: float = 0.0,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`attention` of several packed sequences, each with its own keys. Diagonals end in a sequence's last key.

    query: ``(Tq, Hq, E)``. key: ``(Tk, Hkv, E)``. value: ``(Tk, Hkv, Ev)``. Returns ``(Tq, Hq, Ev)``. cu_seqlens_q,
    cu_seqlens_k: int32, ``(sequences + 1,)``, where sequences begin, with the end of the last one. max_seqlen_q,
    max_seqlen_k: upper bounds of the lengths. seqused_k: int32, ``(sequences,)``, the number of a sequence's keys that
    are used, all of them unless given. alibi_slopes: float32, ``(Hq,)`` or ``(sequences, Hq)``. block_table: int32,
    ``(sequences, pages of a sequence)``; key is then ``(pages, page size, Hkv, E)``, value ``(pages, page size, Hkv,
    Ev)``, and the keys of a sequence are those on its pages, as many as seqused_k or else cu_seqlens_k says.
    return_lse: also returns ``(Hq, Tq)`` in float32. The other arguments are those of :func:`attention`.

    Raises RuntimeError for other shapes and for tensors of several dtypes or devices, ValueError for other options.
    """
    left, right = _window("varlen_attention", window_size, is_causal)
    if block_table is not None:
        if seqused_k is None:
            seqused_k = cu_seqlens_k.diff()
        key, cu_seqlens_k, max_seqlen_k = _pages("key", key, block_table)
        value, _, _ = _pages("value", value, block_table)
    out, lse = torch.ops.metalops.attention_forward.default(
        query,
        key,
        value,
        None,
        sinks,
        alibi_slopes,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        _random_numbers(query, dropout_p),
        max_seqlen_q,
        max_seqlen_k,
        _scale(query, scale),
        left,
        right,
        True,
        softcap,
        dropout_p,
    )
    return (out, lse) if return_lse else out


OPERATORS = (attention, varlen_attention)


# ---- from the arguments of functions to those of the operator --------------------------------------


def _window(name: str, window_size: Sequence[int], is_causal: bool) -> tuple[int, int]:
    if len(window_size) != 2:
        raise ValueError(f"{name}: window_size must be two numbers, but is {window_size!r}")
    left, right = (max(size, -1) for size in window_size)
    return left, 0 if is_causal else right


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale


def _random_numbers(query: Tensor, dropout_p: float) -> Tensor | None:
    """Returns the seed of dropout: a tensor, so that compiled programs draw one at each call."""
    if dropout_p == 0:
        return None
    return torch.randint(2**62, (2,), dtype=torch.int64, device=query.device)


def _broadcast(what: str, *sizes: Sequence[int]) -> tuple[int, ...]:
    result = [1] * max(map(len, sizes))
    for shape in sizes:
        for back in range(1, len(shape) + 1):
            size = shape[-back]
            if result[-back] == 1:
                result[-back] = size
            elif size not in (1, result[-back]):
                named = " and ".join(str(list(shape)) for shape in sizes)
                raise RuntimeError(f"attention: {what} must broadcast, but are {named}")
    return tuple(result)


def _common_shape(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """Returns the shape of the result, with the keys in place of the features: of two dimensions, or more."""
    ranks = [query.dim(), key.dim(), value.dim()]
    if min(ranks) < 2:
        raise RuntimeError(
            "attention: query, key and value must have at least 2 dimensions, but have "
            f"{ranks[0]}, {ranks[1]} and {ranks[2]}"
        )
    shapes = [query.shape, key.shape, value.shape]
    batch = _broadcast("the batches of query, key and value", *(shape[:-3] for shape in shapes))
    (heads,) = _broadcast("the heads of key and value", (1,), *(s[-3:-2] for s in shapes[1:]))
    queries = query.shape[-3] if ranks[0] > 2 else 1
    heads = () if max(ranks) == 2 else (heads if queries == 1 else queries,)
    return (*batch, *heads, query.shape[-2], key.shape[-2])


def _with_four_dimensions(
    query: Tensor, key: Tensor, value: Tensor, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    batch = shape[:-3]
    key_heads = max(x.shape[-3] if x.dim() > 2 else 1 for x in (key, value))
    heads = shape[-3] if len(shape) > 2 else 1
    tensors = []
    for x, count in ((query, heads), (key, key_heads), (value, key_heads)):
        expected = (*batch, count, *x.shape[-2:])
        if x.shape != expected:
            x = x.expand(expected)
        if len(expected) != 4:
            x = x.reshape(math.prod(batch), *expected[-3:])
        tensors.append(x)
    return tuple(tensors)


def _mask_of_four_dimensions(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    if mask.dim() > len(shape):
        raise RuntimeError(
            f"attention: attn_mask must broadcast to sizes {list(shape)}, but has sizes {list(mask.shape)}"
        )
    rank = max(len(shape), 4)
    mask = mask[(None,) * (rank - mask.dim())]
    if rank == 4:
        return mask
    batch = mask.shape[:-3]
    # Not expanded if it is the same for all: others may need a copy.
    if any(size != 1 for size in batch):
        batch = shape[:-3]
        mask = mask.expand(*batch, *mask.shape[-3:])
    return mask.reshape(math.prod(batch), *mask.shape[-3:])


def _pages(name: str, cache: Tensor, block_table: Tensor) -> tuple[Tensor, Tensor, int]:
    """Returns the tokens on the pages as sequences of one length, where these begin, and the length."""
    if cache.dim() != 4 or block_table.dim() != 2:
        raise RuntimeError(
            f"varlen_attention: with a block_table of two dimensions {name} must have sizes "
            f"(pages, page size, heads, features), but they have sizes {list(block_table.shape)} and {list(cache.shape)}"
        )
    sequences, pages = block_table.shape
    length = pages * cache.shape[1]
    # After a sequence's last page the table may hold anything.
    tokens = cache[block_table.clamp(0, max(cache.shape[0] - 1, 0))]
    begins = torch.arange(sequences + 1, dtype=torch.int32, device=cache.device) * length
    return tokens.reshape(sequences * length, *cache.shape[2:]), begins, length


# The number of leading arguments that have gradients.
_DIFFERENTIABLE = 6


def _backward_call(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *args
) -> tuple[Call, list[bool]]:
    """Returns the forward call, and which gradients are wanted: absent arguments have none."""
    *options, wanted = args
    call = Call(query, key, value, *options)
    given = [x is not None for x in call[:_DIFFERENTIABLE]]
    return call, [a and b for a, b in zip(wanted, given, strict=True)]


# ---- in operators of torch -----------------------------------------------------------------------


class _Attended(NamedTuple):
    """The intermediates of a call that is not packed, in float32. weights, kept: for each query and key; kept is the
    factor of dropout, or None. sink: the weights of the sinks, or None. distance: of a query from the key on its
    diagonal. slope: the derivative of the softcap, or None. query, key and value: with zeros beyond the length of the
    keys."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor
    lse: Tensor
    kept: Tensor | float | None
    sink: Tensor | None
    distance: Tensor
    slope: Tensor | None


def _attend(call: Call, first: int) -> _Attended:
    """Computes scores and weights. first: the index of the first sequence among all, for dropout."""
    query, key, value = (x.float() for x in call[:3])
    queries, keys = query.shape[2], key.shape[2]
    i = torch.arange(queries, device=query.device)[:, None]
    j = torch.arange(keys, device=query.device)
    seen = torch.ones((), dtype=torch.bool, device=query.device)
    length = keys
    if call.seqused_k is not None:
        length = call.seqused_k.clamp(0, keys)[:, None, None, None]
        seen = j < length
        key = torch.where(seen.mT, key, 0)
        value = torch.where(seen.mT, value, 0)
    scores = call.scale * _products(query, key)
    slope = None
    if call.softcap > 0:
        softcap = max(call.softcap, LEAST_SOFTCAP)
        capped = torch.tanh(scores / softcap)
        scores = softcap * capped
        slope = 1 - capped.square()
    distance = i + (length - queries if call.bottom_right else 0) - j
    if call.alibi_slopes is not None:
        scores = scores - call.alibi_slopes[..., None, None] * distance.abs()
    if call.window_right >= 0:
        seen = seen & (distance >= -call.window_right)
    if call.window_left >= 0:
        seen = seen & (distance <= call.window_left)
    if call.attn_mask is not None:
        if call.attn_mask.dtype == torch.bool:
            seen = seen & call.attn_mask
        else:
            scores = scores + call.attn_mask.float()
    if query.shape[-1] == 0:
        seen = torch.zeros_like(seen)  # as in torch: without features nothing is seen
    scores = torch.where(seen, scores, -torch.inf)
    # One more column, so that there is always one.
    sinks = torch.full((1,), -torch.inf, device=query.device)
    if call.sinks is not None:
        sinks = call.sinks.float()
    sinks = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    most = torch.cat([scores, sinks], -1).detach().amax(-1, keepdim=True)
    most = most.clamp(min=torch.finfo(most.dtype).min)
    weights = torch.exp(scores - most)
    # inf - inf would be NaN.
    sink = torch.exp(torch.where(sinks == torch.inf, 0, sinks - most))
    total = weights.sum(-1, keepdim=True) + sink
    sees_nothing = total == 0
    total = torch.where(sees_nothing, 1, total)
    lse = torch.where(sees_nothing, -torch.inf, most + total.log()).squeeze(-1)
    return _Attended(
        query,
        key,
        value,
        weights / total,
        lse,
        _kept(call, scores.shape, first),
        None if call.sinks is None else sink / total,
        distance,
        slope,
    )


def _products(queries: Tensor, keys: Tensor) -> Tensor:
    """Returns Q K^T: the rows of `queries` times those of the heads of `keys` that their heads belong to."""
    return torch.matmul(_in_groups(queries, keys), keys[:, :, None].mT).flatten(1, 2)


def _sums(weights: Tensor, values: Tensor) -> Tensor:
    """Returns P V: sums of the rows of `values`, for each row of `weights`."""
    return torch.matmul(_in_groups(weights, values), values[:, :, None]).flatten(1, 2)


def _sums_of_groups(weights: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """Returns P^T times `rows`, summed over the heads of a group: for each column of `weights`, head of `like`."""
    weights, rows = _in_groups(weights, like), _in_groups(rows, like)
    return torch.matmul(weights.mT, rows).sum(2)


def _in_groups(x: Tensor, keys: Tensor) -> Tensor:
    """Returns x with the heads that share a head of `keys` (GQA) in a dimension of their own."""
    heads = keys.shape[1]
    return x.reshape(x.shape[0], heads, x.shape[1] // max(heads, 1), *x.shape[2:])


def _kept(call: Call, shape: Sequence[int], first: int) -> Tensor | float | None:
    """Returns the factors of dropout: the same as in kernels/attention/attention_scores.h. 32-bit integers are in int64
    here."""
    if call.dropout_p == 0:
        return None
    if call.dropout_p == 1:
        return 0.0
    low = 0xFFFFFFFF
    batch, heads, queries, keys = shape
    device = call.rng.device
    seed, offset = call.rng[0], call.rng[1]
    head = first * heads + torch.arange(batch * heads, device=device)
    counter = [
        torch.arange(keys, device=device),
        torch.arange(queries, device=device)[:, None],
        head.reshape(batch, heads, 1, 1),
        offset & low,
    ]
    round_key = [(seed ^ (offset >> 32)) & low, (seed >> 32) & low]
    for _ in range(10):
        first_high, first_low = _product_of_32_bits(counter[0], 0xD2511F53)
        second_high, second_low = _product_of_32_bits(counter[2], 0xCD9E8D57)
        counter = [
            second_high ^ counter[1] ^ round_key[0],
            second_low,
            first_high ^ counter[3] ^ round_key[1],
            first_low,
        ]
        round_key = [(round_key[0] + 0x9E3779B9) & low, (round_key[1] + 0xBB67AE85) & low]
    keeps = counter[0] >= round(call.dropout_p * 2**32)
    return keeps.float() / (1 - call.dropout_p)


def _product_of_32_bits(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Returns the high and the low half of a 32 x 32-bit product."""
    high_part, low_part = x * (factor >> 16), x * (factor & 0xFFFF)
    low = low_part + ((high_part & 0xFFFF) << 16)
    return (high_part >> 16) + (low >> 32), low & 0xFFFFFFFF


def _in_order_of(like: Tensor, features: int) -> list[int]:
    """Returns the strides of a tensor like this one, in its order of dimensions, with another number of features, which
    come last."""
    sizes, given = like.shape, like.stride()
    order = list(reversed(range(like.dim() - 1)))  # innermost first
    # torch's order of the dimensions of results: insertion sort, past ambiguous dimensions.
    for place in range(1, len(order)):
        for before in reversed(range(place)):
            inner, outer = order[before], order[place]
            if 0 in (given[inner], given[outer]):
                continue
            if given[inner] < given[outer]:
                break
            if given[inner] > given[outer] or sizes[inner] > sizes[outer]:
                order[before], order[place] = outer, inner
                place = before
    strides = [1] * like.dim()
    stride = max(features, 1)
    for dim in order:
        strides[dim] = stride
        stride *= max(sizes[dim], 1)
    return strides


def _placed(x: Tensor, like: Tensor) -> Tensor:
    """Returns x in the dtype of `like`, and in its order of dimensions."""
    result = torch.empty_strided(
        x.shape, _in_order_of(like, x.shape[-1]), dtype=like.dtype, device=x.device
    )
    return result.copy_(x)


def _sequences(call: Call) -> list[Call]:
    """Returns each packed sequence as a call that is not packed."""
    (begins, ends), (key_begins, key_ends) = (
        (list(x[:-1]), list(x[1:]))
        for x in (call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist())
    )
    slopes = call.alibi_slopes
    return [
        call._replace(
            query=_one_sequence(call.query[begin:end]),
            key=_one_sequence(call.key[key_begin:key_end]),
            value=_one_sequence(call.value[key_begin:key_end]),
            alibi_slopes=slopes if slopes is None or slopes.dim() == 1 else slopes[i : i + 1],
            cu_seqlens_q=None,
            cu_seqlens_k=None,
            seqused_k=None if call.seqused_k is None else call.seqused_k[i : i + 1],
        )
        for i, (begin, end, key_begin, key_end) in enumerate(
            zip(begins, ends, key_begins, key_ends, strict=True)
        )
    ]


def _one_sequence(x: Tensor) -> Tensor:
    return x.transpose(0, 1)[None]


def _packed(parts: Sequence[Tensor], like: Tensor, features: int) -> Tensor:
    """Returns the packed results of sequences, with zeros for tokens that belong to none."""
    parts = [part[0].transpose(0, 1) for part in parts]
    tokens = like.shape[0] - sum(part.shape[0] for part in parts)
    return torch.cat([*parts, torch.zeros(tokens, like.shape[1], features, device=like.device)])


def _result(call: Call, first: int = 0) -> tuple[Tensor, Tensor]:
    """Returns the result and its lse, in float32 and differentiable operators."""
    if call.cu_seqlens_q is not None:
        results = [_result(part, i) for i, part in enumerate(_sequences(call))]
        out = _packed([out for out, _ in results], call.query, call.value.shape[-1])
        lses = [lse[0] for _, lse in results]
        rest = call.query.shape[0] - sum(lse.shape[1] for lse in lses)
        nothing = torch.full((call.query.shape[1], rest), -torch.inf, device=call.query.device)
        return out, torch.cat([*lses, nothing], 1)
    attended = _attend(call, first)
    weights = attended.weights if attended.kept is None else attended.weights * attended.kept
    return _sums(weights, attended.value), attended.lse


def _gradients(
    call: Call,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    wanted: Sequence[bool],
    first: int = 0,
) -> list[Tensor | None]:
    """Returns the gradients of the first six arguments, in float32 and differentiable operators."""
    if call.cu_seqlens_q is not None:
        return _gradients_of_sequences(call, grad_out, grad_lse, wanted)
    x = _attend(call, first)
    grad_out = grad_out.float()
    grad_weights = _products(grad_out, x.value)
    weights = x.weights
    if x.kept is not None:
        weights, grad_weights = weights * x.kept, grad_weights * x.kept
    grad_value = _sums_of_groups(weights, grad_out, x.value)
    shared = -(grad_weights * x.weights).sum(-1, keepdim=True)
    if grad_lse is not None:
        seen = x.lse[..., None] > -torch.inf
        shared = shared + torch.where(seen, grad_lse.float()[..., None], 0)
    grad_scores = x.weights * (grad_weights + shared)
    grad_mask = grad_sinks = grad_slopes = None
    if wanted[3]:
        grad_mask = grad_scores.sum_to_size(call.attn_mask.shape)
    if wanted[4]:
        grad_sinks = (x.sink * shared).sum((0, 2, 3))
    if wanted[5]:
        grad_slopes = -(grad_scores * x.distance.abs()).sum((2, 3))
        grad_slopes = grad_slopes.sum_to_size(call.alibi_slopes.shape)
    grad_products = call.scale * (grad_scores if x.slope is None else grad_scores * x.slope)
    gradients = [
        _sums(grad_products, x.key),
        _sums_of_groups(grad_products, x.query, x.key),
        grad_value,
        grad_mask,
        grad_sinks,
        grad_slopes,
    ]
    return [x if is_wanted else None for x, is_wanted in zip(gradients, wanted, strict=True)]


def _gradients_of_sequences(
    call: Call, grad_out: Tensor, grad_lse: Tensor | None, wanted: Sequence[bool]
) -> list[Tensor | None]:
    begins = call.cu_seqlens_q.tolist()
    parts = [
        _gradients(
            part,
            _one_sequence(grad_out[begin:end]),
            None if grad_lse is None else grad_lse[None, :, begin:end],
            wanted,
            i,
        )
        for i, (part, (begin, end)) in enumerate(
            zip(_sequences(call), itertools.pairwise(begins), strict=True)
        )
    ]
    parts = [list(of_one) for of_one in zip(*parts, strict=True)] or [[]] * len(wanted)
    result = [
        _packed(of_one, like, like.shape[-1]) if is_wanted else None
        for of_one, like, is_wanted in zip(parts[:3], call[:3], wanted[:3], strict=True)
    ]
    result.append(None)
    for of_one, like, is_wanted in zip(parts[4:], call[4:6], wanted[4:], strict=True):
        if not is_wanted:
            result.append(None)
        elif like.dim() == 2:
            result.append(torch.cat(of_one) if of_one else torch.zeros_like(like))
        else:
            result.append(torch.zeros_like(like, dtype=torch.float32) + sum(of_one))
    return result


def _forward(*args) -> tuple[Tensor, Tensor]:
    return _composed(Call(*args))


def _composed(call: Call) -> tuple[Tensor, Tensor]:
    out, lse = _result(call)
    return _placed(out, call.query), lse.contiguous()


def _backward(grad_out: Tensor, grad_lse: Tensor | None, *args) -> tuple[Tensor | None, ...]:
    call, wanted = _backward_call(*args)
    return _composed_backward(call, grad_out, grad_lse, wanted)


def _composed_backward(
    call: Call, grad_out: Tensor, grad_lse: Tensor | None, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    gradients = _gradients(call, grad_out, grad_lse, wanted)
    placed = [
        None if x is None else _placed(x, like)
        for x, like in zip(gradients[:3], call[:3], strict=True)
    ]
    others = [
        None if x is None else x.to(like.dtype).contiguous()
        for x, like in zip(gradients[3:], call[3:_DIFFERENTIABLE], strict=True)
    ]
    return (*placed, *others)


# ---- in kernels on CUDA tensors ------------------------------------------------------------------


def _forward_on_cuda(*args) -> tuple[Tensor, Tensor]:
    call = Call(*args)
    results = _empty_results(call)
    try:
        _attention_on_cuda.forward(call, *results)
    except TooLarge:
        return _composed(call)
    return results


def _backward_on_cuda(grad_out, grad_lse, query, key, value, out, lse, *args):
    call, wanted = _backward_call(query, key, value, out, lse, *args)
    results = _empty_gradients(call, wanted)
    try:
        _attention_on_cuda.backward(call, grad_out, grad_lse, out, lse, results)
    except TooLarge:
        return _composed_backward(call, grad_out, grad_lse, wanted)
    return results


# ---- derivatives ---------------------------------------------------------------------------------


def _formula(*args) -> tuple[Tensor, Tensor]:
    call = Call(*args)
    out, lse = _result(call)
    return out.to(call.query.dtype), lse


def _formula_of_backward(*args) -> tuple[Tensor | None, ...]:
    grad_out, grad_lse, query, key, value, _, _, *options, wanted = args
    call = Call(query, key, value, *options)
    gradients = _gradients(call, grad_out, grad_lse, wanted)
    return tuple(
        None if x is None else x.to(like.dtype)
        for x, like in zip(gradients, call[:_DIFFERENTIABLE], strict=True)
    )


def _first_derivatives(args, results, grads, wanted) -> Sequence[Tensor | None]:
    query, key, value, *options = args
    out, lse = results
    grad_out, grad_lse = grads
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    return torch.ops.metalops.attention_backward.default(
        grad_out, grad_lse, query, key, value, out, lse, *options, wanted[:_DIFFERENTIABLE]
    )


def _second_derivatives(args, results, grads, wanted) -> Sequence[Tensor | None]:
    """Computes second derivatives. out and lse follow from the other arguments, whose derivatives include theirs."""
    wanted = [is_wanted and i not in (5, 6) for i, is_wanted in enumerate(wanted)]
    return derivatives_of(_formula_of_backward)(args, results, grads, wanted)


# ---- torch.compile, autocast and torch.vmap --------------------------------------------------------


def _like(x: Tensor, features: int) -> Tensor:
    return torch.empty_strided(
        [*x.shape[:-1], features], _in_order_of(x, features), dtype=x.dtype, device=x.device
    )


def _fake(*args) -> tuple[Tensor, Tensor]:
    return _empty_results(Call(*args))


def _empty_results(call: Call) -> tuple[Tensor, Tensor]:
    query = call.query
    shape = query.shape[:-1] if call.cu_seqlens_q is None else [query.shape[1], query.shape[0]]
    lse = query.new_empty(shape, dtype=torch.float32)
    return _like(query, call.value.shape[-1]), lse


def _fake_backward(grad_out, grad_lse, query, key, value, out, lse, *args):
    *options, wanted = args
    return _empty_gradients(Call(query, key, value, *options), wanted)


def _empty_gradients(call: Call, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    placed = [
        _like(x, x.shape[-1]) if is_wanted else None
        for x, is_wanted in zip(call[:3], wanted[:3], strict=True)
    ]
    others = [
        x.new_empty(x.shape) if is_wanted and x is not None else None
        for x, is_wanted in zip(call[3:_DIFFERENTIABLE], wanted[3:], strict=True)
    ]
    return (*placed, *others)


def _lowered(dtype: torch.dtype, device: str, *args) -> tuple:
    """Casts the arguments as torch's autocast does for its own attention, except masks and sinks in float32."""

    def lower(x: Tensor) -> Tensor:
        is_lowered = x.is_floating_point() and x.dtype != torch.float64 and x.device.type == device
        return x.to(dtype) if is_lowered else x

    options = (x if x is None or x.dtype == torch.float32 else lower(x) for x in args[3:5])
    return *map(lower, args[:3]), *options, *args[5:]


class _Fold:
    """Folds the samples of torch.vmap into the batch of one call."""

    def __init__(self, size: int, batch: int):
        self._size = size
        self._batch = batch  # of one call

    def __call__(self, x: Tensor | None, dim: int | None, *, same: bool = False) -> Tensor | None:
        """Folds a tensor. same: true if a tensor that is the same for all samples may stay as it is."""
        if x is None or (dim is None and same):
            return x
        x = x[None] if dim is None else x.movedim(dim, 0)
        return x.expand(self._size, self._batch, *x.shape[2:]).flatten(0, 1)

    def undo(self, x: Tensor | None) -> Tensor | None:
        return None if x is None else x.unflatten(0, (self._size, self._batch))


def _fold_options(fold: _Fold, options: Sequence, dims: Sequence[int | None]) -> list | None:
    """Returns the folded arguments after value; None if they cannot be folded."""
    mask, sinks, slopes, cu_q, _, used, rng, *numbers = options
    mask_dim, sinks_dim, slopes_dim, _, _, used_dim, *_ = dims
    if cu_q is not None or rng is not None or sinks_dim is not None:
        return None
    if slopes is not None:
        is_shared = slopes.dim() - (slopes_dim is not None) == 1
        if is_shared and slopes_dim is not None:
            slopes, slopes_dim = slopes.movedim(slopes_dim, 0)[:, None], 0
        slopes = fold(slopes, slopes_dim, same=is_shared)
    mask = fold(mask, mask_dim, same=mask is not None and mask.shape[0] == 1)
    return [mask, sinks, slopes, None, None, fold(used, used_dim), None, *numbers]


def _vmap(info, in_dims, *args):
    overload = torch.ops.metalops.attention_forward.default
    fold = _Fold(info.batch_size, _size_of_one(args[0], in_dims[0]))
    options = _fold_options(fold, args[3:], in_dims[3:])
    if options is not None:
        tensors = map(fold, args[:3], in_dims[:3])
        return tuple(map(fold.undo, overload(*tensors, *options))), (0, 0)
    return sequence_of_calls(overload, info, in_dims, args)


def _vmap_backward(info, in_dims, *args):
    overload = torch.ops.metalops.attention_backward.default
    wanted = args[-1]
    # Gradients of arguments that samples share would be sums over all samples, which cannot be separated.
    if not any(wanted[3:]):
        fold = _Fold(info.batch_size, _size_of_one(args[2], in_dims[2]))
        options = _fold_options(fold, args[7:-1], in_dims[7:-1])
        if options is not None:
            tensors = map(fold, args[:7], in_dims[:7])
            results = tuple(map(fold.undo, overload(*tensors, *options, wanted)))
            return results, tuple(None if x is None else 0 for x in results)
    return sequence_of_calls(overload, info, in_dims, args)


def _size_of_one(x: Tensor, dim: int | None) -> int:
    return x.shape[0] if dim is None else x.movedim(dim, 0).shape[1]


def _lengths(begins: Tensor, most: int) -> list[int]:
    """Returns the lengths of packed sequences; for fake tensors, their upper bound."""
    if begins.is_meta or detect_fake_mode([begins]) is not None:
        return [most] * (begins.shape[0] - 1)
    return begins.diff().tolist()


def _flops(products: Sequence[int], call: Call) -> int:
    """products: the numbers of GEMMs with query's features and with value's."""
    query, key, value = call[:3]
    if call.cu_seqlens_q is None:
        scores = query.shape[0] * query.shape[2] * key.shape[2]
    else:
        lengths = (
            _lengths(call.cu_seqlens_q, call.max_seqlen_q),
            _lengths(call.cu_seqlens_k, call.max_seqlen_k),
        )
        scores = sum(map(math.prod, zip(*lengths, strict=True)))
    features = products[0] * query.shape[-1] + products[1] * value.shape[-1]
    return 2 * query.shape[1] * scores * features


# ---- registration --------------------------------------------------------------------------------


# The schemas agree with csrc/ops/attention/attention.mm.
_INPUTS = "Tensor query, Tensor key, Tensor value"
_OPTIONS = (
    "Tensor? attn_mask, Tensor? sinks, Tensor? alibi_slopes, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? seqused_k, Tensor? rng, SymInt max_seqlen_q, SymInt max_seqlen_k, float scale, SymInt window_left, "
    "SymInt window_right, bool bottom_right, float softcap, float dropout_p"
)

register(
    Operator(
        f"attention_forward({_INPUTS}, {_OPTIONS}) -> (Tensor out, Tensor lse)",
        cpu=_forward,
        cuda=_forward_on_cuda,
        fake=_fake,
        gradients=_first_derivatives,
        needs_results=True,
        formula=_formula,
        vmap=_vmap,
        lowered=_lowered,
    ),
    Operator(
        f"attention_backward(Tensor grad_out, Tensor? grad_lse, {_INPUTS}, Tensor out, Tensor lse, {_OPTIONS}, "
        "bool[6] output_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        cpu=_backward,
        cuda=_backward_on_cuda,
        fake=_fake_backward,
        gradients=_second_derivatives,
        needs_results=True,
        formula=_formula_of_backward,
        vmap=_vmap_backward,
        lowered=lambda dtype, device, *args: args,
    ),
)


def _flops_of_forward(*args, out_val=None, **kwargs) -> int:
    return _flops((1, 1), Call(*args))


def _flops_of_backward(*args, out_val=None, **kwargs) -> int:
    # Recomputed scores, dq and dk; the gradient of the weights and dv.
    return _flops((3, 2), Call(*args[2:5], *args[7:-1]))


def _count_operations() -> None:
    from torch.utils.flop_counter import register_flop_formula

    operators = torch.ops.metalops
    register_flop_formula(operators.attention_forward, get_raw=True)(_flops_of_forward)
    register_flop_formula(operators.attention_backward, get_raw=True)(_flops_of_backward)


when_loaded("torch.utils.flop_counter", _count_operations)
