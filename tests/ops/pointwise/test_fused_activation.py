"""_add_relu and _addmm_activation: kernels/pointwise/fused_activation.metal."""

import itertools
import math

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, make, to_device
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.ops import aten

from ..aten import CPU_FLOATS, OPINFO_SHAPES, Calls, OpInfoSamples, served_by_us
from ..benchmark import Benchmark

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
by_number = pytest.mark.parametrize("dtype", (*FLOATS, *SIGNED), ids=str)


def _opinfo_add_relu(dtype: torch.dtype) -> Calls:
    for shape in OPINFO_SHAPES:
        x = make(shape, dtype)
        yield (x, make(shape[-1:], dtype, seed=1)), {"alpha": -2}
        yield (x, 3), {}


def _opinfo_addmm_activation(dtype: torch.dtype) -> Calls:
    operands = make((5,), dtype), make((4, 6), dtype, low=-1, high=1), make((6, 5), dtype, seed=1)
    yield operands, {}
    yield operands, {"beta": 0.5, "alpha": 2, "use_gelu": True}


OPINFO_SAMPLES = (
    OpInfoSamples(
        "_add_relu",
        torch._add_relu,
        {*CPU_FLOATS, torch.int8, torch.int16, torch.int32, torch.int64},
        _opinfo_add_relu,
    ),
    OpInfoSamples(
        "_addmm_activation", torch._addmm_activation, CPU_FLOATS, _opinfo_addmm_activation
    ),
)


BENCHMARKS = (
    Benchmark.same(
        "_add_relu",
        lambda a, b, out: torch._add_relu(a, b, out=out),
        inputs=2,
        only_dtype="float32",
    ),
)


def _add_relu(a, b, alpha=1):
    """The definition; torch's CPU operator has no half precision, and NaN depends on the place."""
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point:
        return (a.to(dtype) + int(alpha) * b.to(dtype)).clamp_min(0).to(dtype)
    total = (a.double() + alpha * b.double()).clamp(0, torch.finfo(dtype).max)
    return total.to(dtype)


def _assert_close(actual, expected):
    rtol, atol = testing.tolerance("_add_relu", expected.dtype)
    assert actual.device.type == "mps"
    torch.testing.assert_close(
        actual.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
    )


# ---- _add_relu -----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@by_number
def test_add_relu(dtype):
    for case in testing.elementwise_cases(2, dtype):
        a, b = case.args
        if a.dtype == b.dtype == dtype:
            for alpha in (1, -2) if case.precise else (1,):
                actual = torch._add_relu(*to_device((a, b), "mps"), alpha=alpha)
                _assert_close(actual, _add_relu(a, b, alpha))


def test_special_values():
    values = (math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, -3e38, 1e-40)
    a, b = torch.tensor(list(itertools.product(values, values))).t()
    actual = torch._add_relu(a.to("mps"), b.to("mps"))
    _assert_close(actual, _add_relu(a, b))
    assert not actual.isinf().any()


@pytest.mark.parametrize("dtype", (torch.float32, *SIGNED), ids=str)
def test_it_agrees_with_the_cpu(dtype):
    info = None if dtype == torch.float32 else torch.iinfo(dtype)
    low, high = (info.min, info.max - 1) if info else (-5, 5)
    a, b = (make((70,), dtype, low=low, high=high, seed=seed) for seed in (1, 2))
    for alpha in (1, 3, -1):
        expected = torch._add_relu(a, b, alpha=alpha)
        _assert_close(torch._add_relu(*to_device((a, b), "mps"), alpha=alpha), expected)


@pytest.mark.parametrize("other", [2, -3, 1.5], ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.int32), ids=str)
def test_numbers_and_what_they_promote_to(other, dtype):
    x = make((40,), dtype)
    _assert_close(torch._add_relu(x.to("mps"), other), torch._add_relu(x, other))
    _assert_close(torch._add_relu(x.to("mps"), other, 2), torch._add_relu(x, other, 2))
    scalar = torch.tensor(other)
    _assert_close(torch._add_relu(x.to("mps"), scalar), torch._add_relu(x, scalar))


@pytest.mark.parametrize(
    "dtypes", list(itertools.permutations((torch.float32, torch.int32, torch.int64), 2)), ids=str
)
def test_promotion(dtypes):
    a, b = (make((4, 6), dtype, seed=seed) for seed, dtype in enumerate(dtypes))
    _assert_close(torch._add_relu(*to_device((a, b), "mps")), torch._add_relu(a, b))


def test_alpha_is_truncated_for_integers():
    x = make((40,), torch.int32)
    _assert_close(torch._add_relu(*to_device((x, x), "mps"), alpha=1.9), x.clamp_min(0) * 2)


@by_number
def test_inplace(dtype):
    a, b = make((5, 7), dtype), make((7,), dtype, seed=1)
    for view in (lambda x: x, lambda x: x.t(), lambda x: x[1:, ::2]):
        whole = a.to("mps")
        x = view(whole)
        other = b.to("mps")[: x.shape[1]]
        assert torch._add_relu_(x, other) is x
        expected = a.clone()
        view(expected).copy_(_add_relu(view(a), b[: x.shape[1]]))
        _assert_close(whole, expected)
    x = a.to("mps")
    assert torch._add_relu_(x, 2) is x
    _assert_close(x, _add_relu(a, torch.tensor(2, dtype=dtype)))


@pytest.mark.parametrize("out_dtype", (torch.float32, torch.float16), ids=str)
def test_out(out_dtype):
    a, b = make((4, 6), torch.float32), make((6,), torch.float32, seed=1)
    expected = _add_relu(a, b).to(out_dtype)
    for make_out in (
        lambda: torch.empty(4, 6, dtype=out_dtype, device="mps"),
        lambda: torch.empty(0, dtype=out_dtype, device="mps"),
        lambda: torch.empty(6, 4, dtype=out_dtype, device="mps").t(),
    ):
        out = make_out()
        assert torch._add_relu(*to_device((a, b), "mps"), out=out) is out
        _assert_close(out, expected)
    out = torch.empty(0, device="mps")
    _assert_close(aten._add_relu.Scalar_out(a.to("mps"), 2, out=out), torch._add_relu(a, 2))


def test_errors_of_add_relu():
    x = torch.zeros(3, 2, device="mps")
    for dtype in (torch.uint8, torch.bool, torch.complex64):
        with pytest.raises(NotImplementedError, match='"add_relu" not implemented for'):
            torch._add_relu(x.to(dtype), x.to(dtype))
    with pytest.raises(RuntimeError, match="result type Float can't be cast to"):
        torch._add_relu_(x.int(), x)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch._add_relu_(x[0].clone(), x)
    with pytest.raises(RuntimeError, match="same device"):
        torch._add_relu(x, x.cpu())
    with pytest.raises(RuntimeError, match="derivative for aten::_add_relu is not implemented"):
        torch._add_relu(x.requires_grad_(), x.detach()).sum().backward()


# ---- _addmm_activation ---------------------------------------------------------------------------


@by_float
@pytest.mark.parametrize("use_gelu", [False, True])
def test_addmm_activation(dtype, use_gelu):
    operands = make((5,), dtype), make((4, 6), dtype, low=-1, high=1), make((6, 5), dtype, seed=2)
    for options in ({}, {"beta": 0.5, "alpha": -2}):
        expected = torch._addmm_activation(*operands, use_gelu=use_gelu, **options)
        actual = torch._addmm_activation(*to_device(operands, "mps"), use_gelu=use_gelu, **options)
        torch.testing.assert_close(actual.cpu(), expected)
        out = torch.empty(0, dtype=dtype, device="mps")
        torch._addmm_activation(*to_device(operands, "mps"), use_gelu=use_gelu, **options, out=out)
        torch.testing.assert_close(out.cpu(), expected)


def test_errors_of_addmm_activation_are_those_of_the_cpu():
    x = torch.zeros(3, 4)
    for operands in ((x, x, x), (x, x[0], x), (x.int(), x, x.t())):
        with pytest.raises(RuntimeError) as expected:
            torch._addmm_activation(*operands)
        with pytest.raises(RuntimeError) as actual:
            torch._addmm_activation(*to_device(operands, "mps"))
        assert str(actual.value) == str(expected.value)


# ---- how they run --------------------------------------------------------------------------------


def test_no_host_copy_and_no_stand_in():
    x = make((4, 4), torch.float32).to("mps")

    def call():
        with testing.no_host_copies():
            torch._add_relu(x, x)
            torch._add_relu(x, 2)
            torch._add_relu_(x, x)
            torch._add_relu(x, x, out=x.half())
            torch._addmm_activation(x[0], x, x, use_gelu=True)

    assert served_by_us(call) == []


def test_fake_tensors_have_the_results_properties():
    x, b = make((6, 4), torch.float32).to("mps"), make((4,), torch.int32).to("mps")
    for call in (torch._add_relu, lambda x, b: torch._addmm_activation(b.float(), x[:4], x[:4])):
        with FakeTensorMode() as mode:
            fake = call(mode.from_tensor(x), mode.from_tensor(b))
        real = call(x, b)
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride()
