"""_weight_int8pack_mm, _convert_weight_to_int4pack and _weight_int4pack_mm: csrc/ops/weight_pack.mm."""

import functools

import metalops
import pytest
import torch
from metalops.testing.samples import FLOATS

from .benchmark import Benchmark

ERRORS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def randint(low, high, *shape, seed=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@functools.lru_cache(maxsize=4)
def _weights(features, dtype, device):
    weight = randint(-128, 128, 256, features).to(torch.int8)
    return weight.to(device), (randn(256) / 64).to(dtype).to(device)


def _linear(x, out):
    weight, scales = _weights(x.shape[-1], x.dtype, x.device)
    return (
        torch._weight_int8pack_mm(x, weight, scales)
        if x.is_mps
        else (x @ weight.to(x.dtype).t()) * scales
    )


BENCHMARKS = (
    Benchmark.same(
        "_weight_int8pack_mm",
        _linear,
        composed=True,
        reason="torch's CPU operator is a library's, which is written for each processor",
    ),
)


def assert_right(actual, expected, dtype):
    """By the error of all elements together."""
    assert actual.dtype == dtype and actual.device.type == "mps"
    assert actual.shape == expected.shape
    error = (actual.cpu().double() - expected).norm()
    assert error <= ERRORS[dtype] * (expected.norm() + 1e-30)


# ---- 8 bits --------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("shape", [(1, 33, 5), (3, 7, 1), (9, 64, 96), (40, 50, 70)], ids=str)
def test_weights_of_8_bits_of_all_sizes(dtype, shape):
    m, k, n = shape
    x, scales = randn(m, k).to(dtype), (randn(n, seed=1) / 64).to(dtype)
    weight = randint(-128, 128, n, k, seed=2).to(torch.int8)
    expected = (x.double() @ weight.double().t()) * scales.double()
    with metalops.debug.standins() as served:
        actual = torch._weight_int8pack_mm(*(t.to("mps") for t in (x, weight, scales)))
    assert "aten::_weight_int8pack_mm" not in served
    assert_right(actual, expected, dtype)
    strided = weight.t().contiguous().to("mps").t()
    steps = scales.repeat_interleave(2).to("mps")[::2]
    again = torch._weight_int8pack_mm(x.t().contiguous().to("mps").t(), strided, steps)
    assert torch.equal(again, actual)


def test_empty_products_of_8_bits():
    for m, k, n in ((0, 8, 3), (3, 0, 4), (3, 8, 0)):
        actual = torch._weight_int8pack_mm(
            torch.ones(m, k, device="mps"),
            torch.ones(n, k, dtype=torch.int8, device="mps"),
            torch.ones(n, device="mps"),
        )
        assert torch.equal(actual.cpu(), torch.zeros(m, n).fill_(k))


def test_wrong_arguments_of_8_bits_are_named():
    x, weight = torch.ones(3, 8, device="mps"), torch.ones(4, 8, dtype=torch.int8, device="mps")
    scales = torch.ones(4, device="mps")
    for arguments, message in (
        ((x.int(), weight, scales), "expect A to be either 32-bit or 16-bit float"),
        ((x[0], weight, scales), "expect A to be 2D"),
        ((x, weight.int(), scales), "expect B to be int8"),
        ((x, weight[:, :7], scales), r"expect B.size\(1\) == 8, but B has sizes \[4, 7\]"),
        ((x, weight, scales[:3]), "expect scales to be 1d tensor with size 4"),
        ((x, weight, scales.half()), "expect scales to have the dtype of A"),
        ((x, weight.cpu(), scales), "same device"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch._weight_int8pack_mm(*arguments)


# ---- 4 bits --------------------------------------------------------------------------------------


def packed(weight):
    """What the operator that packs takes: of two, the first in the upper half of a byte."""
    return (weight[:, ::2] << 4 | weight[:, 1::2]).to(torch.uint8)


@pytest.mark.parametrize("tiles", [2, 4, 8])
def test_the_layout_of_4_bits_is_that_of_stock(tiles):
    weight = randint(0, 16, 24, 256)
    actual = torch._convert_weight_to_int4pack(packed(weight).to("mps"), tiles)
    assert actual.dtype == torch.int32 and actual.is_contiguous()
    assert actual.shape == (3, 256 // (16 * tiles), 32, tiles // 2)
    lower_first = (weight[:, 1::2] << 4 | weight[:, ::2]).to(torch.uint8)
    assert torch.equal(actual.cpu().view(torch.uint8).view(24, 128), lower_first)


@dtypes
@pytest.mark.parametrize("group", [32, 64, 128, 256])
@pytest.mark.parametrize("rows", [1, 3, 20, 70])
def test_weights_of_4_bits(dtype, group, rows):
    n, k = 40, 512
    x, weight = randn(rows, k).to(dtype), randint(0, 16, n, k, seed=2)
    of_groups = (torch.stack([randn(k // group, n) + 2, randn(k // group, n, seed=1)], -1) / 8).to(
        dtype
    )
    scale, zero = (t.t().double().repeat_interleave(group, 1) for t in of_groups.unbind(-1))
    expected = x.double() @ ((weight - 8) * scale + zero).t()
    codes = torch._convert_weight_to_int4pack(packed(weight).to("mps"), 4)
    actual = torch._weight_int4pack_mm(x.to("mps"), codes, group, of_groups.to("mps"))
    assert_right(actual, expected, dtype)


def test_wrong_arguments_of_4_bits_are_named():
    bytes_ = torch.zeros(8, 64, dtype=torch.uint8, device="mps")
    convert, multiply = torch._convert_weight_to_int4pack, torch._weight_int4pack_mm
    codes, x = convert(bytes_, 2), torch.ones(2, 128, device="mps")
    factors = torch.ones(4, 8, 2, device="mps")
    for call, message in (
        (lambda: convert(bytes_[0], 2), "expect weight to be 2D"),
        (lambda: convert(bytes_.int(), 2), "expect weight to be uint8"),
        (lambda: convert(bytes_, 3), "innerKTiles must be 2, 4 or 8, but is 3"),
        (lambda: convert(bytes_[:7], 2), "expect N to be a multiple of 8, but it is 7"),
        (lambda: convert(bytes_[:, :8], 2), "expect K to be a multiple of 32, but it is 16"),
        (lambda: multiply(x.int(), codes, 32, factors), "expect A to be either"),
        (lambda: multiply(x[0], codes, 32, factors), "expect A to be 2D"),
        (lambda: multiply(x, codes.float(), 32, factors), "expect B to be int32"),
        (lambda: multiply(x, codes[0], 32, factors), "expect B to 4d"),
        (lambda: multiply(x, codes, 48, factors), "32, 64, 128 or 256, got 48"),
        (lambda: multiply(x[:, :64], codes, 32, factors), "rows of 64 weights"),
        (lambda: multiply(x, codes, 32, factors[:, :7]), r"3d tensor with sizes \[:, 8, 2\]"),
        (lambda: multiply(x, codes, 64, factors), "128 / 64 groups"),
        (lambda: multiply(x, codes, 32, factors.half()), "the dtype of A"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()


@dtypes
def test_fake_tensors_are_like_real_ones(dtype):
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(5, 64, dtype=dtype, device="mps")
    weight = torch.ones(32, 64, dtype=torch.int8, device="mps")
    bytes_ = torch.zeros(32, 32, dtype=torch.uint8, device="mps")
    codes = torch._convert_weight_to_int4pack(bytes_, 2)
    factors = torch.ones(2, 32, 2, dtype=dtype, device="mps")
    for call, arguments in (
        (torch._weight_int8pack_mm, (x, weight, x[0, :32])),
        (lambda b: torch._convert_weight_to_int4pack(b, 2), (bytes_,)),
        (lambda x, c, f: torch._weight_int4pack_mm(x, c, 32, f), (x, codes, factors)),
    ):
        real = call(*arguments)
        with FakeTensorMode() as mode:
            fake = call(*map(mode.from_tensor, arguments))
        assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())
