"""The operators of metal_example, as installed, against torch on the CPU."""

import metal_example
import pytest
import torch

# Skipped where there is no mps device; see "Your CI on the software device" in the documentation of metalops.
pytestmark = pytest.mark.mps

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def assert_close(actual, expected):
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(
        actual.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_softsign_agrees_with_torch_on_a_transposed_view(dtype):
    x = torch.randn(33, 28).to(dtype)
    actual = metal_example.softsign(x.to("mps").t())
    assert_close(actual, torch.nn.functional.softsign(x.double().t()))


def test_softsign_is_differentiable():
    x = torch.randn(40, requires_grad=True)
    y = x.detach().to("mps").requires_grad_()
    torch.nn.functional.softsign(x).sum().backward()
    metal_example.softsign(y).sum().backward()
    assert_close(y.grad, x.grad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_squared_difference_broadcasts(dtype):
    a, b = torch.randn(5, 1, 7).to(dtype), torch.randn(3, 1).to(dtype)
    actual = metal_example.squared_difference(a.to("mps"), b.to("mps"))
    assert_close(actual, (a.double() - b.double()) ** 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [0, 1, 64, 1000])
def test_row_max_abs_agrees_with_torch_on_a_strided_view(dtype, columns):
    matrix = torch.randn(6, 2 * columns).to(dtype)
    actual = metal_example.row_max_abs(matrix.to("mps")[1:, ::2])
    expected = torch.cat([matrix[1:, ::2].abs(), torch.zeros(5, 1, dtype=dtype)], 1).amax(1)
    assert torch.equal(actual.cpu(), expected)


@pytest.mark.sanitized("address")
def test_row_max_abs_stays_within_its_buffers():
    matrix = torch.randn(3, 70)
    assert torch.equal(metal_example.row_max_abs(matrix.to("mps")).cpu(), matrix.abs().amax(1))


def test_the_operators_compile():
    torch.library.opcheck(
        torch.ops.metal_example.row_max_abs,
        (torch.randn(4, 5, device="mps"),),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_row_max_abs_refuses_other_shapes():
    with pytest.raises(RuntimeError, match="expects a matrix, got 1 dimensions"):
        metal_example.row_max_abs(torch.ones(3, device="mps"))
