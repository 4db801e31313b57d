"""Antialiased resizing: kernels/spatial/upsample_aa.metal."""

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from metalops import testing
from metalops.testing.samples import FLOATS, make
from torch.ops import aten

from .. import direct
from ..aten import CPU_FLOATS, Calls, OpInfoSamples, reference, served_by_us, skip_unless_ours
from ..benchmark import Benchmark

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
MODES = ("bilinear", "bicubic", "lanczos")
by_mode = pytest.mark.parametrize("mode", MODES)

# (height, width) before and after: smaller, larger, both, by whole and other factors, one pixel.
SIZES = [
    ((9, 8), (4, 3)),
    ((4, 3), (9, 8)),
    ((6, 6), (3, 12)),
    ((5, 7), (5, 4)),
    ((5, 7), (3, 7)),
    ((33, 28), (7, 61)),
    ((1, 1), (4, 5)),
    ((4, 5), (1, 1)),
    ((6, 7), (6, 7)),
]
FORMATS = [torch.contiguous_format, torch.channels_last]
by_format = pytest.mark.parametrize("memory_format", FORMATS, ids=str)


# In torch's op_db.
OPINFOS = ("_upsample_bilinear2d_aa",)


def _opinfo_resized(
    dtype: torch.dtype,
):
    """Images, what sizes they are resized to, and by what factors if not by those of the sizes."""
    for size, other, scales in (
        ((6, 8), (3, 12), (None, None)),
        ((5, 7), (8, 4), (1.6, 0.6)),
        ((1, 9), (4, 9), (None, None)),
    ):
        x = make((2, 3, *size), dtype)
        for image in (x, x.to(memory_format=torch.channels_last), x[:, ::2]):
            yield image, other, scales


def _opinfo_upsample(dtype: torch.dtype) -> Calls:
    for x, size, scales in _opinfo_resized(dtype):
        yield (x, size, False, *scales), {}


def _opinfo_upsample_backward(dtype: torch.dtype) -> Calls:
    for x, size, scales in _opinfo_resized(dtype):
        for align_corners in (False, True):
            yield (x, x.shape[2:], (*x.shape[:2], *size), align_corners, *scales), {}


OPINFO_SAMPLES = (
    OpInfoSamples(
        "_upsample_lanczos2d_aa",
        torch.ops.aten._upsample_lanczos2d_aa.default,
        CPU_FLOATS,
        _opinfo_upsample,
    ),
    *(
        OpInfoSamples(
            f"_upsample_{mode}2d_aa_backward",
            getattr(torch.ops.aten, f"_upsample_{mode}2d_aa_backward").default,
            CPU_FLOATS,
            _opinfo_upsample_backward,
        )
        for mode in ("bilinear", "bicubic", "lanczos")
    ),
)


def _quarter(x):
    return [max(1, n // 2) for n in x.shape]


def _lanczos(x):
    """One image resized to a quarter."""
    return aten._upsample_lanczos2d_aa(x[None, None], _quarter(x), False)


@functools.lru_cache(maxsize=4)
def _bytes(x):
    return (32 * x + 128).to(torch.uint8)


def _gradient(mode):
    """The gradient of resizing to an image from a quarter of it."""
    operator = getattr(aten, f"_upsample_{mode}2d_aa_backward")
    return Benchmark.same(
        f"{mode}, antialiased, gradient",
        lambda x, out: operator(x[None, None], x.shape, [1, 1, *_quarter(x)], False),
        only_dtype="float32",
    )


BENCHMARKS = (
    Benchmark.same("lanczos", lambda x, out: _lanczos(x), only_dtype="float32"),
    Benchmark.same("lanczos of bytes", lambda x, out: _lanczos(_bytes(x)), only_dtype="float32"),
    *map(_gradient, ("bilinear", "bicubic", "lanczos")),
)


def _operator(mode):
    return getattr(aten, f"_upsample_{mode}2d_aa")


def _backward(mode):
    return getattr(aten, f"_upsample_{mode}2d_aa_backward")


def _check(function, expected_function, x, name):
    testing.check_forward(
        function,
        expected_function,
        testing.Case(f"{tuple(x.shape)} {x.stride()}", (x,)),
        "mps",
        name=name,
    )


def _check_backward(mode, grad, input_size, *options):
    def gradient(g):
        return _backward(mode)(g, g.shape[2:], input_size, *options)

    _check(gradient, reference(gradient), grad, f"upsample_{mode}2d_aa_backward")


def _check_lanczos(x, output_size, *options):
    def resized(x):
        return aten._upsample_lanczos2d_aa(x, output_size, *options)

    _check(resized, reference(resized), x, "upsample_lanczos2d_aa")


# ---- values --------------------------------------------------------------------------------------


@by_float
@by_format
def test_lanczos(dtype, memory_format):
    for before, after in SIZES:
        for align_corners in (False, True):
            x = make((2, 3, *before), dtype).to(memory_format=memory_format)
            _check_lanczos(x, after, align_corners)


@by_float
@by_mode
@by_format
def test_gradients(dtype, mode, memory_format):
    for before, after in SIZES:
        for align_corners in (False, True):
            grad = make((2, 3, *after), dtype).to(memory_format=memory_format)
            _check_backward(mode, grad, (2, 3, *before), align_corners)


@by_mode
def test_scales_that_are_not_those_of_the_sizes(mode):
    for before, after, scales in (
        ((10, 10), (10, 11), (1.05, 1.13)),
        ((10, 12), (5, 24), (0.55, 2.05)),
        ((10, 12), (5, 24), (None, 0.7)),
        ((10, 12), (15, 6), (1.6, 0.0)),
        ((10, 12), (15, 6), (-1.0, 1e-3)),
        ((5, 5), (12, 12), (1e-5, 1e-3)),
        ((5, 5), (6, 6), (1e9, 40.0)),
    ):
        grad = make((1, 2, *after), torch.float32)
        _check_backward(mode, grad, (1, 2, *before), False, *scales)
        # With smaller scales than those of the sizes, windows lie behind the image: torch's CPU operator reads there.
        if mode == "lanczos" and all(s is None or s >= 1.05 or s == 0.55 for s in scales):
            _check_lanczos(make((1, 2, *before), torch.float32), after, False, *scales)


def test_pixels_whose_windows_lie_behind_the_image_are_zero():
    x = make((1, 2, 10, 12), torch.float32)
    actual = aten._upsample_lanczos2d_aa(x.to("mps"), (5, 24), False, None, 0.7).cpu()
    centres = (torch.arange(24) + 0.5) / 0.7
    expected = aten._upsample_lanczos2d_aa(x, (5, 24), False, None, 0.7)
    inside, behind = centres < 12, centres > 12 + 3 / 0.7 + 1
    assert inside.any() and behind.any()
    torch.testing.assert_close(actual[..., inside], expected[..., inside], rtol=1e-5, atol=1e-5)
    assert (actual[..., behind] == 0).all()


@by_mode
def test_scales_of_any_size(mode):
    """There is a limit, which torch's CPU operator comes near before its integers overflow."""
    skip_unless_ours(f"aten::_upsample_{mode}2d_aa_backward")
    grad = make((1, 2, 12, 12), torch.float32)
    arguments = ([12, 12], [1, 2, 5, 5], False)
    limit = _backward(mode)(grad.double(), *arguments, 1e-5, 1e-5).float()
    for scale in (1e-6, 1e-9, 1e-12, 1e-13, 1e-19, 1e-38, 1e-50, 1e-308):
        actual = _backward(mode)(grad.to("mps"), *arguments, scale, scale)
        torch.testing.assert_close(actual.cpu(), limit, rtol=1e-4, atol=1e-4)


@by_mode
def test_long_axes(mode):
    """Places at the end of an axis have digits enough for the fractions that weights depend on."""
    skip_unless_ours(f"aten::_upsample_{mode}2d_aa_backward")
    for before, after in (((1, 50_000), (2, 33_333)), ((1, 20_000), (1, 70_001))):
        grad = make((1, 1, *after), torch.float32)
        _check_backward(mode, grad, (1, 1, *before), False)
        if mode == "lanczos":
            _check_lanczos(make((1, 1, *before), torch.float32), after, False)


@pytest.mark.nightly
def test_more_pixels_than_floats_can_count():
    skip_unless_ours("aten::_upsample_bilinear2d_aa_backward.grad_input")
    count = 2**24 + 5
    grad = torch.ones(1, 1, 1, count, device="mps")
    result = aten._upsample_bilinear2d_aa_backward(grad, [1, count], [1, 1, 1, count], False)
    assert (result == 1).all()


def _layouts(*shape):
    yield make(shape, torch.float32).transpose(2, 3).contiguous().transpose(2, 3)
    yield make((shape[0], 2 * shape[1], *shape[2:]), torch.float32)[:, 1::2]
    yield make((shape[0] + 1, *shape[1:]), torch.float32)[1:]
    yield make((1, shape[1], 1, shape[3]), torch.float32).expand(shape)
    yield make(shape[2:], torch.float32).expand(shape)


@by_mode
def test_inputs_of_every_layout(mode):
    for x in _layouts(2, 3, 8, 6):
        _check_backward(mode, x, (2, 3, 5, 9), False)
        if mode == "lanczos":
            _check_lanczos(x, (5, 9), False)


def test_images_of_bytes_are_those_of_the_cpu():
    """Weights are rounded from float32 instead of float64, which may move one in a thousand pixels by
    one."""
    sizes = [(before, after) for before, after in SIZES if after != (1, 1)]  # fails in torch's own
    for before, after in (*sizes, ((200, 150), (77, 90)), ((60, 50), (131, 120))):
        for channels, memory_format in itertools.product((1, 3, 8), FORMATS):
            x = torch.randint(0, 256, (2, channels, *before), dtype=torch.uint8)
            x = x.to(memory_format=memory_format)
            expected = aten._upsample_lanczos2d_aa(x, after, False)
            actual = aten._upsample_lanczos2d_aa(x.to("mps"), after, False)
            assert actual.dtype == torch.uint8 and actual.stride() == expected.stride()
            difference = (actual.cpu().int() - expected.int()).abs()
            assert difference.max() <= 1
            assert difference.sum() <= max(1, difference.numel() // 1000)


def test_bytes_do_not_leave_their_range():
    x = torch.zeros(1, 1, 12, 12, dtype=torch.uint8)
    x[..., 6:] = 255
    actual = aten._upsample_lanczos2d_aa(x.to("mps"), [12, 40], False).cpu()
    assert torch.equal(actual, aten._upsample_lanczos2d_aa(x, [12, 40], False))
    assert actual.min() == 0 and actual.max() == 255


def test_infinities_and_nan_reach_the_pixels_near_them_only():
    x = make((1, 1, 20, 20), torch.float32)
    x[0, 0, 10, 10], x[0, 0, 2, 3] = float("nan"), float("inf")
    actual = aten._upsample_lanczos2d_aa(x.to("mps"), [10, 30], False).cpu()
    expected = aten._upsample_lanczos2d_aa(x, [10, 30], False)
    assert torch.equal(actual[0, 0, 6:, :8].isfinite(), expected[0, 0, 6:, :8].isfinite())
    assert actual[0, 0, 8:, :4].isfinite().all() and actual[0, 0, 5, 15].isnan()


# ---- through interpolate -------------------------------------------------------------------------


@by_mode
def test_interpolate(mode):
    x = make((2, 3, 12, 9), torch.float32)
    for options in (
        {"size": (5, 14)},
        {"scale_factor": (0.4, 1.7)},
        {"scale_factor": (0.4, 1.7), "recompute_scale_factor": True},
    ):

        def resized(x, options=options):
            return F.interpolate(x, mode=mode, antialias=True, **options)

        case = testing.Case(str(options), (x,))
        testing.check_forward(resized, resized, case, "mps", name="interpolate")
        testing.check_gradient(resized, resized, case, "mps", name="interpolate")


@by_mode
def test_second_derivatives_and_forward_mode(mode):
    x, tangent = (make((1, 2, 6, 5), torch.float32, seed=i) for i in range(2))

    def resized(x):
        return F.interpolate(x, (4, 7), mode=mode, antialias=True)

    def both(x, tangent):
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((resized(x) ** 3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((gradient * tangent).sum(), x)
        return second, torch.func.jvp(resized, (x.detach(),), (tangent,))[1]

    expected = both(x.double(), tangent.double())
    for a, e in zip(both(x.to("mps"), tangent.to("mps")), expected, strict=True):
        torch.testing.assert_close(a.cpu(), e.float(), rtol=1e-5, atol=2e-5)


@pytest.mark.full
@by_mode
def test_compiled(mode):
    """torch.compile checks that strides are those of the meta function."""

    def loss(x):
        return F.interpolate(x * 2, (5, 7), mode=mode, antialias=True).square().sum()

    x = make((1, 3, 8, 9), torch.float32).to(memory_format=torch.channels_last)
    x, compiled = (x.to("mps").requires_grad_() for _ in range(2))
    loss(x).backward()
    torch.compile(loss)(compiled).backward()
    torch.testing.assert_close(compiled.grad, x.grad)


@by_mode
def test_gradients_are_the_same_each_time(mode):
    torch.use_deterministic_algorithms(True)
    try:
        grad = torch.randn(2, 3, 40, 30, device="mps")
        results = [_backward(mode)(grad, [40, 30], [2, 3, 90, 13], False) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(result, results[0]) for result in results)


# ---- outputs -------------------------------------------------------------------------------------


@by_mode
@by_format
def test_strides_are_those_of_the_meta_function(mode, memory_format):
    for channels in (1, 3):
        grad = torch.randn(2, channels, 4, 5).to(memory_format=memory_format)
        arguments = ([4, 5], [2, channels, 7, 6], False)
        actual = _backward(mode)(grad.to("mps"), *arguments)
        assert actual.stride() == _backward(mode)(grad.to("meta"), *arguments).stride()
        resized = _operator(mode)(grad.to("mps"), [7, 6], False)
        assert resized.stride() == _operator(mode)(grad.to("meta"), [7, 6], False).stride()


@by_mode
def test_out(mode):
    grad = make((2, 3, 4, 5), torch.float32)
    arguments = ([4, 5], [2, 3, 7, 6], False)
    expected = _backward(mode)(grad, *arguments)
    _check_out(_backward(mode).grad_input, grad, arguments, "grad_input", expected)


def test_out_of_lanczos():
    x = make((2, 3, 4, 5), torch.float32)
    for size in ([7, 6], [4, 6], [7, 5], [4, 5]):
        expected = aten._upsample_lanczos2d_aa(x, size, False)
        _check_out(aten._upsample_lanczos2d_aa.out, x, (size, False), "out", expected)


def _check_out(overload, x, arguments, name, expected):
    outs = [
        torch.empty_like(expected),
        torch.empty_like(expected).to(memory_format=torch.channels_last),
        torch.empty_like(expected).transpose(0, 3).contiguous().transpose(0, 3),
        torch.empty(2 * expected.numel())[::2].view_as(expected),
    ]
    for out in (testing.to_device(out, "mps") for out in outs):
        strides = out.stride()
        assert overload(x.to("mps"), *arguments, **{name: out}) is out
        torch.testing.assert_close(out.cpu(), expected)
        assert out.stride() == strides
    for memory_format in FORMATS:
        out = torch.empty(0)
        on_cpu = x.to(memory_format=memory_format)
        expected_strides = overload(on_cpu, *arguments, **{name: out}).stride()
        out = torch.empty(0, device="mps")
        overload(on_cpu.to("mps"), *arguments, **{name: out})
        torch.testing.assert_close(out.cpu(), expected)
        assert out.stride() == expected_strides


@by_mode
def test_an_empty_batch(mode):
    grad = torch.empty(0, 3, 4, 5, device="mps")
    assert _backward(mode)(grad, [4, 5], [0, 3, 7, 6], False).shape == (0, 3, 7, 6)
    no_channels = torch.empty(2, 0, 4, 5, device="mps")
    assert _backward(mode)(no_channels, [4, 5], [2, 0, 7, 6], False).shape == (2, 0, 7, 6)
    if mode == "lanczos":
        assert aten._upsample_lanczos2d_aa(grad, [7, 6], False).shape == (0, 3, 7, 6)


# ---- errors --------------------------------------------------------------------------------------


@by_mode
def test_errors_are_those_of_the_cpu(mode):
    skip_unless_ours(f"aten::_upsample_{mode}2d_aa_backward")
    for device in ("cpu", "mps"):
        grad = torch.ones(1, 2, 6, 6, device=device)
        for arguments, message in (
            (([6, 6], [1, 2, 9], False), "It is expected input_size equals to 4, but got size 3"),
            (([6], [1, 2, 9, 8], False), "It is expected output_size equals to 2, but got size 1"),
            (([5, 6], [1, 2, 9, 8], False), r"output.size\(2\) = 5 but got grad_output.size\(2\)"),
            (([6, 6], [1, 3, 9, 8], False), r"output.size\(1\) = 3 but got grad_output.size\(1\)"),
            (([6, 6], [1, 2, 0, 8], False), "Input and output sizes should be greater than 0"),
        ):
            with pytest.raises(RuntimeError, match=message):
                _backward(mode)(grad, *arguments)
        with pytest.raises(RuntimeError, match="grad_output to be a tensor of dimension 4"):
            _backward(mode)(grad[0], [6, 6], [1, 2, 9, 8], False)
        with pytest.raises(RuntimeError, match="Expected out tensor to have dtype float, but got"):
            out = torch.empty(1, 2, 9, 8, device=device, dtype=torch.int32)
            _backward(mode).grad_input(grad, [6, 6], [1, 2, 9, 8], False, grad_input=out)
        for dtype in (torch.uint8, torch.int64, torch.bool, torch.complex64):
            with pytest.raises(NotImplementedError, match="not implemented for '"):
                _backward(mode)(grad.to(dtype), [6, 6], [1, 2, 9, 8], False)


def test_errors_of_lanczos_are_those_of_the_cpu():
    for device in ("cpu", "mps"):
        x = torch.ones(1, 2, 6, 6, device=device)
        for input, size, message in (
            (x[0], [3, 4], "It is expected input_size equals to 4, but got size 3"),
            (x, [3], "It is expected output_size equals to 2, but got size 1"),
            (x, [0, 4], "Input and output sizes should be greater than 0"),
            (x[:, :0], [3, 4], "Non-empty 4D data tensor expected but got"),
        ):
            with pytest.raises(RuntimeError, match=message):
                aten._upsample_lanczos2d_aa(input, size, False)
        for dtype in (torch.int8, torch.int64, torch.bool, torch.complex64):
            with pytest.raises(NotImplementedError, match="not implemented for '"):
                aten._upsample_lanczos2d_aa(x.to(dtype), [3, 4], False)


@by_mode
def test_tensors_that_overlap_are_refused(mode):
    skip_unless_ours(f"aten::_upsample_{mode}2d_aa_backward")
    storage = torch.ones(200, device="mps")
    grad = storage[:72].view(1, 2, 6, 6)
    overlapping = storage[30:174].view(1, 2, 9, 8)
    repeated = storage[:1].expand(1, 2, 9, 8)
    for out in (overlapping, repeated):
        with pytest.raises(RuntimeError, match="single memory location|overlap"):
            _backward(mode).grad_input(grad, [6, 6], [1, 2, 9, 8], False, grad_input=out)
    with pytest.raises(RuntimeError, match="same device"):
        out = torch.empty(1, 2, 9, 8)
        _backward(mode).grad_input(grad, [6, 6], [1, 2, 9, 8], False, grad_input=out)


# ---- how it is done ------------------------------------------------------------------------------


@by_mode
def test_neither_stand_in_nor_host_copy(mode):
    x = torch.rand(2, 3, 9, 8, device="mps", requires_grad=True)

    def call():
        with testing.no_host_copies():
            result = F.interpolate(x, (4, 11), mode=mode, antialias=True)
            torch.autograd.grad(result, x, torch.ones_like(result))

    call()
    ours = served_by_us(call)
    assert ours == []
    if mode == "lanczos":
        image = torch.zeros(1, 3, 9, 8, dtype=torch.uint8, device="mps")
        with testing.no_host_copies():
            assert served_by_us(lambda: aten._upsample_lanczos2d_aa(image, [4, 5], False)) == []


def test_threads_beyond_the_last_pixel_do_nothing():
    weights = torch.full((6, 5), 7.0, device="mps")
    windows = torch.full((6, 2), -7, device="mps")
    bilinear_by_half = direct.as_bytes("3q4fi4x", 8, 4, 5, 2.0, 0.0, 2.0, 0.5, 0)
    kernels = direct.kernels("upsample_aa")
    kernels.upsample_aa_weights(weights, windows, bilinear_by_half, threads=(6, 1))
    torch.testing.assert_close(weights[:4].sum(1), torch.ones(4, device="mps"))
    assert (weights[4:] == 7).all() and (windows[4:] == -7).all()
    transposed = torch.full((10, 3), 7.0, device="mps")
    places = torch.full((10, 2), -7, device="mps")
    arguments = (transposed, places, weights, windows, bilinear_by_half, direct.as_bytes("q", 3))
    kernels.upsample_aa_transposed_weights(*arguments, threads=(10, 1))
    torch.testing.assert_close(transposed[:8].sum(), torch.tensor(4.0, device="mps"))
    assert (transposed[8:] == 7).all() and (places[8:] == -7).all()
