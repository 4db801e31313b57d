"""torch.compile's default backend and the operators that its Metal code generator has no code for.

Inductor turns these operators into its own pointwise code on every device, and then fails on ``mps``: its Metal
generator lacks them, on a Mac too. Here they become calls of the kernels of metalops on ``mps`` tensors; on other
devices nothing changes.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

import torch

_LOWERING = "torch._inductor.lowering"
_OPERATORS = (
    torch.ops.aten.frexp,
    torch.ops.aten.special_airy_ai,
    torch.ops.aten.special_laguerre_polynomial_l,
    torch.ops.aten.special_legendre_polynomial_p,
    torch.ops.aten.special_ndtri,
)


def install() -> None:
    """Does it now if Inductor is loaded, else when it will be: loading it takes seconds."""
    module = sys.modules.get(_LOWERING)
    if module is None:
        sys.meta_path.insert(0, _WhenLoaded())
    else:
        _replace_lowerings(module)


def _replace_lowerings(lowering: ModuleType) -> None:
    for packet in _OPERATORS:
        for name in packet.overloads():
            overload = getattr(packet, name)
            if overload in lowering.lowerings:
                original = lowering.lowerings[overload]
                lowering.lowerings[overload] = _call_on_mps(lowering, overload, original)


def _call_on_mps(lowering: ModuleType, overload, original):
    call = lowering.fallback_handler(overload, add_to_fallback_set=False)

    def lower(*args, **kwargs):
        nodes = (x for x in args if isinstance(x, lowering.ir.IRNode))
        on_mps = any(x.get_device().type == "mps" for x in nodes)
        return (call if on_mps else original)(*args, **kwargs)

    return lower


class _WhenLoaded(MetaPathFinder, Loader):
    """Loads the module as usual and then replaces the lowerings."""

    def find_spec(self, name, path=None, target=None):
        if name != _LOWERING:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _replace_lowerings(module)
