"""FlashAttention on CUDA tensors: the host side of kernels/attention/attention.metal, the counterpart of
csrc/ops/attention/attention.mm on ``mps``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import attention_decode as decoding
from .attention_call import Call, softcap_for_kernel
from .kernel_file import MOST_THREADS, TYPES, KernelFile, has_tensors, header, number

_KERNELS = KernelFile("attention", has_products=True)
_LARGEST = 2**30  # sizes in 32 bits leave room for the sums that kernels compute
_THREADS = 128
_FEATURES = (32, 64, 96, 128, 256)  # head dimensions that kernels are compiled for
_BACKWARD_FEATURES = (32, 64, 128, 256)


class _Sizes:
    """The sizes of a valid call."""

    def __init__(self, call: Call):
        query, key = call.query, call.key
        self.is_packed = call.cu_seqlens_q is not None
        self.heads, self.key_heads = query.shape[1], key.shape[1]
        self.head_size, self.value_size = query.shape[-1], call.value.shape[-1]
        if self.is_packed:
            self.batch = call.cu_seqlens_q.numel() - 1
            self.all_queries, self.all_keys = query.shape[0], key.shape[0]
            # No sequence is longer than all of them together, whatever the arguments say.
            self.queries = min(max(call.max_seqlen_q, 0), self.all_queries)
            self.keys = min(max(call.max_seqlen_k, 0), self.all_keys)
        else:
            self.batch, self.queries, self.keys = query.shape[0], query.shape[2], key.shape[2]
            self.all_queries, self.all_keys = self.queries, self.keys

    def groups(self, length: int, tile: int, heads: int) -> int:
        return _tiles(length, tile) * heads * self.batch


def _tiles(length: int, tile: int) -> int:
    return -(-length // tile)


def takes(call: Call) -> bool:
    """Returns true if the sizes fit the kernels' integers."""
    sizes = _Sizes(call)
    tile = header("attention").AttentionTile.kRows
    most = max(
        sizes.groups(sizes.queries, tile, sizes.heads),
        sizes.groups(sizes.keys, tile, sizes.key_heads),
    )
    lengths = (sizes.queries, sizes.keys, sizes.all_queries, sizes.all_keys, sizes.batch)
    return max(lengths) <= _LARGEST and 2 * most * _THREADS <= MOST_THREADS


def forward(call: Call, out: Tensor, lse: Tensor, k_scale: Tensor | None = None) -> None:
    """Runs FlashAttention forward. out: in any order of dimensions. lse: contiguous. k_scale: one float32, by which
    keys are to be multiplied."""
    sizes = _Sizes(call)
    if _is_for_few_queries(call, sizes):
        options = decoding.Options(
            attn_mask=call.attn_mask,
            sinks=call.sinks,
            alibi_slopes=call.alibi_slopes,
            seqused_k=call.seqused_k,
            k_scale=k_scale,
            scale=call.scale,
            window_left=call.window_left,
            window_right=call.window_right,
            bottom_right=call.bottom_right,
            softcap=call.softcap,
        )
        decoding.decode(call.query, call.key, call.value, options, out, lse)
        return
    given, p = _inputs(call, sizes)
    if sizes.is_packed:
        # Tokens that belong to no sequence.
        out.zero_()
        lse.fill_(-torch.inf)
    p.out = _strides(out)
    p.has_key_scale = k_scale is not None
    features = _compiled_for(sizes.value_size, _FEATURES)
    tiles = header("attention").AttentionTile
    name, rows = "attention_forward", tiles.kRows
    if has_tensors() and features <= tiles.kMostFeatures:
        rows = tiles.kRowsOfTensors
        if out.dtype != torch.float32 and sizes.head_size <= tiles.kMostFeatures:
            name += "_by_simdgroups"
            features = _compiled_for(max(sizes.head_size, sizes.value_size), _FEATURES)
    _KERNELS.threadgroups(
        f"{name}_{features}_{TYPES[out.dtype]}",
        sizes.groups(sizes.queries, rows, sizes.heads),
        _THREADS,
        *(out, lse, given.query, given.key, given.value, given.mask, given.sinks, given.slopes),
        *(
            given.cu_queries,
            given.cu_keys,
            given.lengths,
            given.random,
            0 if k_scale is None else k_scale,
            p,
        ),
    )


def backward(
    call: Call,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    gradients: Sequence[Tensor | None],
) -> None:
    """Runs FlashAttention backward. gradients: of the first six arguments, as far as they are wanted; those of tokens
    in any order of dimensions, the others contiguous."""
    sizes = _Sizes(call)
    given, p = _inputs(call, sizes)
    out, grad = _readable(out), _readable(grad_out.to(call.query.dtype))
    lse = lse.contiguous()
    of_lse = 0 if grad_lse is None else grad_lse.float().contiguous()
    p.out, p.grad_out, p.has_grad_lse = _strides(out), _strides(grad), grad_lse is not None
    statistics = lse.new_empty([lse.numel(), 2])
    kind = TYPES[call.query.dtype]
    options = (given.mask, given.sinks, given.slopes)
    lengths = (given.cu_queries, given.cu_keys, given.lengths)
    _KERNELS.simdgroups(
        f"attention_statistics_{kind}",
        lse.numel(),
        *(statistics, out, grad, of_lse, given.query, given.key, lse, *options, *lengths, p),
    )
    tokens = (given.query, given.key, given.value, grad, lse, statistics)
    places = (given.cu_queries, given.cu_keys, given.lengths, given.random)
    # Gradients of tokens that no kernel visits are zero.
    has_others = sizes.is_packed or p.has_lengths or sizes.heads == 0

    def gradient(i: int) -> Tensor:
        result = torch.empty_like(call[i]) if gradients[i] is None else gradients[i]
        return result.zero_() if has_others else result

    _, _, _, grad_mask, grad_sinks, grad_slopes = gradients
    tile = header("attention").AttentionTile
    if gradients[0] is not None or grad_slopes is not None:
        grad_query = gradient(0)
        p.grad_query = _strides(grad_query)
        groups = sizes.groups(sizes.queries, tile.kRows, sizes.heads)
        sums = lse.new_empty(0 if call.alibi_slopes is None else groups)
        features = _compiled_for(sizes.head_size, _BACKWARD_FEATURES)
        _KERNELS.threadgroups(
            f"attention_grad_query_{features}_{kind}",
            groups,
            _THREADS,
            *(grad_query, sums, *tokens, given.mask, given.slopes, *places, p),
        )
        if grad_slopes is not None:
            count = number("i", _tiles(sizes.queries, tile.kRows))
            slopes = grad_slopes.numel()
            _KERNELS.threadgroups(
                "attention_grad_slopes", slopes, _THREADS, grad_slopes, sums, p, count
            )
    if gradients[1] is not None or gradients[2] is not None:
        grad_key, grad_value = gradient(1), gradient(2)
        p.grad_key, p.grad_value = _strides(grad_key), _strides(grad_value)
        features = _compiled_for(max(sizes.head_size, sizes.value_size), _BACKWARD_FEATURES)
        keys = tile.kColumnsOfTensors if has_tensors() else tile.kColumns
        _KERNELS.threadgroups(
            f"attention_grad_key_value_{features}_{kind}",
            sizes.groups(sizes.keys, keys, sizes.key_heads if sizes.heads else 0),
            _THREADS,
            *(grad_key, grad_value, *tokens, given.mask, given.slopes, *places, p),
        )
    if grad_mask is not None:
        p.grad_mask[:] = grad_mask.stride()
        samples, heads, rows, columns = grad_mask.shape
        tiles = _tiles(rows, tile.kRows) * _tiles(columns, tile.kColumns)
        _KERNELS.threadgroups(
            f"attention_grad_mask_{kind}",
            samples * heads * tiles if grad_mask.numel() > 0 else 0,
            _THREADS,
            *(grad_mask, *tokens, given.mask, given.slopes, given.lengths, given.random),
            *(grad_mask, p),
        )
    if grad_sinks is not None:
        sums = torch.empty_like(grad_sinks, dtype=torch.float32)
        heads = grad_sinks.numel()
        _KERNELS.threadgroups(
            "attention_grad_sinks", heads, _THREADS, sums, given.sinks, lse, statistics, p
        )
        grad_sinks.copy_(sums)


def _is_for_few_queries(call: Call, sizes: _Sizes) -> bool:
    """Returns true for calls that are bound by loading keys and values (decoding)."""
    return (
        not sizes.is_packed
        and call.dropout_p == 0
        and sizes.queries <= 8
        and sizes.key_heads > 0
        and sizes.queries * sizes.heads <= decoding.MOST_ROWS * sizes.key_heads
    )


def _compiled_for(features: int, compiled: Sequence[int]) -> int:
    return next(most for most in compiled if features <= most)


# ---- kernel arguments --------------------------------------------------------------------------------


def _readable(x: Tensor) -> Tensor:
    """Returns the tensor, or a copy if its features are not contiguous or its row stride is out of range."""
    size, stride = x.shape[-2 if x.dim() == 4 else 0], x.stride(-2 if x.dim() == 4 else 0)
    is_near = size <= 1 or x.shape[-1] <= stride < 2**31
    return x if is_near and (x.shape[-1] <= 1 or x.stride(-1) == 1) else x.contiguous()


def _strides(x: Tensor):
    row = -2 if x.dim() == 4 else 0
    between_rows = max(x.shape[-1], 1) if x.shape[row] <= 1 else x.stride(row)
    batch = x.stride(0) if x.dim() == 4 else 0
    return header("attention").AttentionStrides(batch, x.stride(1), between_rows)


class _Inputs:
    """Tensors as kernels read them; 0 for absent ones."""

    def __init__(self, call: Call):
        self.query, self.key, self.value = map(_readable, call[:3])
        self.mask = 0 if call.attn_mask is None else call.attn_mask
        self.sinks = 0 if call.sinks is None else call.sinks.float().contiguous()
        self.slopes, self.cu_queries, self.cu_keys, self.lengths, self.random = (
            0 if x is None else x.contiguous()
            for x in (call.alibi_slopes, *call[6:9], call.rng if call.dropout_p > 0 else None)
        )


def _inputs(call: Call, sizes: _Sizes):
    """Returns the tensors and the parameters, without those of results."""
    types = header("attention")
    given = _Inputs(call)
    p = types.AttentionParameters(
        query=_strides(given.query),
        key=_strides(given.key),
        value=_strides(given.value),
        lse_batch=0 if sizes.is_packed else sizes.heads * sizes.queries,
        lse_head=sizes.all_queries,
        batch=sizes.batch,
        heads=sizes.heads,
        heads_of_a_key=sizes.heads // max(sizes.key_heads, 1),
        queries=sizes.queries,
        keys=sizes.keys,
        all_queries=sizes.all_queries,
        all_keys=sizes.all_keys,
        head_size=sizes.head_size,
        value_size=sizes.value_size,
        window_left=min(call.window_left, _LARGEST // 2),
        window_right=min(call.window_right, _LARGEST // 2),
        scale=call.scale,
        softcap=softcap_for_kernel(call.softcap),
        keep_scale=1 / (1 - call.dropout_p) if call.dropout_p < 1 else 1,
        dropout_threshold=min(round(call.dropout_p * 2**32), 2**32 - 1),
        drops=call.dropout_p > 0,
        drops_all=call.dropout_p >= 1,
        bottom_right=call.bottom_right,
        is_packed=sizes.is_packed,
        has_lengths=call.seqused_k is not None,
        has_sinks=call.sinks is not None,
        has_slopes=call.alibi_slopes is not None,
        is_aligned=is_in_packs(given.key, 16) and is_in_packs(given.value, 16),
    )
    if call.alibi_slopes is not None and call.alibi_slopes.dim() == 2:
        p.slopes_batch = sizes.heads
    mask = call.attn_mask
    if mask is not None:
        p.mask[:], p.mask_sizes[:] = mask_strides(mask), mask.shape
        p.mask_kind = types.AttentionMask[mask_kind(mask)]
    if sizes.head_size == 0:
        # As in torch: without features nothing is seen.
        given.lengths = torch.zeros(sizes.batch, dtype=torch.int32, device=call.query.device)
        p.has_lengths = True
    return given, p


def mask_kind(mask: Tensor) -> str:
    """Returns the kernels' name for masks of this dtype."""
    return {torch.bool: "kBool", torch.float32: "kFloat"}.get(mask.dtype, "kSame")


def mask_strides(mask: Tensor) -> tuple[int, ...]:
    return tuple(
        0 if size == 1 else stride for size, stride in zip(mask.shape, mask.stride(), strict=True)
    )


def is_in_packs(x: Tensor, size: int) -> bool:
    """Returns true if all rows consist of aligned vectors of `size` bytes."""
    pack = size // x.element_size()
    between = [s for n, s in zip(x.shape[:-1], x.stride(), strict=False) if n > 1]
    return x.data_ptr() % size == 0 and all(n % pack == 0 for n in (x.shape[-1], *between))
