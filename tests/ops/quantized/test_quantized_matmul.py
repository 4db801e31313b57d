"""quantized_matmul, quantized_linear and gather_quantized_matmul: kernels/quantized/quantized_matmul.metal."""

import functools

import pytest
import torch
from metalops import debug, ops
from metalops.testing import no_standins
from metalops.testing.samples import make
from torch.nn import functional

from ..benchmark import Benchmark
from ..matmul.bodies import with_dtypes
from .test_quantized import CHECKS, KINDS, devices, dtypes, keywords, moved, quantized

OTHERS = ("quantized_matmul", "quantized_linear", "gather_quantized_matmul")

FOUR = ("affine", 4, 64)
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@functools.lru_cache(maxsize=4)
def _weights(features, device):
    return moved(quantized((256, features), FOUR), device)


def _ours(x, out):
    return ops.quantized_linear(x, *_weights(x.shape[-1], x.device))


def _theirs(x, out):
    return functional.linear(x, ops.dequantize(*_weights(x.shape[-1], x.device)))


BENCHMARKS = (Benchmark("quantized_linear, 4 bits", _ours, _theirs, composed=True),)


@pytest.fixture(params=["tensor", "simdgroup"])
def body(request, monkeypatch):
    """By which products: of tensors, or of simdgroup matrices."""
    monkeypatch.setenv("METALOPS_MATMUL", request.param)


def assert_right(actual, expected, dtype):
    """Relative Frobenius norm of the difference from a product in float64."""
    assert actual.shape == expected.shape and actual.dtype == dtype
    difference = (actual.cpu().double() - expected).norm()
    assert difference <= TOLERANCES[dtype] * expected.norm() + 1e-30


def wide(weights, kind):
    """The weights in float64."""
    return ops.dequantize(*weights, **keywords(kind), dtype=torch.float32).double()


# ---- values --------------------------------------------------------------------------------------


# For the full tier, because each format and each dtype has kernels of its own.
SOONER = {
    torch.float32: {("affine", 1, 64), ("affine", 7, 64), ("nvfp4", 4, 16)},
    torch.float16: {FOUR, ("mxfp8", 8, 32)},
}
PRODUCTS = [
    pytest.param(
        *(dtype, kind),
        id=f"{dtype}-{'-'.join(map(str, kind))}",
        marks=() if kind in SOONER.get(dtype, ()) else pytest.mark.nightly,
    )
    for kind in KINDS
    for dtype in TOLERANCES
]


@pytest.mark.sampled(4)
@pytest.mark.full
@pytest.mark.parametrize(("dtype", "kind"), PRODUCTS)
def test_every_format_with_few_rows_and_many(kind, dtype):
    weights = quantized((37, 2048), kind, dtype)
    exact = wide(weights, kind)
    for rows in (1, 3, 40):
        x = make((rows, 2048), dtype, seed=rows)
        with no_standins():
            actual = ops.quantized_matmul(x.to("mps"), *moved(weights), **keywords(kind))
        assert_right(actual, x.double() @ exact.T, dtype)
        back = make((rows, 37), dtype, seed=rows)
        with no_standins():
            actual = ops.quantized_matmul(
                back.to("mps"), *moved(weights), **keywords(kind), transpose=False
            )
        assert_right(actual, back.double() @ exact, dtype)


@pytest.mark.full
@with_dtypes(TOLERANCES)
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.sampled(4)
def test_sizes_that_are_and_are_not_multiples_of_tiles(dtype, transpose, body):
    kind = ("affine", 4, 32)
    rows = (*range(1, 10), 31, 32, 33, 63, 64, 65, 127, 128, 129)
    for n, k in ((3, 32), (33, 64), (67, 96), (64, 160)):
        weights = quantized((n, k), kind, dtype)
        exact = wide(weights, kind)
        exact = exact.T if transpose else exact
        there = moved(weights)
        x = make((129, exact.shape[0]), dtype, seed=n)
        expected = x.double() @ exact
        for m in rows:
            actual = ops.quantized_matmul(
                x[:m].to("mps"), *there, **keywords(kind), transpose=transpose
            )
            assert_right(actual, expected[:m], dtype)


@pytest.mark.parametrize("group", [64, 128])
@with_dtypes(TOLERANCES)
def test_kernels_of_cpus_for_four_bits(dtype, body, group, tmp_path):
    """One row by lines of vectors, more by deep tiles: lines, columns and groups that do and do not fill them."""
    kind = ("affine", 4, group)
    for n, k in ((1, 128), (127, 2048), (129, 2048 + 256), (31, 4096 + 384), (35, 640)):
        weights = quantized((n, k), kind, dtype)
        exact = wide(weights, kind)
        bias = make((n,), dtype, seed=k)
        x = make((65, k), dtype, seed=n)
        for m in (1, 2, 32, 33, 65):
            with debug.capture(tmp_path / "a.trace", contents=1) as trace, no_standins():
                actual = ops.quantized_linear(
                    x[:m].to("mps"), *moved(weights), bias.to("mps"), **keywords(kind)
                )
            expected = x[:m].double() @ exact.T + bias.double()
            assert_right(actual, expected, dtype)
            (launch,) = trace.launches
            if m == 1 or body == "tensor":
                size = "small" if m <= 32 else "large"
                name = "gemv_lines" if m == 1 else f"tiles_deep_{size}"
                assert launch.kernel.startswith(f"quantized_matmul_{name}_")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bits", range(1, 8))
def test_sizes_of_torchao(bits):
    """Of its own tests (torchao/experimental/ops/mps): rows of codes that are no whole words, and short last groups."""
    for m, k, n, group in (
        (1, 8, 4, 32),
        (1, 8, 3, 32),
        (1, 56, 4, 64),
        (1, 72, 4, 64),
        (1, 1000, 4, 64),
        (1, 640, 1030, 32),
        (7, 64, 20, 64),
        (17, 120, 20, 128),
        (41, 144, 20, 128),
        (81, 8, 4, 256),
        (19, 256, 28, 256),
    ):
        kind = ("affine", bits, group)
        weights = quantized((n, k), kind)
        x = make((m, k), torch.float32)
        actual = ops.quantized_matmul(x.to("mps"), *moved(weights), **keywords(kind))
        assert_right(actual, x.double() @ wide(weights, kind).T, torch.float32)


@dtypes
def test_one_row_is_the_same_by_every_way(dtype):
    """Nothing but rounding depends on how many rows there are beside it."""
    weights = moved(quantized((70, 512), FOUR, dtype))
    x = make((65, 512), dtype).to("mps")
    alone = ops.quantized_matmul(x[:1], *weights)
    for rows in (2, 4, 8, 9, 32, 33, 65):
        among = ops.quantized_matmul(x[:rows], *weights)[:1]
        difference = (among.float() - alone.float()).norm() / alone.float().norm()
        assert difference <= TOLERANCES[dtype]


def test_long_rows_are_shared_by_simdgroups():
    for columns in (1, 8, 9, 40):
        weights = quantized((columns, 8192), FOUR)
        for rows in (1, 5):
            x = make((rows, 8192), torch.float32)
            actual = ops.quantized_matmul(x.to("mps"), *moved(weights))
            assert_right(actual, x.double() @ wide(weights, FOUR).T, torch.float32)


@devices
def test_strided_operands_and_views(device):
    packed, scales, biases = moved(quantized((50, 256), FOUR), device)
    x = make((6, 256), torch.float32).to(device)
    expected = ops.quantized_matmul(x, packed, scales, biases)
    gaps = torch.zeros(6, 300, device=device)
    gaps[:, 3:259] = x
    for left in (x.t().contiguous().t(), gaps[:, 3:259], torch.cat([gaps.flatten()[:1], x.flatten()])[1:].view(6, 256)):  # fmt: skip
        for right in (packed.view(torch.int32), packed.t().contiguous().t()):
            factors = (t.t().contiguous().t() for t in (scales, biases))
            actual = ops.quantized_matmul(left, right, *factors)
            torch.testing.assert_close(actual, expected)
    offset = torch.zeros(packed.numel() + 1, dtype=torch.uint8, device=device)
    offset[1:] = packed.flatten()
    actual = ops.quantized_matmul(x, offset[1:].view(50, 128), scales, biases)
    torch.testing.assert_close(actual, expected)


@devices
def test_batches_broadcast_as_those_of_matmul(device):
    weights = quantized((2, 3, 20, 64), FOUR)
    exact = wide(weights, FOUR)
    for shape in ((2, 3, 5, 64), (3, 5, 64), (1, 1, 64), (4, 1, 1, 9, 64), (64,)):
        x = make(shape, torch.float32)
        actual = ops.quantized_matmul(x.to(device), *moved(weights, device))
        assert_right(actual, torch.matmul(x.double(), exact.mT), torch.float32)
    x = make((3, 7, 20), torch.float32)
    actual = ops.quantized_matmul(x.to(device), *moved(weights, device), transpose=False)
    assert_right(actual, torch.matmul(x.double(), exact), torch.float32)


@devices
def test_linear_adds_its_bias_and_keeps_dimensions(device):
    weights = quantized((20, 64), FOUR)
    bias = make((20,), torch.float32, seed=4)
    for shape in ((64,), (2, 3, 64), (40, 64), (0, 64)):
        x = make(shape, torch.float32)
        actual = ops.quantized_linear(x.to(device), *moved(weights, device), bias.to(device))
        expected = functional.linear(x.double(), wide(weights, FOUR), bias.double())
        assert_right(actual, expected, torch.float32)


@devices
def test_global_scale(device):
    packed, scales, _ = moved(quantized((20, 64), ("nvfp4", 4, 16)), device)
    factor = torch.tensor([0.37], device=device)
    for rows in (1, 5, 20):
        x = make((rows, 64), torch.float32).to(device)
        for transpose in (True, False):
            y = x if transpose else x[:, :20].contiguous()
            arguments = (y, packed, scales)
            alone = ops.quantized_matmul(*arguments, mode="nvfp4", transpose=transpose)
            whole = ops.quantized_matmul(
                *arguments, mode="nvfp4", transpose=transpose, global_scale=factor
            )
            torch.testing.assert_close(whole, alone * factor / (6 * 448))


@devices
def test_empty_operands_and_sums_of_nothing(device):
    bias = torch.arange(4.0)
    for m, n, k in ((0, 4, 64), (3, 0, 64), (3, 4, 0)):
        weights = moved(ops.quantize(torch.zeros(n, k)), device)
        actual = ops.quantized_linear(
            torch.zeros(m, k, device=device), *weights, bias[:n].to(device)
        )
        assert torch.equal(actual.cpu(), bias[:n].expand(m, n))


# ---- pairs of matrices ---------------------------------------------------------------------------


@devices
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_pairs_of_matrices(device, rows):
    kind = ("affine", 4, 32)
    weights = quantized((6, 30, 64), kind)
    exact = wide(weights, kind)
    x = make((2, 4, rows, 64), torch.float32)
    flat = x.flatten(0, 1).double()
    generator = torch.Generator().manual_seed(0)
    left = torch.randint(0, 8, (3, 5), generator=generator)
    right = torch.randint(0, 6, (3, 5), generator=generator)
    for lhs, rhs in ((left, right), (left[:, :1], right), (None, right[:2, :4]), (left[0, :1], None)):  # fmt: skip
        actual = ops.gather_quantized_matmul(
            x.to(device),
            *moved(weights, device),
            lhs_indices=None if lhs is None else lhs.int().to(device),
            rhs_indices=None if rhs is None else rhs.int().to(device),
            **keywords(kind),
        )
        lhs = torch.arange(8).view(2, 4) if lhs is None else lhs
        rhs = torch.arange(6) if rhs is None else rhs
        assert_right(actual, flat[lhs] @ exact[rhs].mT, torch.float32)
    back = make((8, rows, 30), torch.float32)
    actual = ops.gather_quantized_matmul(
        back.to(device),
        *moved(weights, device),
        lhs_indices=left.to(device),
        rhs_indices=right.to(device),
        transpose=False,
        **keywords(kind),
    )
    assert_right(actual, back.double()[left] @ exact[right], torch.float32)


@devices
def test_sorted_tokens_of_experts(device):
    weights = quantized((6, 30, 64), FOUR)
    x = make((50, 1, 64), torch.float32)
    experts = torch.randint(0, 6, (50,)).sort().values
    arguments = (x.to(device), *moved(weights, device))
    for promise in (True, False):
        actual = ops.gather_quantized_matmul(
            *arguments, rhs_indices=experts.to(device), sorted_indices=promise
        )
        assert_right(actual, x.double() @ wide(weights, FOUR)[experts].mT, torch.float32)


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_indices_that_are_not_of_matrices_are_reported(device, dtype):
    weights = moved(quantized((3, 64, 64), FOUR, dtype), device)
    fine = torch.zeros(2, dtype=torch.int64, device=device)
    for rows, transpose in ((1, True), (5, True), (5, False), (20, True)):
        x = torch.zeros(2, rows, 64, dtype=dtype, device=device)
        for left, right in ((-1, 0), (2, 0), (0, -1), (0, 3)):
            indices = {"lhs_indices": fine + left, "rhs_indices": fine + right}
            with pytest.raises(RuntimeError, match="gather_quantized_matmul: ind"):
                ops.gather_quantized_matmul(x, *weights, **indices, transpose=transpose).cpu()


# ---- errors --------------------------------------------------------------------------------------


@devices
def test_wrong_arguments_are_named(device):
    packed, scales, biases = moved(quantized((4, 64), FOUR), device)
    x = torch.zeros(2, 64, device=device)
    for call, error, message in (
        (lambda: ops.quantized_matmul(x[:, :63], packed, scales, biases), ValueError, "quantized_matmul: x must have rows of 64 elements"),
        (lambda: ops.quantized_matmul(x, packed, scales, biases, transpose=False), ValueError, "x must have rows of 4 elements"),
        (lambda: ops.quantized_matmul(x, packed, scales), ValueError, "mode 'affine' needs biases"),
        (lambda: ops.quantized_matmul(x, packed[0], scales, biases), ValueError, "packed must have at least 2 dimensions"),
        (lambda: ops.quantized_linear(x, packed[None], scales[None], biases[None]), ValueError, "packed must have 2 dimensions"),
        (lambda: ops.quantized_linear(x, packed, scales, biases, x[0]), ValueError, r"bias must have sizes \[4\], but has \[64\]"),
        (lambda: ops.quantized_linear(x, packed, scales, biases, bits=8), ValueError, "x must have rows of 32 elements"),
        (lambda: ops.gather_quantized_matmul(x, packed, scales, biases, rhs_indices=x), ValueError, "rhs_indices must be integers"),
        (lambda: ops.gather_quantized_matmul(x[0], packed, scales, biases), ValueError, "x must have at least 2 dimensions"),
        (lambda: ops.quantized_matmul(x.int(), packed, scales, biases), NotImplementedError, "\"quantized_matmul\" not implemented for 'Int'"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            call()


def test_tensors_of_several_devices_are_refused():
    packed, scales, biases = quantized((4, 64), FOUR)
    x = torch.zeros(2, 64)
    for arguments in (
        (x.to("mps"), packed, scales, biases),
        (x, packed.to("mps"), scales, biases),
        (x, packed, scales.to("mps"), biases),
        (x.to("mps"), *moved((packed, scales, biases)), torch.zeros(4)),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            ops.quantized_linear(*arguments)


def test_operators_refuse_what_functions_refuse():
    packed, scales, biases = (t.unsqueeze(0) for t in moved(quantized((4, 64), FOUR)))
    x = torch.zeros(1, 2, 64, device="mps")
    one = torch.zeros(1, dtype=torch.int64, device="mps")
    numbers = (True, 4, 64, "affine")
    for arguments in (
        (x[0], packed, scales, biases, None, None, None, None),
        (x[..., :32], packed, scales, biases, None, None, None, None),
        (x, packed, scales[..., :0], biases, None, None, None, None),
        (x, packed, scales.half(), biases.half(), None, None, None, None),
        (x, packed, scales, biases, x[0, 0], None, None, None),
        (x, packed, scales, biases, None, one, None, None),
        (x, packed, scales, biases, None, None, one.int(), None),
        (x.repeat(2, 1, 1), packed, scales, biases, None, None, None, None),
        (x, packed, scales, biases, None, None, one, torch.cat([one, one])),
    ):
        with pytest.raises(ValueError):
            torch.ops.metalops.quantized_matmul(*arguments, *numbers)


# ---- derivatives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("kind", [FOUR, ("nf4", 4, 64)], ids=str)
@devices
def test_gradients(device, kind, transpose):
    packed, scales, biases = quantized((20, 128), kind)
    bias = make((20 if transpose else 128,), torch.float32, seed=6)
    x = make((3, 7, 128 if transpose else 20), torch.float32)

    def reference(x, bias, *factors):
        weight = ops.dequantize(packed, *factors, **keywords(kind))
        return functional.linear(x, weight if transpose else weight.T, bias)

    def mine(x, bias, *factors):
        result = ops.quantized_matmul(
            x, packed.to(device), *factors, **keywords(kind), transpose=transpose
        )
        return result + bias

    def linear(x, bias, scales, biases=None):
        return ops.quantized_linear(x, packed.to(device), scales, biases, bias, **keywords(kind))

    leaves = [x, bias, scales, *([] if biases is None else [biases])]
    cotangent = make((3, 7, bias.shape[0]), torch.float32, seed=8)

    def gradients(function, device):
        own = [t.to(device).requires_grad_() for t in leaves]
        return torch.autograd.grad(function(*own), own, cotangent.to(device))

    expected = gradients(reference, "cpu")
    for function in (mine, linear) if transpose else (mine,):
        if function is linear and device == "mps":
            with no_standins():
                actual = gradients(function, device)
        else:
            actual = gradients(function, device)
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-4)


@devices
def test_gradients_of_pairs_and_batches(device):
    weights = quantized((4, 12, 64), FOUR)
    x = make((3, 2, 64), torch.float32)
    left, right = torch.tensor([0, 2, 2, 1, 0]), torch.tensor([3, 0, 3, 3, 1])

    def gradients(device, call):
        leaves = [t.to(device).requires_grad_() for t in (x, *weights[1:])]
        result = call(leaves[0], weights[0].to(device), *leaves[1:])
        return torch.autograd.grad(result.sin().sum(), leaves)

    def reference(x, packed, *factors):
        return x[left] @ ops.dequantize(packed, *factors)[right].mT

    def mine(x, packed, *factors):
        return ops.gather_quantized_matmul(
            x, packed, *factors, lhs_indices=left.to(device), rhs_indices=right.to(device)
        )

    for a, e in zip(gradients(device, mine), gradients("cpu", reference), strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-4)
    many = make((4, 2, 64), torch.float32)
    x, left, right = many, torch.arange(4), torch.arange(4)
    batched = gradients(device, ops.quantized_matmul)
    for a, e in zip(batched, gradients("cpu", reference), strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-4)


@devices
def test_second_derivatives(device):
    packed, scales, biases = moved(quantized((5, 32), ("affine", 4, 32)), device)
    x = make((2, 32), torch.float32).to(device)

    def function(x, scales, biases):
        return ops.quantized_linear(x, packed, scales, biases, group_size=32).sin()

    leaves = [t.requires_grad_() for t in (x, scales, biases)]
    first = torch.autograd.grad(function(*leaves).sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
    wide_leaves = [t.detach().cpu().double().requires_grad_() for t in leaves]
    codes = ops.dequantize(packed.cpu(), torch.ones(5, 1), torch.zeros(5, 1), group_size=32)

    def reference(x, scales, biases):
        return functional.linear(x, codes.double() * scales + biases).sin()

    first = torch.autograd.grad(reference(*wide_leaves).sum(), wide_leaves, create_graph=True)
    expected = torch.autograd.grad(sum(g.square().sum() for g in first), wide_leaves)
    for a, e in zip(second, expected, strict=True):
        torch.testing.assert_close(a.cpu().double(), e, rtol=2e-3, atol=2e-3 * e.abs().max().item())


# ---- autocast and compilation --------------------------------------------------------------------


@devices
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_lowers_the_precision(device, dtype):
    weights = moved(quantized((20, 64), FOUR), device)
    x = make((3, 64), torch.float32).to(device).requires_grad_()
    bias = torch.ones(20, device=device)
    with torch.autocast(device, dtype=dtype):
        result = ops.quantized_linear(x, *weights, bias)
    assert result.dtype == dtype
    result.float().sum().backward()
    assert x.grad.dtype == torch.float32
    lowered = ops.quantized_linear(x.to(dtype), *weights, bias)
    assert torch.equal(result, lowered)


@pytest.mark.parametrize("kind", [FOUR, ("nvfp4", 4, 16)], ids=str)
@devices
def test_opcheck(kind, device):
    mode, bits, group_size = kind
    packed, scales, biases = moved(quantized((2, 6, 64), kind), device)
    if biases is not None:
        scales.requires_grad_()
    x = make((3, 4, 64), torch.float32).to(device).requires_grad_()
    left, right = (torch.tensor(t, device=device) for t in ([0, 2], [1, 1]))
    bias = torch.zeros(6, device=device)
    torch.library.opcheck(
        torch.ops.metalops.quantized_matmul.default,
        (x, packed, scales, biases, bias, None, left, right, True, bits, group_size, mode),
        test_utils=CHECKS,
    )


@devices
def test_compiled_and_exported(device):
    weights = moved(quantized((20, 64), FOUR), device)

    def function(x, packed, scales, biases):
        return ops.quantized_linear(x, packed, scales, biases).sum(-1)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for rows in (1, 5):
        x = make((rows, 64), torch.float32).to(device)
        torch.testing.assert_close(compiled(x, *weights), function(x, *weights))

    class Module(torch.nn.Module):
        forward = staticmethod(function)

    program = torch.export.export(Module(), (x, *weights)).module()
    torch.testing.assert_close(program(x, *weights), function(x, *weights))


@devices
def test_gradients_of_a_compiled_layer(device):
    weights = moved(quantized((20, 64), FOUR), device)
    x = make((5, 64), torch.float32).to(device).requires_grad_()
    bias = torch.zeros(20, device=device, requires_grad=True)
    layer = torch.compile(ops.quantized_linear, backend="aot_eager", fullgraph=True)
    for function in (layer, ops.quantized_linear):
        y = function(x, *weights, bias)
        found = torch.autograd.grad(y.square().sum(), [x, bias])
        assert [g.shape for g in found] == [x.shape, bias.shape]
    torch.testing.assert_close(
        torch.autograd.grad(layer(x, *weights, bias).square().sum(), bias)[0], found[1]
    )


@devices
def test_indices_of_no_matrices_are_refused(device):
    x = torch.ones(3, 2, 64, device=device)
    weight = torch.ones(3, 4, 64, device=device)
    index = torch.zeros(3, dtype=torch.int64, device=device)
    for left, right in ((x[:0], weight), (x, weight[:0])):
        with pytest.raises(RuntimeError, match="gather_quantized_matmul: .* 0"):
            ops.gather_quantized_matmul(
                left, *ops.quantize(right), lhs_indices=index, rhs_indices=index
            )


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.nightly)],
    ids=str,
)
def test_every_code_of_mxfp8(dtype, rows):
    """Each of the 256 codes is multiplied by one, the rest by zero; two codes are not numbers."""
    codes = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 32)
    scales = torch.full((256, 1), 127, dtype=torch.uint8)
    about = {"mode": "mxfp8", "bits": 8, "group_size": 32}
    expected = ops.dequantize(codes, scales, **about, dtype=torch.float32)[:, 0]
    x = torch.zeros(rows, 32, dtype=dtype)
    for at in (0, 5, 14, 31):
        x.zero_()[-1, at] = 1
        actual = ops.quantized_matmul(x.to("mps"), codes.to("mps"), scales.to("mps"), **about).cpu()
        torch.testing.assert_close(actual[-1], expected.to(dtype), rtol=0, atol=0, equal_nan=True)
