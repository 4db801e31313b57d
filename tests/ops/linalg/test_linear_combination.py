"""_compute_linear_combination: kernels/linalg/linear_combination.metal."""

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, INTEGERS, make, to_device
from torch._subclasses.fake_tensor import FakeTensorMode

from ..aten import CPU_FLOATS, Calls, OpInfoSamples, only_ours, served_by_us
from ..benchmark import Benchmark, ones

pytestmark = only_ours("aten::_compute_linear_combination")

combine = torch._compute_linear_combination
DTYPES = (*FLOATS, torch.complex64, *INTEGERS, torch.bool)


def _opinfo_linear_combination(dtype: torch.dtype) -> Calls:
    for shape, rows in (((3, 5), 4), ((1, 2, 3), 2), ((4,), 1)):
        yield (make(shape, dtype), make((rows, shape[0]), dtype, seed=1)), {}


OPINFO_SAMPLES = (
    OpInfoSamples(
        "_compute_linear_combination",
        torch._compute_linear_combination,
        {*CPU_FLOATS, *INTEGERS, torch.bool},
        _opinfo_linear_combination,
    ),
)


def _combine_in_four_rows(x, out):
    coefficients = ones(4, 4, dtype=x.dtype, device=x.device)
    return combine(x.reshape(4, -1), coefficients)


BENCHMARKS = (Benchmark.same("_compute_linear_combination", _combine_in_four_rows),)


def _exact(x, coefficients):
    if x.dtype == torch.bool:
        return _exact(x.int(), coefficients.int()).bool()
    wide = x.dtype if not (x.is_floating_point() or x.is_complex()) else None
    wide = wide or (torch.complex128 if x.is_complex() else torch.float64)
    product = coefficients.to(wide)[..., None] * x.to(wide).reshape(len(x), -1)
    return product.sum(1).to(x.dtype).view(-1, *x.shape[1:])


def _samples(dtype):
    yield make((3, 5), dtype), make((4, 3), dtype, seed=1)
    yield make((1, 5), dtype), make((1, 1), dtype, seed=1)
    yield make((3,), dtype), make((4, 3), dtype, seed=1)
    yield make((5, 3, 4), dtype).permute(1, 2, 0), make((3, 40), dtype, seed=1).t()
    yield make((9, 8, 7), dtype)[::2, 1::2], make((6, 10), dtype, seed=1)[1:, ::2]
    yield make((1, 7), dtype).expand(3, 7), make((4, 1), dtype, seed=1).expand(4, 3)
    yield make((6, 5000), dtype), make((3, 6), dtype, seed=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(dtype):
    for x, coefficients in _samples(dtype):
        expected = _exact(x, coefficients)
        actual = combine(*to_device((x, coefficients), "mps"))
        rtol, atol = testing.tolerance("linear_combination", dtype)
        torch.testing.assert_close(actual.cpu(), expected, rtol=rtol, atol=10 * atol)
        assert actual.is_contiguous()


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.int64), ids=str)
def test_out_is_added_to(dtype):
    x, coefficients = make((3, 5, 2), dtype), make((4, 3), dtype, seed=1)
    start = make((4, 5, 2), dtype, seed=2)
    expected = (_exact(x.double(), coefficients.double()) + start).to(dtype)
    for out in (
        start.to("mps"),
        to_device(start.transpose(0, 2).contiguous().transpose(0, 2), "mps"),
    ):
        assert combine(x.to("mps"), coefficients.to("mps"), out=out) is out
        rtol, atol = testing.tolerance("linear_combination", dtype)
        torch.testing.assert_close(out.cpu(), expected, rtol=2 * rtol, atol=10 * atol)


def test_errors():
    x, coefficients = torch.ones(3, 5, device="mps"), torch.ones(4, 3, device="mps")
    with pytest.raises(RuntimeError, match="Empty tensor not supported"):
        combine(x[:, :0], coefficients)
    with pytest.raises(RuntimeError, match="expected a matrix of coefficients"):
        combine(x, coefficients[:, :2])
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        combine(x, coefficients.half())
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        combine(x, coefficients, out=torch.empty(0, device="mps"))
    with pytest.raises(RuntimeError, match="single memory location"):
        combine(x, coefficients, out=x.new_ones(1, 5).expand(4, 5))
    with pytest.raises(RuntimeError, match="same device"):
        combine(x, coefficients.cpu())
    with pytest.raises(NotImplementedError, match="not implemented for 'UInt16'"):
        combine(x.to(torch.uint16), coefficients.to(torch.uint16))


def test_no_host_copy_and_no_stand_in():
    x, coefficients = torch.ones(3, 5, device="mps"), torch.ones(4, 3, device="mps")

    def call():
        with testing.no_host_copies():
            combine(x, coefficients)

    assert served_by_us(call) == []


def test_fake_tensors_have_the_results_properties():
    x, coefficients = torch.ones(5, 3, device="mps").t(), torch.ones(4, 3, device="mps")
    real = combine(x, coefficients)
    with FakeTensorMode() as mode:
        fake = combine(mode.from_tensor(x), mode.from_tensor(coefficients))
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
    assert fake.stride() == real.stride()
