"""torch.utils.checkpoint on ``mps``: the random numbers of the forward pass are drawn again in the backward pass.

torch keeps the state of a device's generator if the device's module says that it is initialised, which torch.mps does
not, and only for devices of arguments. Without it, dropout has another mask when it is computed again, and gradients
are wrong.
"""

from __future__ import annotations

import functools

import torch
from torch.utils import checkpoint

from .internals import say_mps_is_initialized


@functools.cache
def install() -> None:
    say_mps_is_initialized()
    states = checkpoint.get_device_states

    @functools.wraps(states)
    def with_mps(*args):
        devices, found = states(*args)
        if not devices and _may_use_mps():
            return [0], [torch.mps.get_rng_state()]
        return devices, found

    checkpoint.get_device_states = with_mps


def _may_use_mps() -> bool:
    """Returns true if functions without tensors of a device among their arguments are taken to use mps."""
    return checkpoint.DefaultDeviceType.get_device_type() == "mps"
