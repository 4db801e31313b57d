"""What the tests of ATen operators share: references on the CPU for dtypes that torch's CPU
operators lack, the names under which the device would record a stand-in, errors against float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from metalops import debug
from metalops.testing import to_device
from torch import Tensor

NARROW = (torch.float16, torch.bfloat16)

# Every overload that we register.
OUR_OVERLOADS = (
    "aten::special_airy_ai",
    "aten::special_ndtri",
    "aten::special_log_ndtr",
    "aten::special_laguerre_polynomial_l",
    "aten::special_legendre_polynomial_p",
    "aten::heaviside",
    "aten::frexp",
    "aten::logit_",
    "aten::logspace",
    "aten::rrelu",
    "aten::multi_margin_loss",
    "aten::multilabel_margin_loss",
    "aten::_pdist",
    "aten::_ctc_loss",
    "aten::adaptive_avg_pool3d",
    "aten::_adaptive_avg_pool3d",
    "aten::adaptive_max_pool3d",
    "aten::fractional_max_pool2d",
    "aten::fractional_max_pool3d",
    "aten::take",
    "aten::put",
    "aten::channel_shuffle",
    "aten::embedding_renorm",
    "aten::narrow_copy",
    "aten::fake_quantize",
    "aten::_fake_quantize",
    "aten::_fused_moving_avg_obs_fq_helper",
    "aten::glu_jvp",
    "aten::glu_backward_jvp",
    "aten::kaiser_window",
    "aten::_fused_adagrad_",
    "aten::_compute_linear_combination",
    "aten::_aminmax",
    "aten::batch_norm_update_stats",
    "aten::min.unary_out",
    "aten::max.unary_out",
    "aten::std.correction_out",
    "aten::var.correction_out",
    "aten::hash_tensor",
    "aten::mode",
    "aten::segment_reduce",
    "aten::_segment_reduce",
    "aten::_masked_softmax",
    "aten::poisson",
    "aten::binomial",
    "aten::_upsample_bilinear2d_aa_backward",
    "aten::_upsample_bicubic2d_aa_backward",
    "aten::_upsample_lanczos2d_aa",
    "aten::_transform_bias_rescale_qkv",
    "aten::_add_relu",
    "aten::_functional_assert_async",
    "aten::_make_dep_token",
    "aten::_native_multi_head_attention",
    "aten::_transformer_encoder_layer_fwd",
    "aten::_fused_sdp_choice",
    "aten::_nested_tensor_from_mask_left_aligned",
    "aten::_addmm_activation",
    "aten::_jagged_to_padded_dense_forward",
    "aten::_padded_dense_to_jagged_forward",
)


def reference(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function`` with half and bfloat16 tensors computed in float32, the result rounded.

    torch's CPU operators of special functions refuse half precision.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Tensor:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if not any(x.dtype in NARROW for x in tensors):
            return function(*args, **kwargs)
        dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
        if len(tensors) == 2:
            dtype = torch.result_type(*tensors)
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda x: x.float() if x.dtype in NARROW else x, (args, kwargs)
        )
        result = function(*args, **kwargs)
        return pytree.tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, result)

    return wrapper


def served_by_us(call: Callable[[], Any]) -> list[str]:
    """Runs ``call``; which of our operators a stand-in served.

    Operators of stock MPS that the formulas of torch's autograd use are none of our business.
    """
    with debug.standins() as served:
        call()
    return [
        name
        for name in served
        if any(name == ours or name.startswith((ours + ".", ours + "_")) for ours in OUR_OVERLOADS)
    ]


def assert_refused_as_on_the_cpu(
    calls: Iterable[Callable[[Callable[[Tensor], Tensor]], Any]], *errors: type[Exception]
) -> None:
    """Each call takes a function that moves its tensors. On the CPU it raises one of `errors`, and on the device the
    same one with the same message."""
    for number, call in enumerate(calls):
        with pytest.raises(errors) as expected:
            call(lambda tensor: tensor)
        with pytest.raises(type(expected.value)) as actual:
            call(lambda tensor: to_device(tensor, "mps"))
        assert str(actual.value) == str(expected.value), number


def relative_error(actual: Tensor, exact: Tensor, scale: Tensor | None = None) -> Tensor:
    """Of float32 results against float64 ones.

    Relative to ``scale``; by default to the exact value, at least the smallest normal number.
    """
    scale = exact.abs().clamp_min(torch.finfo(torch.float32).tiny) if scale is None else scale
    return (actual.cpu().double() - exact).abs() / scale


def uniform(low: float, high: float, count: int = 20000) -> Tensor:
    return (torch.rand(count, dtype=torch.float64) * (high - low) + low).float()
