"""unique and unique_consecutive in the place of stock's, while the fix "unique" is on: kernels/reduction/unique.metal."""

import metalops
import pytest
import torch
from metalops import debug
from metalops.testing.samples import FLOATS, INTEGERS, layouts, make, special_values, to_device

DTYPES = (*FLOATS, *INTEGERS, torch.bool)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_operator = pytest.mark.parametrize("operator", [torch.unique, torch.unique_consecutive])
ALL = {"return_inverse": True, "return_counts": True}


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("unique"), debug.standins() as served:
        yield
        assert not {"aten::_unique2", "aten::unique_consecutive", "aten::unique_dim", "aten::unique_dim_consecutive"} & set(served)  # fmt: skip


def assert_same(operator, x, **options):
    actual, expected = operator(to_device(x, "mps"), **options), operator(x, **options)
    if isinstance(expected, torch.Tensor):
        actual, expected = (actual,), (expected,)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=0, atol=0, equal_nan=True)


@pytest.mark.sampled(2)
@by_dtype
@by_operator
def test_layouts(operator, dtype):
    for _, x in layouts(dtype):
        assert_same(operator, x, **ALL)


@by_operator
@pytest.mark.parametrize("length", [1, 8, 9, 2048, 2049, 5000])
def test_lengths_of_runs(operator, length):
    for most in (1, 2, 50, 10**6):
        x = torch.randint(0, most, (length,), generator=torch.Generator().manual_seed(most))
        for values in (x, x.sort().values, torch.full_like(x, 3)):
            assert_same(operator, values, **ALL)
            assert_same(operator, values.int())


@by_operator
def test_each_result_by_itself(operator):
    x = torch.tensor([[3, 3, 1], [1, 1, 3]])
    for inverse in (False, True):
        for counts in (False, True):
            assert_same(operator, x, return_inverse=inverse, return_counts=counts)
    assert_same(torch.unique, x, sorted=False, return_inverse=True)
    assert_same(operator, torch.tensor([4, 4, 2]), dim=0)


@by_operator
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_is_equal_to_nothing_and_both_zeros_are_equal(operator, dtype):
    x = torch.tensor([0.0, -0.0, torch.nan, torch.nan, torch.inf, torch.inf, -torch.inf, -0.0])
    values, counts = operator(x.to("mps", dtype), return_counts=True)
    expected = operator(x.to(dtype), return_counts=True)
    assert torch.equal(counts.cpu(), expected[1])
    torch.testing.assert_close(values.cpu(), expected[0], equal_nan=True)
    assert counts.sum().item() == 8 and values.isnan().sum().item() == 2


@by_dtype
@by_operator
def test_special_values(operator, dtype):
    x = special_values(dtype)
    assert_same(operator, x, **ALL)


def test_int64_beyond_2_to_the_24():
    """Stock compares them as float32."""
    keys = 2**24 + torch.randint(0, 2000, (4000,))
    assert_same(torch.unique, keys, **ALL)
    assert_same(torch.unique, keys * 2**20, **ALL)


def test_many_equal_elements_are_counted():
    x = torch.arange(200_001).remainder(2)
    values, counts = torch.unique(x.to("mps"), return_counts=True)
    assert values.tolist() == [0, 1] and counts.tolist() == [100_001, 100_000]


def test_more_blocks_than_threads_of_a_group():
    x = torch.arange(600_000, dtype=torch.int32).div(3, rounding_mode="floor")
    values, counts = torch.unique_consecutive(x.to("mps"), return_counts=True)
    assert torch.equal(values.cpu(), torch.arange(200_000, dtype=torch.int32))
    assert bool((counts == 3).all())


@by_operator
def test_complex_numbers_are_rejected(operator):
    with pytest.raises(NotImplementedError, match="unique\" not implemented for 'ComplexFloat'"):
        operator(torch.ones(3, dtype=torch.complex64, device="mps"))


# ---- slices --------------------------------------------------------------------------------------


@by_dtype
@by_operator
def test_slices_of_every_layout(operator, dtype):
    x = make((4, 5, 6), torch.float32, low=0, high=2).round().to(dtype)
    for each in (x, x.permute(2, 0, 1), x[1:, ::2], x[:, :1].expand(4, 9, 6), x[..., :1]):
        for dim in (0, 1, -1):
            assert_same(operator, each, dim=dim, **ALL)
            assert_same(operator, each, dim=dim)


@by_operator
@pytest.mark.parametrize("columns", [1, 2, 3, 7, 8, 33])
def test_lengths_of_slices(operator, columns):
    """Slices that differ in one element only, whichever it is."""
    rows = torch.zeros(40, columns, dtype=torch.int64)
    generator = torch.Generator().manual_seed(columns)
    places = torch.randint(0, columns, (40,), generator=generator)
    rows[torch.arange(40), places] = torch.randint(-2, 3, (40,), generator=generator) * 2**40
    assert_same(operator, rows, dim=0, **ALL)
    assert_same(operator, rows.repeat_interleave(3, 0), dim=0, **ALL)


@pytest.mark.full
@by_operator
def test_many_slices(operator):
    rows = torch.randint(0, 3, (5000, 6), generator=torch.Generator().manual_seed(0)).int()
    assert_same(operator, rows, dim=0, **ALL)


@by_operator
def test_slices_with_nan_are_equal_to_none(operator):
    x = torch.tensor([[1, torch.nan], [1, torch.nan], [0.0, 2], [-0.0, 2]]).to("mps")
    values, inverse, counts = operator(x, dim=0, **ALL)
    assert sorted(counts.tolist()) == [1, 1, 2] and inverse[2] == inverse[3]
    assert values.isnan().sum() == 2


@by_operator
def test_slices_without_elements_and_wrong_dimensions(operator):
    for shape, dim in (((0, 3), 0), ((0, 0), 0), ((2, 0), 0), ((2, 2), 2), ((), 0)):
        x = torch.ones(shape)
        try:
            operator(x, dim=dim, **ALL)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)) as actual:
                operator(x.to("mps"), dim=dim, **ALL)
            assert str(actual.value) == str(error)
        else:
            assert_same(operator, x, dim=dim, **ALL)
