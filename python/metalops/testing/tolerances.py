"""The tolerance policy: how far a result may be from its reference, and every exception with its reason.

The reference is computed in float64 and rounded to the result's dtype, so the tolerances only have to cover the error
of the operator itself: a few units in the last place, of the element or, where terms cancel, of the sample's largest.
"""

from __future__ import annotations

import torch

# The magnitude of ordinary samples: those of samples.make.
ORDINARY = 5.0

# The rtol of torch.testing.assert_close, and its atol for samples of ordinary numbers. Complex numbers have those of
# their parts.
_FORWARD = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}

# Gradients multiply several rounded factors; those of a broadcast argument are also sums of rounded terms.
_GRADIENT = {
    torch.float64: (1e-6, 1e-6),
    torch.float32: (1e-5, 2e-5),
    torch.float16: (4e-3, 5e-3),
    torch.bfloat16: (3e-2, 3e-2),
}

_CTC = "exponentials of sums of logarithms, which are of the order of 100 and rounded to 1e-5"
_PDIST = "for p < 1 the terms grow beyond bounds as coordinates come close to each other"
_LOG_NDTR = "torch's formula rounds x / sqrt(2) to the dtype and then squares it in an exponent"
_GLU = "torch's formula starts from a gradient that was rounded to the dtype"
_ANTIALIAS = "weights of torch's own kernels depend on places that are rounded to float32"
_AIRY = "torch's own kernel on the CPU is off by 3e-6"
_SAVED = "computed from a result that was rounded to the dtype"
_SQUARES = "of squared matrices: off by parts of the largest element, which is 1e5 in torch's samples; see test_matrix_exp.py"
_REFLECTORS = "of what are no reflectors in torch's samples: terms as large as 100 cancel"
_SYSTEMS = "systems whose solutions are larger than what they are made of"
_STEPS = "made of operators that each round to the dtype, as in torch"

# (operator, dtype, true for a gradient): (rtol, atol for ordinary numbers, reason)
EXCEPTIONS: dict[tuple[str, torch.dtype, bool], tuple[float, float, str]] = {
    ("special.airy_ai", torch.float32, False): (1.3e-6, 4e-5, _AIRY),
    ("nn.functional.ctc_loss", torch.float32, True): (5e-4, 2e-4, _CTC),
    ("_masked_softmax", torch.float16, True): (4e-3, 1e-2, _SAVED),
    ("pdist", torch.float32, True): (2e-4, 2e-4, _PDIST),
    ("_upsample_bilinear2d_aa", torch.float32, False): (3e-4, 1e-4, _ANTIALIAS),
    ("_upsample_bicubic2d_aa_backward", torch.float32, False): (3e-4, 1e-4, _ANTIALIAS),
    ("upsample_bicubic2d_aa_backward", torch.float32, False): (1.3e-6, 1e-4, _ANTIALIAS),
    ("matrix_exp", torch.float32, False): (1e-5, 5e-2, _SQUARES),
    ("matrix_exp", torch.float32, True): (1e-5, 5e-2, _SQUARES),
    ("matrix_exp", torch.complex64, False): (1e-5, 5e-2, _SQUARES),
    ("linalg.householder_product", torch.float32, True): (1e-4, 1e-3, _REFLECTORS),
    ("triangular_solve", torch.float32, True): (1e-4, 1e-3, _SYSTEMS),
    ("linalg.ldl_factor", torch.float32, False): (1e-4, 1e-4, _SYSTEMS),
    ("linalg.ldl_factor_ex", torch.float32, False): (1e-4, 1e-4, _SYSTEMS),
    ("glu_backward_jvp", torch.float16, False): (4e-3, 2e-3, _GLU),
    ("_addmm_activation", torch.float16, False): (2e-3, 1e-3, _STEPS),
    ("_native_multi_head_attention", torch.float16, False): (4e-3, 4e-3, _STEPS),
    ("_native_multi_head_attention", torch.bfloat16, False): (3e-2, 3e-2, _STEPS),
    ("_transformer_encoder_layer_fwd", torch.float16, False): (1e-2, 1e-2, _STEPS),
    ("_transformer_encoder_layer_fwd", torch.bfloat16, False): (6e-2, 6e-2, _STEPS),
    ("special.log_ndtr", torch.float16, True): (1e-2, 5e-3, _LOG_NDTR),
    ("special.log_ndtr", torch.bfloat16, True): (8e-2, 3e-2, _LOG_NDTR),
}


def tolerance(
    name: str, dtype: torch.dtype, gradient: bool = False, scale: float = ORDINARY
) -> tuple[float, float]:
    """Returns (rtol, atol) for results of the operator ``name`` with this dtype. Integers and bool must be equal.

    scale: of the sample, usually its largest expected result. atol is in proportion to it, so that small numbers are
    compared as closely as others, and not larger than for ordinary numbers, so that large ones hide nothing. It is
    never less than the dtype's smallest step, nor than the loss on devices that flush denormals.
    """
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0, 0.0
    real = dtype.to_real() if dtype.is_complex else dtype
    rtol, atol = EXCEPTIONS.get(
        (name, dtype, gradient), (_GRADIENT if gradient else _FORWARD)[real]
    )[:2]
    info = torch.finfo(real)
    least = max(info.smallest_normal * info.eps, torch.finfo(torch.float32).smallest_normal)
    return rtol, max(atol * min(scale / ORDINARY, 1.0), least)
