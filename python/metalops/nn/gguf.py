"""A linear layer with the weights of a GGUF file."""

from __future__ import annotations

from torch import Tensor, nn

from .. import ops
from ..ops._formats import gguf as formats


class GGUFLinear(nn.Module):
    """``x weight^T + bias``, :func:`metalops.ops.gguf_linear`. data: ``(out_features, bytes of a row)`` uint8. qtype:
    its type's name or number. bias: ``(out_features,)``."""

    def __init__(self, data: Tensor, qtype: str | int, bias: Tensor | None = None) -> None:
        super().__init__()
        known = formats.checked("GGUFLinear", data, qtype, dimensions=2)
        self.qtype = known.number
        self.out_features = data.shape[0]
        self.in_features = data.shape[1] // known.bytes * known.size
        self.register_buffer("weight", data)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))

    def forward(self, x: Tensor) -> Tensor:
        return ops.gguf_linear(x, self.weight, self.qtype, self.bias)

    def extra_repr(self) -> str:
        names = {known.number: name for name, known in formats.TYPES.items()}
        return f"{self.in_features}, {self.out_features}, qtype={names[self.qtype]!r}"
