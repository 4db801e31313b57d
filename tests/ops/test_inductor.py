"""torch.compile's default backend calls our kernels where its Metal code generator lacks an operator."""

import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.full

FUNCTIONS = {
    "airy_ai": torch.special.airy_ai,
    "ndtri": torch.special.ndtri,
    "laguerre_polynomial_l": lambda x: torch.special.laguerre_polynomial_l(x, 3),
    "laguerre_polynomial_l of a number": lambda x: torch.special.laguerre_polynomial_l(0.5, x),
    "legendre_polynomial_p": lambda x: torch.special.legendre_polynomial_p(x, 4),
    "frexp": lambda x: torch.frexp(x).mantissa * torch.frexp(x).exponent,
    "log_ndtr": torch.special.log_ndtr,
    "heaviside": lambda x: torch.heaviside(x - 0.5, x),
    "logspace": lambda x: x + torch.logspace(0, 1, x.shape[-1], device=x.device),
}


@pytest.mark.sampled(4)
# Inductor's C++ for a CPU takes twenty seconds to compile for the first time.
@pytest.mark.parametrize("device", ["mps", pytest.param("cpu", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_compiled_agrees_with_eager(function, device):
    torch._dynamo.reset()
    x = torch.rand(4, 5, device=device).t()

    def around(x):
        return function(2 * x / 3) + 1

    torch.testing.assert_close(torch.compile(around, fullgraph=True)(x), around(x))


@pytest.mark.nightly
def test_it_makes_no_difference_which_of_inductor_and_metalops_is_imported_first():
    use = "x = torch.rand(3, device='mps'); torch.compile(torch.special.ndtri)(x)"
    for first, second in (
        ("torch._inductor.lowering", "metalops"),
        ("metalops", "torch._inductor.lowering"),
    ):
        subprocess.run(
            [sys.executable, "-c", f"import torch; import {first}; import {second}; {use}"],
            check=True,
        )
