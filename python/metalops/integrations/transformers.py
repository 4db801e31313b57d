"""An attention implementation "metalops" for the models of Hugging Face's transformers.

    >>> from metalops.integrations import transformers  # doctest: +SKIP
    >>> transformers.enable()  # doctest: +SKIP
    >>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="metalops")  # doctest: +SKIP

It takes what its "sdpa" takes, and softcap (Gemma 2) and sinks (gpt-oss), which that lacks: such models need no "eager"
attention, which stores the scores. Heads of keys and values are not repeated, and masks, which are those of "sdpa", stay bool and
one for all heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import ops

NAME = "metalops"


def enable() -> None:
    """Registers the implementation and its mask function. Calling it again changes nothing.

    ImportError if transformers is not installed.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """What a model calls: query ``(B, Hq, L, E)``, key and value ``(B, Hkv, S, E)``. Returns ``(B, L, Hq, E)``, and no weights.

    attention_mask: bool, True where query and key attend, or a tensor that is added; windows are part of it. Without one
    attention is causal if `is_causal`, or else the module, says so. A single query sees all keys. s_aux: ``(Hq,)``, the sinks.
    position_bias: added to the scores.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = attention_mask is None and is_causal and query.shape[2] > 1
    if position_bias is not None:
        attention_mask = _with_bias(attention_mask, position_bias)
    out = ops.attention(
        query,
        key,
        value,
        attention_mask,
        is_causal=is_causal,
        scale=scaling,
        softcap=softcap or 0.0,
        sinks=s_aux,
        dropout_p=dropout,
    )
    return out.transpose(1, 2).contiguous(), None


def _with_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, -torch.inf)
    return mask + bias
