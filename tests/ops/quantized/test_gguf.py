"""gguf_dequantize, gguf_linear and gguf_embedding: kernels/quantized/gguf.metal."""

import functools

import numpy as np
import pytest
import torch
from metalops import ops
from metalops.nn import GGUFLinear
from metalops.ops._formats import gguf as formats
from metalops.testing import no_standins
from metalops.testing.samples import make
from torch.nn import functional

from ..benchmark import Benchmark
from .test_quantized import CHECKS, devices, dtypes
from .test_quantized_matmul import assert_right

OTHERS = ("gguf_dequantize", "gguf_linear", "gguf_embedding")

types = pytest.mark.parametrize("name", formats.TYPES)

# Where the blocks of each type have numbers in half precision, which random bytes make too large or no numbers.
_HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "MXFP4": ()}  # fmt: skip


@functools.lru_cache(maxsize=32)
def blocks(name, rows, columns, seed=0):
    """Random weights of about the size of those of a layer, as bytes."""
    known = formats.TYPES[name]
    generator = np.random.default_rng(seed)
    count = columns // known.size
    data = generator.integers(0, 256, (rows, count, known.bytes), dtype=np.uint8)
    for at in _HALVES.get(name, (0,)):
        halves = generator.normal(0, 0.01, (rows, count, 1)).astype(np.float16)
        data[:, :, at : at + 2] = halves.view(np.uint8)
    if name == "MXFP4":
        data[:, :, 0] = generator.integers(118, 126, (rows, count))
    return torch.from_numpy(data.reshape(rows, count * known.bytes))


def _ours(x, out):
    return ops.gguf_linear(_long(x), blocks("Q4_K", 64, 256).to(x.device), "Q4_K")


def _theirs(x, out):
    return functional.linear(_long(x), ops.gguf_dequantize(blocks("Q4_K", 64, 256), "Q4_K"))


def _long(x):
    return x.repeat(1, 4)


BENCHMARKS = (Benchmark("gguf_linear, Q4_K", _ours, _theirs, composed=True),)


# ---- values --------------------------------------------------------------------------------------


@devices
@types
def test_values_are_those_of_the_package_gguf(name, device):
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    known = formats.TYPES[name]
    qtype = gguf.GGMLQuantizationType[name]
    assert (qtype.value, gguf.GGML_QUANT_SIZES[qtype]) == (known.number, (known.size, known.bytes))
    data = torch.cat([blocks(name, 30, 1024, seed) for seed in range(2)])
    expected = torch.from_numpy(gguf.quants.dequantize(data.numpy(), qtype))
    actual = ops.gguf_dequantize(data.to(device), qtype).cpu()
    # GPUs may add to a product before they round it.
    atol = 0 if device == "cpu" else 2e-7 * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@types
@dtypes
def test_kernels_give_what_operators_of_torch_give(name, dtype):
    data = blocks(name, 21, 768, 3)
    expected = ops.gguf_dequantize(data, name)
    with no_standins():
        actual = ops.gguf_dequantize(data.to("mps"), name, dtype=dtype)
        rows = ops.gguf_embedding(torch.tensor([[3, 20]]).to("mps"), data.to("mps"), name, dtype=dtype)  # fmt: skip
    assert actual.dtype == rows.dtype == dtype
    error = torch.finfo(dtype).eps * expected.abs() + 2e-7 * expected.abs().max()
    assert ((actual.cpu().float() - expected).abs() <= error).all()
    assert torch.equal(rows, actual[torch.tensor([[3, 20]])])


@devices
def test_scales_of_mxfp4_that_are_no_normal_numbers(device):
    """The smallest scales are 2^-128 and 2^-127, of which the codes' multiples are exact."""
    exponents = torch.tensor([0, 1, 2, 3, 250], dtype=torch.uint8)
    codes = torch.arange(16, dtype=torch.uint8)
    data = torch.cat([exponents[:, None], (codes | (15 - codes) << 4).expand(5, 16)], 1)
    sizes = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12], dtype=torch.float64)
    sizes = torch.cat([sizes, -sizes])
    expected = torch.cat([sizes, sizes.flip(0)]) * 2.0 ** (exponents[:, None].double() - 128)
    actual = ops.gguf_dequantize(data.to(device), "MXFP4").cpu()
    # GPUs may take such a scale for zero.
    atol = 0 if device == "cpu" else 12 * 2.0**-127
    torch.testing.assert_close(actual, expected.float(), rtol=0, atol=atol)


@pytest.mark.sampled(12)
@types
@dtypes
@devices
def test_products(name, dtype, device):
    data = blocks(name, 37, 512)
    weight = ops.gguf_dequantize(data, name).double()
    bias = make((37,), dtype, seed=5)
    for rows in (1, 3, 40):
        x = make((rows, 512), dtype, seed=rows)
        for b in (None, bias):
            expected = functional.linear(x.double(), weight, None if b is None else b.double())
            there = None if b is None else b.to(device)
            actual = ops.gguf_linear(x.to(device), data.to(device), name, there)
            assert_right(actual, expected, dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("body", ["tensor", "simdgroup"])
def test_sizes_that_are_and_are_not_multiples_of_tiles(body, monkeypatch):
    monkeypatch.setenv("METALOPS_MATMUL", body)
    for columns, k in ((3, 32), (33, 96), (67, 64)):
        data = blocks("Q5_1", columns, k)
        x = make((129, k), torch.float32)
        expected = x.double() @ ops.gguf_dequantize(data, "Q5_1").double().T
        for rows in (*range(1, 10), 31, 32, 33, 63, 64, 65, 127, 128, 129):
            actual = ops.gguf_linear(x[:rows].to("mps"), data.to("mps"), "Q5_1")
            assert_right(actual, expected[:rows], torch.float32)


# Fewer pieces of 32 elements than simdgroups have lanes, more than they have in one iteration, and more lines than a tile has.
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
@pytest.mark.parametrize("sizes", [(3, 256), (33, 1280), (70, 768)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sizes_of_products_by_simdgroup_matrices(name, sizes, dtype):
    data = blocks(name, *sizes)
    weight = ops.gguf_dequantize(data, name).double()
    for rows in (2, 8):
        x = make((rows, sizes[1]), dtype, seed=rows)
        actual = ops.gguf_linear(x.to("mps"), data.to("mps"), name)
        assert_right(actual, x.double() @ weight.T, dtype)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K"])
def test_small_weights_of_half_keep_their_digits(name):
    """Scales that are less than half's smallest normal number."""
    known = formats.TYPES[name]
    data = blocks(name, 16, 256).view(16, -1, known.bytes).clone()
    for at in _HALVES.get(name, (0,)):
        data[:, :, at : at + 2] = torch.tensor([2e-5], dtype=torch.float16).view(torch.uint8)
    if name == "Q4_K":
        data[:, :, 4:16] = 0x41
    weight = ops.gguf_dequantize(data.view(16, -1), name).double()
    x = make((4, 256), torch.float16) * 100
    actual = ops.gguf_linear(x.to("mps"), data.view(16, -1).to("mps"), name)
    assert_right(actual, x.double() @ weight.T, torch.float16)


@devices
def test_shapes_strides_and_empty_tensors(device):
    data = blocks("Q8_0", 10, 64)
    weight = ops.gguf_dequantize(data, "Q8_0").double()
    strided = data.t().contiguous().t().to(device)
    for shape in ((64,), (2, 3, 64), (0, 64)):
        x = make(shape, torch.float32)
        actual = ops.gguf_linear(x.to(device), strided, 8)
        assert_right(actual, x.double() @ weight.T, torch.float32)
    assert ops.gguf_linear(torch.ones(2, 0, device=device), strided[:, :0], 8).tolist() == [[0] * 10] * 2  # fmt: skip
    assert ops.gguf_dequantize(strided[:0], 8).shape == (0, 64)
    batch = torch.stack([data, data]).to(device)
    assert torch.equal(ops.gguf_dequantize(batch, "q8_0")[1].cpu().double(), weight)


# ---- derivatives, autocast, compilation ----------------------------------------------------------


@devices
def test_gradients(device):
    data = blocks("Q6_K", 12, 256)
    weight = ops.gguf_dequantize(data, "Q6_K")
    x, bias = make((2, 5, 256), torch.float32), make((12,), torch.float32)
    cotangent = make((2, 5, 12), torch.float32, seed=1)

    def gradients(function, device):
        leaves = [t.to(device).requires_grad_() for t in (x, bias)]
        return torch.autograd.grad(function(*leaves), leaves, cotangent.to(device))

    expected = gradients(lambda x, b: functional.linear(x, weight, b), "cpu")
    actual = gradients(lambda x, b: ops.gguf_linear(x, data.to(device), "Q6_K", b), device)
    for a, e in zip(actual, expected, strict=True):
        atol = 1e-5 * e.abs().max().item()
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=atol)


@devices
def test_opcheck_autocast_and_compile(device):
    data = blocks("Q4_0", 6, 64).to(device)
    x = make((3, 64), torch.float32).to(device).requires_grad_()
    bias = torch.zeros(6, device=device)
    torch.library.opcheck(
        torch.ops.metalops.gguf_linear.default, (x, data, bias, 2), test_utils=CHECKS
    )
    indices = torch.tensor([[1, 5]], device=device)
    for rows in (None, indices):
        arguments = (data, rows, 2, torch.float16)
        torch.library.opcheck(
            torch.ops.metalops.gguf_dequantize.default, arguments, test_utils=CHECKS[:2]
        )
    with torch.autocast(device, dtype=torch.bfloat16):
        assert ops.gguf_linear(x, data, "Q4_0").dtype == torch.bfloat16
    compiled = torch.compile(
        lambda x: ops.gguf_linear(x, data, "Q4_0").relu(), backend="aot_eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(x), ops.gguf_linear(x, data, "Q4_0").relu())


# ---- errors --------------------------------------------------------------------------------------


@devices
def test_wrong_arguments_are_named(device):
    data = blocks("Q4_0", 6, 64).to(device)
    x = torch.zeros(2, 64, device=device)
    for call, message in (
        (lambda: ops.gguf_linear(x, data, "IQ1_S"), "qtype must be one of 'Q4_0' .2., .*, but is 'IQ1_S'"),
        (lambda: ops.gguf_dequantize(data, 0), "qtype must be one of .*, but is 0"),
        (lambda: ops.gguf_dequantize(data[:, :-1], 2), "rows must be blocks of 18 bytes"),
        (lambda: ops.gguf_dequantize(data.int(), 2), "data must be bytes"),
        (lambda: ops.gguf_dequantize(data, 2, dtype=torch.float64), "dtype must be one of"),
        (lambda: ops.gguf_linear(x[:, :32], data, 2), "x must have rows of 64 elements"),
        (lambda: ops.gguf_linear(x, data[None], 2), "data must have 2 dimensions"),
        (lambda: ops.gguf_linear(x, data, 2, x[0]), r"bias must have sizes \[6\], but has \[64\]"),
        (lambda: ops.gguf_embedding(x, data, 2), "indices must be integers"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(NotImplementedError, match="\"gguf_linear\" not implemented for 'Int'"):
        ops.gguf_linear(x.int(), data, 2)
    for wrong in (6, -1):
        with pytest.raises(RuntimeError, match=f"gguf_embedding: index {wrong} is not one of 6"):
            ops.gguf_embedding(torch.tensor([wrong], device=device), data, 2).cpu()


def test_operators_refuse_what_functions_refuse():
    data = blocks("Q4_0", 6, 64).to("mps")
    x = torch.zeros(2, 64, device="mps")
    for call in (
        lambda: torch.ops.metalops.gguf_linear(x, data, None, 1),
        lambda: torch.ops.metalops.gguf_linear(x, data, None, 40),
        lambda: torch.ops.metalops.gguf_linear(x[:, :32], data, None, 2),
        lambda: torch.ops.metalops.gguf_linear(x, data, x[0], 2),
        lambda: torch.ops.metalops.gguf_dequantize(data[:, :5], None, 2, torch.half),
        lambda: torch.ops.metalops.gguf_dequantize(data, x[0].int(), 2, torch.half),
    ):
        with pytest.raises(ValueError):
            call()


# ---- the module ----------------------------------------------------------------------------------


@devices
def test_a_layer_of_a_file(device):
    data = blocks("Q4_K", 12, 256)
    bias = torch.randn(12)
    layer = GGUFLinear(data, "Q4_K", bias).to(device)
    assert (layer.in_features, layer.out_features) == (256, 12)
    assert repr(layer) == "GGUFLinear(256, 12, qtype='Q4_K')"
    x = torch.randn(3, 256).to(device)
    expected = ops.gguf_linear(x, data.to(device), "Q4_K", bias.to(device))
    assert torch.equal(layer(x), expected)
    other = GGUFLinear(torch.zeros_like(data), 12, torch.zeros(12)).to(device)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), expected)
    with pytest.raises(ValueError, match="rows must be blocks of 144 bytes"):
        GGUFLinear(data[:, :-1], "Q4_K")
