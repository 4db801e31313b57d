"""Elementwise kernels on a GPU, for operands that lie in every way, against torch.

This needs a GPU and nothing that is compiled, as test_launch.py does.
"""

import metalops
import pytest
import torch
from metalops.kernel.functor import crossed_tiles

from tests.cuda.layouts import operands, strides

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no NVIDIA GPU, or torch has no CUDA"
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8]
PRODUCT = metalops.functor(
    "gpu_layouts::product", "x * y + z", inputs=("x", "y", "z"), integers="stay"
)
TIMES = metalops.functor(
    "gpu_layouts::times",
    "x * y",
    inputs=("x", "y"),
    grad=("grad * y", "grad * x"),
    integers="stay",
)


def whole(*shape, dtype):
    return torch.randint(-4, 5, shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_operands(dtype):
    def new(*shape):
        return whole(*shape, dtype=dtype)

    for x, y in (
        (new(1000, 1048).t(), new(1048, 1000)),
        (new(1048, 1000), new(1000, 1048).t()),
        (new(1000, 1048).t(), new(1000, 1048).t()),
        (new(1001, 1047).t(), new(1047, 1001)),
        (new(1001, 1049)[:, 1:].t(), new(1048, 1001)),
        (new(1000, 2096)[:, ::2].t(), new(1048, 1000)),
        (new(12, 100, 30, 40).permute(0, 2, 3, 1), new(12, 30, 40, 100)),
        (new(8, 64, 56, 56).to(memory_format=torch.channels_last), new(8, 64, 56, 56)),
        (new(8, 3, 156, 157).to(memory_format=torch.channels_last), new(8, 3, 156, 157)),
        (new(700, 24, 30).transpose(1, 2), new(700, 30, 24)),
        (new(1000, 1048).t(), new(1000)),
        (new(1000, 1048), new(1000, 1)),
        (new(1000, 2100)[:, :1048], new(1000, 2100)[:, 1052:]),
        (new(1000, 2100)[:, :1047], new(1000, 2100)[:, 1051:2098]),
        (new(2**20 + 5)[1:], new(2**20 + 4)),
        (new(300_000, 3)[:, :2], new(2)),
    ):
        expected = x * y
        result = TIMES(x, y)
        assert torch.equal(result, expected) and strides(result) == strides(expected)
        assert torch.equal(PRODUCT(x, y, x), expected + x)


@pytest.mark.parametrize("seed", range(0, 100, 10))
def test_operands_at_random(seed, monkeypatch):
    for one in range(seed, seed + 10):
        # Tiles also where there are few.
        monkeypatch.setattr(crossed_tiles, "_FEWEST_THREADS", one % 2 * 2**14)
        x, y, z = operands(one, DTYPES[one % len(DTYPES)], "cuda", 3, most=2**20)
        result, expected = TIMES(x, y), x * y
        assert torch.equal(result, expected) and strides(result) == strides(expected), one
        assert torch.equal(PRODUCT(x, y, z), expected + z), one


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradients(dtype):
    x, y = (whole(*shape, dtype=dtype).requires_grad_() for shape in ((600, 700), (700, 600)))
    grad = whole(600, 700, dtype=dtype)
    gradients = torch.autograd.grad(TIMES(x, y.t()), (x, y), grad)
    assert torch.equal(gradients[0], grad * y.t()) and torch.equal(gradients[1], (grad * x).t())
