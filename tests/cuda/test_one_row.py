"""Products of one row by the kernels for GPUs (kernels/quantized/gemv.h), without a GPU: the libraries that the software device has run
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


Q4_K = gguf.formats.TYPES["Q4_K"].number


@pytest.fixture(autouse=True)
def on_the_software_device(monkeypatch):
    use_built_kernels(monkeypatch)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", packing.FLOATS, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_four_bits(sizes, dtype, with_bias):
    columns, inner = sizes
    bias = packing.make((columns,), dtype, seed=5) if with_bias else None
    for mode, group_size in (("affine", 32), ("affine", 128), ("mxfp4", 32), ("nvfp4", 16)):
        about = {"mode": mode, "bits": 4, "group_size": group_size}
        codes, scales, biases = ops.quantize(packing.make(sizes, dtype, seed=3), **about)
        wide = ops.dequantize(codes, scales, biases, **about, dtype=torch.float32).double()
        x = packing.make((1, inner), dtype, seed=4)
        of_batch = (None if t is None else t[None] for t in (codes, scales, biases))
        actual = _quantized_on_cuda.matmul(
            x[None], *of_batch, bias, None, None, None, True, 4, group_size, mode
        )
        name = "int4" if mode == "affine" else mode
        assert launched.pop().startswith(f"quantized_matmul_gemv_{name}_") and not launched
        exact = x.double() @ wide.T
        products.assert_right(actual[0], exact if bias is None else exact + bias.double(), dtype)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", packing.FLOATS, ids=str)
def test_q4_k(sizes, dtype):
    columns, inner = sizes
    data = gguf.blocks("Q4_K", columns, inner)
    wide = ops.gguf_dequantize(data, "Q4_K", dtype=torch.float32).double()
    x, bias = packing.make((1, inner), dtype, seed=4), packing.make((columns,), dtype, seed=5)
    actual = _quantized_on_cuda.gguf_linear(x, data, bias, Q4_K)
    assert launched == [f"gguf_gemv_Q4_K_{kernel_file.TYPES[dtype]}"]
    products.assert_right(actual, x.double() @ wide.T + bias.double(), dtype)
