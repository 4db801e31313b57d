"""Lowerings for torch.compile's default backend, for operators that its Metal code generator cannot generate.

Inductor turns these operators into its own code on every device, pointwise or chosen by measurement, and then fails on
``mps``: its Metal generator lacks them, on a Mac, too. Here they become calls of the kernels of metalops on ``mps``
tensors; on other devices nothing changes.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from pathlib import Path

import torch

from .internals import (
    INDUCTOR_LINKER,
    INDUCTOR_LOWERING,
    INDUCTOR_METAL,
    InductorLowering,
    add_inductor_library,
    inductor_lowering,
    register_inductor_backend,
)
from .when_loaded import when_loaded

_OPERATORS = (
    torch.ops.aten._grouped_mm,
    torch.ops.aten._scaled_grouped_mm,
    torch.ops.aten.frexp,
    torch.ops.aten.special_airy_ai,
    torch.ops.aten.special_laguerre_polynomial_l,
    torch.ops.aten.special_legendre_polynomial_p,
    torch.ops.aten.special_ndtri,
)


@functools.cache
def install() -> None:
    when_loaded(INDUCTOR_LOWERING, _replace_lowerings)
    when_loaded(INDUCTOR_METAL, _replace_code_generation)
    if sys.platform != "darwin":
        when_loaded(INDUCTOR_LINKER, _link_with_device)


def _link_with_device() -> None:
    """Links models of AOTInductor with the software device, which has the functions they call; a Mac's torch has them
    itself."""
    from metalops.build.paths import host_library

    add_inductor_library("mps", host_library())


def _replace_code_generation() -> None:
    from .inductor_metal import Scheduling

    register_inductor_backend(Scheduling, _sources)


def _sources() -> bytes:
    """Returns a hash of the files here that decide about the generated code."""
    files = (Path(__file__), Path(__file__).with_name("inductor_metal.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()


def _replace_lowerings() -> None:
    inductor = inductor_lowering()
    for packet in _OPERATORS:
        for name in packet.overloads():
            overload = getattr(packet, name)
            if overload in inductor.lowerings:
                original = inductor.lowerings[overload]
                inductor.lowerings[overload] = _call_on_mps(inductor, overload, original)
    _round_quotients(inductor)


def _call_on_mps(inductor: InductorLowering, overload, original):
    call = inductor.fallback_handler(overload, add_to_fallback_set=False)

    def lower(*args, **kwargs):
        return (call if _are_on_mps(inductor, args) else original)(*args, **kwargs)

    return lower


def _are_on_mps(inductor: InductorLowering, args: tuple) -> bool:
    return any(isinstance(x, inductor.IRNode) and x.get_device().type == "mps" for x in args)


def _round_quotients(inductor: InductorLowering) -> None:
    """Replaces the lowering of torch.div with a rounding_mode: torch's floors a quotient that has been rounded already,
    so that 1.0 // 0.1 is too large; and it divides by scalars through their reciprocals."""

    @inductor.register(
        [torch.ops.aten.div.Tensor_mode, torch.ops.aten.div.Scalar_mode], broadcast=True
    )
    def divide(a, b, rounding_mode=None):
        dtypes = [x.get_dtype() for x in (a, b) if isinstance(x, inductor.IRNode)]
        is_float = any(dtype.is_floating_point for dtype in dtypes)
        if rounding_mode is None or not is_float or not _are_on_mps(inductor, (a, b)):
            return inductor.div_mode(a, b, rounding_mode=rounding_mode)
        from . import inductor_metal

        function = {"floor": "floor_divide", "trunc": "trunc_divide"}[rounding_mode]
        return inductor.make_pointwise(getattr(inductor_metal, function))(a, b)
