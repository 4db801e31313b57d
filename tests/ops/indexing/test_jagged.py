"""_jagged_to_padded_dense_forward and _padded_dense_to_jagged_forward: kernels/indexing/jagged.metal."""

import functools

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, INTEGERS, make, to_device
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.ops import aten

from ..aten import CPU_FLOATS, Calls, OpInfoSamples, served_by_us
from ..benchmark import Benchmark

to_padded = aten._jagged_to_padded_dense_forward
to_jagged = aten._padded_dense_to_jagged_forward
LENGTHS = ([3], [0, 2, 0, 5, 1, 0], [1] * 40, [0, 0], [100, 1, 70], [])
REAL = (*FLOATS, *INTEGERS, torch.bool)


def _opinfo_to_padded(dtype: torch.dtype) -> Calls:
    for shape in ((9, 4), (9,), (9, 2, 3)):
        for offsets in (torch.tensor([0, 2, 2, 9]), torch.tensor([1, 9], dtype=torch.int32)):
            yield (make(shape, dtype), [offsets], [5], 1.0), {}


def _opinfo_to_jagged(dtype: torch.dtype) -> Calls:
    for shape in ((3, 7, 4), (4, 7), (3, 9, 2, 3)):
        yield (make(shape, dtype), [torch.tensor([0, 2, 2, 9])], 9), {}


OPINFO_SAMPLES = (
    OpInfoSamples(
        "_jagged_to_padded_dense_forward",
        torch.ops.aten._jagged_to_padded_dense_forward,
        {*CPU_FLOATS, *INTEGERS, torch.bool},
        _opinfo_to_padded,
    ),
    OpInfoSamples(
        "_padded_dense_to_jagged_forward",
        torch.ops.aten._padded_dense_to_jagged_forward,
        {*CPU_FLOATS, *INTEGERS, torch.bool, torch.complex64},
        _opinfo_to_jagged,
    ),
)


@functools.lru_cache(maxsize=4)
def _offsets_of_rows(rows, device):
    """Where sequences of up to 16 rows begin, and where the last one ends."""
    return torch.tensor([*range(0, rows, 16), rows]).to(device)


def _pad(x, out):
    values = x.reshape(-1, min(64, x.numel()))
    return to_padded(values, [_offsets_of_rows(len(values), x.device)], [16])


def _unpad(x, out):
    width = min(64, x.numel())
    length = min(16, x.numel() // width)
    padded = x.reshape(-1, length, width)
    rows = len(padded) * length
    return to_jagged(padded, [_offsets_of_rows(rows, x.device)], rows)


BENCHMARKS = (
    Benchmark.same("_jagged_to_padded_dense_forward", _pad),
    Benchmark.same("_padded_dense_to_jagged_forward", _unpad),
)


def _offsets(lengths, first=0):
    return torch.tensor([first, *lengths]).cumsum(0)


def _assert_equal(function, tensor, offsets, *arguments):
    expected = function(tensor, [offsets], *arguments)
    actual = function(*to_device((tensor, [offsets]), "mps"), *arguments)
    assert actual.device.type == "mps" and actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 6, 8, 16, 24, 33])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64], ids=str)
def test_rows_of_any_width_that_begin_anywhere(dtype, columns):
    offsets = _offsets([3, 0, 2, 4])
    for begin in (0, 1, 2, 4):
        values = make((begin + 9 * columns,), dtype)[begin:].view(9, columns)
        _assert_equal(to_padded, values, offsets, [3], 7.0)
        padded = make((begin + 16 * columns,), dtype)[begin:].view(4, 4, columns)
        _assert_equal(to_jagged, padded, offsets, 9)


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("rest", [(), (1,), (70,), (2, 3), (0,)], ids=str)
def test_both_ways(lengths, rest):
    values, offsets = make((sum(lengths), *rest), torch.float32), _offsets(lengths)
    longest = max(lengths, default=0)
    for max_length in {0, 1, longest, longest + 3}:
        _assert_equal(to_padded, values, offsets, [max_length], -1.5)
    padded = make((len(lengths), longest + 1, *rest), torch.float32)
    for total in ([], [sum(lengths)]):
        _assert_equal(to_jagged, padded, offsets, *total)


@pytest.mark.parametrize("dtype", (*REAL, torch.complex64, torch.uint16), ids=str)
def test_dtypes(dtype):
    lengths = [2, 0, 3]
    values = make((5, 3), torch.int8).to(dtype)
    if dtype in REAL:
        for padding in (0.0, 2.5):
            _assert_equal(to_padded, values, _offsets(lengths), [4], padding)
    _assert_equal(to_jagged, make((3, 4, 3), torch.int8).to(dtype), _offsets(lengths), 5)


@pytest.mark.parametrize("dtype", (torch.int32, torch.int16, torch.float32), ids=str)
def test_dtypes_of_offsets(dtype):
    offsets = _offsets([2, 0, 3]).to(dtype)
    _assert_equal(to_padded, make((5, 3), torch.float32), offsets, [4], 0.0)
    _assert_equal(to_jagged, make((3, 4, 3), torch.float32), offsets, 5)


def test_layouts():
    lengths = [2, 1, 3]
    strided_offsets = _offsets(lengths).repeat_interleave(2)[::2]
    for values in (
        make((4, 6), torch.float32).t(),
        make((9, 8), torch.float32)[1:7, ::2],
        make((1, 4), torch.float32).expand(6, 4),
    ):
        _assert_equal(to_padded, values, strided_offsets, [3], 0.0)
    for padded in (
        make((5, 4, 3), torch.float32).permute(2, 1, 0),
        make((4, 6, 10), torch.float32)[1:, 1:5, ::2],
    ):
        _assert_equal(to_jagged, padded, strided_offsets, 6)


def test_sequences_may_begin_later_and_end_earlier():
    _assert_equal(to_padded, make((9, 2), torch.float32), _offsets([2, 3], first=3), [4], 0.0)
    padded = make((4, 3, 2), torch.float32)
    actual = to_jagged(padded.to("mps"), [_offsets([2, 3], first=1).to("mps")], 6)
    expected = torch.cat([torch.zeros(1, 2), padded[0, :2], padded[1]])
    assert torch.equal(actual.cpu(), expected)


# ---- errors --------------------------------------------------------------------------------------


def test_errors_are_those_of_the_cpu():
    values, padded, offsets = torch.zeros(5, 2), torch.zeros(2, 3, 2), _offsets([2, 3])
    calls = (
        (to_padded, values, [offsets[None]], [3]),
        (to_padded, values, [offsets], [-2]),
        (to_padded, values, [offsets[:0]], [3]),
        (to_padded, values.to(torch.complex64), [offsets], [3]),
        (to_jagged, padded, [offsets[None]]),
        (to_jagged, padded[0, 0], [offsets]),
        (to_jagged, padded[:1], [offsets], 5),
        (to_jagged, padded, [offsets[:0]]),
        (to_jagged, padded, [torch.tensor([0, -3])]),
    )
    for function, *arguments in calls:
        with pytest.raises(Exception) as expected:
            function(*arguments)
        with pytest.raises(type(expected.value)) as actual:
            function(*to_device(arguments, "mps"))
        first_line = str(expected.value).split("\n")[0].replace("_forward_cpu", "_forward")
        assert str(actual.value).split("\n")[0] == first_line


def test_a_single_jagged_dimension_on_one_device():
    values = torch.zeros(5, 2, device="mps")
    offsets = _offsets([2, 3]).to("mps")
    for call in (
        lambda: to_padded(values, [offsets, offsets], [3, 3]),
        lambda: to_padded(values, [offsets], [3, 3]),
        lambda: to_jagged(values[None], [offsets, offsets]),
    ):
        with pytest.raises(RuntimeError, match="only a single jagged dim is supported for now"):
            call()
    with pytest.raises(RuntimeError, match="at least one dimension"):
        to_padded(values[0, 0], [offsets], [3])
    for call in (
        lambda: to_padded(values, [offsets.cpu()], [3]),
        lambda: to_jagged(values[None], [offsets.cpu()]),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            call()


@pytest.mark.parametrize("bad", [[0, 2, 9], [0, 2, 1], [-1, 2, 4], [0, 2, -(2**62)], [7, 9, 10]])
def test_offsets_beyond_the_values_are_reported_and_read_nothing(bad):
    values, offsets = torch.ones(5, 2, device="mps"), torch.tensor([0, *bad]).to("mps")
    padded = to_padded(values, [offsets], [6], -1.0)
    message = r"_jagged_to_padded_dense_forward\(\): sequence \d has offsets .*, but there are 5"
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    fits = [0 <= start <= end <= 5 for start, end in zip([0, *bad], bad)]
    assert ((padded == 1).any(dim=(1, 2)).cpu() <= torch.tensor(fits)).all()


def test_sequences_that_are_cut_off_may_end_beyond_the_values():
    _assert_equal(to_padded, make((5, 2), torch.float32), torch.tensor([0, 2, 9]), [3], 0.0)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 6], "final offset should match total_L value, but they are 6 and 5"),
        ([0, 4, 5], "found batch item of length 4 when max length specified by padded input is 3"),
        ([0, 3, 2, 5], "sequence 1 has offsets 3 and 2"),
        ([-2, 1, 3, 5], "sequence 0 has offsets -2 and 1"),
        ([-(2**62), 1, 3, 5], f"sequence 0 has offsets {-(2**62)} and 1"),
        ([4], "final offset should match total_L value, but they are 4 and 5"),
    ],
    ids=str,
)
def test_offsets_that_do_not_fit_the_padded_tensor_are_reported(offsets, message):
    padded = torch.ones(3, 3, 2, device="mps")
    result = to_jagged(padded, [torch.tensor(offsets, device="mps")], 5)
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert result.shape == (5, 2) and ((result == 1) | (result == 0)).all()


def test_offsets_are_checked_also_if_there_are_no_values():
    padded = torch.ones(3, 3, 2, device="mps")
    to_jagged(padded, [torch.tensor([0, 2], device="mps")], 0)
    with pytest.raises(torch.AcceleratorError, match="final offset should match"):
        torch.mps.synchronize()


def test_they_are_not_differentiable_as_in_torch():
    offsets = _offsets([2, 3]).to("mps")
    for call in (
        lambda: to_padded(torch.ones(5, 2, device="mps", requires_grad=True), [offsets], [3]),
        lambda: to_jagged(torch.ones(2, 3, 2, device="mps", requires_grad=True), [offsets], 5),
    ):
        with pytest.raises(RuntimeError, match="derivative for .* is not implemented"):
            call().sum().backward()


# ---- how it runs ---------------------------------------------------------------------------------


def test_no_host_copy_and_no_stand_in():
    values, offsets = torch.ones(5, 2, device="mps"), _offsets([2, 3]).to("mps")

    def call():
        with testing.no_host_copies():
            to_jagged(to_padded(values, [offsets], [3], 0.0), [offsets], 5)

    assert served_by_us(call) == []


def test_fake_tensors_have_the_results_properties():
    values, offsets = torch.ones(5, 2, device="mps"), _offsets([2, 3]).to("mps")
    padded = to_padded(values, [offsets], [3])
    with FakeTensorMode() as mode:
        fake_offsets = [mode.from_tensor(offsets)]
        fakes = (
            to_padded(mode.from_tensor(values), fake_offsets, [3]),
            to_jagged(mode.from_tensor(padded), fake_offsets, 5),
        )
    for real, fake in zip((padded, to_jagged(padded, [offsets], 5)), fakes, strict=True):
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride()
