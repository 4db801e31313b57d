"""exponential_ in the place of stock's, while the fix "exponential" is on: kernels/creation/exponential.metal."""

import math
from pathlib import Path

import metalops
import pytest
import torch
from metalops.msl.flatten import flatten_text
from metalops.testing.samples import FLOATS, layouts

from ..aten import kernels_of

ROOT = Path(__file__).parents[3]
HEADERS = [ROOT, ROOT / "python/metalops/include"]

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("exponential"):
        torch.manual_seed(0)
        yield


@by_float
@pytest.mark.parametrize("rate", [0.25, 1.0, 40.0])
def test_numbers_are_positive_and_exponentially_distributed(dtype, rate, tmp_path):
    x = torch.empty(20_000, dtype=dtype, device="mps")
    drawn, launched = kernels_of(lambda: x.exponential_(rate), tmp_path)
    assert drawn is x and len(launched) == 1 and launched[0].startswith("exponential_")
    drawn = drawn.cpu().double()
    assert (drawn > 0).all() and drawn.isfinite().all()
    # The largest distance of the distribution functions (Kolmogorov and Smirnov), which is beyond this once in 10,000 times.
    ordered = drawn.sort().values
    steps = torch.arange(1, 20_001, dtype=torch.float64) / 20_000
    assert (1 - (-rate * ordered).exp() - steps).abs().max() < 2.3 / math.sqrt(
        20_000
    ) + 4 * torch.finfo(dtype).eps
    assert abs(drawn.mean() * rate - 1) < 0.04


def test_the_ends_of_the_random_bits_are_no_zeros():
    """The kernel's function of the smallest and the largest numbers that Philox gives, and of those in the middle."""
    shader = metalops.compile_shader(
        flatten_text(
            """
        #include <metal_stdlib>
        #include <kernels/creation/random_bits.h>
        kernel void ends(device float* y, constant uint* bits, uint i [[thread_position_in_grid]]) {
          y[i] = metalops::exponential_of(bits[i]);
        }
        """,
            HEADERS,
        )
    )
    bits = torch.tensor([0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])
    y = torch.empty(6, device="mps")
    shader.ends(y, torch.where(bits < 2**31, bits, bits - 2**32).int().to("mps"))
    uniform = (bits.double() + 0.5) / 2**32
    torch.testing.assert_close(y.cpu().double(), -torch.log1p(-uniform), rtol=1e-6, atol=0)


@by_float
def test_extreme_rates_stay_positive_and_finite(dtype):
    for rate in (1e-38, 1e-6, 1e6, 1e38):
        drawn = torch.empty(1000, dtype=dtype, device="mps").exponential_(rate)
        assert (drawn > 0).all() and drawn.isfinite().all()
    assert (torch.empty(5, dtype=dtype, device="mps").exponential_(math.inf) == 0).all()


def test_the_generator_advances_and_repeats():
    generator = torch.Generator("mps").manual_seed(3)
    first = torch.empty(33, device="mps").exponential_(generator=generator)
    second = torch.empty(33, device="mps").exponential_(generator=generator)
    assert not torch.equal(first, second)
    state = torch.mps.get_rng_state()
    again = torch.empty(70, device="mps").exponential_()
    torch.mps.set_rng_state(state)
    assert torch.equal(torch.empty(70, device="mps").exponential_(), again)
    generator.manual_seed(3)
    assert torch.equal(torch.empty(33, device="mps").exponential_(generator=generator), first)


def test_every_layout_gets_the_same_numbers():
    for name, x in layouts(torch.float32):
        if 0 in x.stride() or name in ("10-d", "16-d"):  # elements share memory
            continue
        y = torch.empty_strided(x.shape, x.stride(), device="mps")
        torch.manual_seed(5)
        flat = torch.empty(x.numel(), device="mps").exponential_()
        torch.manual_seed(5)
        assert torch.equal(y.exponential_().flatten(), flat), name
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.empty(3, device="mps").expand(2, 3).exponential_()


def test_elements_between_those_of_a_view_are_left():
    memory = torch.full((10, 6), -1.0, device="mps")
    memory[::2, 1::2].exponential_()
    assert (memory[::2, 1::2] > 0).all()
    assert (memory[1::2] == -1).all() and (memory[:, ::2] == -1).all()


def test_errors_are_those_of_the_cpu():
    for device in ("cpu", "mps"):
        x = torch.ones(3, device=device)
        for rate in (0.0, -1.0):
            with pytest.raises(
                RuntimeError, match=r"exponential_ expects lambda > 0.0, but found lambda="
            ):
                x.exponential_(rate)
        with pytest.raises(
            RuntimeError, match="Exponential distribution is a continuous probability distribution"
        ):
            x.int().exponential_()
    with pytest.raises(
        RuntimeError, match="Expected a 'mps' device type for generator but found 'cpu'"
    ):
        torch.ones(3, device="mps").exponential_(generator=torch.Generator())
