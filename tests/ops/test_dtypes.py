"""ATen operators on mps take and refuse the dtypes that they take and refuse on the CPU."""

import pytest
import torch
from metalops.kernel.dtypes import METAL_TYPES
from torch.nn.functional import rrelu

from .aten import is_left_to_torch

OPERATORS = {
    "airy_ai": torch.special.airy_ai,
    "ndtri": torch.special.ndtri,
    "log_ndtr": torch.special.log_ndtr,
    "laguerre_polynomial_l": lambda x: torch.special.laguerre_polynomial_l(x, x),
    "legendre_polynomial_p": lambda x: torch.special.legendre_polynomial_p(x, x),
    "heaviside": lambda x: torch.heaviside(x, x),
    "frexp": torch.frexp,
    "logit_": lambda x: x.logit_(),
    "rrelu": rrelu,
    "rrelu in training": lambda x: rrelu(x, training=True),
    "logspace": lambda x: torch.logspace(0, 1, 4, dtype=x.dtype, device=x.device),
}
# The CPU refuses 16-bit floating point for some of them, and a GPU should not.
DTYPES = [x for x in METAL_TYPES if x not in (torch.float16, torch.bfloat16)]


def _refusal(function, dtype, device):
    x = torch.zeros(3, dtype=dtype, device=device)
    try:
        function(x)
    except Exception as error:  # noqa: BLE001
        return type(error)
    return None


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_the_same_dtypes_are_refused_with_the_same_exception(name, dtype):
    if is_left_to_torch(f"aten::{name}"):
        pytest.skip("torch's kernel takes other dtypes than its CPU kernel")
    on_mps = _refusal(OPERATORS[name], dtype, "mps")
    assert on_mps is _refusal(OPERATORS[name], dtype, "cpu")
