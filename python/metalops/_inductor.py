"""torch.compile's default backend and the operators that its Metal code generator has no code for.

Inductor turns these operators into its own code on every device, pointwise or chosen by measurement, and then fails on
``mps``: its Metal generator lacks them, on a Mac too. Here they become calls of the kernels of metalops on ``mps`` tensors;
on other devices nothing changes.
"""

from __future__ import annotations

import functools

import torch

from ._torch_internals import INDUCTOR_LOWERING, InductorLowering, inductor_lowering
from ._when_loaded import when_loaded

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


def _replace_lowerings() -> None:
    inductor = inductor_lowering()
    for packet in _OPERATORS:
        for name in packet.overloads():
            overload = getattr(packet, name)
            if overload in inductor.lowerings:
                original = inductor.lowerings[overload]
                inductor.lowerings[overload] = _call_on_mps(inductor, overload, original)


def _call_on_mps(inductor: InductorLowering, overload, original):
    call = inductor.fallback_handler(overload, add_to_fallback_set=False)

    def lower(*args, **kwargs):
        nodes = (x for x in args if isinstance(x, inductor.IRNode))
        on_mps = any(x.get_device().type == "mps" for x in nodes)
        return (call if on_mps else original)(*args, **kwargs)

    return lower
