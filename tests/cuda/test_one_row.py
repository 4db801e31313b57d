"""Products of up to sixteen rows by the kernels for GPUs (kernels/quantized/gemv.h, skinny_matrix.h), without a GPU: the libraries that the software device has run
what would be launched, on tensors of the CPU."""

import pytest
import torch
from metalops import ops
from metalops.ops._cuda import kernel_file
from metalops.ops._cuda import quantized as _quantized_on_cuda

from tests.ops.quantized import test_gguf as gguf
from tests.ops.quantized import test_quantized as packing
from tests.ops.quantized import test_quantized_matmul as products

from .built import launched, use_built_kernels
from .recorded import needs_software_device

pytestmark = needs_software_device

# More lines than a threadgroup has and fewer, and inner sizes that some lanes have nothing of.
SIZES = [(2, 256), (11, 512), (37, 2048), (3, 1280), (600, 1024)]


KINDS = [("affine", 4, 32), ("affine", 4, 128), ("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32), ("nf4", 4, 64), ("fp4", 4, 64)]  # fmt: skip


@pytest.fixture(autouse=True)
def on_the_software_device(monkeypatch):
    use_built_kernels(monkeypatch)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", packing.FLOATS, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_weights(sizes, dtype, with_bias):
    columns, inner = sizes
    bias = packing.make((columns,), dtype, seed=5) if with_bias else None
    for mode, bits, group_size in KINDS:
        about = {"mode": mode, "bits": bits, "group_size": group_size}
        codes, scales, biases = ops.quantize(packing.make(sizes, dtype, seed=3), **about)
        wide = ops.dequantize(codes, scales, biases, **about, dtype=torch.float32).double()
        x = packing.make((1, inner), dtype, seed=4)
        of_batch = (None if t is None else t[None] for t in (codes, scales, biases))
        actual = _quantized_on_cuda.matmul(
            x[None], *of_batch, bias, None, None, None, True, bits, group_size, mode
        )
        name = "int4" if mode == "affine" else mode
        assert launched.pop().startswith(f"quantized_matmul_gemv_{name}_") and not launched
        exact = x.double() @ wide.T
        products.assert_right(actual[0], exact if bias is None else exact + bias.double(), dtype)


def linear_of_a_file(name, rows, sizes, dtype):
    """Compares gguf_linear with the product in float64; returns the kernel's name."""
    columns, inner = sizes
    data = gguf.blocks(name, columns, inner)
    wide = ops.gguf_dequantize(data, name, dtype=torch.float32).double()
    x, bias = packing.make((rows, inner), dtype, seed=4), packing.make((columns,), dtype, seed=5)
    launched.clear()
    qtype = gguf.formats.TYPES[name].number
    actual = _quantized_on_cuda.gguf_linear(x, data, bias, qtype)
    products.assert_right(actual, x.double() @ wide.T + bias.double(), dtype)
    (kernel,) = launched
    return kernel


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", packing.FLOATS, ids=str)
def test_weights_of_files(name, sizes, dtype):
    kernel = linear_of_a_file(name, 1, sizes, dtype)
    assert kernel == f"gguf_gemv_{name}_{kernel_file.TYPES[dtype]}"


@pytest.mark.parametrize("name", ["IQ4_NL", "IQ4_XS"])
def test_codes_of_a_table_are_multiplied_by_simdgroup_matrices(name):
    assert linear_of_a_file(name, 1, (37, 768), torch.half) == f"gguf_skinny_{name}_half"
    assert linear_of_a_file(name, 1, (5, 256), torch.float) == "gguf_skinny_1_float"


def of_rows(rows):
    """The part of a kernel's name that tells for how many rows it is."""
    return "16_" if rows > 8 else ""


# The last lanes have nothing of 512 and of 1,152 elements.
@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [2, 8, 9, 16])
def test_up_to_sixteen_rows_are_multiplied_by_simdgroup_matrices(rows):
    for name in ("Q8_0", "Q5_K"):
        kernel = linear_of_a_file(name, rows, (37, 512), torch.bfloat16)
        assert kernel == f"gguf_skinny_{of_rows(rows)}{name}_bfloat"
    about = {"mode": "nf4", "bits": 4, "group_size": 64}
    codes, scales, _ = ops.quantize(packing.make((70, 1152), torch.half, seed=3), **about)
    wide = ops.dequantize(codes, scales, **about, dtype=torch.float32).double()
    x = packing.make((2, rows, 1152), torch.half, seed=4)
    launched.clear()
    arguments = (x, codes[None], scales[None], None, None, None)
    pairs = torch.tensor([0, 1]), torch.tensor([0, 0])
    actual = _quantized_on_cuda.matmul(*arguments, *pairs, True, 4, 64, "nf4")
    assert launched == [f"quantized_matmul_skinny_{of_rows(rows)}nf4_half"]
    products.assert_right(actual, x.double() @ wide.T, torch.half)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("kind", packing.KINDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
def test_sixteen_rows_of_every_format(kind, dtype):
    mode, bits, group_size = kind
    weight = packing.make((43, 1152 if 1152 % group_size == 0 else 1024), dtype, seed=3)
    of_kind = packing.keywords(kind)
    weights = ops.quantize(weight, **of_kind)
    x = packing.make((1, 13, weight.shape[1]), dtype, seed=4)
    of_batch = (None if t is None else t[None] for t in weights)
    actual = _quantized_on_cuda.matmul(
        x, *of_batch, None, None, None, None, True, bits, group_size, mode
    )
    (kernel,) = launched
    assert kernel.startswith("quantized_matmul_skinny_16_")
    products.assert_right(actual[0], x[0].double() @ products.wide(weights, kind).T, dtype)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_sixteen_rows_of_files(name):
    kernel = linear_of_a_file(name, 11, (43, 768), torch.half)
    assert kernel == f"gguf_skinny_16_{name}_half"


@pytest.mark.parametrize("rows", [8, 16])
def test_lanes_past_the_end_take_no_infinity(rows):
    """They load the last elements again, and multiply them by zero."""
    data = gguf.blocks("Q4_0", 5, 288)
    x = packing.make((rows, 288), torch.half, seed=4)
    x[rows - 1, 287] = torch.inf
    qtype = gguf.formats.TYPES["Q4_0"].number
    actual = _quantized_on_cuda.gguf_linear(x, data, None, qtype)
    last = ops.gguf_dequantize(data, "Q4_0", dtype=torch.float32)[:, 287]
    assert torch.isfinite(actual[: rows - 1]).all()
    assert torch.equal(torch.isnan(actual[rows - 1]), last == 0)
    assert torch.equal(torch.isinf(actual[rows - 1]), last != 0)
