"""median and nanmedian of bool, which stock MPS refuses, and of all dtypes while the fix "median" is on:
csrc/ops/reduction/median.mm."""

import metalops
import pytest
import torch
from metalops import debug, testing
from metalops.testing.samples import FLOATS, INTEGERS, layouts, make, to_device

by_operator = pytest.mark.parametrize("operator", [torch.median, torch.nanmedian])


@by_operator
def test_bools_count_as_zeros_and_ones(operator):
    for _, x in layouts(torch.bool):
        if x.numel() == 0:
            continue
        actual = operator(to_device(x, "mps"))
        assert actual.dtype == torch.bool and actual.device.type == "mps"
        assert actual.item() == operator(x.byte()).item()
        for dim in range(min(x.dim(), 5)):
            for keepdim in (False, True):
                values, indices = operator(to_device(x, "mps"), dim, keepdim)
                expected = operator(x.byte(), dim, keepdim).values.bool()
                assert values.dtype == torch.bool and indices.dtype == torch.int64
                assert torch.equal(values.cpu(), expected)
                places = indices.cpu() if keepdim else indices.cpu().unsqueeze(dim)
                assert torch.equal(x.gather(dim, places).view(values.shape), expected)


@by_operator
@pytest.mark.parametrize("share", [0, 2, 3, 4, 5, 10])
def test_of_an_even_number_the_lower_median(operator, share):
    for count in (9, 10):
        x = torch.arange(count) < share
        assert operator(x.to("mps")).item() == (share > count // 2)


@by_operator
def test_out(operator):
    x = make((4, 7), torch.bool)
    expected = operator(x.byte(), 1).values.bool()
    for values in (
        torch.empty(4, dtype=torch.bool, device="mps"),
        torch.empty(0, dtype=torch.bool, device="mps"),
        torch.empty(4, 2, dtype=torch.bool, device="mps")[:, 1],
    ):
        indices = torch.empty(values.shape, dtype=torch.int64, device="mps")
        actual = operator(x.to("mps"), 1, out=(values, indices))
        assert actual[0] is values and actual[1] is indices
        assert torch.equal(values.cpu(), expected)
        assert torch.equal(x.gather(1, indices.cpu().unsqueeze(1))[:, 0], expected)


@by_operator
def test_outputs_that_do_not_fit(operator):
    x = make((4, 7), torch.bool).to("mps")
    values, indices = torch.zeros_like(x[:, 0]), torch.zeros(4, dtype=torch.int64, device="mps")
    with pytest.raises(RuntimeError, match="but got 'Float' for values output"):
        operator(x, 1, out=(values.float(), indices))
    with pytest.raises(RuntimeError, match="Int"):
        operator(x, 1, out=(values, indices.int()))
    with pytest.raises(RuntimeError, match="same device"):
        operator(x, 1, out=(values.cpu(), indices))
    with pytest.raises(IndexError, match="Dimension out of range"):
        operator(x, 2)


@by_operator
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)
def test_other_dtypes_are_left_to_stock(operator, dtype):
    x = make((5, 6, 3), dtype)
    if dtype.is_floating_point:
        x[1, 2] = torch.nan
    actual, expected = operator(x.to("mps")), operator(x)
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)
    for a, e in zip(operator(x.to("mps"), 1, True), operator(x, 1, True), strict=True):
        torch.testing.assert_close(a.cpu(), e, equal_nan=True)


@by_operator
def test_gradients_of_other_dtypes(operator):
    x = make((5, 7), torch.float32)
    case = testing.Case("median", (x,))
    for function in (operator, lambda x: operator(x, 1).values):
        testing.check_gradient(function, function, case, "mps", name="median")


@by_operator
def test_no_host_copy(operator):
    x = make((5, 7), torch.bool).to("mps")
    with testing.no_host_copies():
        operator(x), operator(x, 1)


# ---- the fix ------------------------------------------------------------------------------------


@pytest.fixture
def fixed():
    with metalops.enable_fixes("median"), debug.standins() as served:
        yield
        assert not {x for x in served if "median" in x}


def assert_medians(operator, x, dim, keepdim=False):
    # torch's CPU kernel sorts expanded elements in place, and so is wrong for them.
    expected = operator(x.contiguous(), dim, keepdim).values
    actual = operator(to_device(x, "mps"), dim, keepdim)
    torch.testing.assert_close(actual.values.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    assert actual.indices.dtype == torch.int64 and actual.indices.shape == expected.shape
    if x.dim() > 0:
        places = actual.indices.cpu() if keepdim else actual.indices.cpu().unsqueeze(dim)
        found = x.gather(dim, places).view(expected.shape)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    return actual.indices.cpu()


@pytest.mark.sampled(2)
@by_operator
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)
def test_layouts_along_every_dimension(operator, dtype, fixed):
    """Those before the last four end the process with stock MPS."""
    for _, x in layouts(dtype):
        if x.numel() > 0:
            if dtype.is_floating_point and x.dim() < 6:
                x = torch.where(x > x.float().mean(), torch.nan, x)
            torch.testing.assert_close(
                operator(to_device(x, "mps")).cpu(),
                operator(x.contiguous()),
                rtol=0,
                atol=0,
                equal_nan=True,
            )
            for dim in range(min(x.dim(), 6)):
                assert_medians(operator, x, dim, keepdim=dim % 2 == 0)


@by_operator
def test_of_rows_with_and_without_nan(operator, fixed):
    for length in (1, 2, 9, 2048, 2049, 5000):
        x = make((6, length), torch.float32)
        x[1, length // 2] = torch.nan
        x[2, ::2] = torch.nan
        x[3] = torch.nan
        x[4, length // 3 :] = torch.inf
        indices = assert_medians(operator, x, 1)
        if operator is torch.median:
            assert indices[1:4].tolist() == [length // 2, 0, 0]


@by_operator
def test_bools_and_int64(operator, fixed):
    x = make((5, 7), torch.bool)
    actual = operator(x.to("mps"), 1)
    assert torch.equal(actual.values.cpu(), operator(x.byte(), 1).values.bool())
    assert operator(x.to("mps")).item() == operator(x.byte()).item()
    x = 2**60 + torch.randperm(3000)
    assert operator(x.to("mps")).item() == operator(x).item()


@by_operator
def test_outputs_and_bad_arguments(operator, fixed):
    test_out(operator)
    test_outputs_that_do_not_fit(operator)
    x = torch.empty(3, 0, device="mps")
    assert operator(x, 0).values.shape == (0,)
    assert operator(x).isnan()
    with pytest.raises(IndexError, match="to have non-zero size"):
        operator(x, 1)
    with pytest.raises(NotImplementedError, match="median\" not implemented for 'ComplexFloat'"):
        operator(torch.ones(3, dtype=torch.complex64, device="mps"))
    x = torch.ones(3, 3, device="mps")
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        operator(x, 0, out=(x[0], torch.empty(3, dtype=torch.int64, device="mps")))


@by_operator
def test_gradients_while_it_is_on(operator, fixed):
    test_gradients_of_other_dtypes(operator)
    x = torch.randperm(48).view(3, 2, 2, 2, 2).float()
    case = testing.Case("median", (x,))
    testing.check_gradient(
        lambda x: operator(x, 0).values, lambda x: operator(x, 0).values, case, "mps", name="median"
    )
