"""int8_linear."""

import pytest
import torch
from metalops import ops
from metalops.testing import no_standins
from metalops.testing.samples import make
from torch.nn import functional

from .test_quantized import devices, dtypes
from .test_quantized_matmul import assert_right

OTHERS = ("int8_linear",)


def operands(rows, k, n, dtype=torch.float32):
    x = make((*rows, k), dtype)
    weight = torch.randint(
        -128, 128, (n, k), dtype=torch.int8, generator=torch.Generator().manual_seed(k)
    )
    scale = (make((n,), torch.float32, seed=1).abs() / 100 + 0.001).to(dtype)
    return x, weight, scale, make((n,), dtype, seed=2)


@pytest.mark.sampled(2)
@devices
@dtypes
def test_values(device, dtype):
    for rows, k, n in (((1,), 32, 5), ((3, 2), 100, 17), ((40,), 77, 70), ((), 8, 3), ((0,), 8, 3)):
        x, weight, scale, bias = operands(rows, k, n, dtype)
        for b in (bias, None):
            for s in (scale, scale[:, None], scale[0]):
                wide = weight.double() * s.double().reshape(-1, 1)
                expected = functional.linear(x.double(), wide, None if b is None else b.double())
                there = [None if t is None else t.to(device) for t in (x, weight, s, b)]
                assert_right(ops.int8_linear(*there), expected, dtype)


@devices
@pytest.mark.parametrize("dynamic", [False, True])
def test_sums_of_nothing_are_the_bias(device, dynamic):
    x, weight, scale, bias = (t.to(device) for t in operands((3,), 0, 4))
    for b, expected in ((bias, bias.expand(3, 4)), (None, torch.zeros(3, 4, device=device))):
        assert torch.equal(
            ops.int8_linear(x, weight, scale, b, dynamic_activation=dynamic), expected
        )


def test_kernels_take_it():
    x, weight, scale, bias = (t.to("mps") for t in operands((3,), 64, 8))
    with no_standins():
        ops.int8_linear(x, weight, scale, bias)


@devices
@dtypes
def test_dynamic_activations_are_rounded_to_steps_of_their_row(device, dtype):
    x, weight, scale, bias = operands((9,), 100, 20, dtype)
    x[3] = 0
    step = (x.float().abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)
    codes = (x.float() / step).round().clamp(-127, 127)
    products = codes.long() @ weight.long().T
    expected = products.double() * scale.double() * step.double() + bias.double()
    there = [t.to(device) for t in (x, weight, scale, bias)]
    actual = ops.int8_linear(*there, dynamic_activation=True)
    assert_right(actual, expected, dtype)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(ops.int8_linear(*there, dynamic_activation=True), actual)


@devices
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients(device, dynamic):
    x, weight, scale, bias = operands((6,), 40, 9)

    def gradients(function, device):
        leaves = [t.to(device).requires_grad_() for t in (x, scale, bias)]
        return torch.autograd.grad(function(*leaves).sum(), leaves)

    def reference(x, scale, bias):
        return functional.linear(x, weight * scale[:, None], bias)

    def mine(x, scale, bias):
        return ops.int8_linear(x, weight.to(device), scale, bias, dynamic_activation=dynamic)

    for a, e in zip(gradients(mine, device), gradients(reference, "cpu"), strict=True):
        tolerance = 0.02 if dynamic else 1e-4
        scale_of = e.abs().max().item()
        torch.testing.assert_close(a.cpu(), e, rtol=tolerance, atol=tolerance * scale_of)


@devices
def test_wrong_arguments_are_named(device):
    x, weight, scale, bias = (t.to(device) for t in operands((2,), 16, 4))
    for arguments, message in (
        ((x, weight.short(), scale), "weight must be int8 of 2 dimensions, but is torch.int16"),
        ((x[:, :8], weight, scale), "x must have rows of 16 elements"),
        ((x, weight, scale[:3]), r"scale must be floats, one or 4 of them, but is torch.float32 of sizes \[3\]"),
        ((x, weight, scale.int()), "scale must be floats"),
        ((x, weight, scale, bias[:3]), r"bias must have sizes \[4\], but has \[3\]"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            ops.int8_linear(*arguments)
    with pytest.raises(NotImplementedError, match="\"int8_linear\" not implemented for 'Long'"):
        ops.int8_linear(x.long(), weight, scale)
