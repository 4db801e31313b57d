"""Forms of reductions that stock MPS lacks although it has the reductions: csrc/ops/reduction/stock_reduction.mm."""

import math

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, INTEGERS, layouts, make, special_values, to_device
from torch.ops import aten

from ..aten import served_by_us

DTYPES = (*FLOATS, *INTEGERS, torch.bool)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_extremum = pytest.mark.parametrize("extremum", [torch.min, torch.max])
by_deviation = pytest.mark.parametrize("deviation", [torch.std, torch.var])
pytestmark = pytest.mark.filterwarnings("ignore:_aminmax is deprecated")


def _outs(shape, dtype):
    yield torch.empty(shape, dtype=dtype, device="mps")
    yield torch.empty(0, dtype=dtype, device="mps")
    yield torch.empty(shape[::-1], dtype=dtype, device="mps").permute(list(range(len(shape)))[::-1])
    yield torch.empty((*shape, 2), dtype=dtype, device="mps")[..., 1]


def _same(actual, expected):
    assert actual.device.type == "mps" and actual.shape == expected.shape
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, check_stride=False)


# ---- _aminmax ------------------------------------------------------------------------------------


@by_dtype
def test_aminmax(dtype):
    for _, x in (*layouts(dtype), ("special", special_values(dtype)[1:])):
        if x.numel() == 0 or x.dim() > 8:
            continue
        for a, e in zip(aten._aminmax(to_device(x, "mps")), aten._aminmax(x), strict=True):
            _same(a, e)
        for dim in range(x.dim()):
            for keepdim in (False, True):
                actual = aten._aminmax(to_device(x, "mps"), dim, keepdim)
                for a, e in zip(actual, aten._aminmax(x, dim, keepdim), strict=True):
                    _same(a, e)


# ---- min and max ---------------------------------------------------------------------------------


@by_dtype
@by_extremum
def test_extremum_of_all_elements(extremum, dtype):
    for _, x in (*layouts(dtype), ("special", special_values(dtype))):
        expected = extremum(x, out=torch.empty((), dtype=dtype))
        for out in _outs((), dtype):
            assert extremum(to_device(x, "mps"), out=out) is out
            _same(out, expected)


@by_extremum
def test_extremum_with_another_dtype(extremum):
    x = torch.tensor([3, -1, 2])
    for dtype in (torch.float32, torch.float16, torch.int16):
        for source in (x, x[:0]):
            given = source.to(torch.int16)
            expected = extremum(given, out=torch.empty((), dtype=dtype))
            out = torch.empty((), dtype=dtype, device="mps")
            _same(extremum(given.to("mps"), out=out), expected)
    with pytest.warns(UserWarning, match="was resized"):
        extremum(x.to("mps"), out=torch.empty(3, device="mps"))


def test_extrema_that_are_refused():
    x = torch.rand(3, device="mps")
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the .* Int"):
        torch.min(x, out=torch.empty((), dtype=torch.int32, device="mps"))
    with pytest.raises(RuntimeError, match="same device"):
        torch.max(x, out=torch.empty(()))
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        torch.max(x.requires_grad_(), out=torch.empty((), device="mps"))


# ---- std and var ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@by_deviation
def test_deviation(deviation, dtype):
    for _, x in layouts(dtype):
        if x.dim() > 10:
            continue
        for dim in (None, *range(min(x.dim(), 3)), *([(0, 1)] if x.dim() > 1 else [])):
            for options in ({}, {"correction": 0}, {"correction": 2.5, "keepdim": True}):
                expected = deviation(x.double(), dim, **options).to(dtype)
                for out in _outs(expected.shape, dtype):
                    assert deviation(to_device(x, "mps"), dim, **options, out=out) is out
                    _same(out, expected)


@by_deviation
def test_deviation_is_rounded_once(deviation):
    x = make((5, 40), torch.float16)
    for dtype, out_dtype in (
        (torch.float16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float16),
    ):
        out = torch.empty(5, dtype=out_dtype, device="mps")
        deviation(x.to(dtype).to("mps"), 1, out=out)
        _same(out, deviation(x.to(dtype).double(), 1).to(out_dtype))


@by_deviation
def test_deviation_into_its_own_input(deviation):
    x = make((4, 5), torch.float32)
    expected = deviation(x, 1)
    on_device = x.to("mps")
    deviation(on_device, 1, out=on_device[:, 0])
    _same(on_device[:, 0], expected)


@by_deviation
@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
def test_deviation_of_nothing_and_of_one(deviation):
    for shape, dim in (((3, 0), 1), ((0, 3), 1), ((3, 1), 1), ((), None), ((2, 3), ())):
        x = make(shape, torch.float32)
        expected = deviation(x, dim)
        out = torch.empty(expected.shape, device="mps")
        _same(deviation(x.to("mps"), dim, out=out), expected)


@by_deviation
def test_deviation_of_complex_numbers(deviation):
    x = make((3, 6), torch.complex64)
    for dtype in (torch.float32, torch.complex64):
        out = torch.empty(3, dtype=dtype, device="mps")
        _same(deviation(x.to("mps"), 1, out=out), deviation(x, 1).to(dtype))


@by_deviation
def test_deviations_that_are_refused(deviation):
    x, out = torch.rand(3, 4), torch.empty(3)
    calls = [
        lambda to: deviation(to(x), 2, out=to(out)),
        lambda to: deviation(to(x), (0, 0), out=to(out)),
        lambda to: deviation(to(x.int()), 1, out=to(out)),
        lambda to: deviation(to(x), 1, out=to(out.int())),
        lambda to: deviation(to(x).requires_grad_(), 1, out=to(out)),
    ]
    for call in calls:
        with pytest.raises((RuntimeError, IndexError)) as expected:
            call(lambda tensor: tensor.clone())
        with pytest.raises(type(expected.value)) as actual:
            call(lambda tensor: tensor.to("mps"))
        assert str(actual.value) == str(expected.value)
    with pytest.warns(UserWarning, match="was resized"):
        deviation(x.to("mps"), 1, out=torch.empty(7, device="mps"))
    with pytest.raises(RuntimeError, match="single memory location"):
        deviation(x.to("mps"), 1, out=torch.empty(1, device="mps").expand(3))
    with pytest.raises(RuntimeError, match="same device"):
        deviation(x.to("mps"), 1, out=out)


def test_no_host_copy_and_no_stand_in():
    x = torch.rand(4, 5, device="mps")
    out = torch.empty((), device="mps")

    def run():
        with testing.no_host_copies():
            aten._aminmax(x), aten._aminmax(x, 0)
            torch.min(x, out=out), torch.max(x, out=out), torch.max(x[:0], out=out)
            torch.std(x, dim=None, out=out), torch.var(x, dim=None, out=out)

    assert served_by_us(run) == []
    assert math.isfinite(out.item())
