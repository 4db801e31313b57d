"""Gated linear units: kernels/gated.metal."""

import pytest
import torch
from metalops import ops
from torch.nn import functional

from .matrix import Matrix


class TestGated(Matrix):
    family = "gated"


HALVING = [
    ops.silu_and_mul,
    ops.mul_and_silu,
    ops.gelu_and_mul,
    ops.gelu_tanh_and_mul,
    ops.fatrelu_and_mul,
]


@pytest.fixture
def x():
    return torch.linspace(-4, 4, 60).view(5, 12)


def test_halves_are_the_first_and_the_second_half_of_the_last_dimension(x):
    a, b = x.chunk(2, dim=-1)
    on_device = x.to("mps")
    for function, expected in [
        (ops.silu_and_mul, functional.silu(a) * b),
        (ops.mul_and_silu, a * functional.silu(b)),
        (ops.gelu_and_mul, functional.gelu(a) * b),
        (ops.gelu_tanh_and_mul, functional.gelu(a, approximate="tanh") * b),
        (ops.fatrelu_and_mul, torch.relu(a) * b),
    ]:
        torch.testing.assert_close(function(on_device).cpu(), expected)


def test_halving_and_two_input_forms_agree(x):
    x = x.to("mps")
    a, b = x.chunk(2, dim=-1)
    assert torch.equal(ops.silu_and_mul(x), ops.swiglu(a, b))
    assert torch.equal(ops.mul_and_silu(x), ops.swiglu(b, a))
    assert torch.equal(ops.gelu_and_mul(x), ops.geglu(a, b))
    assert torch.equal(ops.fatrelu_and_mul(x), ops.reglu(a, b))


@pytest.mark.parametrize("function", HALVING)
def test_shapes_that_cannot_be_halved_are_refused(function):
    with pytest.raises(RuntimeError, match="must be even, but dimension 1 is size 3"):
        function(torch.ones(2, 3, device="mps"))
    with pytest.raises(RuntimeError, match="0-dimensional"):
        function(torch.ones((), device="mps"))


@pytest.mark.parametrize("function", HALVING)
def test_halving_into_a_part_of_its_own_input(function, x):
    # Each element of `a` is read before the same place is written, so this is allowed and right.
    x = x.to("mps")
    expected = function(x)
    assert torch.equal(function(x, out=x[:, :6]), expected)
    assert torch.equal(x[:, :6], expected)
    row = x[0].clone()
    with pytest.raises(RuntimeError, match="single memory location"):
        function(row, out=row[3:9])


def test_threshold_is_exclusive_and_keeps_no_nan_of_the_gate():
    a = torch.tensor([1.0, 1.5, 2.0, float("nan"), float("inf")])
    b = torch.tensor([3.0, 3.0, 3.0, 3.0, 3.0])
    y = ops.fatrelu_and_mul(torch.cat([a, b]).to("mps"), 1.5).cpu()
    assert y.tolist() == [0, 0, 6, 0, float("inf")]


def test_clamps_keep_nan():
    nan = torch.full((3,), float("nan"), device="mps")
    one = torch.ones(3, device="mps")
    assert ops.swiglu_clamped(nan, one).isnan().all()
    assert ops.swiglu_clamped(one, nan).isnan().all()


def test_gradient_of_a_clamp_passes_on_its_limit_and_not_beyond():
    a = torch.tensor([2.0, 2.5, 3.0], device="mps", requires_grad=True)
    b = torch.tensor([-2.5, 2.5, 2.6], device="mps", requires_grad=True)
    ops.swiglu_clamped(a, b, 2.5).sum().backward()
    assert (a.grad != 0).tolist() == [True, True, False]
    assert (b.grad != 0).tolist() == [True, True, False]


def test_integers_wrap_around_like_mul():
    a = torch.tensor([100, 200, 3], dtype=torch.uint8)
    b = torch.tensor([3, 2, 5], dtype=torch.uint8)
    assert torch.equal(ops.reglu(a.to("mps"), b.to("mps")).cpu(), a * b)
    a, b = torch.tensor([2**53 + 1]), torch.tensor([3])
    assert torch.equal(ops.reglu(a.to("mps"), b.to("mps")).cpu(), a * b)


def test_cpu_tensors_without_dimensions_stand_among_device_tensors(x):
    a = x.to("mps")
    for scalar in (torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64), torch.tensor(2)):
        expected = functional.silu(x) * scalar.float()
        result = ops.swiglu(a, scalar)
        assert result.dtype == torch.float32 and result.device.type == "mps"
        torch.testing.assert_close(result.cpu(), expected)
        torch.testing.assert_close(ops.swiglu(scalar, a).cpu(), functional.silu(scalar.float()) * x)


def test_in_place_does_not_broadcast_its_target():
    a, b = torch.ones(3, device="mps"), torch.ones(2, 3, device="mps")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        ops.swiglu_(a, b)
    assert ops.swiglu_(b, a).shape == (2, 3)


def test_only_wanted_gradients_are_given():
    a = torch.randn(3, 4, device="mps", requires_grad=True)
    b = torch.randn(4, device="mps")
    ops.geglu(a, b).sum().backward()
    assert a.grad is not None and b.grad is None


def test_half_precision_with_float32_gives_float32_and_gradients_of_their_own_dtypes():
    a = torch.randn(3, 4, device="mps", dtype=torch.float16, requires_grad=True)
    b = torch.randn(3, 4, device="mps", requires_grad=True)
    y = ops.swiglu(a, b)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert a.grad.dtype == torch.float16 and b.grad.dtype == torch.float32
