"""A linear layer with 8-bit weights and one scale for each row, as in comfy-kitchen and torchao; dtypes, autocast and
devices as in :mod:`metalops.ops.quantized`, whose kernels it uses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._define import elsewhere
from ._define.fake import delivered
from ._formats import quantized as formats


def int8_linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    dynamic_activation: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """``x (weight scale)^T + bias``.

    x: ``(..., K)``. weight: ``(N, K)`` int8. scale: ``(N,)``, ``(N, 1)`` or one number, taken in the dtype of x. bias:
    ``(N,)``. dynamic_activation: whether each row of x is quantised to 8 bits too, with ``max |x| / 127`` as its step;
    sums of quants are then in float32, and x gets the gradient that it would have without (straight-through).
    Derivatives to x, scale and bias. out: is resized and cast to as with torch's own functions. Raises ValueError for
    other shapes.
    """
    name = "int8_linear"
    elsewhere.check_dtypes(name, [x], formats.DTYPES)
    if weight.dtype != torch.int8 or weight.dim() != 2:
        raise ValueError(
            f"{name}: weight must be int8 of 2 dimensions, but is {weight.dtype} of sizes {list(weight.shape)}"
        )
    rows, columns = weight.shape
    if x.dim() == 0 or x.shape[-1] != columns:
        raise ValueError(
            f"{name}: x must have rows of {columns} elements, but has sizes {list(x.shape)}"
        )
    if scale.dtype not in formats.DTYPES or (
        scale.numel() != 1 and scale.shape not in ((rows,), (rows, 1))
    ):
        raise ValueError(
            f"{name}: scale must be floats, one or {rows} of them, but is {scale.dtype} of sizes {list(scale.shape)}"
        )
    if bias is not None and bias.shape != (rows,):
        raise ValueError(f"{name}: bias must have sizes [{rows}], but has {list(bias.shape)}")
    elsewhere.check_devices(x=x, weight=weight, scale=scale, bias=bias)
    if not dynamic_activation or columns == 0:
        return delivered(name, _linear(x, weight, scale, bias), out)
    step = (x.detach().float().abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)
    wide = x.float()
    codes = (wide / step).detach().round().clamp(-127, 127)
    # The quants, with the gradient of the values they were rounded from (straight-through).
    rounded = codes + (wide - wide.detach()) / step
    with torch.autocast(x.device.type, enabled=False):
        result = _linear(rounded, weight, scale.float(), None) * step
    if bias is not None:
        result = result + bias.float()
    return delivered(name, result.to(x.dtype), out)


def _linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    codes = weight.contiguous().view(torch.uint8)
    # The operator needs whole bytes of eight quants, and at least one group.
    missing = -weight.shape[1] % 8 or 8 * (weight.shape[1] == 0)
    if missing:
        codes, x = (torch.nn.functional.pad(t, (0, missing)) for t in (codes, x))
    scales = scale.to(x.dtype).reshape(-1, 1).expand(weight.shape[0], 1)
    result = torch.ops.metalops.quantized_matmul.default(
        x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1]),
        codes.unsqueeze(0),
        scales.unsqueeze(0),
        None,
        None if bias is None else bias.to(x.dtype),
        None,
        None,
        None,
        True,
        8,
        0,
        "int8",
    )
    return result.reshape(*x.shape[:-1], weight.shape[0])


OPERATORS = (int8_linear,)
