"""Quantised weights on a GPU by our kernels: the calls of tests/ops.

This needs a GPU and nothing that is compiled: in a source tree,
`PYTHONPATH=python pytest --noconftest tests/cuda/test_quantized_launch.py`.
"""

import pytest
import torch
from metalops import ops
from metalops.ops._cuda import kernel_file
from metalops.ops._formats import quantized as formats

from tests.ops.quantized import test_gguf as gguf
from tests.ops.quantized import test_int8_linear as int8
from tests.ops.quantized import test_quantized as packing
from tests.ops.quantized import test_quantized_matmul as products

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no NVIDIA GPU, or torch has no CUDA"
)


@pytest.fixture
def kernels(monkeypatch):
    """The names of those that were launched."""
    names = []
    launch = kernel_file.launch

    def launched(file, kernel, *args):
        names.append(kernel)
        launch(file, kernel, *args)

    monkeypatch.setattr(kernel_file, "launch", launched)
    return names


@pytest.fixture(autouse=True)
def nothing_is_composed(monkeypatch):
    def composed(*args):
        raise AssertionError("kernels were to take this")

    on_the_cpu = formats.dequantized

    def dequantized(p):
        return composed() if p.codes.is_cuda else on_the_cpu(p)

    monkeypatch.setattr(formats, "dequantized", dequantized)


@pytest.mark.parametrize("kind", packing.KINDS, ids=str)
@pytest.mark.parametrize("dtype", packing.FLOATS, ids=str)
def test_bytes_and_values(kind, dtype):
    weight = packing.make((5, 2048), dtype, seed=3)
    expected = ops.quantize(weight, **packing.keywords(kind))
    actual = ops.quantize(weight.cuda(), **packing.keywords(kind))
    for a, e in zip(actual, expected, strict=True):
        assert (a is None) == (e is None)
        assert a is None or torch.equal(a.cpu(), e)
    for result in (dtype, torch.float16):
        values = ops.dequantize(*actual, **packing.keywords(kind), dtype=result)
        assert torch.equal(
            values.cpu(), ops.dequantize(*expected, **packing.keywords(kind), dtype=result)
        )


@pytest.mark.parametrize("kind", packing.KINDS, ids=str)
@pytest.mark.parametrize("dtype", packing.FLOATS, ids=str)
def test_products(kind, dtype):
    weights = packing.quantized((37, 2048), kind, dtype)
    there = packing.moved(weights, "cuda")
    exact = products.wide(weights, kind)
    for rows in (1, 3, 8, 9, 16, 40):
        x = packing.make((rows, 2048), dtype, seed=rows)
        actual = ops.quantized_matmul(x.cuda(), *there, **packing.keywords(kind))
        products.assert_right(actual, x.double() @ exact.T, dtype)
        back = packing.make((rows, 37), dtype, seed=rows)
        actual = ops.quantized_matmul(
            back.cuda(), *there, **packing.keywords(kind), transpose=False
        )
        products.assert_right(actual, back.double() @ exact, dtype)


# More lines than a threadgroup has and fewer, and inner sizes that some lanes have nothing of.
@pytest.mark.parametrize("sizes", [(2, 64), (11, 96), (37, 2048), (3, 1056), (1024, 4096)], ids=str)
@pytest.mark.parametrize("dtype", packing.FLOATS, ids=str)
def test_one_row_of_four_bits(sizes, dtype, kernels):
    for kind in (("affine", 4, 32), ("affine", 4, 64), ("mxfp4", 4, 32), ("nvfp4", 4, 16)):
        mode, bits, group_size = kind
        about = {"mode": mode, "bits": bits, "group_size": group_size}
        if sizes[1] % group_size:
            continue
        weights = ops.quantize(packing.make(sizes, dtype, seed=3).cuda(), **about)
        wide = ops.dequantize(*weights, **about, dtype=torch.float32).double().cpu()
        x = packing.make((1, sizes[1]), dtype, seed=4)
        actual = ops.quantized_matmul(x.cuda(), *weights, **about)
        products.assert_right(actual, x.double() @ wide.T, dtype)
    assert all(
        name.startswith(("quantized_matmul_gemv_", "quantized_quantize_", "quantized_dequantize_"))
        for name in kernels
    )


@pytest.mark.parametrize("kind", [kind for kind in packing.KINDS if kind[1] in (2, 4, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_many_rows(kind, dtype, kernels):
    """Rows of every tile and fewer, and lines behind the last."""
    if not kernel_file.has_warpgroups(torch.empty(0, device="cuda")):
        pytest.skip("warpgroups, which this GPU does not have, decode weights in registers")
    for sizes in ((200, 2048), (77, 1024)):
        weights = packing.quantized(sizes, kind, dtype)
        there = packing.moved(weights, "cuda")
        exact = products.wide(weights, kind)
        bias = packing.make(sizes[:1], dtype, seed=2)
        for rows in (17, 32, 50, 128, 200, 300):
            x = packing.make((rows, sizes[1]), dtype, seed=rows)
            actual = ops.quantized_linear(
                x.cuda(), *there, bias=bias.cuda(), **packing.keywords(kind)
            )
            products.assert_right(actual, x.double() @ exact.T + bias.double(), dtype)
            assert kernels.pop().startswith("quantized_matmul_lines_")


@pytest.mark.parametrize(
    "kind", [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16), ("nf4", 4, 64)], ids=str
)
@pytest.mark.parametrize("power", [-20, -13, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_small_and_large_scales(kind, power, dtype):
    """Products are no further from the exact ones than those of weights that are rounded once, small halves included."""
    mode, bits, group_size = kind
    about = {"mode": mode, "bits": bits, "group_size": group_size}
    weight = packing.make((77, 1024), torch.float32, seed=3).cuda() * 2.0**power
    weights = ops.quantize(weight, **about)
    exact, rounded = (
        ops.dequantize(*weights, **about, dtype=of).double().cpu().T
        for of in (torch.float32, dtype)
    )
    for rows in (16, 40):
        x = packing.make((rows, 1024), dtype, seed=rows) * (16 if power < 0 else 1)
        actual = ops.quantized_linear(x.cuda(), *weights, **about).double().cpu()
        expected = x.double() @ exact
        allowed = (
            products.TOLERANCES[dtype] * expected.norm() + (x.double() @ rounded - expected).norm()
        )
        assert (actual - expected).norm() <= allowed


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_scale_of_nan_is_one_of_its_line_only(mode, dtype):
    about = {"mode": mode, "bits": 4 if mode == "mxfp4" else 8, "group_size": 32}
    codes, scales, _ = ops.quantize(packing.make((77, 1024), dtype, seed=3).cuda(), **about)
    scales.view(torch.uint8)[5, 3] = 255
    x = packing.make((40, 1024), dtype, seed=4).cuda()
    is_nan = torch.isnan(ops.quantized_linear(x, codes, scales, **about))
    assert is_nan[:, 5].all() and is_nan.sum() == 40


@pytest.mark.parametrize("rows", [1, 5, 20, 40])
def test_pairs_of_matrices(rows, kernels):
    products.test_pairs_of_matrices("cuda", rows)
    assert any(name.startswith("quantized_matmul_") for name in kernels)


def test_layouts_and_sizes(kernels):
    products.test_strided_operands_and_views("cuda")
    products.test_batches_broadcast_as_those_of_matmul("cuda")
    products.test_linear_adds_its_bias_and_keeps_dimensions("cuda")
    products.test_empty_operands_and_sums_of_nothing("cuda")
    products.test_global_scale("cuda")
    packing.test_views_and_gaps_of_the_same_bytes_are_taken("cuda")
    packing.test_empty_weights("cuda")
    assert {
        "quantized_quantize_float",
        "quantized_dequantize_float",
        "quantized_matmul_gemv_int4_float",
    } <= set(kernels)


def test_gradients(kernels):
    for transpose in (True, False):
        products.test_gradients("cuda", products.FOUR, transpose)
    products.test_autocast_lowers_the_precision("cuda", torch.bfloat16)
    assert "quantized_matmul_skinny_int4_bfloat" in kernels


@pytest.mark.parametrize("dtype", packing.FLOATS, ids=str)
def test_bytes_with_a_scale_for_each_row(dtype, kernels):
    int8.test_values("cuda", dtype)
    assert any("signed8" in name for name in kernels)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rows_of_simdgroup_matrices(name, dtype, kernels):
    data = gguf.blocks(name, 75, 1280)
    wide = ops.gguf_dequantize(data, name, dtype=torch.float32).double()
    for rows in (2, 8, 9, 16):
        x = packing.make((rows, 1280), dtype, seed=4)
        products.assert_right(
            ops.gguf_linear(x.cuda(), data.cuda(), name), x.double() @ wide.T, dtype
        )
        start = "gguf_skinny_16_" if rows > 8 else "gguf_skinny_"
        assert kernels.pop() == f"{start}{name}_{kernel_file.TYPES[dtype]}"


@pytest.mark.parametrize("name", gguf.formats.TYPES)
def test_blocks_of_files(name):
    gguf.test_products(name, torch.float16, "cuda")
    data = gguf.blocks(name, 21, 768, 3)
    expected = ops.gguf_dequantize(data, name)
    actual = ops.gguf_dequantize(data.cuda(), name).cpu()
    atol = 2e-7 * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)
    rows = torch.tensor([[3, 20]])
    found = ops.gguf_embedding(rows.cuda(), data.cuda(), name).cpu()
    assert torch.equal(found, actual[rows])
