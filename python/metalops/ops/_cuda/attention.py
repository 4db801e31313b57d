"""FlashAttention on CUDA tensors: runs the plans of csrc/plans/attention/attention.h, as
csrc/ops/attention/attention.mm does on ``mps``."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from . import plan
from .attention_call import Call

_GRADIENTS = ("grad_query", "grad_key", "grad_value", "grad_mask", "grad_sinks", "grad_slopes")


def forward(call: Call, out: Tensor, lse: Tensor, k_scale: Tensor | None = None) -> None:
    """Runs FlashAttention forward. out: in any order of dimensions. lse: contiguous. k_scale: one float32, by which
    keys are to be multiplied. Raises TooLarge."""
    arguments = call._asdict()
    plan.run("attention_forward", call.query, out=out, lse=lse, k_scale=k_scale, **arguments)


def backward(
    call: Call,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    gradients: Sequence[Tensor | None],
) -> None:
    """Runs FlashAttention backward. gradients: of the first six arguments, as far as they are wanted; those of tokens
    in any order of dimensions, the others contiguous. Raises TooLarge."""
    plan.run(
        "attention_backward",
        call.query,
        grad_out=grad_out,
        grad_lse=grad_lse,
        out=out,
        lse=lse,
        **dict(zip(_GRADIENTS, gradients, strict=True)),
        **call._asdict(),
    )
