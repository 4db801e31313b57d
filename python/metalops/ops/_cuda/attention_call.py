"""The arguments of attention's operators, by name."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# A softcap this small already makes all scores negligible, and kernels might flush a smaller one to zero, which means
# none.
LEAST_SOFTCAP = 1e-30


class Call(NamedTuple):
    """The arguments of metalops::attention_forward."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    sinks: Tensor | None
    alibi_slopes: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    seqused_k: Tensor | None
    rng: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    scale: float
    window_left: int
    window_right: int
    bottom_right: bool
    softcap: float
    dropout_p: float
