"""Attention of jagged nested tensors on ``mps``, by the kernels for packed sequences.

torch chooses among CUDA's kernels and a composition that is made of nested tensors of the strided layout, which mps does not
have. So on mps it fails where a gradient is needed.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _C
from ..ops.attention import varlen_attention
from .internals import (
    JAGGED_OPERATORS,
    JaggedAttention,
    jagged_attention,
    ragged_dimension,
    set_jagged_attention,
)
from .when_loaded import when_loaded

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256


@functools.cache
def install() -> None:
    when_loaded(JAGGED_OPERATORS, lambda: set_jagged_attention(_attend))


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    stock = jagged_attention()
    if not _is_handled(stock, query, key, value, attn_mask):
        return stock.attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    query, key, value, _ = stock.autocast(query, key, value, None)
    stock.check(query, key, value, None, dropout_p, is_causal, scale)
    _check_heads(query, key, value, enable_gqa)
    queries, keys, values = (_packed(x.transpose(1, 2)) for x in (query, key, value))
    if not _have_same_lengths(keys, values):
        raise RuntimeError(
            "scaled_dot_product_attention: key and value must have sequences of the same lengths"
        )
    if is_causal and not _have_same_lengths(queries, keys):
        raise RuntimeError(
            "scaled_dot_product_attention: is_causal of nested tensors needs queries and keys of the same lengths"
        )
    rows = varlen_attention(
        queries.rows,
        keys.rows,
        values.rows,
        queries.offsets,
        keys.offsets,
        queries.longest,
        keys.longest,
        is_causal=is_causal,
        scale=scale,
        dropout_p=dropout_p,
    )
    return queries.nested(rows).transpose(1, 2)


def _is_handled(stock: JaggedAttention, query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Returns true for sequences in the third of four dimensions, on mps, that metalops is to serve."""
    tensors = query, key, value
    return (
        all(isinstance(x, stock.NestedTensor) and x.is_mps for x in tensors)
        and all(x.dim() == 4 and ragged_dimension(x) == 2 for x in tensors)
        and all(x.dtype in _DTYPES and x.size(-1) <= _LARGEST_HEAD for x in tensors)
        and mask is None
        and _C.may_serve_attention()
    )


def _check_heads(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    batches = {x.size(0) for x in (query, key, value)}
    heads, of_keys = query.size(1), key.size(1)
    are_grouped = enable_gqa and of_keys > 0 and heads % of_keys == 0
    if len(batches) > 1 or value.size(1) != of_keys or not (heads == of_keys or are_grouped):
        sizes = ", ".join(f"{x.size(0)} x {x.size(1)}" for x in (query, key, value))
        raise RuntimeError(
            "scaled_dot_product_attention: query, key and value must have as many sequences, and as many heads or, with "
            f"enable_gqa, a divisor of them, but have {sizes}"
        )


class _Packed(NamedTuple):
    """The sequences of a nested tensor, without gaps. rows: (total, heads, features). offsets: int32, where sequences begin
    in them, with the end. longest: an upper bound of the lengths. places: of the rows in the values of the nested
    tensor, which is `like`; None: all in order."""

    rows: Tensor
    offsets: Tensor
    longest: int
    places: Tensor | None
    like: Tensor

    def nested(self, rows: Tensor) -> Tensor:
        """Returns a nested tensor of the same structure with these rows."""
        stock = jagged_attention()
        if self.places is not None:
            # Between the sequences lie elements that belong to none.
            whole = rows.new_zeros((self.like.values().shape[0], *rows.shape[1:]))
            rows = whole.index_copy(0, self.places, rows)
        return torch.nested.nested_tensor_from_jagged(
            rows,
            self.like.offsets(),
            lengths=self.like.lengths(),
            min_seqlen=stock.shortest(self.like),
            max_seqlen=stock.longest(self.like),
        )


def _have_same_lengths(a: _Packed, b: _Packed) -> bool:
    # Nested tensors of one structure are known to have the same lengths, without a look at the device.
    return a.like.size(1) == b.like.size(1) or torch.equal(a.offsets, b.offsets)


def _packed(nested: Tensor) -> _Packed:
    longest = jagged_attention().longest(nested)
    rows, offsets, lengths = nested.values(), nested.offsets(), nested.lengths()
    if lengths is None:
        return _Packed(rows, offsets.to(torch.int32), longest, None, nested)
    begins = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    count = int(begins[-1])
    shifts = (offsets[:-1] - begins[:-1]).repeat_interleave(lengths, output_size=count)
    places = torch.arange(count, device=rows.device) + shifts
    return _Packed(rows.index_select(0, places), begins.to(torch.int32), longest, places, nested)
