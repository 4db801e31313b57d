"""An attention implementation "metalops" for the models of Hugging Face's transformers, and quantised weights for them.

    >>> from metalops.integrations import transformers  # doctest: +SKIP
    >>> transformers.enable()  # doctest: +SKIP
    >>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="metalops")  # doctest: +SKIP

It supports the arguments of "sdpa", and also softcap (Gemma 2) and sinks (gpt-oss): such models need no "eager"
attention, which materialises the scores. Heads of keys and values are not repeated (GQA), and masks, which are those of
"sdpa", stay bool and one for all heads.

    >>> model = transformers.load_mlx("mlx-community/Llama-3.2-1B-Instruct-4bit")  # doctest: +SKIP
    >>> metalops.nn.quantize_model(model, bits=4)  # doctest: +SKIP

:func:`load_mlx` loads models that mlx-lm has quantised, :func:`metalops.nn.quantize_model` quantises any model, and for
BitsAndBytesConfig there is :mod:`metalops.integrations.bitsandbytes`. For MetalConfig transformers would load kernels
from the Hub: :func:`enable` gives it those of metalops.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .. import ops

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "metalops"


def enable() -> None:
    """Registers the implementation and its mask function, and the kernel of MetalConfig's layers. Calling it again
    changes nothing.

    Raises ImportError if transformers is not installed.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    try:
        from transformers.integrations import metal_quantization
        from transformers.quantizers import quantizer_metal
    except ImportError:  # of a version without MetalConfig
        return
    metal_quantization._metal_kernel = SimpleNamespace(affine_qmm_t=_affine_product)
    # It would load them by the package `kernels`.
    quantizer_metal.is_kernels_available = lambda: True


def load_mlx(
    name: str, *, device: torch.device | str = "mps", **options: object
) -> PreTrainedModel:
    """Loads a causal language model that mlx-lm has quantised, keeping its weights packed.

    name: of a folder or on the Hub, with config.json, which has "quantization", and safetensors with ``weight``,
    ``scales`` and ``biases`` of each quantised layer: linear layers and embeddings. options: of
    AutoModelForCausalLM.from_pretrained. The model is a PreTrainedModel of transformers, with layers of
    :mod:`metalops.nn`.

    Raises ValueError for checkpoints that are not quantised, or whose names are not those of transformers' model.
    """
    from ._mlx_checkpoints import load

    return load(name, device, **options)


def _affine_product(
    x: Tensor, weight: Tensor, scales: Tensor, biases: Tensor, group_size: int, bits: int
) -> Tensor:
    return ops.quantized_linear(x, weight, scales, biases, bits=bits, group_size=group_size)


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
    """The attention function that a model calls: query ``(B, Hq, L, E)``, key and value ``(B, Hkv, S, E)``. Returns
    ``(B, L, Hq, E)``, and no weights.

    attention_mask: bool, True where query and key attend, or a tensor that is added; windows are part of it. Without
    one attention is causal if `is_causal`, or else the module, says so. A single query sees all keys. s_aux: ``(Hq,)``,
    the sinks. position_bias: added to the scores.
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
