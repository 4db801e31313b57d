"""Attention decoding on CUDA tensors (split-KV, flash decoding): the host side of
kernels/attention/attention_decode.metal, the counterpart of csrc/ops/attention/attention_decode.mm on ``mps``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .attention_call import softcap_for_kernel
from .kernel_file import MOST_THREADS, TYPES, KernelFile, errors_of, header, multiprocessors, number

_KERNELS = KernelFile("attention_decode")
_THREADS = 128
_LARGEST = 2**31 - 4097
# The most rows (queries, times the heads that share a key) for which this path is used.
MOST_ROWS = 32
# By the rows of a threadgroup, the number of resident threadgroups of a multiprocessor (occupancy): more rows take more
# registers. The keys are split into as many parts as that takes, none of which is short.
_TASKS_AT_ONCE = {1: 4, 4: 2, 8: 2}
_MOST_TASKS = 4096
_SHORTEST_PART = 256


class Options(NamedTuple):
    """The arguments besides queries, keys and values: as in csrc/ops/attention/attention_decode.h."""

    attn_mask: Tensor | None = None
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None
    seqused_k: Tensor | None = None
    first_k: Tensor | None = None
    block_table: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    scale: float = 1.0
    value_scale: float = 1.0
    window_left: int = -1
    window_right: int = -1
    bottom_right: bool = True
    softcap: float = 0.0


def mask_kind(mask: Tensor) -> str:
    """Returns the kernels' name for masks of this dtype."""
    return {torch.bool: "kBool", torch.float32: "kFloat"}.get(mask.dtype, "kSame")


def mask_strides(mask: Tensor) -> tuple[int, ...]:
    return tuple(
        0 if size == 1 else stride for size, stride in zip(mask.shape, mask.stride(), strict=True)
    )


def with_features_together(x: Tensor) -> Tensor:
    return x if x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def decode(
    query: Tensor, key: Tensor, value: Tensor, options: Options, out: Tensor, lse: Tensor
) -> None:
    """Runs attention of query (B, Hq, L, E) over key (B, Hkv, S, E) and value (B, Hkv, S, Ev), or, with a block table,
    (pages, Hkv, page size, E or Ev). out: (B, Hq, L, Ev), with contiguous features. lse: (B, Hq, L)."""
    if lse.numel() == 0:
        return
    types = header("attention_decode")
    key, value, query = (with_features_together(x) for x in (key, value, query))
    batch, heads, queries = query.shape[0], key.shape[1], query.shape[2]
    group, features = query.shape[1] // heads, value.shape[3]
    table = options.block_table
    page_size, keys = 0, key.shape[2]
    if table is not None:
        page_size, keys = key.shape[2], table.shape[1] * key.shape[2]
        table = with_features_together(table)
    if query.shape[3] == 0:
        keys = 0  # as in torch, without features nothing is seen
    rows = _rows(queries * group, are_codes=key.dtype != query.dtype)
    row_blocks = -(-queries * group // rows)
    tasks = batch * heads * row_blocks
    enough = min(_TASKS_AT_ONCE[rows] * multiprocessors(query), _MOST_TASKS)
    # Values without features have an lse, which no kernel would combine.
    splits = min(max(enough // tasks, 1), max(1, keys // _SHORTEST_PART)) if features else 1
    is_power = page_size > 0 and page_size & (page_size - 1) == 0

    def strides(x: Tensor):
        return types.AttentionDecodeStrides(x.stride(0), x.stride(2), x.stride(1))

    mask, slopes = options.attn_mask, options.alibi_slopes
    pack = 8 if key.element_size() == 1 else 16
    p = types.AttentionDecodeParameters(
        query=strides(query),
        key=strides(key),
        value=strides(value),
        out=strides(out),
        lse=strides(lse),
        table_stride=0 if table is None else table.stride(0),
        slopes_batch=slopes.shape[1] if slopes is not None and slopes.dim() == 2 else 0,
        batch=batch,
        heads=heads,
        group=group,
        queries=queries,
        keys=keys,
        head_size=query.shape[3],
        value_size=features,
        splits=splits,
        row_blocks=row_blocks,
        page_size=page_size,
        page_shift=page_size.bit_length() - 1 if is_power else -1,
        pages=0 if table is None else key.shape[0],
        window_left=_window(options.window_left),
        window_right=_window(options.window_right),
        scale=options.scale,
        value_scale=options.value_scale,
        softcap=softcap_for_kernel(options.softcap),
        bottom_right=options.bottom_right,
        has_lengths=options.seqused_k is not None,
        has_starts=options.first_k is not None,
        has_sinks=options.sinks is not None,
        has_slopes=slopes is not None,
        has_key_scale=options.k_scale is not None,
        has_value_scale=options.v_scale is not None,
        is_aligned=is_in_packs(key, pack) and is_in_packs(value, pack),
    )
    if mask is not None:
        p.mask[:] = mask_strides(mask)
        p.mask_kind = types.AttentionDecodeMask[mask_kind(mask)]
    all_rows = batch * heads * queries * group
    part_outs = part_sums = 0
    if splits > 1:
        part_outs = lse.new_empty([all_rows, splits, features])
        part_sums = lse.new_empty([all_rows, splits, 2])
    lengths, starts = (
        0 if x is None else x.int().contiguous() for x in (options.seqused_k, options.first_k)
    )
    sinks, slopes = (0 if x is None else x.float().contiguous() for x in (options.sinks, slopes))
    mask, table, key_scale, value_scale = (
        0 if x is None else x for x in (mask, table, options.k_scale, options.v_scale)
    )
    size = max(query.shape[3], features)
    kind = TYPES[query.dtype]
    _KERNELS.threadgroups(
        f"attention_decode_{kind}_{TYPES[key.dtype]}_{rows}_{64 if size <= 64 else 128 if size <= 128 else 256}",
        tasks * splits,
        _THREADS,
        *(out, lse, part_outs, part_sums, query, key, value, table, starts, lengths),
        *(mask, sinks, slopes, key_scale, value_scale, p, errors_of(query)),
    )
    if splits > 1:
        _KERNELS.simdgroups(
            f"attention_decode_combine_simdgroup_{kind}",
            all_rows * -(-features // 32),
            *(out, lse, part_outs, part_sums, sinks, value_scale, p),
        )


def takes(query: Tensor, key: Tensor, value: Tensor, capacity: int) -> bool:
    """Returns true if the sizes fit the kernels' integers. capacity: the maximum number of keys."""
    rows = query.shape[0] * query.shape[1] * query.shape[2]
    sizes = (*key.shape, *value.shape, capacity)
    return max(sizes) <= _LARGEST and (rows + _MOST_TASKS) * _THREADS <= MOST_THREADS


def _rows(rows: int, are_codes: bool) -> int:
    """Returns the rows of a threadgroup."""
    if are_codes:
        return 4
    return 1 if rows <= 1 else 4 if rows <= 4 else 8


def _window(size: int) -> int:
    """Returns the window for the kernel: a number that stands for "all" becomes -1, since it must not exceed any key's
    position."""
    return -1 if size > (2**31 - 1) // 2 else size


def is_in_packs(x: Tensor, size: int) -> bool:
    """Returns true if all rows consist of aligned vectors of `size` bytes."""
    pack = size // x.element_size()
    between = [s for n, s in zip(x.shape[:-1], x.stride(), strict=False) if n > 1]
    return x.data_ptr() % size == 0 and all(n % pack == 0 for n in (x.shape[-1], *between))


# ---- combining the results of several calls --------------------------------------------------------


def merge(parts: list[Tensor], out: Tensor, lse: Tensor) -> None:
    """Combines two partial results by their lse. parts: out_a, lse_a, out_b and lse_b. out, lse: contiguous."""
    parts = [x.contiguous() for x in parts]
    _KERNELS.grid(
        f"attention_decode_merge_pair_{TYPES[out.dtype]}",
        (out.shape[-1], lse.numel()),
        out,
        lse,
        *parts,
    )


def merge_backward(grads: list[Tensor], parts: list[Tensor], gradients: list[Tensor]) -> None:
    """Computes the gradients of merge. grads: of the result and its lse. gradients: of the parts, contiguous."""
    rows, features = parts[1].numel(), parts[0].shape[-1]
    _KERNELS.simdgroups(
        f"attention_decode_merge_pair_backward_{TYPES[parts[0].dtype]}",
        rows,
        *(*gradients, *(x.contiguous() for x in (*grads, *parts))),
        *(number("q", rows), number("i", features)),
    )
