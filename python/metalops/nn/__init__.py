"""Modules whose weights are quantised, of the operators of :mod:`metalops.ops`, on any device.

``weight``, ``scales``, ``biases`` and ``bias`` are their parameters and buffers, so checkpoints of mlx-community load.
"""

from .quantized import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedSwitchLinear,
    quantize_model,
)

__all__ = ["QuantizedEmbedding", "QuantizedLinear", "QuantizedSwitchLinear", "quantize_model"]
