"""Activations of one input: kernels/pointwise/activation.metal."""

import math

import metalops
import pytest
import torch
from metalops import ops
from metalops.testing import Operator
from metalops.testing.promotion import floating
from torch import Tensor
from torch.nn import functional

from ..benchmark import Benchmark
from ..matrix import Matrix

# ---- references ----------------------------------------------------------------------------------


def gelu_new(x: Tensor) -> Tensor:
    x = floating(x)
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_fast(x: Tensor) -> Tensor:
    x = floating(x)
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x**2)))


def gelu_quick(x: Tensor) -> Tensor:
    x = floating(x)
    return x * torch.sigmoid(1.702 * x)


def relu_squared(x: Tensor) -> Tensor:
    return torch.square(torch.relu(x))


def softcap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(floating(x) / cap)


POINTWISE = (
    Operator(gelu_new),
    Operator(gelu_fast),
    Operator(gelu_quick),
    Operator(relu_squared),
    Operator(
        softcap,
        arguments=({"cap": 2.0}, {"cap": 30.0}),
        low=-20,
        high=20,
        bad_arguments=tuple(({"cap": cap}, "cap must be") for cap in (0.0, math.inf, math.nan)),
    ),
)


def _gelu_tanh(x: Tensor, out: Tensor) -> Tensor:
    return torch.ops.aten.gelu.out(x, approximate="tanh", out=out)


BENCHMARKS = (
    Benchmark.of(gelu_new, _gelu_tanh, composed=False),
    Benchmark.of(gelu_fast, _gelu_tanh, composed=False),
    Benchmark.of(gelu_quick, lambda x, out: torch.mul(x, torch.sigmoid(1.702 * x), out=out)),
    Benchmark.of(relu_squared, lambda x, out: torch.square(functional.relu(x), out=out)),
    Benchmark.of(softcap, lambda x, out: torch.mul(torch.tanh(x / 2.0), 2.0, out=out), 2.0),
)


class TestActivation(Matrix):
    operators = POINTWISE


# ---- what is particular to each ------------------------------------------------------------------


def test_gelu_new_and_gelu_fast_are_the_same_function():
    x = torch.linspace(-8, 8, 4001, device="mps")
    torch.testing.assert_close(ops.gelu_new(x), ops.gelu_fast(x))
    expected = torch.nn.functional.gelu(x.cpu(), approximate="tanh")
    torch.testing.assert_close(ops.gelu_new(x).cpu(), expected)


@pytest.mark.parametrize("function", [ops.gelu_new, ops.gelu_fast])
def test_gelu_gradient_stays_finite_where_the_cube_overflows(function):
    x = torch.tensor([-3e38, -1e20, -1e13, 1e13, 1e20, 3e38], device="mps", requires_grad=True)
    y = function(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(y.detach(), torch.relu(x.detach()))


def test_half_precision_is_rounded_once():
    x = torch.linspace(-6, 6, 20001).half()
    expected = (x.double() * torch.sigmoid(1.702 * x.double())).half()
    actual = ops.gelu_quick(x.to("mps")).cpu()
    different = actual != expected
    # Only a float32 result that the float64 one contradicts in its last bits may round differently.
    assert different.float().mean() < 1e-3
    torch.testing.assert_close(actual, expected, rtol=2**-10, atol=0)


def test_softcap_never_exceeds_its_cap():
    x = torch.tensor([-math.inf, -1e30, -50.0, 0.0, 1e-20, 50.0, 1e30, math.inf], device="mps")
    y = ops.softcap(x, 30.0).cpu()
    assert y.abs().max() == 30
    assert y[3] == 0 and y[4] > 0
    assert torch.equal(ops.softcap(x, -30.0).cpu(), y)


def test_softcap_does_not_round_its_cap_to_half_precision():
    cap = 30.01  # 30.016 in half precision
    x = torch.full((4,), 2000.0, dtype=torch.float16)
    expected = (cap * torch.tanh(x.double() / cap)).half()
    assert torch.equal(ops.softcap(x.to("mps"), cap).cpu(), expected)


@pytest.mark.parametrize("cap", [0.0, -0.0, math.inf, math.nan])
def test_softcap_refuses_a_cap_that_gives_no_number(cap):
    with pytest.raises(ValueError, match="cap must be a finite number other than 0"):
        ops.softcap(torch.ones(3, device="mps"), cap)


def test_relu_squared_of_integers_wraps_around_like_square():
    x = torch.arange(0, 256, dtype=torch.uint8)
    assert torch.equal(ops.relu_squared(x.to("mps")).cpu(), torch.square(x))
    x = torch.tensor([2**53 + 1, 3037000499, -5], dtype=torch.int64)
    assert torch.equal(ops.relu_squared(x.to("mps")).cpu(), torch.square(x.clamp(min=0)))


def test_functorch_transforms():
    x = torch.linspace(-2, 2, 12, device="mps").view(3, 4)
    gradient = torch.func.grad(lambda t: ops.gelu_quick(t).sum())(x)
    y = x.clone().requires_grad_()
    ops.gelu_quick(y).sum().backward()
    torch.testing.assert_close(gradient, y.grad)
    torch.testing.assert_close(torch.func.vmap(ops.gelu_quick)(x), ops.gelu_quick(x))


def test_saved_input_changed_before_backward_is_noticed():
    x = torch.ones(3, device="mps", requires_grad=True) * 2
    y = ops.gelu_new(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_backward_twice_needs_retain_graph():
    x = torch.ones(3, device="mps", requires_grad=True)
    y = ops.gelu_new(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward(retain_graph=False)
    with pytest.raises(RuntimeError, match="a second time"):
        y.sum().backward()


def test_in_place_on_a_leaf_is_refused():
    x = torch.ones(3, device="mps", requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        ops.gelu_new_(x)
    with torch.no_grad():
        assert ops.gelu_new_(x) is x


def test_in_place_on_a_view_reaches_the_gradient_of_its_base():
    x = torch.linspace(-2, 2, 6, device="mps", requires_grad=True)
    base = x * 1
    ops.relu_squared_(base[1::2])
    base.sum().backward()
    expected = torch.ones(6)
    expected[1::2] = 2 * x.detach().cpu()[1::2].clamp(min=0)
    torch.testing.assert_close(x.grad.cpu(), expected)


def test_it_runs_in_inference_mode_and_under_no_grad():
    x = torch.ones(3, device="mps", requires_grad=True)
    with torch.no_grad():
        assert not ops.gelu_new(x).requires_grad
    with torch.inference_mode():
        assert ops.gelu_new(x).is_inference()


def test_a_view_with_the_negative_bit_is_read_as_what_it_stands_for():
    x = torch.randn(5, dtype=torch.complex64, device="mps").conj().imag
    assert x.is_neg()
    torch.testing.assert_close(ops.gelu_new(x), ops.gelu_new(x.resolve_neg()))


def test_operators_are_known_under_torch_ops():
    x = torch.ones(3, device="mps")
    assert torch.equal(torch.ops.metalops.gelu_new(x), metalops.ops.gelu_new(x))
    assert torch.Tag.pt2_compliant_tag in torch.ops.metalops.gelu_new.default.tags


def test_softcap_gradient_keeps_its_digits_far_from_zero():
    x = torch.tensor([0.0, 1.0, 9.02, -30.0, 80.0, math.inf], dtype=torch.float64)
    expected = 1 / torch.cosh(x / 2) ** 2
    leaf = x.float().to("mps").requires_grad_()
    ops.softcap(leaf, 2.0).sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), expected.float(), rtol=1e-5, atol=0)
