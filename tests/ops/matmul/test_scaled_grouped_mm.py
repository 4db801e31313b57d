"""_scaled_grouped_mm, _scaled_grouped_mm_v2 and torch.nn.functional.scaled_grouped_mm: kernels/matmul/scaled_grouped_mm.metal."""

import functools

import pytest
import torch
from metalops.testing import no_host_copies, no_standins
from torch.nn.functional import ScalingType, SwizzleType, scaled_grouped_mm

from ..benchmark import Benchmark
from .bodies import tensors_first
from .test_grouped_mm import FORMS, NONSENSE, SIZES, ends_of, products
from .test_scaled_mm import (
    E4M3,
    E5M2,
    FP4,
    FP8,
    codes,
    decoded,
    expanded,
    scales,
    swizzled,
)

ERRORS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
E8M0 = torch.float8_e8m0fnu


@pytest.fixture(params=["tensor", "simdgroup"])
def body(request, monkeypatch):
    """By which products: of tensors, or of simdgroup matrices."""
    monkeypatch.setenv("METALOPS_MATMUL", request.param)


@functools.lru_cache(maxsize=4)
def _experts(features, rows, device):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, 256, features, generator=generator).to(E4M3).to(device)
    half = torch.tensor([rows // 2, rows], dtype=torch.int32, device=device)
    ones = torch.ones(rows, device=device), torch.ones(2, 256, device=device)
    return weights, *ones, half


def _ours(x, out):
    weights, of_rows, of_columns, ends = _experts(4 * x.shape[1], x.shape[0], x.device)
    return torch._scaled_grouped_mm(x.view(E4M3), weights.mT, of_rows, of_columns, ends)


def _theirs(x, out):
    weights, _, _, ends = _experts(4 * x.shape[1], x.shape[0], x.device)
    return torch._grouped_mm(x.view(E4M3).bfloat16(), weights.bfloat16().mT, ends)


BENCHMARKS = (
    Benchmark(
        "_scaled_grouped_mm",
        _ours,
        _theirs,
        composed=True,
        only_dtype="float32",
        reason="torch's CPU operator is a library's, which is written for each processor",
    ),
)


def there(x):
    return (
        x.view(torch.uint8).to("mps").view(x.dtype) if x.dtype in (*FP8, FP4, E8M0) else x.to("mps")
    )


def assert_right(actual, left, right, ends):
    """left, right: with their scales, in float64."""
    expected = products(left, right, ends)
    assert actual.device.type == "mps" and actual.shape == expected.shape
    size = products(left.abs(), right.abs(), ends).max().item() + 1
    difference = (actual.cpu().double() - expected).abs()
    assert difference.numel() == 0 or difference.max() <= ERRORS[actual.dtype] * size
    step = 16 // actual.dtype.itemsize
    assert actual.stride(-2) == -(-actual.shape[-1] // step) * step


# ---- scales of rows ------------------------------------------------------------------------------


def by_rows(form, sizes, rest, m=20, k=24, n=40, formats=(E4M3, E4M3)):
    """mat_a, mat_b, scale_a, scale_b, offs; and both with their scales."""
    groups, total = len(sizes), sum(sizes) + rest
    shapes = {
        "2d x 3d": ((total, k), (groups, n, k)),
        "3d x 2d": ((groups, m, k), (total, k)),
        "2d x 2d": ((m, total), (n, total)),
        "3d x 3d": ((groups, m, k), (groups, n, k)),
    }[form]
    ends = None if form == "3d x 3d" else ends_of(sizes)
    matrices, given, wide = [], [], []
    for shape, dtype, seed in zip(shapes, formats, (0, 1), strict=True):
        x = codes(*shape, dtype=dtype, seed=seed)
        if form == "2d x 2d":
            scale = scales(groups * shape[0], seed=seed)
            spread = torch.zeros(shape, dtype=torch.float64)
            start = 0
            for group, end in enumerate(ends.tolist()):
                spread[:, start:end] = scale.view(groups, -1, 1)[group].double()
                start = end
        else:
            scale = scales(*shape[:-1], seed=seed)
            spread = scale.double().unsqueeze(-1)
        matrices.append(x)
        given.append(scale)
        wide.append(x.double() * spread)
    return (matrices[0], matrices[1].mT, *given, ends), (wide[0], wide[1].mT, ends)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("sizes", "rest"), SIZES, ids=str)
def test_scales_of_rows(form, sizes, rest, body):
    arguments, wide = by_rows(form, sizes, rest)
    a, b, scale_a, scale_b, offs = (None if x is None else there(x) for x in arguments)
    with no_standins(["aten::zero_", "aten::fill_.Scalar"]), no_host_copies():
        actual = torch._scaled_grouped_mm(a, b, scale_a, scale_b, offs)
    assert actual.dtype == torch.bfloat16
    assert_right(actual, *wide)
    row_wise = ScalingType.RowWise
    for dtype in ERRORS:
        again = scaled_grouped_mm(
            a, b, scale_a, row_wise, scale_b, row_wise, offs=offs, output_dtype=dtype
        )
        assert again.dtype == dtype
        assert_right(again, *wide)


@pytest.mark.skipif(
    "out" not in torch.ops.aten._scaled_grouped_mm_v2.overloads(), reason="torch 2.14 added it"
)
def test_out():
    arguments, _ = by_rows("2d x 3d", (3, 5), 0)
    a, b, scale_a, scale_b, offs = (there(x) for x in arguments)
    row_wise = [ScalingType.RowWise.value]
    scaled = (a, b, [scale_a], row_wise, [], [scale_b], row_wise, [], offs, None)
    for dtype in ERRORS:
        expected = torch._scaled_grouped_mm_v2(*scaled, dtype)
        wide = torch.empty(*expected.shape, 2, dtype=dtype, device="mps")
        for out in (torch.empty(0, dtype=dtype, device="mps"), wide[..., 0]):
            assert torch.ops.aten._scaled_grouped_mm_v2.out(*scaled, dtype, out=out) is out
            assert torch.equal(out, expected)
    with pytest.raises(RuntimeError, match="dtype"):
        torch.ops.aten._scaled_grouped_mm_v2.out(*scaled, torch.float32, out=wide[..., 0].half())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("of_left", FP8, ids=str)
def test_every_mix_of_formats_and_layout(form, of_left):
    for of_right in FP8:
        arguments, wide = by_rows(form, (3, 0, 14), 2, formats=(of_left, of_right))
        a, b, *others = (None if x is None else there(x) for x in arguments)
        for left in (a, a.mT.contiguous().mT):
            for right in (b, b.contiguous()):
                assert_right(torch._scaled_grouped_mm(left, right, *others), *wide)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 15, 17, 64, 65])
def test_other_dimensions_around_the_tiles(form, size, body):
    for m, k, n in ((size, 33, 7), (70, size, 7), (3, 9, size)):
        arguments, wide = by_rows(form, (5, 0, 67), 2, m, k, n)
        given = (None if x is None else there(x) for x in arguments)
        assert_right(torch._scaled_grouped_mm(*given), *wide)


def test_empty_operands():
    for form, m, k, n, sizes in (
        ("2d x 3d", 4, 0, 8, (2, 3)),
        ("2d x 3d", 4, 8, 0, (2, 3)),
        ("3d x 2d", 0, 8, 8, (2, 3)),
        ("2d x 2d", 4, 8, 8, (0, 0)),
        ("3d x 3d", 4, 0, 8, (2, 3)),
    ):
        arguments, wide = by_rows(form, sizes, 0, m, k, n)
        actual = torch._scaled_grouped_mm(*(None if x is None else there(x) for x in arguments))
        assert torch.equal(actual.cpu().double(), products(*wide))


# ---- scales of blocks ----------------------------------------------------------------------------


def padded(scale, is_swizzled):
    """As flat as torch's tests have it: to_blocked()."""
    return swizzled(scale).view(torch.uint8).flatten() if is_swizzled else scale.view(torch.uint8)


def of_groups_of_rows(sizes, rest, n, k, dtypes, block, of_scales, is_swizzled):
    """2d x 3d: mat_a, mat_b, scale_a, scale_b, offs; and both with their scales."""
    groups, total, pairs = len(sizes), sum(sizes) + rest, 2 if dtypes[0] == FP4 else 1
    ends = ends_of(sizes)
    x = codes(total, k // pairs, dtype=dtypes[0])
    scale = scales(total, k // block, dtype=of_scales)
    left = decoded(x) * expanded(scale.float(), 1, block, total, k)
    if is_swizzled:
        starts = [0, *ends.tolist()[:-1]]
        parts = [
            padded(scale[s:e], True) for s, e in zip(starts, ends.tolist(), strict=True) if e > s
        ]
        across = -(-(k // block) // 4) * 4
        parts = torch.cat([torch.zeros(0, dtype=torch.uint8), *parts]).view(-1, across)
        # As many lines as there may be: the padding of groups is not known in advance.
        scale = torch.nn.functional.pad(parts, (0, 0, 0, max(total - parts.shape[0], 0)))
        scale = scale.view(of_scales)
    weights = codes(groups, n, k // pairs, dtype=dtypes[1], seed=1)
    of_weights = scales(groups, n, k // block, dtype=of_scales, seed=1)
    right = torch.stack(
        [
            decoded(w) * expanded(s.float(), 1, block, n, k)
            for w, s in zip(weights.view(torch.uint8), of_weights, strict=True)
            for w in [w.view(dtypes[1])]
        ]
    )
    of_weights = torch.stack([padded(s, is_swizzled).flatten() for s in of_weights])
    arguments = (x, weights.mT if pairs == 1 else weights, scale, of_weights.view(of_scales), ends)
    return arguments, (left, right.mT, ends)


@tensors_first
@pytest.mark.sampled(12)
@pytest.mark.parametrize(("sizes", "rest"), SIZES, ids=str)
@pytest.mark.parametrize("is_swizzled", [False, True])
@pytest.mark.parametrize("formats", [(E4M3, E4M3), (E5M2, E4M3), (FP4, FP4)], ids=str)
def test_mx_blocks_of_32_and_groups_of_rows(sizes, rest, is_swizzled, formats, body):
    for n, k in ((40, 96), (130, 32)):
        (a, b, scale_a, scale_b, offs), wide = of_groups_of_rows(
            sizes, rest, n, k, formats, 32, E8M0, is_swizzled
        )
        a, b, scale_a, scale_b, offs = map(there, (a, b, scale_a, scale_b, offs))
        b = b.mT if formats[0] == FP4 else b
        swizzle = SwizzleType.SWIZZLE_32_4_4 if is_swizzled else SwizzleType.NO_SWIZZLE
        recipe = ScalingType.BlockWise1x32
        with no_host_copies():
            actual = scaled_grouped_mm(
                a, b, scale_a, recipe, scale_b, recipe, swizzle, swizzle, offs=offs,
                output_dtype=torch.float32,
            )  # fmt: skip
        assert_right(actual, *wide)
        if is_swizzled and formats[0] != FP4:
            again = torch._scaled_grouped_mm(a, b, scale_a, scale_b, offs, out_dtype=torch.float32)
            assert torch.equal(again, actual)


@pytest.mark.parametrize("sizes", [(32,), (0, 96, 0), (160, 0, 32, 64)], ids=str)
@pytest.mark.parametrize("rest", [0, 32])
@pytest.mark.parametrize("is_swizzled", [False, True])
@tensors_first
def test_mx_blocks_of_32_and_groups_of_the_inner_dimension(sizes, rest, is_swizzled, body):
    total, ends = sum(sizes) + rest, ends_of(sizes)
    starts = [0, *ends.tolist()[:-1]]
    for m, n in ((5, 7), (20, 130), (140, 65)):
        arguments, wide = [], []
        for lines, seed in ((m, 0), (n, 1)):
            x = codes(lines, total, seed=seed)
            scale = scales(lines, total // 32, dtype=E8M0, seed=seed)
            wide.append(x.double() * expanded(scale.float(), 1, 32, lines, total))
            if is_swizzled:
                parts = [
                    padded(scale[:, s // 32 : e // 32], True)
                    for s, e in zip(starts, ends.tolist(), strict=True)
                    if e > s
                ]
                scale = torch.cat(parts).view(-(-lines // 128) * 128, -1).view(E8M0)
            arguments.append((there(x), there(scale)))
        (a, scale_a), (b, scale_b) = arguments
        swizzle = SwizzleType.SWIZZLE_32_4_4 if is_swizzled else SwizzleType.NO_SWIZZLE
        recipe = ScalingType.BlockWise1x32
        with no_host_copies():
            actual = scaled_grouped_mm(
                a, b.t(), scale_a, recipe, scale_b, recipe, swizzle, swizzle,
                offs=ends.to("mps"), output_dtype=torch.float32,
            )  # fmt: skip
        assert_right(actual, wide[0], wide[1].t(), ends)


@pytest.mark.sampled(2)
@tensors_first
@pytest.mark.parametrize("is_swizzled", [False, True])
@pytest.mark.parametrize("count", ["one", "of groups"])
def test_nvfp4_with_global_scales(is_swizzled, count, body):
    sizes, n, k = (3, 0, 70, 129), 40, 96
    (a, b, scale_a, scale_b, ends), (left, right, _) = of_groups_of_rows(
        sizes, 5, n, k, (FP4, FP4), 16, E4M3, is_swizzled
    )
    second = [scales(1 if count == "one" else len(sizes), seed=s) for s in (7, 8)]
    right = right * (second[0] * second[1]).double().expand(len(sizes)).view(-1, 1, 1)
    swizzle = SwizzleType.SWIZZLE_32_4_4 if is_swizzled else SwizzleType.NO_SWIZZLE
    recipe = [ScalingType.BlockWise1x16, ScalingType.TensorWise]
    actual = scaled_grouped_mm(
        there(a), there(b).mT, [there(scale_a), second[0].to("mps")], recipe,
        [there(scale_b), second[1].to("mps")], recipe, swizzle, swizzle, offs=ends.to("mps"),
        output_dtype=torch.float32,
    )  # fmt: skip
    assert_right(actual, left, right, ends)


@pytest.mark.parametrize("form", ["2d x 3d", "3d x 2d"])
def test_offsets_that_make_no_sense_stay_within_the_operands(form, body):
    (a, b, scale_a, scale_b, _), (left, right, _) = by_rows(form, (3, 5, 2), 0)
    given = [there(x) for x in (a, b, scale_a, scale_b)]
    for ends in NONSENSE:
        offs = torch.tensor(ends, dtype=torch.int32)
        clamped = offs.long().clamp(0, 10).cummax(0).values
        assert_right(torch._scaled_grouped_mm(*given, offs.to("mps")), left, right, clamped)


def test_offsets_that_make_no_sense_read_no_scales_beyond_the_last(body):
    (a, b, scale_a, scale_b, _), _ = of_groups_of_rows(
        (3, 5, 2), 0, 16, 64, (E4M3, E4M3), 32, E8M0, True
    )
    given = [there(x) for x in (a, b, scale_a[:10], scale_b)]
    for ends in (*NONSENSE, [1, 2, 3]):
        offs = torch.tensor(ends, dtype=torch.int32, device="mps")
        assert torch._scaled_grouped_mm(*given, offs).shape == (10, 16)


# ---- errors and fake tensors ---------------------------------------------------------------------


def test_wrong_arguments_are_named():
    (a, b, scale_a, scale_b, offs), _ = by_rows("2d x 3d", (3, 5), 0, k=32)
    a, b, scale_a, scale_b, offs = map(there, (a, b, scale_a, scale_b, offs))
    mx_a = scales(128, 4, dtype=E8M0).view(torch.uint8).to("mps").view(E8M0)
    mx_b = scales(2, 128 * 4, dtype=E8M0).view(torch.uint8).to("mps").view(E8M0)

    def first(*arguments, **options):
        return lambda: torch._scaled_grouped_mm(*arguments, **options)

    def second(scale, recipe, **options):
        return lambda: scaled_grouped_mm(a, b, scale, recipe, scale, recipe, offs=offs, **options)

    row_wise = ScalingType.RowWise
    for call, message in (
        (first(a[0], b, scale_a, scale_b, offs), "mat_a has to be 2 or 3d"),
        (first(a, b[None], scale_a, scale_b, offs), "mat_b has to be 2 or 3d"),
        (first(a[:, :16], b, scale_a, scale_b, offs), "contraction dimension of mat_a and mat_b"),
        (first(a, b, scale_a, scale_b), "Have to provide offsets"),
        (first(a, b, scale_a, scale_b, offs[None]), "offs has to be 1D"),
        (first(a, b, scale_a, scale_b, offs.long()), "Offsets have to be int32"),
        (first(a, b, scale_a, scale_b, offs, bias=scale_b), "Bias not supported yet"),
        (first(a, b, scale_a, scale_b, offs, scale_result=scale_b), "Scale result not supported"),
        (first(a, b, scale_a, scale_b, offs, out_dtype=torch.int32), "output types are supported"),
        (first(a, b, scale_a.half(), scale_b, offs), "both scales must both be float32"),
        (first(a, b, mx_a, scale_b, offs), "scales must both be float8_e8m0fnu"),
        (first(a.bfloat16(), b, scale_a, scale_b, offs), "mat_a to be Float8_e4m3 matrix got BF"),
        (first(a, b.bfloat16(), scale_a, scale_b, offs), "mat_b to be Float8_e4m3 matrix got BF"),
        (first(a, b, scale_a[None], scale_b, offs), "must be a 1D tensor, but got 2D, arg 0"),
        (first(a, b, scale_a[:3], scale_b, offs), "the same length as mat for arg 0"),
        (first(a, b, scale_a, scale_b[0], offs), "must be a 2D tensor, but got 1D for arg 1"),
        (first(a, b, scale_a, scale_b[:1], offs), "the same batch dimension as mat for arg 1"),
        (first(a, b, scale_a, scale_b[:, :3], offs), "the same first dimension as mat for arg 1"),
        (first(a, b, mx_a[0], mx_b, offs), "must have same number of dimensions as parent"),
        (first(a, b, mx_a[:3], mx_b, offs), r"scale.shape\[0\] >= 8 but got scale.shape=\(3, 4\)"),
        (first(a, b, mx_a, mx_b[:, :5], offs), r"must have scale shape \(2,512\) for arg 1, got"),
        (first(a.expand(2, 8, 32), b, mx_a, mx_b), "only supports 2d-3d"),
        (first(a, b, scale_a, scale_b, offs[:1]), "matrix batch sizes have to match"),
        (second(scale_a, ScalingType.TensorWise), "No gemm implementation was found"),
        (second([scale_a, scale_a], [row_wise] * 2), "No gemm implementation was found"),
        (second(scale_a, row_wise, contraction_dim=[1, 0]), r"must be \(-1, -2\) only"),
        (first(a, b, scale_a, scale_b, offs.cpu()), "same device"),
        (first(a, b, scale_a, scale_b.cpu(), offs), "same device"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            call()


@pytest.mark.parametrize("form", FORMS)
def test_fake_tensors_are_like_real_ones(form):
    from torch._subclasses.fake_tensor import FakeTensorMode

    arguments = [None if x is None else there(x) for x in by_rows(form, (3, 4), 0, n=7)[0]]
    recipe = ScalingType.RowWise
    for call in (
        torch._scaled_grouped_mm,
        lambda a, b, s, t, offs: torch._scaled_grouped_mm(a, b, s, t, offs, out_dtype=torch.half),
        lambda a, b, s, t, offs: scaled_grouped_mm(a, b, s, recipe, t, recipe, offs=offs),
    ):
        real = call(*arguments)
        with FakeTensorMode() as mode:
            fake = call(*(None if x is None else mode.from_tensor(x) for x in arguments))
        assert fake.device.type == "mps"
        assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())


@pytest.mark.full
def test_compiled_agrees_with_eager():
    torch._dynamo.reset()
    arguments, _ = by_rows("2d x 3d", (8, 0, 24), 0)
    recipe = ScalingType.RowWise

    def experts(a, b, s, t, offs):
        first = torch._scaled_grouped_mm(a, b, s, t, offs)
        return first + scaled_grouped_mm(a, b, s, recipe, t, recipe, offs=offs)

    given = [there(x) for x in arguments]
    torch.testing.assert_close(torch.compile(experts, fullgraph=True)(*given), experts(*given))
