"""median and nanmedian of bool, which stock MPS refuses: csrc/ops/reduction/median.mm."""

import pytest
import torch
from metalops import testing
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
