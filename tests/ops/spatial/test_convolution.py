"""Convolutions in the place of stock's, while the fix "convolution" is on: kernels/spatial/convolution.metal."""

import random
import re

import metalops
import pytest
import torch
from metalops import debug, fixes
from metalops.testing.samples import make
from torch.nn import functional as F
from torch.ops import aten
from torch.testing._internal.common_methods_invocations import op_db

from ..aten import assert_refused_as_on_the_cpu


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("convolution"), debug.standins() as served:
        yield
        names = {fix.name: fix.operators for fix in fixes.status()}["convolution"]
    assert not set(served) & {*names, "aten::convolution_overrideable"}


LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}


def function_of(dims, is_transposed):
    return getattr(F, f"conv{'_transpose' * is_transposed}{dims}d")


def generated(seed, dtype):
    """Operands, and keyword arguments, of a convolution that the CPU does not refuse."""
    draw = random.Random(seed)
    # torch refuses conv_transpose3d of narrow types.
    dims = draw.choice((1, 2, 2, 3 if dtype == torch.float32 else 2))
    groups, is_transposed = draw.choice((1, 1, 2, 3)), seed % 3 == 2

    def each(*values):
        return [draw.choice(values) for _ in range(dims)]

    channels = (
        groups * draw.choice((1, 3, 9, 17)),
        draw.choice((1, 2, 8, 11, 70 if dims < 3 else 9)),
    )
    filters, stride, dilation, padding = (
        each(1, 2, 3, 4),
        each(1, 1, 2, 3),
        each(1, 1, 2, 3),
        each(0, 1, 2),
    )
    sizes = [d * (k - 1) + 1 + draw.randint(3, 9) for k, d in zip(filters, dilation, strict=True)]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if is_transposed:
        options["output_padding"] = [
            draw.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)
        ]
        weight = (channels[0], channels[1], *filters)
    else:
        weight = (groups * channels[1], channels[0] // groups, *filters)
    x = make((draw.choice((1, 2, 3)), channels[0], *sizes), dtype, low=-1, high=1)
    if dims > 1 and draw.random() < 0.4:
        x = x.to(memory_format=LAYOUTS[dims])
    elif draw.random() < 0.3:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    operands = [x, make(weight, dtype, low=-1, high=1)]
    if draw.random() < 0.5:
        operands.append(make((groups * channels[1],), dtype, low=-1, high=1))
    return function_of(dims, is_transposed), operands, options


def check(function, operands, options):
    """Compares results and gradients with float64."""
    wide = [x.double().requires_grad_() for x in operands]
    inputs = [x.to("mps").requires_grad_() for x in operands]
    expected, actual = function(*wide, **options), function(*inputs, **options)
    cotangent = make(expected.shape, operands[0].dtype, low=-1, high=1)
    eps = torch.finfo(operands[0].dtype).eps
    for name, a, e in zip(
        ("result", "input", "weight", "bias"),
        (actual, *torch.autograd.grad(actual, inputs, cotangent.to("mps"))),
        (expected, *torch.autograd.grad(expected, wide, cotangent.double())),
        strict=False,
    ):
        # Sums are in float32: their error is bounded by the largest result.
        error = (a.cpu().double() - e).abs().max().item() if e.numel() else 0.0
        bound = max(2 * eps, 3e-6) * max(e.abs().max().item() if e.numel() else 0.0, 1.0)
        assert a.shape == e.shape and error <= bound, (name, error, bound, options)
    return actual


# Each dtype compiles kernels of its own.
DTYPES = (
    torch.float32,
    *(pytest.param(x, marks=pytest.mark.nightly) for x in (torch.float16, torch.bfloat16)),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_generated_convolutions_and_gradients_against_float64(seed, dtype):
    for case in range(6):
        check(*generated(6 * seed + case, dtype))


@pytest.mark.parametrize(
    "op",
    [op for op in op_db if re.fullmatch(r"nn\.functional\.conv\w*[123]d", op.name)],
    ids=lambda op: op.name,
)
def test_samples_of_torch(op):
    """Their errors are bounded by the largest result, as terms cancel."""
    for sample in list(op.sample_inputs("cpu", torch.float32))[:20]:
        tensors = [x for x in (sample.input, *sample.args) if isinstance(x, torch.Tensor)]
        rest = [x for x in sample.args if not isinstance(x, torch.Tensor)]
        # Unbatched inputs, names of paddings and the like are torch's to resolve.
        check(
            lambda *t, op=op, rest=rest, **options: op.op(*t, *rest, **options),
            tensors,
            sample.kwargs,
        )


# A product of tiles, with K divided, with few channels, with few elements and long sums; no filter element for some
# positions; images and channels that are no multiples of tiles.
SHAPES = {
    "tiles": ((2, 20, 13, 11), (70, 20, 3, 3), {"padding": 1}),
    "split": ((1, 96, 9, 9), (16, 96, 4, 4), {}),
    "split, weight": ((4, 9, 23, 22), (10, 9, 3, 2), {}),
    "depthwise": ((2, 24, 9, 9), (24, 1, 3, 3), {"groups": 24, "padding": 1}),
    "depthwise, long": ((4, 2, 40, 40), (2, 1, 2, 2), {"groups": 2}),
    "stride over the filter": ((2, 9, 11, 12), (12, 9, 2, 2), {"stride": (3, 4)}),
    "one filter of all": ((3, 5, 6, 7), (9, 5, 6, 7), {}),
    "no image": ((0, 5, 6, 7), (9, 5, 3, 3), {}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_each_kernel(name):
    x, weight, options = SHAPES[name]
    operands = [make(x, torch.float32, low=-1, high=1), make(weight, torch.float32, low=-1, high=1)]
    for layout in (torch.contiguous_format, torch.channels_last):
        result = check(F.conv2d, [x.to(memory_format=layout) for x in operands], options)
        # Without images torch has another kernel.
        assert result.is_contiguous(memory_format=layout) or not result.numel()


def test_a_weight_that_is_a_slice():
    """192212"""
    x, weight = make((2, 12, 9, 8), torch.float32), make((3, 12, 3, 3, 3), torch.float32)
    check(F.conv2d, [x, weight[:, :, 1]], {})
    check(F.conv2d, [x, weight.transpose(0, 1)[:, :, 1]], {"groups": 4})  # 3 channels of each


def test_a_filter_of_256_rows():
    """188335"""
    x, weight = make((3, 8, 256, 5), torch.float32), make((16, 1, 256, 1), torch.float32)
    check(F.conv2d, [x, weight], {"groups": 8})


def test_more_than_65536_channels():
    """129207"""
    x, weight, bias = (make(s, torch.float32) for s in ((1, 1, 3), (65_537, 1, 3), (65_537,)))
    check(F.conv1d, [x, weight, bias], {"padding": 1})
    check(F.conv1d, [weight[None, :, 0], make((2, 65_537, 1), torch.float32)], {})


def test_three_dimensions_of_contiguous_inputs():
    """197114"""
    check(
        F.conv3d, [make((1, 9, 4, 6, 5), torch.float32), make((8, 9, 3, 3, 3), torch.float32)], {}
    )


def test_expanded_gradients_and_conjugate_views():
    """Gradients of sums are expanded; imaginary parts of conjugates have a negative bit."""
    x = (
        torch.complex(make((2, 3, 6, 6), torch.float32), make((2, 3, 6, 6), torch.float32))
        .conj()
        .imag
    )
    weight = make((8, 3, 3, 3), torch.float32)
    inputs = [y.to("mps").requires_grad_() for y in (x, weight)]
    wide = [y.double().requires_grad_() for y in (x, weight)]
    moved = torch.complex(inputs[0].detach(), -inputs[0].detach()).conj().imag
    torch.testing.assert_close(
        F.conv2d(moved, inputs[1]).cpu().double(), F.conv2d(*wide), rtol=1e-5, atol=1e-5
    )
    for a, e in zip(
        torch.autograd.grad(F.conv2d(*inputs).sum(), inputs),
        torch.autograd.grad(F.conv2d(*wide).sum(), wide),
        strict=True,
    ):
        torch.testing.assert_close(a.cpu().double(), e, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_second_gradients(is_transposed):
    function = function_of(1, is_transposed)

    def penalty(x, weight):
        (grad,) = torch.autograd.grad(
            function(x, weight, stride=2).square().sum(), x, create_graph=True
        )
        return grad.square().sum()

    operands = [
        make((2, 3, 9), torch.float32, low=-1, high=1),
        make((3, 3, 4), torch.float32, low=-1, high=1),
    ]
    inputs = [x.to("mps").requires_grad_() for x in operands]
    wide = [x.double().requires_grad_() for x in operands]
    for a, e in zip(
        torch.autograd.grad(penalty(*inputs), inputs),
        torch.autograd.grad(penalty(*wide), wide),
        strict=True,
    ):
        torch.testing.assert_close(a.cpu().double(), e, rtol=1e-4, atol=1e-2)


def test_results_are_the_same_each_time():
    x, weight = make((4, 9, 23, 22), torch.float32), make((10, 9, 3, 2), torch.float32)
    inputs = [y.to("mps").requires_grad_() for y in (x, weight)]
    first, second = (
        torch.autograd.grad(F.conv2d(*inputs).square().sum(), inputs) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_meta_tensors_have_the_layout_of_results():
    for layout in (torch.contiguous_format, torch.channels_last):
        x = make((2, 5, 6, 7), torch.float32).to(memory_format=layout)
        weight = make((9, 5, 3, 3), torch.float32)
        actual = F.conv2d(x.to("mps"), weight.to("mps"))
        assert actual.stride() == F.conv2d(x, weight).stride()


def _mps_convolution(x, weight, bias=None, padding=(0,), stride=(1,), dilation=(1,), groups=1):
    return aten._mps_convolution(x, weight, bias, padding, stride, dilation, groups)


ERRORS = {
    "dimensions": (lambda x, w: _mps_convolution(x[0, 0], w), "input of 3, 4 or 5 dimensions"),
    "weight": (lambda x, w: _mps_convolution(x, w[0]), "weight of 4 dimensions"),
    "channels": (lambda x, w: _mps_convolution(x[:, :2], w), r"have 3 channels, but got 2"),
    "groups": (lambda x, w: _mps_convolution(x[:, :2], w[:, :1], groups=2), "divisible by groups=2"),
    "no groups": (lambda x, w: _mps_convolution(x, w, groups=0), "groups=0"),
    "stride": (lambda x, w: _mps_convolution(x, w, stride=(0, 1)), "stride=.*0, 1.* is out of range"),
    "padding": (lambda x, w: _mps_convolution(x, w, padding=(1, 1, 1)), "padding to have 2 elements"),
    "dtype": (lambda x, w: _mps_convolution(x, w.half()), "weight type .* should be the same"),
    "integers": (lambda x, w: _mps_convolution(x.int(), w.int()), "not implemented for 'Int'"),
    "bias": (lambda x, w: _mps_convolution(x, w, w[0, 0, 0]), "bias to be 1-dimensional with 9 elements"),
    "size": (lambda x, w: _mps_convolution(x[..., :2], w), "Kernel size can't be greater"),
    "gradient": (
        lambda x, w: aten.mps_convolution_backward(x, x, w, (0, 0), (1, 1), (1, 1), 1, (True, True, False)),
        "do not match an input",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_direct_calls_name_the_argument(name):
    call, message = ERRORS[name]
    x, weight = torch.rand(2, 3, 6, 6, device="mps"), torch.rand(9, 3, 3, 3, device="mps")
    with pytest.raises(RuntimeError, match=message):
        call(x, weight)


def test_an_empty_result_is_refused_as_on_the_cpu():
    x, weight = make((1, 3, 2, 5), torch.float32), make((3, 4, 2, 2), torch.float32)
    assert_refused_as_on_the_cpu(
        [lambda move: F.conv_transpose2d(move(x), move(weight), padding=2)], RuntimeError
    )
