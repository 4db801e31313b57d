"""_scaled_mm, _scaled_mm_v2 and torch.nn.functional.scaled_mm: kernels/matmul/scaled_mm.metal."""

import functools

import pytest
import torch
from metalops.testing import no_standins, to_device
from metalops.testing.samples import FLOATS, make
from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

from ..aten import assert_refused_as_on_the_cpu
from ..benchmark import Benchmark
from .bodies import tensors_first

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FP8 = (E4M3, E5M2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
FP4 = torch.float4_e2m1fn_x2
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
SHAPES = ((1, 32, 5), (3, 64, 40), (20, 96, 70), (65, 160, 130))


@pytest.fixture(params=["tensor", "simdgroup"])
def body(request, monkeypatch):
    """By which products: of tensors, or of simdgroup matrices."""
    monkeypatch.setenv("METALOPS_MATMUL", request.param)


@functools.lru_cache(maxsize=4)
def _weights(features, device):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, features, generator=generator).to(E4M3).to(device).t()
    return weight, torch.tensor(0.5, device=device)


def _linear(x, out):
    weight, scale = _weights(4 * x.shape[-1], x.device)
    return torch._scaled_mm(x.view(E4M3), weight, scale, scale, out_dtype=torch.bfloat16)


BENCHMARKS = (
    Benchmark.same(
        "_scaled_mm",
        _linear,
        only_dtype="float32",
        reason="torch's CPU operator is a library's, which is written for each processor",
    ),
)


def codes(*shape, dtype=E4M3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype == FP4:
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).view(FP4)
    return torch.randn(shape, generator=generator).to(dtype)


def scales(*shape, dtype=torch.float32, seed=9):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.float8_e8m0fnu:
        return torch.randint(120, 134, shape, generator=generator).byte().view(dtype)
    return (torch.rand(shape, generator=generator) + 0.25).to(dtype)


def decoded(x):
    """Of lines along the last dimension."""
    if x.dtype != FP4:
        return x.double()
    pairs = x.contiguous().view(torch.uint8)
    return E2M1[torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2).long()].double()


def swizzled(scale):
    """torchao's to_blocked()."""
    lines, across = scale.shape
    padded = torch.zeros(-(-lines // 128) * 128, -(-across // 4) * 4, dtype=torch.uint8)
    padded[:lines, :across] = scale.view(torch.uint8)
    blocks = padded.view(padded.shape[0] // 128, 128, padded.shape[1] // 4, 4).permute(0, 2, 1, 3)
    return blocks.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1, 16).flatten().view(scale.dtype)


def expanded(scale, line_block, inner_block, lines, inner):
    scale = scale.double().repeat_interleave(line_block, 0).repeat_interleave(inner_block, 1)
    return scale[:lines, :inner]


def assert_right(actual, left, right, bias=None, divisor=1.0):
    """left, right: float64 lines, scales and all."""
    expected = left @ right.t()
    expected = (expected if bias is None else expected + bias.double()) / divisor
    assert actual.device.type == "mps" and actual.shape == expected.shape
    if actual.dtype in FP8:
        largest = torch.finfo(actual.dtype).max
        nearest = expected.clamp(-largest, largest).float().to(actual.dtype)
        steps = _ordered(actual.cpu()) - _ordered(nearest)
        assert steps.abs().max() <= 1
        return
    sums = (left.abs() @ right.abs().t()).max().item() + 1
    rtol = max(torch.finfo(actual.dtype).eps, 1e-6)
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=rtol, atol=2e-6 * sums)


def _ordered(x):
    """Integers in the order of the numbers, neighbours next to each other."""
    bits = x.view(torch.uint8).int()
    return torch.where(bits >= 128, 128 - bits, bits)


# ---- whole scales --------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_row_wise", [False, True])
def test_scales_of_tensors_and_of_rows(shape, is_row_wise, body):
    m, k, n = shape
    left, right = codes(m, k), codes(n, k, seed=1)
    of_left, of_right = (scales(m, 1), scales(1, n)) if is_row_wise else (scales(1), scales())
    wide = decoded(left) * of_left, decoded(right) * (of_right.t() if is_row_wise else of_right)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, E4M3, E5M2):
        arguments = to_device((left, right, of_left, of_right), "mps")
        arguments = (arguments[0], arguments[1].t(), *arguments[2:])
        with no_standins(["aten::fill_.Scalar"]):
            actual = torch._scaled_mm(*arguments, out_dtype=dtype)
        assert actual.dtype == dtype
        assert_right(actual, *wide)
        recipe = ScalingType.RowWise if is_row_wise else ScalingType.TensorWise
        a, b, scale_a, scale_b = arguments
        again = scaled_mm(a, b, scale_a, recipe, scale_b, recipe, output_dtype=dtype)
        assert torch.equal(again.view(torch.uint8), actual.view(torch.uint8))


@pytest.mark.parametrize("of_left", FP8, ids=str)
@pytest.mark.parametrize("of_right", FP8, ids=str)
def test_every_mix_of_formats(of_left, of_right):
    one = torch.tensor(1.0, device="mps")
    for m in (3, 20):
        left, right = codes(m, 33, dtype=of_left), codes(9, 33, dtype=of_right, seed=1)
        actual = torch._scaled_mm(left.to("mps"), right.to("mps").t(), one, one)
        assert actual.dtype == of_left
        assert_right(actual, decoded(left), decoded(right))


@pytest.mark.parametrize("m, n", [(1, 1), (1, 9), (20, 1), (20, 9)])
@pytest.mark.parametrize("sizes", [(), (1,), (1, 1)], ids=str)
def test_one_scale_of_each_operand_is_that_of_the_tensor(m, n, sizes):
    """Also where it might be that of the only row, or of the only block."""
    left, right = codes(m, 33), codes(n, 33, seed=1)
    two = torch.full(sizes, 2.0, device="mps")
    for a, b in ((two, two), (two.reshape(1, 1), two), (two, two.reshape(()))):
        actual = torch._scaled_mm(
            left.to("mps"), right.to("mps").t(), a, b, out_dtype=torch.float32
        )
        assert_right(actual, decoded(left) * 2, decoded(right) * 2)


@pytest.mark.parametrize("m", [2, 20])
def test_layouts_that_the_cpu_takes(m):
    left, right = codes(m, 37), codes(11, 37, seed=1)
    half = torch.tensor(0.5, device="mps")
    for a in _layouts(left):
        for b in _layouts(right):
            actual = torch._scaled_mm(a, b.t(), half, half, out_dtype=torch.float32)
            assert_right(actual, decoded(left) / 2, decoded(right) / 2)


def _layouts(x):
    x = x.to("mps")
    steps = torch.zeros(x.shape[0] * 2, x.shape[1] * 3, device="mps").to(x.dtype)
    steps[::2, ::3] = x
    return x, x.t().contiguous().t(), steps[::2, ::3], steps[::2].contiguous()[:, ::3]


def test_bias_and_the_scale_of_the_result():
    left, right = codes(20, 48), codes(9, 48, seed=1)
    a, b = left.to("mps"), right.to("mps").t()
    two = torch.tensor(2.0, device="mps")
    wide = decoded(left) * 2, decoded(right) * 2
    for bias in (torch.randn(9), torch.randn(9).half(), torch.arange(18)[::2], torch.randn(1, 9)):
        on_mps = bias.to("mps")
        actual = torch._scaled_mm(a, b, two, two, bias=on_mps, out_dtype=torch.float32)
        assert_right(actual, *wide, bias)
        actual = torch._scaled_mm(a, b, two, two, bias=on_mps, scale_result=two * 8)
        assert_right(actual, *wide, bias, divisor=16)
    actual = torch._scaled_mm(a, b, two, two, scale_result=two, out_dtype=torch.half)
    assert_right(actual, *wide)  # the scale is for 8-bit results


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_8_bit_results_saturate_and_keep_nan(dtype):
    one = torch.tensor(1e3, device="mps")
    left = torch.tensor([[100.0], [-100.0], [torch.nan], [0.0]], device="mps").to(E4M3)
    right = torch.tensor([[100.0]], device="mps").to(E4M3)
    largest = torch.finfo(dtype).max
    actual = torch._scaled_mm(left, right, one, one, out_dtype=dtype).float().cpu().ravel()
    expected = torch.tensor([largest, -largest, torch.nan, 0.0])
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_other_results_and_out():
    left, right = codes(6, 20), codes(9, 20, seed=1)
    a, b = left.to("mps"), right.to("mps").t()
    one = torch.tensor(1.0, device="mps")
    exact = decoded(left) @ decoded(right).t()
    assert torch.equal(
        torch._scaled_mm(a, b, one, one, out_dtype=torch.int32).cpu(), exact.float().int()
    )
    for out in (
        torch.empty(0, device="mps"),
        torch.empty(9, 6, device="mps").t(),
        torch.empty(6, 18, device="mps", dtype=torch.half)[:, ::2],
    ):
        assert torch._scaled_mm(a, b, one, one, out=out) is out
        assert_right(out, decoded(left), decoded(right))
        arguments = ([one], [0], [], [one], [0], [], None, None, [1, 0], False)
        again = torch.empty_like(out)
        torch._scaled_mm_v2(a, b, *arguments, out=again)
        assert torch.equal(again, out)


def test_empty_matrices_and_sums_of_nothing():
    one = torch.tensor(1.0, device="mps")
    for m, k, n in ((0, 16, 4), (4, 16, 0), (5, 0, 4), (50, 0, 4)):
        a, b = codes(m, k).to("mps"), codes(k, n).to("mps")
        bias = torch.ones(n, device="mps")
        actual = torch._scaled_mm(a, b, one, one, bias=bias, out_dtype=torch.float32)
        assert torch.equal(actual.cpu(), torch.ones(m, n))


# ---- scales of blocks ----------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", [(2, 128, 3), (20, 256, 130), (140, 300, 70)], ids=str)
@pytest.mark.parametrize(
    "recipes",
    [("BlockWise1x128",) * 2, ("BlockWise1x128", "BlockWise128x128"),
     ("BlockWise128x128", "BlockWise1x128"), ("BlockWise128x128",) * 2],
    ids=str,
)  # fmt: skip
@tensors_first
def test_blocks_of_128(shape, recipes, body):
    m, k, n = shape
    across = -(-k // 128)
    arguments, wide, in_v1 = [], [], []
    for lines, recipe, seed, dtype in ((m, recipes[0], 0, E4M3), (n, recipes[1], 1, E5M2)):
        x = codes(lines, k, seed=seed, dtype=dtype)
        if recipe == "BlockWise1x128":
            scale = scales(across, lines, seed=seed).t()  # stride (1, lines)
            wide.append(decoded(x) * expanded(scale, 1, 128, lines, k))
            in_v1.append(scale)
        else:
            rounded = -(-across // 4) * 4
            scale = scales(-(-lines // 128), rounded, seed=seed).t()  # stride (1, rounded)
            wide.append(decoded(x) * expanded(scale.t(), 128, 128, lines, k))
            in_v1.append(scale[:across].t())
        arguments.append((x.to("mps"), scale.to("mps"), getattr(ScalingType, recipe)))
    (a, *of_a), (b, *of_b) = arguments
    assert_right(scaled_mm(a, b.t(), *of_a, *of_b, output_dtype=torch.float32), *wide)
    if across > 1:  # or the shapes say that they are of rows
        in_v1 = in_v1[0].to("mps"), in_v1[1].to("mps").t()
        assert_right(torch._scaled_mm(a, b.t(), *in_v1, out_dtype=torch.bfloat16), *wide)


@tensors_first
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "shape",
    [(2, 32, 3), (140, 160, 70), pytest.param((20, 96, 130), marks=pytest.mark.nightly)],
    ids=str,
)
@pytest.mark.parametrize("is_swizzled", [False, True])
@pytest.mark.parametrize("formats", [(E4M3, E4M3), (E5M2, E4M3), (FP4, FP4)], ids=str)
def test_mx_blocks_of_32(shape, is_swizzled, formats, body):
    m, k, n = shape
    arguments, wide = [], []
    for lines, dtype, seed in ((m, formats[0], 0), (n, formats[1], 1)):
        x = codes(lines, k // 2 if dtype == FP4 else k, dtype=dtype, seed=seed)
        scale = scales(lines, k // 32, dtype=torch.float8_e8m0fnu, seed=seed)
        wide.append(decoded(x) * expanded(scale.float(), 1, 32, lines, k))
        scale = swizzled(scale) if is_swizzled else scale
        arguments.append((_moved(x), scale.to("mps"), ScalingType.BlockWise1x32))
    (a, *of_a), (b, *of_b) = arguments
    swizzle = SwizzleType.SWIZZLE_32_4_4 if is_swizzled else SwizzleType.NO_SWIZZLE
    actual = scaled_mm(a, b.t(), *of_a, *of_b, swizzle, swizzle, output_dtype=torch.float32)
    assert_right(actual, *wide)
    if is_swizzled:
        again = torch._scaled_mm(a, b.t(), of_a[0], of_b[0], out_dtype=torch.float32)
        assert torch.equal(again, actual)


def _moved(x):
    return x.view(torch.uint8).to("mps").view(x.dtype)


@tensors_first
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "shape",
    [(2, 32, 3), (20, 96, 130), pytest.param((140, 160, 70), marks=pytest.mark.nightly)],
    ids=str,
)
@pytest.mark.parametrize("is_swizzled", [False, True])
@pytest.mark.parametrize("has_second", [False, True])
def test_nvfp4(shape, is_swizzled, has_second, body):
    m, k, n = shape
    arguments, wide = [], []
    for lines, seed in ((m, 0), (n, 1)):
        x = codes(lines, k // 2, dtype=FP4, seed=seed)
        scale = scales(lines, k // 16, dtype=E4M3, seed=seed)
        second = scales(1, seed=seed + 5)
        wide.append(decoded(x) * expanded(scale.float(), 1, 16, lines, k))
        scale = (swizzled(scale) if is_swizzled else scale).to("mps")
        if has_second:
            wide[-1] = wide[-1] * second.double()
            recipe = [ScalingType.BlockWise1x16, ScalingType.TensorWise]
            arguments.append((_moved(x), [scale, second.to("mps")], recipe))
        else:
            arguments.append((_moved(x), scale, ScalingType.BlockWise1x16))
    (a, *of_a), (b, *of_b) = arguments
    swizzle = SwizzleType.SWIZZLE_32_4_4 if is_swizzled else SwizzleType.NO_SWIZZLE
    actual = scaled_mm(a, b.t(), *of_a, *of_b, swizzle, swizzle, output_dtype=torch.float32)
    assert_right(actual, *wide)


# ---- _scaled_addmm -------------------------------------------------------------------------------

with_addmm = pytest.mark.skipif(
    not hasattr(torch, "_scaled_addmm"), reason="torch 2.15 added the operator"
)


def _addmm_arguments(rows=5, columns=4):
    left, right = codes(rows, 32), codes(columns, 32, seed=1)
    of_rows, of_columns = scales(rows, 1), scales(1, columns, seed=3)
    product = (decoded(left) * of_rows) @ (decoded(right) * of_columns.t()).t()
    row_wise = [ScalingType.RowWise.value]
    a, b = left.to("mps"), right.to("mps").t()
    scaled = ([of_rows.to("mps")], row_wise, [], [of_columns.to("mps")], row_wise, [])
    return (a, b, *scaled), product


@with_addmm
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("factors", [{}, {"beta": 0.5, "alpha": -2}, {"beta": 0}], ids=str)
def test_addmm(dtype, factors):
    arguments, product = _addmm_arguments()
    x = make((5, 4), dtype, seed=4)
    exact = factors.get("beta", 1) * x.double() + factors.get("alpha", 1) * product
    actual = torch._scaled_addmm(x.to("mps"), *arguments, **factors)
    torch.testing.assert_close(actual.cpu(), exact.to(dtype))
    out = torch.empty(4, 5, dtype=dtype, device="mps").t()
    assert torch._scaled_addmm(x.to("mps"), *arguments, **factors, out=out) is out
    assert torch.equal(out, actual)
    changed = x.to("mps")
    assert torch._scaled_addmm_(changed, *arguments, **factors) is changed
    assert torch.equal(changed, actual)


@with_addmm
def test_addmm_without_its_addend_ignores_what_is_not_finite():
    arguments, product = _addmm_arguments()
    x = torch.full((5, 4), torch.nan, device="mps")
    torch.testing.assert_close(torch._scaled_addmm(x, *arguments, beta=0).cpu(), product.float())


@with_addmm
@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("only supports real alpha and beta", {"alpha": 1j}),
        ("only supports contraction_dim", {"contraction_dim": [0, 1]}),
        ("input must be a matrix, but got 1 dim", {"self": torch.zeros(4)}),
        ("input dim 0 must be 5, but got 6", {"self": torch.zeros(6, 4)}),
        ("input dim 1 must be 4, but got 3", {"self": torch.zeros(5, 3)}),
        ("input must have dtype BFloat16, Half, or Float", {"self": torch.zeros(5, 4).int()}),
        ("canonical contiguous row-major strides", {"self": torch.zeros(4, 5).t()}),
        ("dtype", {"out": torch.zeros(5, 4).half()}),
        ("same device", {"self": torch.zeros(5, 4, device="cpu")}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_of_addmm_are_named(message, changes):
    arguments, _ = _addmm_arguments()
    x = changes.pop("self", torch.zeros(5, 4))
    x = x if message == "same device" else x.to("mps")
    out = changes.pop("out", torch.zeros(5, 4)).to("mps")
    with pytest.raises((RuntimeError, ValueError), match=message):
        torch._scaled_addmm(x, *arguments, **changes, out=out)


# ---- errors and fake tensors ---------------------------------------------------------------------


def test_wrong_arguments_are_refused_as_on_the_cpu():
    a, b, one = codes(5, 16), codes(16, 4), torch.tensor(1.0)
    ones = torch.ones

    def first(*arguments, **options):
        return lambda move: torch._scaled_mm(
            *map(move, arguments), **{k: move(v) for k, v in options.items()}
        )

    def second(left, right, of_a, recipe_a, of_b, recipe_b, bias=None, dims=()):
        return lambda move: torch._scaled_mm_v2(
            move(left), move(right), [move(x) for x in of_a], recipe_a, [],
            [move(x) for x in of_b], recipe_b, [], None if bias is None else move(bias), None, dims,
        )  # fmt: skip

    assert_refused_as_on_the_cpu(
        [
            first(a.t(), b, one, one),
            first(a[0], b, one, one),
            first(a.float(), b, one, one),
            first(a, b.float(), one, one),
            first(a, b, ones(5), ones(4)),
            first(a, b, ones(4, 1), ones(1, 4)),
            first(a, b, one, ones(1, 4)),
            first(a, b, one, one.half()),
            first(a, b, one, one, bias=ones(5)),
            first(a, b, one, one, scale_result=ones(4)),
            first(a, b, one, one, scale_result=one.half()),
            first(a.view(torch.uint8), b, one, one),
            second(a, b, [ones(5, 1)], [0], [ones(1, 4)], [0]),
            second(a, b, [one], [0], [one], [0], ones(5)),
            second(a[0], b, [one], [0], [one], [0]),
            second(a.t(), b, [one], [0], [one], [0]),
        ],
        RuntimeError,
        ValueError,
    )


def test_wrong_numbers_of_scales_are_named():
    a, b = codes(5, 128).to("mps"), codes(128, 4).to("mps")
    for scale, recipe, message in (
        (torch.ones(4, 1), ScalingType.RowWise, "scale_a must have 5 Float elements, got 4"),
        (torch.ones(5, 2), ScalingType.BlockWise1x128, r"scale_a must have shape \[5, 1\], got"),
        (torch.ones(2, 1), ScalingType.BlockWise128x128, r"scale_a must have shape \[4, 1\], got"),
        (scales(5, 5, dtype=torch.float8_e8m0fnu), ScalingType.BlockWise1x32, "scale_a must have 20 "),
    ):  # fmt: skip
        scale = scale.to("mps")
        with pytest.raises(ValueError, match=message):
            scaled_mm(a, b, scale, recipe, scale, recipe)
    with pytest.raises(RuntimeError, match="same device"):
        torch._scaled_mm(a, b, torch.tensor(1.0), torch.tensor(1.0, device="mps"))


def test_recipes_and_dimensions_that_there_are_not_are_refused():
    """What the CPU says of them differs from version to version of torch."""
    a, b, one = codes(5, 16).to("mps"), codes(16, 4).to("mps"), torch.ones((), device="mps")
    row = torch.ones(1, 4, device="mps")
    for left, of_a, recipe_a, of_b, recipe_b, dims, message in (
        (a, [one], [0], [row], [1], (), "Invalid scaling configuration"),
        (a, [one, one], [0], [one], [0], (), "Invalid scaling configuration"),
        (a, [one], [3], [one], [3], (), "Invalid scaling configuration"),
        (a, [one.half()], [0], [one], [0], (), "Invalid scaling configuration"),
        (a.float(), [one], [0], [one], [0], (), "Invalid scaling configuration"),
        (a, [one], [0], [one], [0], (0, 1), "contraction dims mat_a: 0, mat_b: 1"),
        (a, [one], [0], [one], [0], (0,), "contraction_dim must have exactly 2 elements"),
    ):
        with pytest.raises(ValueError, match=message):
            torch._scaled_mm_v2(left, b, of_a, recipe_a, [], of_b, recipe_b, [], None, None, dims)
    both = [
        ([one], [0], [], [one], [0], [], None, torch.float32, dims)
        for dims in ((), (1, 0), (-1, -2))
    ]
    results = [torch._scaled_mm_v2(a, b, *arguments) for arguments in both]
    assert all(torch.equal(result, results[0]) for result in results)


def test_fake_tensors_are_like_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b, one = codes(16, 32).to("mps"), codes(48, 32).to("mps").t(), torch.ones((), device="mps")
    for call in (
        lambda a, b, one: torch._scaled_mm(a, b, one, one),
        lambda a, b, one: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16),
        lambda a, b, one: scaled_mm(a, b, one, ScalingType.TensorWise, one, ScalingType.TensorWise),
    ):
        real = call(a, b, one)
        with FakeTensorMode() as mode:
            fake = call(*map(mode.from_tensor, (a, b, one)))
        assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())
