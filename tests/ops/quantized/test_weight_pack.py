"""_weight_int8pack_mm, _convert_weight_to_int4pack, _weight_int4pack_mm, _dyn_quant_pack_4bit_weight, _dyn_quant_matmul_4bit
and _mixed_dtypes_linear: csrc/ops/quantized/weight_pack.mm.
"""

import functools

import metalops
import pytest
import torch
from metalops.testing.samples import FLOATS
from torch.nn import functional
from torch.quantization import _quantized_conversions

from ..aten import assert_refused_as_on_the_cpu
from ..benchmark import Benchmark

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


# ---- 4 bits, and activations of 8 ----------------------------------------------------------------


def dynamic(n, k, block, has_bias=True):
    """Bytes, scales and a bias."""
    codes = randint(0, 256, n, k // 2).to(torch.uint8)
    return codes, randn(n, k // block).abs() / 8 + 0.01, randn(n, seed=3) if has_bias else None


def product_of_rounded_rows(x, codes, scales, bias, block):
    """In float64, of rows that are rounded in float32 as torch's CPU operator does it."""
    x = x.float()
    low, high = x.amin(1, True).clamp(max=0), x.amax(1, True).clamp(min=0)
    per_unit = torch.where(low == high, torch.ones(()), 255 / (high - low))
    from_low, from_high = -128 - low * per_unit, 127 - high * per_unit
    zero = torch.where(from_low + from_high < 0, from_low, from_high).clamp(-128, 127).round()
    wide = (x * per_unit).double()
    rounded = (wide.abs() + 0.5).floor() * wide.sign()
    rows = (rounded + zero).clamp(-128, 127) - zero
    weight = torch.stack([codes & 15, codes >> 4], -1).flatten(1).double() - 8
    weight = weight * scales.double().repeat_interleave(block, 1)
    return (rows @ weight.t()) / per_unit + (0 if bias is None else bias.double())


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("n", "k", "block"), [(5, 34, 34), (16, 64, 64), (70, 128, 32), (9, 192, 96), (3, 512, 256)]
)
def test_products_of_rows_that_are_rounded_to_8_bits(n, k, block, has_bias):
    codes, scales, bias = dynamic(n, k, block, has_bias)
    given = [None if x is None else x.to("mps") for x in (codes, scales, bias)]
    packed = torch._dyn_quant_pack_4bit_weight(*given, block, k, n)
    there = torch._dyn_quant_pack_4bit_weight(codes, scales, bias, block, k, n)
    assert packed.dtype == torch.float32 and torch.equal(
        packed.cpu(),
        torch.cat([x.flatten().float() for x in (codes, scales, bias) if x is not None]),
    )
    x = randn(20, k, seed=5)
    x[3], x[4], x[5] = 0, x[4].abs() + 1, -x[5].abs() - 1
    x[6, 0], x[7] = 1e30, x[7] * 1e-30
    for dtype in (torch.float32, torch.bfloat16) if block == k else (torch.float32,):
        inputs = x.to(dtype)
        expected = product_of_rounded_rows(inputs, codes, scales, bias, block)
        actual = torch._dyn_quant_matmul_4bit(inputs.to("mps"), packed, block, k, n)
        assert actual.dtype == dtype
        size = expected.abs().amax(1, True)
        tolerance = 2e-6 if dtype == torch.float32 else 2**-8
        assert ((actual.cpu().double() - expected).abs() <= tolerance * size).all()
        if there.dtype == torch.float32:  # or it is a library's, and so is the order of its bytes
            on_cpu = torch._dyn_quant_matmul_4bit(inputs, there, block, k, n).double()
            # torch cuts off what bfloat16 does not hold.
            assert ((actual.cpu().double() - on_cpu).abs() <= 2 * tolerance * size).all()
    strided = x.t().contiguous().to("mps").t()
    again = torch._dyn_quant_matmul_4bit(strided, packed, block, k, n)
    assert torch.equal(again, torch._dyn_quant_matmul_4bit(x.to("mps"), packed, block, k, n))
    assert torch._dyn_quant_matmul_4bit(strided[:0], packed, block, k, n).shape == (0, n)


def test_wrong_arguments_of_rounded_rows_are_refused_as_on_the_cpu():
    codes, scales, _ = dynamic(8, 64, 64, False)
    packed = torch.cat([codes.flatten().float(), scales.flatten()])
    x = torch.ones(2, 64)

    def pack(weights, block, inner):
        return lambda move: torch._dyn_quant_pack_4bit_weight(
            move(weights), move(scales), None, block, inner, 8
        )

    def multiply(x, packed, block):
        return lambda move: torch._dyn_quant_matmul_4bit(move(x), move(packed), block, 64, 8)

    assert_refused_as_on_the_cpu(
        [
            pack(codes.int(), 64, 64),
            pack(codes, 63, 64),
            pack(codes, 64, 65),
            multiply(x.half(), packed, 64),
            multiply(x.bfloat16(), packed, 32),
            multiply(x, packed, 48),
            multiply(x, packed[:100], 64),
            multiply(x, torch.cat([packed, packed[:3]]), 64),
        ],
        RuntimeError,
    )
    for inputs in (x[0], x[:, :32]):  # of which the CPU reads what is beside them
        with pytest.raises(RuntimeError, match="of an even number of columns, 64, but it has"):
            torch._dyn_quant_matmul_4bit(inputs.to("mps"), packed.to("mps"), 64, 64, 8)
    with pytest.raises(RuntimeError, match="same device"):
        torch._dyn_quant_matmul_4bit(x.to("mps"), packed, 64, 64, 8)


# ---- a linear layer of halves and integers -------------------------------------------------------


class _Cuda(str):
    """A device by its name that says that it is CUDA's, which torch's function for the order asks for."""

    type = "cuda"


class _OnCuda(torch.Tensor):
    device = _Cuda("cpu")


def reordered(weight, is_4_bit):
    """weight: int8 (K, N), as torch wants it on CUDA."""
    if is_4_bit:
        weight = _quantized_conversions.pack_int4_to_int8(weight)
    of_codes = torch.quint4x2 if is_4_bit else torch.int8
    reorder = _quantized_conversions.quantized_weight_reorder_for_mixed_dtypes_linear_cutlass
    return reorder(weight.as_subclass(_OnCuda), of_codes).as_subclass(torch.Tensor)


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize("is_4_bit", [False, True])
@pytest.mark.parametrize("activation", [None, "none", "relu", "silu"])
def test_linear_layers_of_halves_and_integers(dtype, is_4_bit, activation):
    bound = 8 if is_4_bit else 128
    apply = {"relu": functional.relu, "silu": functional.silu}.get(activation, lambda x: x)
    for rows, k, n in (((3,), 64, 64), ((2, 20), 192, 128), ((), 128, 64), ((0,), 64, 64)):
        weight = randint(-bound, bound, k, n).to(torch.int8)
        stored = reordered(weight, is_4_bit).to("mps")
        x, scale, bias = randn(*rows, k), randn(n, seed=1) / bound, randn(n, seed=2)
        x, scale, bias = (t.to(dtype) for t in (x, scale, bias))
        for b in (bias, None):
            expected = (x.double() @ weight.double()) * scale.double()
            expected = apply(expected if b is None else expected + b.double())
            actual = torch._mixed_dtypes_linear(
                x.to("mps"),
                stored,
                scale.to("mps"),
                bias=None if b is None else b.to("mps"),
                activation=activation,
            )
            assert_right(actual, expected, dtype)


def test_wrong_arguments_of_linear_layers_are_named():
    x = torch.ones(2, 64, dtype=torch.half, device="mps")
    weight = torch.zeros(64, 64, dtype=torch.uint8, device="mps")
    scale = torch.ones(64, dtype=torch.half, device="mps")
    for arguments, options, message in (
        ((x.float(), weight, scale), {}, "The input datatype float is not supported"),
        ((x, weight.view(torch.int8), scale), {}, "The weight datatype signed char is not"),
        ((x, weight, scale.float()), {}, "Expected scale datatype c10::Half but got"),
        ((x, weight, scale), {"bias": scale.float()}, "Expected bias datatype c10::Half but got"),
        ((x[0, 0], weight, scale), {}, "at least one dimension"),
        ((x, weight[0], scale), {}, "Expected weight argument to be 2D tensor, got 1 dims"),
        ((x, weight, scale[None]), {}, "Expected scale argument to be 1D tensor, got 2 dims"),
        ((x, weight, scale), {"bias": scale[None]}, "Expected bias argument to be 1D tensor"),
        ((x[:, :32], weight, scale), {}, "input argument to have 64 columns, but got 32"),
        ((x, weight[:, :33], scale), {}, "either 64 or 32 columns, but got 33"),
        ((x, weight, scale), {"bias": scale[:3]}, "bias argument to have 64 elements, but got 3"),
        ((x[:, :32], weight[:32], scale), {}, "must be divisible by 64"),
        ((x, weight, scale), {"activation": "gelu"}, 'Activation "gelu" is not supported'),
        ((x, weight.cpu(), scale), {}, "same device"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch._mixed_dtypes_linear(*arguments, **options)
