"""Forward-mode derivatives of glu: kernels/pointwise/glu.metal."""

import pytest
import torch
import torch.nn.functional as F
from metalops import testing
from metalops.testing.samples import FLOATS, layouts, make, to_device
from torch._subclasses.fake_tensor import FakeTensorMode

from ..aten import CPU_FLOATS, Calls, OpInfoSamples, served_by_us
from ..benchmark import Benchmark

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
aten = torch.ops.aten


def _opinfo_glu(dtype: torch.dtype):
    for shape, dim in (((4, 6), 0), ((4, 6), -1), ((8,), 0), ((2, 4, 3), 1), ((0, 2), 1)):
        yield make(shape, dtype), dim


def _opinfo_glu_jvp(dtype: torch.dtype) -> Calls:
    for x, dim in _opinfo_glu(dtype):
        y = torch.nn.functional.glu(x.float(), dim).to(dtype)
        yield (y, x, make(x.shape, dtype, seed=1), dim), {}


def _opinfo_glu_backward_jvp(dtype: torch.dtype) -> Calls:
    for x, dim in _opinfo_glu(dtype):
        grad = make(torch.nn.functional.glu(x.float(), dim).shape, dtype, low=-1, high=1, seed=2)
        grad_x = torch.ops.aten.glu_backward(grad.float(), x.float(), dim).to(dtype)
        tangents = make(grad.shape, dtype, seed=3), make(x.shape, dtype, seed=4)
        yield (grad_x, grad, x, *tangents, dim), {}


OPINFO_SAMPLES = (
    OpInfoSamples("glu_jvp", torch.ops.aten.glu_jvp, CPU_FLOATS, _opinfo_glu_jvp),
    OpInfoSamples(
        "glu_backward_jvp", torch.ops.aten.glu_backward_jvp, CPU_FLOATS, _opinfo_glu_backward_jvp
    ),
)


BENCHMARKS = (Benchmark.same("glu_jvp", lambda x, out: aten.glu_jvp(out, x, x, -1), halves=True),)


def _halvable(dtype):
    """Tensors of all layouts and a dimension of theirs that has even size."""
    for name, x in layouts(dtype, low=-4, high=4):
        for dim in range(x.dim()):
            if x.shape[dim] % 2 == 0 and x.dim() <= 5:
                yield name, x, dim


def _assert_close(actual, expected, dtype):
    assert actual.device.type == "mps" and actual.dtype == dtype
    rtol, atol = testing.tolerance("glu_jvp", dtype)
    torch.testing.assert_close(
        # Summands of magnitudes up to ten may cancel.
        actual.cpu(),
        expected.to(dtype),
        rtol=2 * rtol,
        atol=max(atol, 2 * rtol),
        check_stride=False,
    )


@by_float
def test_glu_jvp(dtype):
    for name, x, dim in _halvable(dtype):
        dx = make(x.shape, dtype, seed=8)
        # The given result is rounded to the dtype, and the tangent is computed from that.
        y = F.glu(x.double(), dim).to(dtype)
        expected = aten.glu_jvp(y.double(), x.double(), dx.double(), dim)
        actual = aten.glu_jvp(*to_device((y, x, dx), "mps"), dim)
        assert actual.stride() == torch.empty_like(y).stride(), name
        _assert_close(actual, expected, dtype)


@by_float
def test_glu_backward_jvp(dtype):
    for name, x, dim in _halvable(dtype):
        dx = make(x.shape, dtype, seed=8)
        grad, dgrad = (make(F.glu(x.float(), dim).shape, dtype, seed=s) for s in (9, 10))
        grad_x = aten.glu_backward(grad.double(), x.double(), dim).to(dtype)
        operands = (grad_x, grad, x, dgrad, dx)
        expected = aten.glu_backward_jvp(*(t.double() for t in operands), dim)
        actual = aten.glu_backward_jvp(*to_device(operands, "mps"), dim)
        assert actual.shape == x.shape, name
        _assert_close(actual, expected, dtype)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_forward_mode_and_forward_over_reverse(dim):
    x, dx, cotangent = make((4, 6), torch.float32), make((4, 6), torch.float32, seed=1), None
    cotangent = make(F.glu(x, dim).shape, torch.float32, seed=2)

    def gradient(x, cotangent):
        _, pullback = torch.func.vjp(lambda x: F.glu(x, dim), x)
        return pullback(cotangent)[0]

    def both(x, dx, cotangent):
        first = torch.func.jvp(lambda x: F.glu(x, dim), (x,), (dx,))[1]
        second = torch.func.jvp(gradient, (x, cotangent), (dx, cotangent.sin()))[1]
        return first, second

    expected = both(x, dx, cotangent)
    actual = both(*(t.to("mps") for t in (x, dx, cotangent)))
    for a, e in zip(actual, expected):
        torch.testing.assert_close(a.cpu(), e)


def test_extreme_gates():
    x = torch.tensor([[2.0, -3.0, 100.0, -100.0]]).to("mps")
    dx = torch.ones_like(x)
    result = aten.glu_jvp(F.glu(x), x, dx, 1).cpu()
    torch.testing.assert_close(result, torch.tensor([[1.0, 0.0]]))


def test_errors():
    x, y = torch.zeros(2, 4, device="mps"), torch.zeros(2, 2, device="mps")
    for dtype in (torch.int32, torch.complex64):
        with pytest.raises(NotImplementedError, match='"glu_jvp" not implemented for'):
            aten.glu_jvp(y.to(dtype), x.to(dtype), x.to(dtype), 1)
    with pytest.raises(RuntimeError, match="Found dtype Half but expected Float"):
        aten.glu_jvp(y, x, x.half(), 1)
    with pytest.raises(IndexError, match="Dimension out of range"):
        aten.glu_jvp(y, x, x, 3)
    with pytest.raises(RuntimeError, match=r"expected glu to have sizes \[2, 2\]"):
        aten.glu_jvp(x, x, x, 1)
    with pytest.raises(RuntimeError, match="Halving dimension must be even"):
        aten.glu_backward_jvp(y, y, y[:1], y, y[:1], 0)
    with pytest.raises(RuntimeError, match="same device"):
        aten.glu_jvp(y, x, x.cpu(), 1)


def test_no_host_copy_and_no_stand_in():
    x, y = torch.randn(3, 4, device="mps"), torch.randn(3, 2, device="mps")

    def call():
        with testing.no_host_copies():
            aten.glu_jvp(y, x, x, 1)
            aten.glu_backward_jvp(x, y, x, y, x, 1)

    assert served_by_us(call) == []


def test_fake_tensors_have_the_results_properties():
    x, y = torch.randn(4, 3, device="mps").t(), torch.randn(2, 3, device="mps").t()
    for call in (
        lambda x, y: aten.glu_jvp(y, x, x, 1),
        lambda x, y: aten.glu_backward_jvp(x, y, x, y, x, 1),
    ):
        with FakeTensorMode() as mode:
            fake = call(mode.from_tensor(x), mode.from_tensor(y))
        real = call(x, y)
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride()
