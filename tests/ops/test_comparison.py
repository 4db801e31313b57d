"""metalops.testing.assert_close: what its message says of the first mismatch."""

import pytest
import torch
from metalops.testing import assert_close


def test_the_message_has_the_first_mismatch_and_the_operands_there():
    a, b = torch.arange(6.0).view(2, 3), torch.tensor([10.0, 20.0, 30.0])
    expected = a + b
    wrong = expected.clone()
    wrong[1, 1:] += 0.5
    with pytest.raises(AssertionError) as error:
        assert_close(wrong, expected, "add", operands=(a, b))
    first, operands = str(error.value).split("\n")
    assert "add: 2 of 6 elements are wrong, the first at (1, 1): 24.5, expected 24.0" in first
    assert operands == "of the operands 4.0, 20.0"


def test_a_reference_that_overflows_is_named_as_the_one_at_fault():
    x = torch.tensor([1.0, 3e38])
    reference, operator = (x * x) / x, x.clone()
    with pytest.raises(AssertionError, match="The reference overflows there and the operator"):
        assert_close(operator, reference, "twice", operands=(x,))
    infinity = torch.tensor([1.0, torch.inf])
    for actual, operand in ((torch.full((2,), torch.nan), x), (operator, infinity)):
        with pytest.raises(AssertionError) as error:
            assert_close(actual, reference, "twice", operands=(operand,))
        assert "overflows" not in str(error.value)


def test_shapes_and_dtypes_are_equal_and_nan_is_nan():
    x = torch.tensor([1.0, torch.nan])
    assert_close(x, x.clone(), "same")
    with pytest.raises(AssertionError, match="dtype torch.float16, expected torch.float32"):
        assert_close(x.half(), x, "same")
    with pytest.raises(AssertionError, match=r"shape \(1, 2\), expected \(2,\)"):
        assert_close(x[None], x, "same")
    with pytest.raises(AssertionError, match="1 of 2 elements are wrong"):
        assert_close(torch.zeros(2, dtype=torch.int32), torch.arange(2).int(), "integers")


def test_small_results_are_compared_as_closely_as_others():
    x = torch.linspace(1, 2, 8)
    for scale in (1.0, 1e-6, 1e-30):
        assert_close(scale * x * (1 + 5e-7), scale * x, "close")
        with pytest.raises(AssertionError, match="8 of 8 elements are wrong"):
            assert_close(scale * x * (1 + 1e-5), scale * x, "too far")


def test_an_operand_of_few_elements_may_make_all_results_what_cancellation_left():
    a, b = torch.tensor([-4.389467239379883]), torch.linspace(-5, 5, 28)
    expected = (torch.nn.functional.gelu(a.double()) * b.double()).float()
    rounded = 0.5 * a * (1 + torch.erf(a / 2**0.5)) * b  # 1 + erf is off by 1e-3 of itself there
    assert not torch.allclose(rounded, expected, rtol=1e-4, atol=0)
    assert_close(rounded, expected, "geglu", operands=(a, b))
    with pytest.raises(AssertionError, match="28 of 28 elements are wrong"):
        assert_close(rounded + 1e-4, expected, "geglu", operands=(a, b))
