"""segment_reduce and its gradient: kernels/reduction/segment_reduce.metal."""

import functools
import itertools
import math

import pytest
import torch
from metalops import testing
from metalops.testing.checks import rounded_once
from metalops.testing.samples import FLOATS, make, to_device
from torch.ops import aten

from ..aten import CPU_FLOATS, Calls, OpInfoSamples, served_by_us
from ..benchmark import Benchmark

REDUCTIONS = ("sum", "mean", "prod", "max", "min")
by_reduction = pytest.mark.parametrize("reduce", REDUCTIONS)
by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)

# Sizes of the data, axis, lengths. Segments that a thread, a threadgroup of one simdgroup or of several and, in pieces of
# 4096 elements, many threadgroups reduce; whole rounds of the threads and parts of them, empty ones everywhere.
CASES = [
    ((5,), 0, [0, 1, 2, 2]),
    ((40,), 0, [3, 0, 30, 7]),
    ((1,), 0, [1]),
    ((1500,), 0, [0, 17, 1, 0, 1200, 279, 3, 0]),
    ((9000,), 0, [9000]),
    ((9000,), 0, [8985, 15]),
    ((40, 3), 0, [40, 0]),
    ((300, 3), 0, [1, 299]),
    ((300, 40), 0, [100] * 3),
    ((300, 64), 0, [4] * 75),
    ((2, 6, 3), 1, [[1, 5], [6, 0]]),
    ((3, 200, 2), 1, [[200, 0], [0, 200], [67, 133]]),
    ((2, 3, 4), 2, [[[4], [4], [4]]] * 2),
    ((4000,), 0, [2] * 2000),  # several threadgroups of threads
    ((300, 5, 3), 0, [0, 299, 1]),
    ((20_000,), 0, [0, 12_289, 1, 4095, 3615]),
    ((20_481,), 0, [4096, 4097, 0, 8192, 4096]),
    ((8193,), 0, [4096, 4097]),
    ((2, 5000, 3), 1, [[5000, 0], [300, 4700]]),
    ((9813,), 0, [1] * 4100 + [256, 257, 0, 5100] + [0] * 80 + [100]),  # some of many are long
    ((6000, 8), 0, [1] * 400 + [513, 0] + [1] * 200 + [4887]),
]
CASES_OF_ALL_TYPES = CASES[1:10:3]
by_case = pytest.mark.parametrize(
    ("shape", "axis", "lengths", "dtype"),
    [(*case, torch.float32) for case in CASES]
    + [(*case, dtype) for case in CASES_OF_ALL_TYPES for dtype in FLOATS[1:]],
    ids=lambda value: str(value)[:20],
)


# In torch's op_db.
OPINFOS = ("_segment_reduce",)


def _opinfo_segment_reduce_backward(dtype: torch.dtype) -> Calls:
    x = make((2, 6, 3), dtype, low=0.5, high=2)
    lengths = torch.tensor([[1, 0, 5], [2, 2, 2]])
    for reduce in ("sum", "mean", "max", "min", "prod"):
        output = torch.segment_reduce(x.float(), reduce, lengths=lengths, axis=1).to(dtype)
        grad = make(output.shape, dtype, seed=1)
        yield (grad, output, x, reduce), {"lengths": lengths, "axis": 1}


OPINFO_SAMPLES = (
    OpInfoSamples(
        "_segment_reduce_backward",
        torch.ops.aten._segment_reduce_backward,
        CPU_FLOATS,
        _opinfo_segment_reduce_backward,
    ),
)


@functools.lru_cache(maxsize=4)
def _lengths(count, total, device):
    """Of `count` segments that cover `total` elements and differ by one at most."""
    return torch.arange(total, total + count).div(count, rounding_mode="floor").to(device)


def _segments(x, length, reduce="sum", columns=1):
    x = x.reshape(-1, columns)
    lengths = _lengths(max(1, len(x) // length), len(x), x.device)
    return torch.segment_reduce(x, reduce, lengths=lengths, unsafe=True)


BENCHMARKS = (
    *Benchmark.with_gradient("segment_reduce", lambda x: _segments(x, 4096)),
    *Benchmark.with_gradient("segment_reduce, short segments", lambda x: _segments(x, 8)),
    *Benchmark.with_gradient(
        "segment_reduce max, columns",
        lambda x: _segments(x, 256, "max", min(8, x.numel())),
    ),
)


def _exact(shape, dtype, reduce, seed=0):
    """Numbers whose sums and products are exact in float, however they are ordered."""
    x = make((math.prod(shape) + 1,), torch.int8, low=0, high=1, seed=seed).to(dtype)
    steps = x.diff().view(shape)
    return torch.exp2(steps) * (-1) ** (steps == 1) if reduce == "prod" else steps


def _offsets(lengths, start=0):
    zero = torch.zeros_like(lengths[..., :1])
    return torch.cat([zero, lengths], -1).cumsum(-1) + start


def _expected(x, reduce, **options):
    return rounded_once(torch.segment_reduce(x.double(), reduce, **options), x.dtype)


def _reduce(x, reduce, **options):
    return torch.segment_reduce(to_device(x, "mps"), reduce, **to_device(options, "mps"))


def _same(actual, expected):
    assert actual.device.type == "mps" and actual.dtype == expected.dtype
    assert actual.shape == expected.shape and actual.stride() == expected.stride()
    # A mean is rounded twice in half precision.
    rtol = 0 if expected.dtype == torch.float32 else torch.finfo(expected.dtype).eps
    torch.testing.assert_close(actual.cpu(), expected, rtol=rtol, atol=0, equal_nan=True)


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.sampled(24)
@by_reduction
@by_case
def test_segments_of_all_lengths(shape, axis, lengths, reduce, dtype):
    x, lengths = _exact(shape, dtype, reduce), torch.tensor(lengths)
    for initial in (None, 2, -0.5):
        options = {"axis": axis, "initial": initial}
        expected = _expected(x, reduce, lengths=lengths, **options)
        _same(_reduce(x, reduce, lengths=lengths, **options), expected)
        _same(_reduce(x, reduce, lengths=lengths.int(), **options), expected)
        _same(_reduce(x, reduce, offsets=_offsets(lengths), **options), expected)
        _same(_reduce(x, reduce, offsets=_offsets(lengths).int(), **options), expected)


@by_reduction
def test_other_names_and_negative_axes(reduce):
    x, lengths = _exact((2, 3), torch.float32, reduce), torch.tensor([[1, 2], [3, 0]])
    expected = _expected(x, reduce, lengths=lengths, axis=1)
    for name in {"max": ("max", "amax"), "min": ("min", "amin")}.get(reduce, (reduce,)):
        _same(_reduce(x, name, lengths=lengths, axis=-1), expected)


@pytest.mark.sampled(2)
@by_reduction
def test_data_beyond_the_segments_take_no_part(reduce):
    x = _exact((400, 3), torch.float32, reduce)
    for lengths in ([1, 2, 0, 6], [100, 200], [0]):
        lengths = torch.tensor(lengths)
        _same(
            _reduce(x, reduce, lengths=lengths, unsafe=True),
            _expected(x, reduce, lengths=lengths, unsafe=True),
        )
        for start in (0, 3):
            offsets = _offsets(lengths, start)
            _same(_reduce(x, reduce, offsets=offsets), _expected(x, reduce, offsets=offsets))


@by_reduction
def test_offsets_are_taken_if_lengths_are_given_too(reduce):
    x = _exact((4,), torch.float32, reduce)
    options = {"lengths": torch.tensor([1, 3]), "offsets": torch.tensor([0, 4])}
    _same(_reduce(x, reduce, **options), _expected(x, reduce, **options))


@by_reduction
@pytest.mark.parametrize("repeat", [1, 40])
def test_infinities_nan_and_zeros(reduce, repeat):
    inf, nan = math.inf, math.nan
    rows = [[nan, 1], [1, nan], [inf, -inf], [inf, nan], [-inf, -inf], [0, inf], [-0.0, -1.0]]
    x = torch.tensor(rows).repeat_interleave(repeat, 1)
    lengths = torch.full((len(rows), 1), 2 * repeat)
    for initial in (None, 1, inf, -inf, nan):
        options = {"lengths": lengths, "axis": 1, "initial": initial}
        expected = torch.segment_reduce(x, reduce, **options)
        torch.testing.assert_close(
            _reduce(x, reduce, **options).cpu(), expected, rtol=0, atol=0, equal_nan=True
        )


@by_reduction
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0), (2, 0, 3)], ids=str)
def test_empty_data(shape, reduce):
    x = torch.empty(shape)
    axis = min(1, x.dim() - 1)
    for segments in (0, 1, 3):
        lengths = torch.zeros((*shape[:axis], segments), dtype=torch.int64)
        for initial in (None, 1.5):
            options = {"lengths": lengths, "axis": axis, "initial": initial, "unsafe": True}
            _same(_reduce(x, reduce, **options), torch.segment_reduce(x, reduce, **options))


@by_float
def test_data_and_lengths_of_every_layout(dtype):
    lengths = torch.tensor([[2, 0, 4], [1, 1, 4], [6, 0, 0], [0, 3, 3]])
    strided = (
        lengths,
        lengths.t().contiguous().t(),
        lengths.repeat_interleave(2, 1)[:, ::2],
        lengths[:1].expand(4, 3),
    )
    whole = make((9, 13, 10), dtype, low=-1, high=1)
    for x in (
        whole[1:9:2, 3:9, 2:7],
        make((5, 6, 4), dtype).permute(2, 1, 0),
        make((4, 1, 5), dtype).expand(4, 6, 5),
        make((4, 6, 5, 2), dtype).permute(0, 1, 3, 2),
    ):
        for given in strided:
            options = {"lengths": given, "axis": 1}
            actual = _reduce(x, "max", **options)
            _same(actual, torch.segment_reduce(x, "max", **options))
            assert actual.is_contiguous()


@pytest.mark.sampled(5)
@by_reduction
def test_segments_of_some_length_among_very_many(reduce):
    lengths = torch.full((32_769,), 129)
    lengths[100:102] = torch.tensor([0, 2 * 129 + 5])
    x = _exact((int(lengths.sum()),), torch.float32, reduce)
    _same(_reduce(x, reduce, lengths=lengths), _expected(x, reduce, lengths=lengths))


@pytest.mark.parametrize("lengths", [[50_000], [30_000] + [4] * 5000], ids=lambda n: str(len(n)))
def test_the_order_of_a_sum_is_always_the_same(lengths):
    x, lengths = make((50_000,), torch.float32).to("mps"), torch.tensor(lengths, device="mps")
    first = torch.segment_reduce(x, "sum", lengths=lengths)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(torch.segment_reduce(x, "sum", lengths=lengths), first)
    finally:
        torch.set_num_threads(before)


@pytest.mark.sampled(2)
@pytest.mark.full
@by_float
def test_sums_of_long_segments_are_accurate(dtype):
    x = make((1_000_003,), torch.float32, low=0, high=1)
    data = x.to(dtype)
    expected = data.double().mean()
    actual = _reduce(data, "mean", lengths=torch.tensor([len(x)]))
    torch.testing.assert_close(
        actual.cpu()[0].double(), expected, rtol=max(1e-6, torch.finfo(dtype).eps), atol=0
    )


def test_out_overload():
    x, lengths = make((7, 2), torch.float32), torch.tensor([3, 4])
    expected = torch.segment_reduce(x, "max", lengths=lengths)
    out = torch.empty(2, 4, device="mps")[:, ::2]
    assert aten.segment_reduce.out(x.to("mps"), "max", lengths=lengths.to("mps"), out=out) is out
    assert torch.equal(out.cpu(), expected)


# ---- gradients -----------------------------------------------------------------------------------


def _backward(grad, output, x, reduce, **options):
    arguments = to_device((grad, output, x), "mps")
    return aten._segment_reduce_backward(*arguments, reduce, **to_device(options, "mps"))


@pytest.mark.sampled(24)
@by_reduction
@by_case
def test_gradients(shape, axis, lengths, reduce, dtype):
    """Ties, zeros and gradients of both signs among them, and elements that no segment has."""
    x, lengths = _exact(shape, dtype, reduce), torch.tensor(lengths)
    if reduce == "prod":
        x[make(shape, torch.int16, low=0, high=100) == 0] = 0
    shorter = lengths - (lengths > 1).long()
    for initial in (None, 2):
        for bounds in (
            {"lengths": lengths},
            {"offsets": _offsets(lengths)},
            {"offsets": _offsets(shorter, 1).clamp(max=shape[axis])},
        ):
            options = {"axis": axis, "initial": initial, **bounds}
            output = torch.segment_reduce(x.double(), reduce, **options).to(dtype)
            grad = make(output.shape, torch.int8, low=-2, high=2, seed=1).to(dtype)
            expected = aten._segment_reduce_backward(
                grad.double(), output.double(), x.double(), reduce, **options
            )
            actual = _backward(grad, output, x, reduce, **options)
            assert actual.dtype == dtype and actual.stride() == x.stride()
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(
                actual.cpu(), expected.to(dtype), rtol=2 * eps, atol=0, equal_nan=True
            )


@by_reduction
def test_gradients_through_autograd(reduce):
    lengths = torch.tensor([[4, 0, 2], [1, 5, 0]])

    def function(x):
        return torch.segment_reduce(x, reduce, lengths=lengths.to(x.device), axis=1, initial=1.5)

    for x in (
        make((2, 6, 3), torch.float32),
        make((3, 6, 2), torch.float32).permute(2, 1, 0),
        make((2, 12, 3), torch.float32)[:, ::2],
    ):
        case = testing.Case(f"{x.stride()}", (x,))
        testing.check_gradient(function, function, case, "mps", name="segment_reduce")


@pytest.mark.parametrize("repeat", [1, 40])
@pytest.mark.parametrize("reduce", ["prod", "max", "min"])
def test_gradients_at_infinities_nan_and_zeros(reduce, repeat):
    """repeat: as many segments of one row become one long one of neutral elements besides."""
    inf, nan = math.inf, math.nan
    rows = [
        [nan, 1.0, 2.0],
        [nan, nan, 2.0],
        [nan, 0.0, 2.0],
        [nan, nan, 0.0],
        [0.0, 0.0, 3.0],
        [0.0, -0.0, 0.0],
        [0.0, 4.0, 3.0],
        [inf, -inf, 1.0],
        [inf, inf, 1.0],
        [inf, 2.0, 1.0],
    ]
    neutral = {"prod": 1.0, "max": -7.0, "min": 7.0}[reduce]
    x = torch.full((len(rows), 3 * repeat), neutral)
    x[:, ::repeat] = torch.tensor(rows)
    lengths = torch.full((len(rows), 1), 3 * repeat)
    for initial in (None, 0.5):
        options = {"lengths": lengths, "axis": 1, "initial": initial}
        output = torch.segment_reduce(x, reduce, **options)
        for grad in (torch.full_like(output, 3.0), torch.full_like(output, -3.0)):
            expected = aten._segment_reduce_backward(grad, output, x, reduce, **options)
            actual = _backward(grad, output, x, reduce, **options).cpu()
            torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_there_is_no_second_derivative_as_in_torch():
    x = torch.rand(4, device="mps", requires_grad=True)
    result = torch.segment_reduce(x, "prod", lengths=torch.tensor([4], device="mps"))
    (grad,) = torch.autograd.grad(result, x, create_graph=True)
    with pytest.raises(RuntimeError, match="_segment_reduce_backward is not implemented"):
        grad.sum().backward()


# ---- errors --------------------------------------------------------------------------------------


def test_arguments_that_the_cpu_refuses():
    x, two = torch.rand(4), torch.tensor([1, 3])
    calls = [
        {},
        {"indices": two},
        {"lengths": two[:0]},
        {"offsets": two[:0]},
        {"lengths": two, "axis": 1},
        {"lengths": two.float()},
        {"lengths": two.short()},
        {"offsets": two.float()},
        {"lengths": two[0]},
        {"lengths": two[None]},
        {"offsets": two[None]},
        {"reduce": "median", "lengths": two},
        {"data": x.half(), "lengths": two, "initial": 1e6},
        {"data": x.int(), "lengths": two},
        {"data": x[0], "lengths": two},
        {"data": x.view(2, 2), "lengths": two, "axis": 1},
    ]
    for options in calls:
        options = {"data": x, "reduce": "sum", **options}
        with pytest.raises((RuntimeError, IndexError)) as expected:
            torch.segment_reduce(**options)
        with pytest.raises(type(expected.value)) as actual:
            torch.segment_reduce(**to_device(options, "mps"))
        # torch names a file-local function, or only says which condition failed.
        ours, theirs = str(actual.value), str(expected.value)
        assert ours == theirs or "not implemented for" in ours or ".dim() >= " in ours


def test_shapes_with_which_torch_would_read_beyond_the_tensors():
    x, lengths = torch.rand(3, 4, device="mps"), torch.tensor([[4], [4]], device="mps")
    with pytest.raises(RuntimeError, match="lengths to have the sizes of data before axis 1"):
        torch.segment_reduce(x, "sum", lengths=lengths, axis=1)
    y = x[:2]
    output = torch.segment_reduce(y, "sum", lengths=lengths, axis=1)
    for grad, given in ((output[:1], output), (output, output[:1]), (output[0], output)):
        with pytest.raises(RuntimeError, match=r"expected grad and output of sizes \[2, 1\]"):
            aten._segment_reduce_backward(grad, given, y, "sum", lengths=lengths, axis=1)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        aten._segment_reduce_backward(output.half(), output, y, "sum", lengths=lengths, axis=1)
    with pytest.raises(RuntimeError, match="Either lengths or offsets must be defined"):
        aten._segment_reduce_backward(output, output, y, "sum", axis=1)
    with pytest.raises(RuntimeError, match="same device"):
        torch.segment_reduce(x, "sum", lengths=torch.tensor([3]))


NEGATIVE, OUTSIDE, SUM = "contains negative value", "out of range of an axis of size", "to sum"


@pytest.mark.parametrize(
    ("bounds", "unsafe", "message"),
    [
        ({"lengths": [2, -1, 0]}, False, f"({NEGATIVE}|{SUM})"),
        ({"lengths": [2, -1, 0]}, True, NEGATIVE),
        ({"lengths": [-1, 1, 0]}, True, f"({NEGATIVE}|{OUTSIDE})"),
        ({"lengths": [2, 2**62, 2**62]}, True, f"({NEGATIVE}|{OUTSIDE})"),
        ({"lengths": [2, 99, 1]}, True, OUTSIDE),
        ({"lengths": [2, 97, 0]}, False, SUM),
        ({"offsets": [0, 2, 1, 1]}, False, NEGATIVE),
        ({"offsets": [-1, 2, 100, 100]}, False, OUTSIDE),
        ({"offsets": [0, 2, 101, 101]}, True, OUTSIDE),
        ({"offsets": [2**40, 2**41, 2**41, 2**41]}, True, OUTSIDE),
        ({"offsets": [-(2**62), 0, 2, 2]}, True, OUTSIDE),
    ],
    ids=str,
)
@pytest.mark.parametrize("inner", [(), (0,), (40,)], ids=str)
def test_wrong_segments_are_reported_and_read_nothing(bounds, unsafe, message, inner):
    (name, values), *_ = bounds.items()
    x = torch.ones(100, *inner, device="mps")
    given = {name: torch.tensor(values, device="mps")}
    result = torch.segment_reduce(x, "sum", **given, unsafe=unsafe)
    with pytest.raises(torch.AcceleratorError, match=r"segment_reduce\(\): .*" + message):
        torch.mps.synchronize()
    offsets = values if name == "offsets" else _offsets(torch.tensor(values)).tolist()
    good = [b - a if 0 <= a <= b <= 100 else 0 for a, b in itertools.pairwise(offsets)]
    assert torch.equal(result.cpu(), torch.stack([torch.full(inner, float(n)) for n in good]))
    # The gradient of what was not read is zero.
    grad = aten._segment_reduce_backward(result * 0 + 1, result, x, "sum", **given)
    assert grad.sum().item() == sum(good) * x[0].numel()


@pytest.mark.parametrize("row", [0, 1])
def test_each_row_of_lengths_is_checked(row):
    x, lengths = torch.ones(2, 5, device="mps"), torch.tensor([[2, 3], [1, 4]])
    lengths[row, 1] -= 1
    torch.segment_reduce(x, "sum", lengths=lengths.to("mps"), axis=1)
    with pytest.raises(torch.AcceleratorError, match=f"Row {row} sums to 4, the size is 5"):
        torch.mps.synchronize()


# ---- how they run --------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@by_reduction
@pytest.mark.parametrize("size", [5, 500])
def test_no_host_copy_and_no_stand_in(size, reduce):
    x = torch.rand(size, 2, device="mps", requires_grad=True)
    lengths = torch.tensor([2, size - 2], device="mps")

    def run():
        with testing.no_host_copies():
            torch.segment_reduce(x, reduce, lengths=lengths).sum().backward()

    assert served_by_us(run) == []
