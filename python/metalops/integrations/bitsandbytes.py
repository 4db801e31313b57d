"""4-bit weights of bitsandbytes on ``mps`` with the kernels of metalops, which dequantise inside the GEMM.

    >>> from metalops.integrations import bitsandbytes  # doctest: +SKIP
    >>> bitsandbytes.enable()  # doctest: +SKIP
    >>> layer = bnb.nn.Linear4bit(4096, 4096, quant_type="nf4").to("mps")  # doctest: +SKIP

They replace the package's own kernels for ``mps``, which dequantise all weights for each GEMM. Linear4bit, Params4bit
and Embedding4bit, models that transformers loads with a BitsAndBytesConfig, and absmax that is quantised itself run on
them: types nf4 and fp4, blocks of 32 to 4096. Weights whose rows are not whole blocks are dequantised first.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .. import ops
from ..ops._define.fake import delivered


@functools.cache
def enable() -> torch.library.Library:
    """Registers the kernels. Calling it again changes nothing.

    Raises ImportError if bitsandbytes is not installed.
    """
    import bitsandbytes  # noqa: F401

    library = torch.library.Library("bitsandbytes", "FRAGMENT")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        for name, kernel in (
            ("quantize_4bit", _quantize),
            ("dequantize_4bit", _dequantize),
            ("gemv_4bit", _gemv),
            ("gemm_4bit", _gemm),
            ("quantize_blockwise", _quantize_blockwise),
            ("dequantize_blockwise", _dequantize_blockwise),
        ):
            library.impl(name, kernel, "MPS")
        for name in ("dequantize_4bit", "gemv_4bit", "dequantize_blockwise"):
            overload = getattr(torch.ops.bitsandbytes, name).default
            library.impl(f"{name}.out", functools.partial(_into, overload), "MPS")
    return library


def _into(overload, *args) -> None:
    *args, out = args
    delivered(overload.name(), overload(*args), out)


def _in_blocks(x: Tensor, size: int) -> Tensor:
    """Returns the elements in rows of that size, padded with zeros."""
    flat = x.reshape(-1)
    missing = -flat.shape[0] % size
    if missing:
        flat = functional.pad(flat, (0, missing))
    return flat.view(-1, size)


# ---- 4 bits --------------------------------------------------------------------------------------


def _quantize(
    A: Tensor, blocksize: int, quant_type: str, quant_storage: torch.dtype
) -> tuple[Tensor, Tensor]:
    rows = _in_blocks(A, blocksize)
    packed, absmax, _ = ops.quantize(rows, mode=quant_type, group_size=blocksize)
    packed = packed.view(-1)[: (A.numel() + 1) // 2]
    return packed.view(quant_storage).unsqueeze(1), absmax.view(-1)


def _dequantize(
    A: Tensor,
    absmax: Tensor,
    blocksize: int,
    quant_type: str,
    shape: Sequence[int],
    dtype: torch.dtype,
) -> Tensor:
    weight = ops.dequantize(
        _in_blocks(A.view(torch.uint8), blocksize // 2),
        absmax.view(-1, 1),
        mode=quant_type,
        group_size=blocksize,
        dtype=dtype,
    )
    return weight.view(-1)[: math.prod(shape)].reshape(shape)


def _gemm(
    A: Tensor,
    B: Tensor,
    shapeB: Sequence[int],
    absmax: Tensor,
    blocksize: int,
    quant_type: str,
    bias: Tensor | None = None,
    absmax_8bit: Tensor | None = None,
    absmax_code: Tensor | None = None,
    absmax_offset: Tensor | None = None,
) -> Tensor:
    if absmax_8bit is not None:
        nested = _dequantize_blockwise(absmax_8bit, absmax, absmax_code, 256, torch.float32)
        absmax = nested + absmax_offset
    rows, columns = shapeB
    if columns % blocksize != 0:
        weight = _dequantize(B, absmax, blocksize, quant_type, shapeB, A.dtype)
        return functional.linear(A, weight, bias)
    return ops.quantized_linear(
        A,
        B.view(torch.uint8).view(rows, columns // 2),
        absmax.view(rows, columns // blocksize),
        bias=bias,
        mode=quant_type,
        group_size=blocksize,
    )


def _gemv(
    A: Tensor, B: Tensor, shapeB: Sequence[int], absmax: Tensor, code: Tensor, blocksize: int
) -> Tensor:
    quant_type = "fp4" if code[1] > 0 else "nf4"
    return _gemm(A, B, shapeB, absmax, blocksize, quant_type)


# ---- 8 bits, for absmax that is quantised itself -------------------------------------------------


def _quantize_blockwise(A: Tensor, code: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    blocks = _in_blocks(A.float(), blocksize)
    absmax = blocks.abs().amax(1)
    scaled = (blocks * (1 / absmax.clamp(min=1e-38)).unsqueeze(1)).clamp(-1, 1)
    places = torch.bucketize(scaled, (code[:-1] + code[1:]) / 2, out_int32=True)
    return places.to(torch.uint8).view(-1)[: A.numel()].reshape(A.shape), absmax


def _dequantize_blockwise(
    A: Tensor, absmax: Tensor, code: Tensor, blocksize: int, dtype: torch.dtype
) -> Tensor:
    blocks = code[_in_blocks(A, blocksize).long()] * absmax.unsqueeze(1)
    return blocks.view(-1)[: A.numel()].reshape(A.shape).to(dtype)
