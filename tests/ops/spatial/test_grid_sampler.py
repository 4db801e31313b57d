"""grid_sample in the place of stock's, while the fix "grid_sample" is on: kernels/spatial/grid_sampler.metal."""

import itertools

import metalops
import pytest
import torch
from metalops import debug, fixes
from metalops.testing.samples import make, to_device
from torch.nn import functional as F
from torch.ops import aten
from torch.testing._internal.common_methods_invocations import op_db

from ..aten import assert_refused_as_on_the_cpu, kernels_of
from .helpers import CHANNELS_LAST, both, layouts

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
SAMPLINGS = [
    (dims, {"mode": mode, "padding_mode": padding, "align_corners": aligned})
    for dims, mode, padding, aligned in itertools.product((2, 3), MODES, PADDINGS, (False, True))
    if dims == 2 or mode != "bicubic"
]
# Each dtype compiles kernels of its own.
DTYPES = (
    torch.float32,
    *(pytest.param(x, marks=pytest.mark.nightly) for x in (torch.float16, torch.bfloat16)),
)
SIZES = {2: (5, 7), 3: (3, 5, 4)}
POINTS = {2: (6, 3), 3: (4, 3, 2)}


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("grid_sample"), debug.standins() as served:
        yield
        names = {fix.name: fix.operators for fix in fixes.status()}["grid_sample"]
    assert not set(served) & set(names)


def _points(dims, *outer, dtype=torch.float32, seed=0):
    """Points inside and outside of the image. None is near the middle between pixels, where the nearest one depends on
    the last digit."""
    grid = make((*outer, dims), torch.float32, low=-1.9, high=1.9, seed=seed)
    sizes = torch.tensor(SIZES[dims][::-1])
    for scale in (sizes, sizes - 1):
        # Multiples of half a pixel are middles, with aligned corners and without.
        steps = (grid + 1) * scale
        grid = torch.where((steps - steps.round()).abs() < 0.1, grid + 0.15 / scale, grid)
    return grid.to(dtype)


def _check(x, grid, options):
    """Compares samples and gradients with float64."""
    wide = [t.double().requires_grad_() for t in (x, grid)]
    inputs = [to_device(t, "mps").requires_grad_() for t in (x, grid)]
    expected, actual = F.grid_sample(*wide, **options), F.grid_sample(*inputs, **options)
    cotangent = make(expected.shape, x.dtype, low=-1, high=1)
    eps = torch.finfo(x.dtype).eps
    for name, a, e in zip(
        ("samples", "input", "grid"),
        (actual, *torch.autograd.grad(actual, inputs, to_device(cotangent, "mps"))),
        (expected, *torch.autograd.grad(expected, wide, cotangent.double())),
        strict=True,
    ):
        # Coordinates and sums are in float: their error is bounded by the largest result.
        most = max(e.abs().max().item() if e.numel() else 0.0, 1.0)
        error = (a.cpu().double() - e).abs().max().item() if e.numel() else 0.0
        assert a.shape == e.shape and error <= max(eps, 4e-6) * most, (name, error, most, options)
    return actual


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dims", "options"), SAMPLINGS, ids=str)
def test_every_sampling_against_float64(dims, options, dtype):
    for channels in (1, 5):
        x = make((2, channels, *SIZES[dims]), dtype, low=-1, high=1)
        _check(x, _points(dims, 2, *POINTS[dims], dtype=dtype), options)


@pytest.mark.parametrize("dims", [2, 3])
def test_every_layout(dims):
    options = {"align_corners": False, "padding_mode": "border"}
    images = layouts(2, 19, *SIZES[dims])
    grids = [
        _points(dims, 2, *POINTS[dims]),
        _points(dims, *POINTS[dims][::-1], 2).permute(*reversed(range(dims + 1)), dims + 1),
        _points(dims, 2, *POINTS[dims]).movedim(-1, 1).contiguous().movedim(1, -1),
        _points(dims, 1, *POINTS[dims]).expand(2, *POINTS[dims], dims),
        _points(dims, 3, *POINTS[dims])[1:],
    ]
    for number, x in enumerate(images):
        actual = _check(x, grids[number % len(grids)], options)
        assert actual.is_contiguous()
    x = make((3, 19, *SIZES[dims]), torch.float32).to(memory_format=CHANNELS_LAST[dims + 2])
    for grid in grids:
        _check(x[1:, 2:], grid, options)


@pytest.mark.parametrize(
    "op",
    [op for op in op_db if op.name in ("nn.functional.grid_sample", "grid_sampler_2d", "grid_sampler_3d")],
    ids=lambda op: op.name,
)  # fmt: skip
def test_samples_of_torch(op):
    """torch's own references are float32: at the middle between pixels the nearest one depends on the last digit."""
    for sample in op.sample_inputs("cpu", torch.float32):
        arguments = (sample.input, *sample.args)
        expected = op.op(*arguments, **sample.kwargs)
        actual = op.op(*to_device(arguments, "mps"), **sample.kwargs)
        torch.testing.assert_close(actual.cpu(), expected, rtol=2e-5, atol=2e-5)


def test_many_channels_of_few_points_and_few_channels_of_many():
    options = {"align_corners": True}
    for channels, points in ((300, (2, 2)), (1, (40, 50))):
        x = make((2, channels, *SIZES[2]), torch.float32, low=-1, high=1)
        for image in (x, x.to(memory_format=torch.channels_last)):
            _check(image, _points(2, 2, *points), options)


FAR = (float("nan"), float("inf"), -float("inf"), 1e10, -1e20, 3e38)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
def test_points_that_are_not_finite_or_far_outside(padding, mode):
    """They are outside of an image: samples are finite, as are gradients, and with zeros around the image they are zero. (The
    CPU makes them NaN in some modes, and its gradients write out of bounds.)"""
    x = make((1, 2, *SIZES[2]), torch.float32, low=1, high=2).to("mps").requires_grad_()
    grid = torch.tensor(list(itertools.product(FAR, (*FAR, 0.1)))).view(1, 6, 7, 2)
    moved = grid.to("mps").requires_grad_()
    result = F.grid_sample(x, moved, mode=mode, padding_mode=padding, align_corners=False)
    grads = torch.autograd.grad(result.sum(), (x, moved))
    assert all(t.isfinite().all() for t in (result, *grads))
    if padding == "zeros":
        assert not any(t.any() for t in (result, *grads))
    elif mode != "bicubic":
        assert result.min() >= x.min() and result.max() <= x.max()
    if padding == "border" and mode == "nearest":
        assert result[0, 0, 1, 0] == x[0, 0, 0, -1] and result[0, 0, 2, 0] == x[0, 0, 0, 0]


@pytest.mark.parametrize("padding", PADDINGS)
def test_points_at_the_border(padding):
    """Gradients there are those of outside, as on the CPU."""
    x = make((1, 2, 4, 4), torch.float32)
    corners = torch.tensor(list(itertools.product((-1.0, 0.0, 1.0), repeat=2))).view(1, 3, 3, 2)
    for aligned in (False, True):

        def gradients(x, grid, aligned=aligned):
            x, grid = x.detach().requires_grad_(), grid.detach().requires_grad_()
            result = F.grid_sample(x, grid, padding_mode=padding, align_corners=aligned)
            return result.detach(), *torch.autograd.grad(result.sum(), (x, grid))

        for e, a in zip(*both(gradients, x, corners), strict=True):
            torch.testing.assert_close(a.cpu(), e)


def test_nan_in_an_image_reaches_its_samples_only():
    x = torch.ones(1, 1, 4, 4)
    x[0, 0, 1, 1] = torch.nan
    grid = F.affine_grid(torch.eye(2, 3)[None], (1, 1, 8, 8), align_corners=False)
    for mode in ("bilinear", "nearest"):
        e, a = both(lambda x, g, m=mode: F.grid_sample(x, g, mode=m, align_corners=False), x, grid)
        torch.testing.assert_close(a.cpu(), e, equal_nan=True)


EMPTY = [
    ((0, 3, 4, 5), (0, 2, 2, 2)),
    ((1, 0, 4, 5), (1, 2, 2, 2)),
    ((1, 3, 4, 5), (1, 0, 2, 2)),
    ((1, 3, 4, 5), (1, 2, 0, 2)),
    ((2, 3, 4, 5, 6), (2, 2, 2, 0, 3)),
    ((0, 3, 4, 5, 6), (0, 2, 2, 2, 3)),
    ((1, 0, 4, 5, 6), (1, 2, 2, 2, 3)),
]


@pytest.mark.parametrize(("sizes", "grid"), EMPTY, ids=str)
def test_no_image_channel_or_point(sizes, grid):
    x = torch.ones(sizes, device="mps", requires_grad=True)
    points = torch.zeros(grid, device="mps", requires_grad=True)
    result = F.grid_sample(x, points, align_corners=True)
    assert result.shape == (sizes[0], sizes[1], *grid[1:-1])
    for tensor, grad in zip((x, points), torch.autograd.grad(result.sum(), (x, points)), strict=True):  # fmt: skip
        assert grad.shape == tensor.shape and not grad.any()


def test_gradients_are_the_same_each_time_where_torch_is_to_be_deterministic(tmp_path):
    """All points are in few pixels, so that each of these has many terms."""
    x = make((3, 9, *SIZES[2]), torch.float32)
    grid = _points(2, 3, 40, 30) * 0.3
    for mode in MODES:
        options = {"mode": mode, "padding_mode": "reflection", "align_corners": False}
        inputs = [t.to("mps").requires_grad_() for t in (x, grid)]
        cotangent = make((3, 9, 40, 30), torch.float32, low=-1, high=1).to("mps")

        def grads(inputs=inputs, options=options, cotangent=cotangent):
            return torch.autograd.grad(F.grid_sample(*inputs, **options), inputs, cotangent)

        assert not any("items" in kernel for kernel in kernels_of(grads, tmp_path)[1])
        torch.use_deterministic_algorithms(True)
        try:
            first, launched = kernels_of(grads, tmp_path)
            assert f"grid_sampler_items_{mode}_2d_float" in launched
            assert all(torch.equal(a, b) for a, b in zip(first, grads(), strict=True))
            _check(x, grid, options)
        finally:
            torch.use_deterministic_algorithms(False)


def test_gradients_of_the_grid_alone():
    x, grid = make((2, 3, *SIZES[3]), torch.float32), _points(3, 2, *POINTS[3])
    moved = [x.to("mps"), grid.to("mps").requires_grad_()]
    wide = [x.double(), grid.double().requires_grad_()]
    actual, expected = (
        torch.autograd.grad(F.grid_sample(*t, align_corners=False).sum(), t[1]) for t in (moved, wide)
    )  # fmt: skip
    torch.testing.assert_close(actual[0].cpu().double(), expected[0], rtol=1e-5, atol=1e-5)
    alone = aten.grid_sampler_3d_backward(
        torch.ones(2, 3, *POINTS[3], device="mps"), *(t.detach() for t in moved), 0, 0, False, (False, True)
    )  # fmt: skip
    assert alone[0] is None and torch.equal(alone[1], actual[0])


@pytest.mark.parametrize("dims", [2, 3])
def test_second_gradients(dims):
    """torch's own formula, of other operators."""

    def penalty(x, grid):
        result = F.grid_sample(x, grid, align_corners=False)
        grads = torch.autograd.grad(result.square().sum(), (x, grid), create_graph=True)
        return sum(grad.square().sum() for grad in grads)

    tensors = (
        make((2, 3, *SIZES[dims]), torch.float32, low=-1, high=1),
        _points(dims, 2, *POINTS[dims]),
    )
    inputs = [t.to("mps").requires_grad_() for t in tensors]
    wide = [t.double().requires_grad_() for t in tensors]
    for a, e in zip(
        torch.autograd.grad(penalty(*inputs), inputs),
        torch.autograd.grad(penalty(*wide), wide),
        strict=True,
    ):
        torch.testing.assert_close(a.cpu().double(), e, rtol=1e-4, atol=1e-4 * e.abs().max().item())


# ---- cases that users reported -------------------------------------------------------------------


def _identity(*sizes):
    theta = torch.eye(len(sizes), len(sizes) + 1)[None]
    return F.affine_grid(theta, (1, 1, *sizes), align_corners=False)


def test_an_image_in_channels_last():
    """174339"""
    x = make((1, 64, 16, 16), torch.float32).to(memory_format=torch.channels_last)
    for image in (x, x[..., 2:, 1:], x[:, 3:]):
        grid = _identity(*image.shape[2:]).to("mps")
        same = F.grid_sample(to_device(image, "mps"), grid, align_corners=False)
        torch.testing.assert_close(same.cpu(), image, rtol=1e-5, atol=1e-5)


def test_a_grid_of_a_volume_with_coordinates_first():
    """171602"""
    x, grid = make((1, 4, 4, 8, 8), torch.float32), _points(3, 1, 4, 8, 8)
    _check(x, grid.movedim(-1, 1).contiguous().movedim(1, -1), {"align_corners": False})


def test_a_grid_without_elements():
    """175683"""
    x, grid = torch.rand(1, 256, 60, 80, device="mps"), torch.empty(1, 1, 0, 2, device="mps")
    assert F.grid_sample(x, grid, align_corners=True).shape == (1, 256, 1, 0)


def test_the_border_as_padding():
    """125098"""
    x = torch.arange(4.0, device="mps").view(1, 1, 1, 4)
    grid = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [-0.75, -2.0]], device="mps").view(1, 1, 3, 2)
    result = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    assert result.flatten().tolist() == [0, 3, 0]


# ---- arguments -----------------------------------------------------------------------------------


def test_arguments_are_refused_as_on_the_cpu():
    x, grid = torch.ones(2, 3, 4, 5), torch.zeros(2, 3, 3, 2)
    backward = aten.grid_sampler_2d_backward
    assert_refused_as_on_the_cpu(
        [
            lambda d: F.grid_sample(d(x), d(grid)[:1], align_corners=False),
            lambda d: F.grid_sample(d(x), d(grid)[..., :1], align_corners=False),
            lambda d: F.grid_sample(d(x)[:, :, :0], d(grid), align_corners=False),
            lambda d: F.grid_sample(d(x), d(grid).half(), align_corners=False),
            lambda d: aten.grid_sampler_3d(d(x)[:, :, None], d(torch.zeros(2, 1, 1, 1, 3)), 2, 0, False),
        ],
        RuntimeError,
    )  # fmt: skip
    moved = x.to("mps"), grid.to("mps")
    for call, message in (
        (lambda: aten.grid_sampler_2d(*moved, 3, 0, False), "interpolation_mode must be 0, 1 or 2, but is 3"),
        (lambda: aten.grid_sampler_2d(*moved, 0, -1, False), "padding_mode must be 0, 1 or 2, but is -1"),
        (lambda: backward(x.to("mps"), *moved, 0, 0, False, (True, True)), r"grad_output of sizes \[2, 3, 3, 3\], but got \[2, 3, 4, 5\]"),
        (lambda: aten.grid_sampler_2d(moved[0].int(), moved[1].int(), 0, 0, False), "not implemented for 'Int'"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=message):
            call()


def test_a_side_of_2_to_the_30_is_refused():
    x = torch.ones(1, 1, 1, 1, device="mps").expand(1, 1, 1, 2**30)
    with pytest.raises(RuntimeError, match=rf"grid_sampler_2d: size {2**30} of an input of sizes"):
        F.grid_sample(x, torch.zeros(1, 1, 1, 2, device="mps"), align_corners=False)


def test_images_of_more_than_32_bits_of_elements():
    """Offsets are 64-bit; an expanded image has no memory of that size."""
    x = torch.arange(4.0, device="mps").view(1, 1, 1, 4).expand(1, 3, 2**29, 4)
    grid = torch.tensor([[0.75, 0.999], [-0.75, -0.999]], device="mps").view(1, 1, 2, 2)
    result = F.grid_sample(x, grid, align_corners=False)
    assert result[0, 2, 0].tolist() == [3, 0]


@pytest.mark.full
def test_compiled_functions(tmp_path):
    x, grid = make((1, 3, *SIZES[2]), torch.float32).to("mps"), _points(2, 1, 3, 3).to("mps")
    sample = torch.compile(
        lambda x, g: F.grid_sample(x, g, align_corners=False) + 1, backend="aot_eager"
    )
    actual, launched = kernels_of(lambda: sample(x, grid), tmp_path)
    assert "grid_sampler_bilinear_2d_float" in launched
    torch.testing.assert_close(actual, F.grid_sample(x, grid, align_corners=False) + 1)
    testing_names = {"grid_sampler_2d", "grid_sampler_3d"}
    assert testing_names <= {name.split("::")[1] for fix in fixes.status() if fix.name == "grid_sample" for name in fix.operators}  # fmt: skip
