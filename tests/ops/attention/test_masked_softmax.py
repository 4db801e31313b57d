"""_masked_softmax and its gradient: kernels/attention/masked_softmax.metal."""

import functools
import itertools
import math

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, make, to_device
from torch.ops import aten

from ..aten import CPU_FLOATS, Calls, OpInfoSamples, reference, served_by_us
from ..benchmark import Benchmark

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
# Rows of a thread, of a simdgroup and of a threadgroup, of whole packs of four elements and with a rest; one, two, four
# and eight packs a thread, and rows that are too long to be kept.
SIZES = (1, 5, 16, 17, 32, 33, 128, 129, 200, 259, 512, 600, 1024, 1025, 1100, 9000, 32_771)
SCORES = (3, 4, 5, 5)  # batch, heads, queries, keys
MASK_TYPES = {0: (5, 5), 1: (3, 5), 2: SCORES}


def _opinfo_masked_softmax(dtype: torch.dtype) -> Calls:
    for mask_type, mask_shape in enumerate(((5, 5), (2, 5), (2, 4, 5, 5))):
        mask = make(mask_shape, torch.bool)
        mask[..., 0] = False
        yield (make((2, 4, 5, 5), dtype), mask, 3, mask_type), {}
    for shape, dim in (((4, 300), 1), ((6, 3, 2), 0)):
        mask = make(shape, torch.bool)
        mask.select(dim, 0).fill_(False)
        yield (make(shape, dtype), mask, dim), {}


OPINFO_SAMPLES = (
    OpInfoSamples("_masked_softmax", torch._masked_softmax, CPU_FLOATS, _opinfo_masked_softmax),
)


@functools.lru_cache(maxsize=4)
def _half_masked(shape, device):
    return (torch.rand(shape) > 0.5).to(device)


BENCHMARKS = Benchmark.with_gradient(
    "_masked_softmax",
    lambda x: torch._masked_softmax(x, _half_masked(x.shape, x.device), x.dim() - 1),
)


def _mask(shape, seed=0):
    """True for about half of the elements, and for no row as a whole."""
    mask = make(shape, torch.bool, seed=seed)
    mask[..., 0] = False
    return mask


def _expanded(mask, mask_type, shape):
    """The mask as one of mask type 2."""
    return (mask[:, None, None] if mask_type == 1 else mask).expand(shape)


def _softmax(mask, *arguments):
    return lambda x: torch._masked_softmax(x, mask.to(x.device), *arguments)


def _check(x, mask, *arguments, gradient=True):
    function = _softmax(mask, *arguments)
    case = testing.Case(f"{tuple(x.shape)} {x.stride()} {arguments}", (x,))
    testing.check_forward(function, reference(function), case, "mps", name="_masked_softmax")
    if gradient:
        testing.check_gradient(function, reference(function), case, "mps", name="_masked_softmax")


# ---- values and gradients ------------------------------------------------------------------------


@pytest.mark.sampled(16)
@by_float
@pytest.mark.parametrize("size", SIZES)
def test_rows(dtype, size):
    for rows in (1, 3, 40) if size <= 1100 else (2,):
        _check(make((rows, size), dtype), _mask((rows, size), seed=rows))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [36, 1028, 33_000])
@by_float
def test_rows_that_begin_anywhere(dtype, size):
    """Views whose first element is not where four elements can be taken at once."""
    shape = (3, size)
    for begins in itertools.product((0, 1), repeat=3):
        x, mask, grad = (
            make((4 * size,), kind, seed=seed)[begin : begin + 3 * size].view(shape)
            for seed, (kind, begin) in enumerate(
                zip((dtype, torch.bool, dtype), begins, strict=True)
            )
        )
        mask[:, 0] = False
        rtol, atol = testing.tolerance("_masked_softmax", dtype)
        expected = torch._masked_softmax(x.double(), mask, 1)
        actual = torch._masked_softmax(*to_device((x, mask), "mps"), 1)
        torch.testing.assert_close(actual.cpu(), expected.to(dtype), rtol=rtol, atol=atol)
        y = actual.cpu()
        expected = aten._masked_softmax_backward(grad.double(), y.double(), mask, 1)
        actual = aten._masked_softmax_backward(*to_device((grad, y, mask), "mps"), 1)
        torch.testing.assert_close(actual.cpu(), expected.to(dtype), rtol=rtol, atol=atol)


def test_very_many_rows():
    """Several simdgroups a threadgroup, the last of which has fewer."""
    x, mask = make((4099, 40), torch.float32), _mask((4099, 40))
    _check(x, mask)


@by_float
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3, None])
def test_dimensions(dtype, dim):
    x, mask = make((3, 4, 5), dtype), make((3, 4, 5), torch.bool)
    mask[0], mask[:, 0], mask[..., 0] = False, False, False
    _check(x, mask, dim)


@pytest.mark.parametrize("size", [20, 150])
def test_a_single_dimension(size):
    _check(make((size,), torch.float32), _mask((size,)), 0)


@pytest.mark.parametrize("mask_type", MASK_TYPES)
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, None])
@by_float
def test_mask_types(mask_type, dim, dtype):
    x, mask = make(SCORES, dtype), _mask(MASK_TYPES[mask_type])
    _check(x, mask, dim, mask_type, gradient=mask_type == 2 and dim in (3, -1, None))
    actual = torch._masked_softmax(x.to("mps"), mask.to("mps"), dim, mask_type)
    whole = _expanded(mask, mask_type, SCORES)
    expected = torch._masked_softmax(x.to("mps"), whole.to("mps"), dim, 2)
    assert torch.allclose(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("mask_type", [0, 1])
@pytest.mark.parametrize("size", [130, 200])
def test_mask_types_of_long_rows(mask_type, size):
    shape = (2, 2, size, size)
    mask = _mask((size, size) if mask_type == 0 else (2, size))
    _check(make(shape, torch.float32), mask, 3, mask_type, gradient=False)


def test_a_mask_of_other_dimensions_has_type_2_whatever_is_said():
    x, mask = make((4, 6), torch.float32), _mask((4, 6))
    for mask_type in (None, 0, 1, 2, 7):
        _check(x, mask, 1, mask_type)


@pytest.mark.sampled(2)
@by_float
def test_layouts(dtype):
    """Compared with the definition: torch's CPU operator puts results in the wrong places of tensors that are not
    contiguous, and divides by zero where there are no elements."""
    for name, x in testing.layouts(dtype):
        mask = make(x.shape[::-1], torch.bool).permute(list(range(x.dim()))[::-1])
        for dim in range(max(1, x.dim())):
            arguments = to_device((x, mask), "mps")
            actual = torch._masked_softmax(*arguments, dim)
            assert actual.stride() == torch.empty_like(x).stride(), name
            expected = x.double().masked_fill(mask, -math.inf).softmax(dim).to(dtype)
            rtol, atol = testing.tolerance("_masked_softmax", dtype)
            torch.testing.assert_close(
                actual.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
            )


@pytest.mark.parametrize("size", [9, 300])
def test_a_row_masked_as_a_whole_is_nan_and_has_no_gradient(size):
    x, mask = make((3, size), torch.float32), _mask((3, size))
    mask[1] = True
    x = x.to("mps").requires_grad_()
    result = torch._masked_softmax(x, mask.to("mps"), 1)
    assert result[1].isnan().all() and result[[0, 2]].isfinite().all()
    (result * make((3, size), torch.float32, seed=1).to("mps")).sum().backward()
    assert (x.grad[1] == 0).all() and x.grad[[0, 2]].any()
    assert (x.grad.cpu()[mask] == 0).all()


@pytest.mark.parametrize("size", [6, 300])
def test_special_values(size):
    values = (math.inf, -math.inf, math.nan, 3e38, -3e38, 0.0)
    rows = torch.zeros(20, size)
    for row, pair in zip(rows, itertools.combinations(values, 2)):
        row[1], row[size - 2] = torch.tensor(pair)
    rows[18:] = -math.inf
    for masked in ([], [1], [size - 2], [1, size - 2], [0]):
        mask = torch.zeros(20, size, dtype=torch.bool)
        mask[:, masked] = True
        _check(rows, mask, gradient=False)


def test_large_scores_do_not_overflow():
    x = make((4, 200), torch.float32, low=1000, high=1010)
    _check(x, _mask((4, 200)))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3), (0,)])
def test_empty_tensors(shape):
    x = torch.empty(shape, device="mps", requires_grad=True)
    mask = torch.empty(shape, dtype=torch.bool, device="mps")
    for dim in range(len(shape)):
        result = torch._masked_softmax(x, mask, dim)
        assert result.shape == shape and result.device.type == "mps"
        (grad,) = torch.autograd.grad(result.sum(), x)
        assert grad.shape == shape
    empty = torch.empty(2, 0, 3, 3, device="mps")
    padding = torch.zeros(2, 3, dtype=torch.bool, device="mps")
    assert torch._masked_softmax(empty, padding, 3, 1).shape == (2, 0, 3, 3)


def test_a_number_alone():
    for masked, expected in ((False, 1.0), (True, math.nan)):
        x = torch.tensor(2.5, device="mps", requires_grad=True)
        result = torch._masked_softmax(x, torch.tensor(masked, device="mps"))
        torch.testing.assert_close(result.item(), expected, equal_nan=True)
        result.backward()
        assert x.grad.shape == () and x.grad.item() == 0


def test_out():
    x, mask = make((4, 6), torch.float32), _mask((4, 6))
    expected = torch._masked_softmax(x, mask, 1)
    out = torch.empty(0, device="mps")
    assert aten._masked_softmax.out(*to_device((x, mask), "mps"), 1, out=out) is out
    torch.testing.assert_close(out.cpu(), expected)
    grad = make((4, 6), torch.float32, seed=1)
    arguments = (grad, expected, mask, 1)
    aten._masked_softmax_backward.out(*to_device(arguments, "mps"), out=out)
    torch.testing.assert_close(out.cpu(), aten._masked_softmax_backward(*arguments))


# ---- errors --------------------------------------------------------------------------------------


def _errors():
    x, mask = torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4, dtype=torch.bool)
    two = mask[:, 0, 0]
    yield x, mask.float(), 3, 2
    yield x, mask[:1], 3, 2
    yield x, two, 3, None
    yield x, two, 3, 3
    yield x, two, 3, -1
    yield x, two, 3, 0
    yield x, mask[0, 0], 3, 1
    yield x, two, 3, 2
    yield x, mask, 4, 2
    yield x, mask, -5, 2
    yield x.int(), mask, 3, 2
    yield x.to(torch.complex64), mask, 3, 2


def test_errors_are_those_of_the_cpu():
    for arguments in _errors():
        with pytest.raises(Exception) as expected:
            torch._masked_softmax(*arguments)
        with pytest.raises(type(expected.value)) as actual:
            torch._masked_softmax(*to_device(arguments, "mps"))
        assert str(actual.value).split("\n")[0] == str(expected.value).split("\n")[0]


def test_errors_of_the_gradient_are_those_of_the_cpu():
    x, mask = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    for arguments in (
        (x, x, mask[0], 1),
        (x, x, mask.int(), 1),
        (x, x.half(), mask, 1),
        (x.int(), x, mask, 1),
        (x, x, mask, 2),
    ):
        with pytest.raises(Exception) as expected:
            aten._masked_softmax_backward(*arguments)
        with pytest.raises(type(expected.value)) as actual:
            aten._masked_softmax_backward(*to_device(arguments, "mps"))
        assert str(actual.value) == str(expected.value)


def test_the_gradient_refuses_a_result_of_other_sizes():
    x, mask = torch.zeros(2, 3, device="mps"), torch.zeros(2, 3, dtype=torch.bool, device="mps")
    with pytest.raises(RuntimeError, match=r"expected output to have sizes \[2, 3\]"):
        aten._masked_softmax_backward(x, x[:1], mask, 1)


@pytest.mark.parametrize("mask_type", [0, 1])
def test_more_keys_than_queries_need_a_mask_of_type_2(mask_type):
    """torch's CPU operator reads beyond the end of such a mask."""
    x = torch.zeros(3, 2, 3, 5, device="mps")
    mask = torch.zeros(3, 3, dtype=torch.bool, device="mps")
    with pytest.raises(RuntimeError, match="must match the existing size"):
        torch._masked_softmax(x, mask, 3, mask_type)


def test_tensors_on_two_devices():
    with pytest.raises(RuntimeError, match="same device"):
        torch._masked_softmax(torch.zeros(2, device="mps"), torch.zeros(2, dtype=torch.bool))


def test_there_is_no_second_derivative_as_in_torch():
    x, mask = make((2, 3), torch.float32).to("mps").requires_grad_(), _mask((2, 3)).to("mps")
    (grad,) = torch.autograd.grad(
        torch._masked_softmax(x, mask).square().sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="_masked_softmax_backward is not implemented"):
        grad.sum().backward()
    with pytest.raises(NotImplementedError, match="forward AD with _masked_softmax"):
        torch.func.jvp(lambda x: torch._masked_softmax(x, mask), (x.detach(),), (x.detach(),))


# ---- how it runs ---------------------------------------------------------------------------------


def test_no_host_copy_and_no_stand_in():
    x = make(SCORES, torch.float32).to("mps").requires_grad_()
    masks = {kind: _mask(shape).to("mps") for kind, shape in MASK_TYPES.items()}

    def call():
        with testing.no_host_copies():
            for kind, mask in masks.items():
                result = torch._masked_softmax(x, mask, 3, kind)
            result.sum().backward()

    assert served_by_us(call) == []
