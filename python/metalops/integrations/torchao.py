"""torchao's low-bit linear layers on ``mps``: weights of 1 to 7 bits, dequantised inside the GEMM kernels of metalops.

    >>> from metalops.integrations import torchao  # doctest: +SKIP
    >>> torchao.enable()  # doctest: +SKIP
    >>> from torchao.experimental.quant_api import UIntxWeightOnlyConfig  # doctest: +SKIP
    >>> quantize_(model, UIntxWeightOnlyConfig(bitwidth=4, group_size=64))  # doctest: +SKIP

torchao's own operators for them are in a library that its packages may lack, and that is for Macs only. Its other
weights do not need this module: they call ATen's operators, which metalops implements on ``mps`` (Int8WeightOnlyConfig,
Int8DynamicActivationInt8WeightConfig, Float8WeightOnlyConfig, MXDynamicActivationMXWeightConfig, NVFP4WeightOnlyConfig
and tensors of Int4TilePackedTo4dTensor).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .. import ops
from .._torch.internals import schemas_of
from ..ops._define.fake import delivered
from ..ops._formats import quantized as formats

_BITS = range(1, 8)


@functools.cache
def enable() -> torch.library.Library | None:
    """Defines the operators, unless torchao has them from its own library. Calling it again changes nothing.

    Raises ImportError if torchao is not installed.
    """
    import torchao  # noqa: F401

    try:
        # Loads torchao's library and registers its operators' fake kernels for torch.compile.
        import torchao.experimental.ops.mps  # noqa: F401
    except RuntimeError:
        library = _define()
        import torchao.experimental.ops.mps  # noqa: F401, F811

        return library
    return None


def _define() -> torch.library.Library:
    library = torch.library.Library("torchao", "FRAGMENT")
    weights = "Tensor A, Tensor B, int group_size, Tensor S, Tensor Z"
    for bits in _BITS:
        pack, linear = f"_pack_weight_{bits}bit", f"_linear_fp_act_{bits}bit_weight"
        if not schemas_of(f"torchao::{pack}"):
            library.define(f"{pack}(Tensor W) -> Tensor")
            for key in ("CPU", "MPS"):
                library.impl(pack, functools.partial(_pack, bits), key)
        if not schemas_of(f"torchao::{linear}"):
            library.define(f"{linear}({weights}) -> Tensor")
            library.define(f"{linear}.out({weights}, *, Tensor(a!) out) -> Tensor(a!)")
            library.impl(linear, functools.partial(_linear, bits), "MPS")
            library.impl(f"{linear}.out", functools.partial(_linear, bits), "MPS")
    return library


def _pack(bits: int, W: Tensor) -> Tensor:
    """Packs quants. W: ``(N, K)`` uint8. Returns ``(N, K bits / 8)``."""
    if W.dtype != torch.uint8 or W.dim() != 2 or W.shape[1] % 8 != 0:
        raise ValueError(
            f"_pack_weight_{bits}bit: W must be uint8 of 2 dimensions, the last a multiple of 8, but is {W.dtype} of sizes "
            f"{list(W.shape)}"
        )
    return formats.pack(W.long(), bits)


def _linear(
    bits: int,
    A: Tensor,
    B: Tensor,
    group_size: int,
    S: Tensor,
    Z: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Computes ``A (codes S + Z)^T``. A: ``(M, K)``. S, Z: ``(N, ceil(K / group_size))``."""
    result = ops.quantized_linear(A, B, S, Z, bits=bits, group_size=group_size)
    return delivered(f"_linear_fp_act_{bits}bit_weight", result, out)
