"""Modules with quantised weights, built on the operators of :mod:`metalops.ops`, on any device.

``weight``, ``scales``, ``biases`` and ``bias`` are their parameters and buffers, so checkpoints of mlx-community load;
GGUFLinear has ``weight``, the bytes of a tensor of a GGUF file, and ``bias``.
"""

from .gguf import GGUFLinear
from .quantized import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedSwitchLinear,
    quantize_model,
)

__all__ = [
    "GGUFLinear",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "QuantizedSwitchLinear",
    "quantize_model",
]
