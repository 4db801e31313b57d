"""Attention decoding on CUDA tensors (split-KV, flash decoding): runs the plans of
csrc/plans/attention/attention_decode.h, as csrc/ops/attention/attention_decode.mm does on ``mps``."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from . import plan

# The most rows (queries, times the heads that share a key) for which this path is used.
MOST_ROWS = 32


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


def decode(
    query: Tensor, key: Tensor, value: Tensor, options: Options, out: Tensor, lse: Tensor
) -> None:
    """Runs attention of query (B, Hq, L, E) over key (B, Hkv, S, E) and value (B, Hkv, S, Ev), or, with a block table,
    (pages, Hkv, page size, E or Ev). out: (B, Hq, L, Ev), with contiguous features. lse: (B, Hq, L). Raises TooLarge."""
    plan.run(
        "attention_decode",
        query,
        out=out,
        lse=lse,
        query=query,
        key=key,
        value=value,
        mask=options.attn_mask,
        sinks=options.sinks,
        slopes=options.alibi_slopes,
        lengths=options.seqused_k,
        starts=options.first_k,
        table=options.block_table,
        key_scale=options.k_scale,
        value_scale=options.v_scale,
        scale=options.scale,
        value_factor=options.value_scale,
        softcap=options.softcap,
        window_left=options.window_left,
        window_right=options.window_right,
        bottom_right=options.bottom_right,
    )


# ---- combining the results of several calls --------------------------------------------------------


def merge(parts: list[Tensor], out: Tensor, lse: Tensor) -> None:
    """Combines two partial results by their lse. parts: out_a, lse_a, out_b and lse_b. out, lse: contiguous."""
    plan.run(
        "attention_decode_merge",
        out,
        out=_rows(out),
        lse=lse.view(-1),
        **dict(zip(_PARTS, _flat_parts(parts), strict=True)),
    )


def merge_backward(grads: list[Tensor], parts: list[Tensor], gradients: list[Tensor]) -> None:
    """Computes the gradients of merge. grads: of the result and its lse. gradients: of the parts, contiguous."""
    grad_out, grad_lse = grads
    plan.run(
        "attention_decode_merge_backward",
        parts[0],
        grad_out=_rows(grad_out),
        grad_lse=_flat(grad_lse),
        **dict(zip(_PARTS, _flat_parts(parts), strict=True)),
        **{f"grad_{name}": x for name, x in zip(_PARTS, _flat_parts(gradients), strict=True)},
    )


_PARTS = ("out_a", "lse_a", "out_b", "lse_b")


def _flat_parts(parts: list[Tensor]) -> list[Tensor]:
    return [_flat(x) if i % 2 else _rows(x) for i, x in enumerate(parts)]


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1).contiguous()


def _rows(x: Tensor) -> Tensor:
    """Returns (..., E) as contiguous rows."""
    return x.contiguous().view(math.prod(x.shape[:-1]), x.shape[-1])
