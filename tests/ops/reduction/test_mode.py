"""mode: kernels/reduction/mode.metal."""

import math
from collections import Counter

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, INTEGERS, layouts, make, special_values, to_device

from ..aten import assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import Benchmark

DTYPES = (*FLOATS, *INTEGERS, torch.bool)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Rows for one thread, a simdgroup, several of them.
by_columns = pytest.mark.parametrize("columns", [1, 2, 16, 64, 65, 200, 3000])


# In torch's op_db.
OPINFOS = ("mode",)


BENCHMARKS = (Benchmark.same("mode", lambda x, out: torch.mode(x)),)


def _row_mode(row):
    """Value and index: the most frequent value, of these the smallest, of its places the last. NaN equals nothing."""
    counts = Counter(x for x in row if not math.isnan(x))
    if not counts:
        return row[0], 0
    most = max(counts.values())
    value = min(x for x, count in counts.items() if count == most)
    return value, max(i for i, x in enumerate(row) if x == value)


def _check_rows(x):
    """x: two-dimensional."""
    values, indices = torch.mode(x.to("mps"), 1)
    assert values.dtype == x.dtype and indices.dtype == torch.int64
    expected = [_row_mode(row) for row in x.tolist()]
    torch.testing.assert_close(
        values.cpu(), torch.tensor([v for v, _ in expected], dtype=x.dtype), equal_nan=True
    )
    assert indices.tolist() == [i for _, i in expected]


@pytest.mark.sampled(2)
@by_columns
def test_modes_of_rows_of_all_lengths(columns):
    for distinct in (1, 3, 30, 10**6):
        x = make((7, columns), torch.int32, low=0, high=distinct)
        _check_rows(x)
        _check_rows(x.float())


@pytest.mark.sampled(2)
@by_dtype
def test_special_values(dtype):
    x = special_values(dtype)
    for columns in (7, 16, 100):
        _check_rows(x[make((20, columns), torch.int64, low=0, high=len(x) - 1)])


@by_columns
def test_one_value_among_others_that_are_all_different(columns):
    for place in {0, columns // 3, columns - 1}:
        x = torch.arange(columns).roll(place).repeat(2, 1)
        x[:, place] = x[:, place // 2]
        _check_rows(x)


@pytest.mark.parametrize("length", [31, 32, 33, 511, 512, 513, 1400, 2999])
def test_the_longest_run_wins_wherever_it_starts(length):
    for start in (0, 1, 40, 3000 - length):
        x = torch.arange(3000)
        x[start : start + length] = x[start]
        order = torch.randperm(3000)
        _check_rows(torch.stack([x, x[order]]))


@by_columns
def test_nan_is_equal_to_nothing(columns):
    nan = torch.full((1, columns), math.nan)
    one = nan.clone()
    one[0, columns // 2] = 5
    two = one.clone()
    two[0, columns - 1] = -math.inf
    _check_rows(torch.cat([nan, one, two]))


@by_dtype
def test_rows_of_every_layout(dtype):
    """Against torch's CPU operator, which sorts up to 16 elements stably."""
    for name, x in layouts(dtype, low=-2, high=2):
        for dim in range(-x.dim(), x.dim()) if x.dim() < 8 else (0, 7):
            if x.dim() and (x.shape[dim] > 16 or x.shape[dim] == 0):
                continue
            for keepdim in (False, True):
                expected = torch.mode(x, dim, keepdim)
                actual = torch.mode(to_device(x, "mps"), dim, keepdim)
                for a, e in zip(actual, expected, strict=True):
                    assert a.stride() == e.stride(), name
                    assert torch.equal(a.cpu(), e), name


def test_a_number():
    for keepdim in (False, True):
        value, index = torch.mode(torch.tensor(2.5, device="mps"), 0, keepdim)
        assert value.shape == index.shape == ()
        assert value.item() == 2.5 and index.item() == 0


def test_out():
    x = make((4, 6), torch.int16, low=0, high=2)
    expected = torch.mode(x)
    for values in (
        torch.empty(4, dtype=torch.int16, device="mps"),
        torch.empty(0, dtype=torch.int16, device="mps"),
        torch.empty(4, 2, dtype=torch.int16, device="mps")[:, 1],
    ):
        indices = torch.empty(values.shape, dtype=torch.int64, device="mps")
        actual = torch.mode(x.to("mps"), out=(values, indices))
        assert actual[0] is values and actual[1] is indices
        assert torch.equal(values.cpu(), expected[0]) and torch.equal(indices.cpu(), expected[1])
    whole = x.to("mps")  # an output that is a part of the input
    torch.mode(whole, out=(whole[:, 0], torch.empty(4, dtype=torch.int64, device="mps")))
    assert torch.equal(whole[:, 0].cpu(), expected[0])
    with pytest.warns(UserWarning, match="was resized"):
        torch.mode(x.to("mps"), out=(torch.empty_like(whole), torch.empty_like(indices)))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_arguments_that_the_cpu_refuses():
    x = torch.randint(0, 3, (3, 4))
    whole = torch.zeros(3, 0, 2)

    def out(values, indices):
        return lambda to: torch.mode(to(x), out=(to(values), to(indices)))

    places = torch.zeros(3).long()
    calls = [
        lambda to: torch.mode(to(x), 2),
        lambda to: torch.mode(to(x), -3),
        lambda to: torch.mode(to(whole), 1),
        lambda to: torch.mode(to(whole), 3),
        lambda to: torch.mode(to(torch.zeros(0))),
        lambda to: torch.mode(to(torch.zeros(())), 1),
        out(places.float(), places),
        out(places, places.int()),
        out(places[:1].expand(3), places),
        out(places, places[:1].expand(3)),
    ]
    assert_refused_as_on_the_cpu(calls, RuntimeError, IndexError)
    for dtype in (torch.complex64, torch.uint16):
        with pytest.raises(NotImplementedError, match='"mode" not implemented for \''):
            torch.mode(x.to(dtype).to("mps"))
    with pytest.raises(RuntimeError, match="same device"):
        torch.mode(x.to("mps"), out=(places, places))


def test_no_elements_but_a_dimension_to_reduce():
    for shape, dim in (((3, 0), 0), ((0, 3), 1), ((2, 0, 3), 2)):
        for keepdim in (False, True):
            actual = torch.mode(torch.empty(shape, device="mps"), dim, keepdim)
            expected = torch.mode(torch.empty(shape), dim, keepdim)
            assert [a.shape for a in actual] == [e.shape for e in expected]


@pytest.mark.parametrize("columns", [5, 300])
def test_no_host_copy_and_no_stand_in(columns):
    x = torch.rand(4, columns, device="mps", requires_grad=True)

    def run():
        with testing.no_host_copies():
            torch.mode(x).values.sum().backward()

    assert served_by_us(run) == []
    assert x.grad.sum().item() == 4
