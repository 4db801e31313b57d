"""kaiser_window: kernels/creation/window.metal."""

import math

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS

from ..aten import served_by_us
from ..benchmark import Benchmark

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


# In torch's op_db.
OPINFOS = ("signal.windows.kaiser",)


BENCHMARKS = (
    Benchmark.same(
        "kaiser_window",
        lambda x, out: torch.kaiser_window(
            out.numel(), False, 12.0, dtype=out.dtype, device=out.device
        ),
    ),
)


def _exact(length, periodic, beta):
    """In float64; torch's own overflows for a large beta."""
    last = length if periodic else length - 1
    r = torch.arange(length, dtype=torch.float64) * 2 / max(last, 1) - 1
    y = beta * (1 - r * r).clamp_min(0).sqrt()
    beta = torch.tensor(float(beta), dtype=torch.float64)
    return torch.special.i0e(y) / torch.special.i0e(beta) * (y - beta.abs()).exp()


@by_float
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1e-3, 1.0, 8.6, 12.0, -12.0, 50.0, 300.0])
def test_values(dtype, periodic, beta):
    for length in (2, 3, 4, 28, 33, 1000, 5003):
        window = torch.kaiser_window(length, periodic, beta, dtype=dtype, device="mps")
        assert window.dtype == dtype and window.shape == (length,)
        expected = _exact(length, periodic, abs(beta))
        # A few units in the last place of the Bessel function, and of the exponent.
        rtol = max(torch.finfo(dtype).eps, 1e-6 * (1 + abs(beta) / 6))
        tiny = torch.finfo(dtype).smallest_normal
        torch.testing.assert_close(window.cpu().double(), expected, rtol=rtol, atol=tiny)


def test_short_windows_and_the_overloads():
    for device in ("cpu", "mps"):
        assert torch.kaiser_window(0, device=device).shape == (0,)
        assert torch.kaiser_window(1, device=device).tolist() == [1]
        assert torch.kaiser_window(1, False, 3.0, device=device).tolist() == [1]
    for args in ((7,), (7, True), (7, False), (7, False, 3.0)):
        expected = torch.kaiser_window(*args)
        torch.testing.assert_close(torch.kaiser_window(*args, device="mps").cpu(), expected)
        scipy_like = torch.signal.windows.kaiser(7, beta=3.0, sym=False, device="mps")
        torch.testing.assert_close(scipy_like.cpu(), torch.kaiser_window(7, True, 3.0))


def test_out_overloads():
    out = torch.empty(0, device="mps")
    for name, args in (("out", ()), ("periodic_out", (False,)), ("beta_out", (False, 3.0))):
        overload = getattr(torch.ops.aten.kaiser_window, name)
        assert overload(9, *args, out=out) is out
        torch.testing.assert_close(out.cpu(), torch.kaiser_window(9, *args))
        out = torch.empty(18, device="mps")[::2]


def test_requires_grad_and_default_dtype():
    assert torch.kaiser_window(4, device="mps", requires_grad=True).requires_grad
    torch.set_default_dtype(torch.float16)
    try:
        assert torch.kaiser_window(4, device="mps").dtype == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)


def test_nan():
    assert torch.kaiser_window(5, False, math.nan, device="mps").isnan().all()


def test_errors():
    with pytest.raises(RuntimeError, match="non-negative window_length, got window_length=-1"):
        torch.kaiser_window(-1, device="mps")
    with pytest.raises(RuntimeError, match="expects floating point dtypes, got: TensorOptions"):
        torch.kaiser_window(3, dtype=torch.int32, device="mps")
    with pytest.raises(NotImplementedError, match="not implemented for 'ComplexFloat'"):
        torch.kaiser_window(3, dtype=torch.complex64, device="mps")
    with pytest.raises(TypeError, match="float64"):
        torch.kaiser_window(3, dtype=torch.float64, device="mps")


def test_no_host_copy_and_no_stand_in():
    def call():
        with testing.no_host_copies(), testing.no_standins():
            torch.kaiser_window(9, device="mps")

    assert served_by_us(call) == []


def test_compiled():
    function = torch.compile(
        lambda: torch.kaiser_window(9, device="mps") * 2, backend="aot_eager", fullgraph=True
    )
    torch.testing.assert_close(function().cpu(), torch.kaiser_window(9) * 2)
