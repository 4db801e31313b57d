"""Chooses the implementation of torch.nn.functional.scaled_dot_product_attention on ``mps``, and prepares tracing for
it."""

from __future__ import annotations

import functools

import torch
from torch.nn.attention import register_flash_attention_impl

from .. import _C, _environment, _is_software
from .internals import DispatchKey, call_with_key
from .when_loaded import when_loaded

_USES = {
    "metalops": _C.AttentionUse.ALWAYS,
    "stock": _C.AttentionUse.NEVER,
    # The software device has none of stock's kernels.
    "auto": _C.AttentionUse.UNLESS_SMALL if _is_software else _C.AttentionUse.UNLESS_FUSED,
}


class Attention:
    """The result of set_attention, which restores the previous choice."""

    def __init__(self, before: _C.AttentionUse):
        self._before = before

    def remove(self) -> None:
        """Restores the previous choice."""
        _C.set_attention_use(self._before)

    def __enter__(self) -> Attention:
        return self

    def __exit__(self, *exception) -> None:
        self.remove()


def set_attention(choice: str) -> Attention:
    """Chooses the implementation of ``torch.nn.functional.scaled_dot_product_attention`` on ``mps``.

    "metalops": metalops's flash attention kernels, which never materialise the scores, forward or backward. "stock":
    torch's. "auto", which is the default unless the environment variable METALOPS_ATTENTION says otherwise: torch's
    where stock MPS has a fused kernel (without gradients, masks, dropout and grouped heads, for some head dimensions),
    metalops's for all else. On the software device, which has none of stock's kernels, "auto" is the faster of the
    two: torch's composition of CPU operators where it stores at most 2^24 scores, metalops's kernels above that and
    for up to 8 queries without gradients; a test of these kernels asks for "metalops". Whatever the choice, calls that
    the kernels of metalops do not handle (other dtypes than float32, float16 and bfloat16, head dimensions above 256)
    fall back to torch, and so does everything within ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``.
    ``torch.ops.aten._fused_sdp_choice`` says which it is for a call: ``SDPBackend.OVERRIDEABLE`` for metalops,
    ``SDPBackend.MATH`` otherwise.

    The choice holds for the whole process, or to the end of a ``with`` statement. Models that torch.compile has
    compiled before keep what they have. Raises ValueError for another choice.

        >>> import metalops
        >>> with metalops.set_attention("stock"):
        ...     pass  # torch serves attention here
    """
    if choice not in _USES:
        known = ", ".join(map(repr, _USES))
        raise ValueError(f"set_attention: choice must be one of {known}, but is {choice!r}")
    return Attention(_C.set_attention_use(_USES[choice]))


@functools.cache
def install() -> None:
    set_attention(_environment.value("METALOPS_ATTENTION") or "auto")
    _keep_for_fake_tensors()
    when_loaded("torch.utils.flop_counter", _count_operations)
    register_flash_attention_impl("metalops", register_fn=lambda: set_attention("metalops"))


def _keep_for_fake_tensors() -> None:
    """Lets fake mps tensors in inference mode reach the kernel of metalops.

    They miss the kernels of the MPS keys and would get torch's composition.
    """
    attention = torch.ops.aten.scaled_dot_product_attention.default
    composite = DispatchKey.CompositeImplicitAutograd

    @attention.py_impl(composite)
    def compose(query, *args, **keywords):
        key = DispatchKey.MPS if query.device.type == "mps" else composite
        return call_with_key(attention, key, query, *args, **keywords)


def _count_operations() -> None:
    """Registers FLOP formulas for the only fused attention of ATen that torch has none for."""
    from torch.utils.flop_counter import (
        flop_registry,
        register_flop_formula,
        sdpa_backward_flop_count,
        sdpa_flop_count,
    )

    forward = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    backward = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward

    def of_batch(shape):
        return (1, *shape) if len(shape) == 3 else shape

    def flops_of_forward(query, key, value, *args, out_shape=None, **kwargs) -> int:
        return sdpa_flop_count(*map(of_batch, (query, key, value)))

    def flops_of_backward(grad_out, query, key, value, *args, out_shape=None, **kwargs) -> int:
        return sdpa_backward_flop_count(*map(of_batch, (grad_out, query, key, value)))

    for operator, formula in ((forward, flops_of_forward), (backward, flops_of_backward)):
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)
