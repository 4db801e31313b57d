"""adaptive_avg_pool3d, and adaptive_avg_pool2d of sizes that stock MPS refuses:
kernels/spatial/adaptive_avg_pool.metal."""

import math

import pytest
import torch
import torch.nn.functional as F
from metalops import debug, testing
from metalops.testing.samples import FLOATS, make
from torch.ops import aten

from ..aten import assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import WINDOWS, Benchmark, adaptive
from .helpers import ADAPTIVE_SIZES_3D, both, check, layouts, outs

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
SIZES_2D = [
    ((6, 7), (4, 3)),
    ((3, 4), (7, 6)),
    ((1, 9), (5, 9)),
    ((4, 70), (3, 33)),
    ((5, 3), (1, 2)),
]


# In torch's op_db.
OPINFOS = (
    "nn.functional.adaptive_avg_pool1d",
    "nn.functional.adaptive_avg_pool2d",
    "nn.functional.adaptive_avg_pool3d",
)


BENCHMARKS = (
    *Benchmark.with_gradient(
        "adaptive_avg_pool2d", lambda x: adaptive(F.adaptive_avg_pool2d, x, 2, 2.3), reason=WINDOWS
    ),
    *Benchmark.with_gradient(
        "adaptive_avg_pool2d, few",
        lambda x: adaptive(F.adaptive_avg_pool2d, x, 2, 7),
        reason=WINDOWS,
    ),
    *Benchmark.with_gradient(
        "adaptive_avg_pool3d", lambda x: adaptive(F.adaptive_avg_pool3d, x, 3, 2.3), reason=WINDOWS
    ),
)


def _pool(size):
    function = F.adaptive_avg_pool3d if len(size) == 3 else F.adaptive_avg_pool2d
    return lambda x: function(x, size)


def _check(x, size):
    check(_pool(size), x, "adaptive_avg_pool")


# ---- values and gradients ------------------------------------------------------------------------


@by_float
@pytest.mark.parametrize(("input_size", "output_size"), ADAPTIVE_SIZES_3D + SIZES_2D, ids=str)
def test_values_and_gradients(dtype, input_size, output_size):
    _check(make((2, 3, *input_size), dtype), output_size)
    _check(make((3, *input_size), dtype), output_size)


@by_float
@pytest.mark.parametrize(("input_size", "output_size"), SIZES_2D, ids=str)
def test_channels_last(dtype, input_size, output_size):
    for channels in (2, 5, 33):
        x = make((2, channels, *input_size), dtype).to(memory_format=torch.channels_last)
        _check(x, output_size)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((2, 3, 5, 6, 7), (2, 4, 3)),
        ((3, 5, 6, 7), (2, 4, 3)),
        ((2, 1, 5, 6, 7), (2, 4, 3)),
        ((2, 3, 6, 7), (4, 3)),
        ((3, 6, 7), (4, 3)),
        ((1, 1, 6, 7), (4, 3)),
    ],
    ids=str,
)
def test_every_layout_and_the_strides_of_results(shape, size):
    forward = aten._adaptive_avg_pool3d if len(size) == 3 else aten._adaptive_avg_pool2d
    backward = getattr(aten, f"_adaptive_avg_pool{len(size)}d_backward")
    for x in layouts(*shape):
        _check(x, size)
        expected, actual = both(lambda x: forward(x, size), x)
        assert actual.stride() == expected.stride()
        for grad in layouts(*expected.shape):
            expected_grad, actual_grad = both(backward, grad, x)
            assert actual_grad.stride() == expected_grad.stride()
            torch.testing.assert_close(actual_grad.cpu(), expected_grad)


def test_one_dimension_and_area_interpolation():
    x = make((2, 3, 10), torch.float32)
    for function in (
        lambda x: F.adaptive_avg_pool1d(x, 4),
        lambda x: F.adaptive_avg_pool1d(x[0], 7),
        lambda x: F.interpolate(x, size=13, mode="area"),
        lambda x: F.interpolate(x.unsqueeze(2), size=(3, 7), mode="area"),
        lambda x: F.interpolate(x.view(2, 3, 1, 2, 5), size=(2, 3, 4), mode="area"),
        lambda x: F.interpolate(x.view(2, 3, 2, 5), scale_factor=0.7, mode="area"),
    ):
        check(function, x, "adaptive_avg_pool")


def test_windows_of_large_sizes_are_exact():
    """Beyond what float can count."""
    x = torch.zeros(1, 1, 20_000_003)
    x[..., 13_333_335] = (
        1  # the last element of the second of three windows, the first of the third
    )
    expected = [i.nonzero().squeeze().tolist() for i in F.adaptive_avg_pool1d(x, 3)]
    actual = F.adaptive_avg_pool1d(x.to("mps"), 3).cpu()
    assert [i.nonzero().squeeze().tolist() for i in actual] == expected
    torch.testing.assert_close(actual, F.adaptive_avg_pool1d(x, 3))


def test_half_precision_is_summed_in_float():
    x = torch.full((1, 1, 50, 60, 70), 1.5).half()
    assert (F.adaptive_avg_pool3d(x.to("mps"), (1, 1, 3)).cpu() == 1.5).all()
    x = torch.full((1, 64, 101), 0.1, dtype=torch.bfloat16)
    grad = torch.ones(1, 64, 1000, dtype=torch.bfloat16)
    actual = aten._adaptive_avg_pool2d_backward(grad.to("mps"), x.to("mps"))
    expected = aten._adaptive_avg_pool2d_backward(grad.float(), x.float()).bfloat16()
    torch.testing.assert_close(actual.cpu(), expected)


def test_infinities_and_nan():
    x = torch.tensor([1.0, math.inf, 2, -math.inf, 3, math.nan, 4, 5, math.inf, math.inf])
    for shape, size in (((1, 1, 1, 10), (1, 4)), ((1, 1, 1, 2, 5), (1, 2, 3))):
        expected, actual = both(_pool(size), x.view(shape))
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


def test_derivatives_of_gradients_and_tangents():
    for shape, size in (((2, 3, 5, 6, 7), (2, 4, 3)), ((2, 3, 6, 7), (4, 3))):
        x, tangent = make(shape, torch.float32), make(shape, torch.float32, seed=1)

        def second(x, tangent, size=size):
            x.requires_grad_()
            grad = torch.autograd.grad((_pool(size)(x) ** 3).sum(), x, create_graph=True)[0]
            return torch.autograd.grad((grad * tangent).sum(), x)[0]

        expected, actual = both(second, x, tangent)
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)
        expected, actual = both(
            lambda x, t, size=size: torch.func.jvp(_pool(size), (x,), (t,))[1], x.detach(), tangent
        )
        torch.testing.assert_close(actual.cpu(), expected)


# ---- what stock MPS can do -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("input_size", "output_size", "stock"),
    [
        ((6, 8), (3, 4), True),
        ((3, 4), (6, 8), True),
        ((6, 6), (6, 6), True),
        ((6, 6), (6, 3), True),
        ((3, 3), (6, 3), True),
        ((3, 3), (3, 6), False),  # the stock operator compares the heights alone
        ((6, 8), (4, 4), False),
        ((6, 8), (3, 3), False),
        ((3, 4), (6, 7), False),
        ((3, 4), (7, 8), False),
        ((6, 4), (3, 8), False),
        ((4, 6), (8, 3), False),
    ],
    ids=str,
)
def test_sizes_that_divide_each_other_are_left_to_the_stock_operator(
    input_size, output_size, stock
):
    x = make((2, 3, *input_size), torch.float32).to("mps").requires_grad_()
    with debug.standins() as forward:
        y = aten._adaptive_avg_pool2d(x, output_size)
    with debug.standins() as backward:
        y.sum().backward()
    with debug.standins() as out:
        aten.adaptive_avg_pool2d(x.detach(), output_size, out=torch.empty_like(y))
    assert forward.get("aten::_adaptive_avg_pool2d", 0) == stock
    assert backward.get("aten::_adaptive_avg_pool2d_backward", 0) == stock
    assert out.get("aten::adaptive_avg_pool2d.out", 0) == stock
    expected = aten._adaptive_avg_pool2d(x.detach().cpu(), output_size)
    torch.testing.assert_close(y.detach().cpu(), expected)
    grad = aten._adaptive_avg_pool2d_backward(torch.ones_like(expected), x.detach().cpu())
    torch.testing.assert_close(x.grad.cpu(), grad)


# ---- sizes of zero, out=, errors -----------------------------------------------------------------


def test_empty_batches_and_outputs():
    for shape, size in (
        ((0, 3, 5, 6, 7), (2, 4, 3)),
        ((0, 5, 6, 7), (2, 4, 3)),
        ((0, 3, 6, 7), (4, 3)),
    ):
        x = torch.empty(shape, device="mps", requires_grad=True)
        y = _pool(size)(x)
        assert y.shape == (*shape[: -len(size)], *size)
        y.sum().backward()
        assert x.grad.shape == shape
    x = torch.rand(2, 3, 5, 6, 7, device="mps")
    assert F.adaptive_avg_pool3d(x, (2, 0, 3)).shape == (2, 3, 2, 0, 3)
    assert F.adaptive_avg_pool2d(x[0], (0, 4)).shape == (3, 5, 0, 4)
    assert F.adaptive_avg_pool2d(x[0], (5, 0)).shape == (3, 5, 5, 0)


@by_float
@pytest.mark.parametrize("size", [(2, 4, 3), (4, 3)], ids=str)
def test_out_overloads(dtype, size):
    x = make((2, 3, 5, 6, 7)[: 2 + len(size)], dtype).to("mps")
    calls = [(getattr(aten, f"adaptive_avg_pool{len(size)}d"), (x, size), "out")]
    if len(size) == 3:
        grad = make((2, 3, *size), dtype).to("mps")
        calls.append((aten.adaptive_avg_pool3d_backward, (grad, x), "grad_input"))
    for operator, arguments, name in calls:
        backward = name == "grad_input"
        expected = (
            aten._adaptive_avg_pool3d_backward(*arguments) if backward else operator(*arguments)
        )
        for out in outs(expected):
            strides = out.stride()
            result = operator(*arguments, **{name: out})
            assert result is out and torch.equal(out, expected)
            assert out.stride() == strides or strides == (1,)


def test_an_output_that_does_not_fit_is_resized_with_a_warning():
    x, out = make((3, 5, 6, 7), torch.float32).to("mps"), torch.empty(5, device="mps")
    with pytest.warns(UserWarning, match="was resized"):
        torch._C._nn.adaptive_avg_pool3d(x, (2, 4, 3), out=out)
    assert torch.equal(out, F.adaptive_avg_pool3d(x, (2, 4, 3)))


def test_an_empty_out_gets_the_memory_format_of_the_input():
    x = make((2, 3, 6, 7), torch.float32).to("mps", memory_format=torch.channels_last)
    out = aten.adaptive_avg_pool2d(x, (4, 3), out=torch.empty(0, device="mps"))
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_arguments_that_the_cpu_refuses():
    x, image = torch.rand(2, 3, 5, 6, 7), torch.rand(2, 3, 6, 7)
    grad, flat = torch.rand(2, 3, 2, 4, 3), torch.rand(2, 3, 4, 3)
    calls = [
        lambda to: aten._adaptive_avg_pool3d(to(x), (2, 4)),
        lambda to: aten._adaptive_avg_pool3d(to(x), (2, -1, 3)),
        lambda to: aten._adaptive_avg_pool2d(to(image), (-4, 3)),
        lambda to: aten._adaptive_avg_pool3d(to(x[0, 0]), (2, 4, 3)),
        lambda to: aten._adaptive_avg_pool3d(to(x[:, :, :0]), (2, 4, 3)),
        lambda to: aten._adaptive_avg_pool3d(to(x[:, :0]), (2, 4, 3)),
        lambda to: aten._adaptive_avg_pool3d(to(x.int()), (2, 4, 3)),
        lambda to: aten.adaptive_avg_pool3d(to(x), (2, 4, 3), out=to(grad.half())),
        lambda to: aten._adaptive_avg_pool3d_backward(to(grad.half()), to(x)),
        lambda to: aten._adaptive_avg_pool3d_backward(to(grad[:, :, :, :0]), to(x)),
        lambda to: aten.adaptive_avg_pool3d_backward(to(grad), to(x), grad_input=to(x.half())),
        lambda to: aten._adaptive_avg_pool2d(to(image), (4,)),
        lambda to: aten._adaptive_avg_pool2d(to(image[0, 0]), (4, 3)),
        lambda to: aten._adaptive_avg_pool2d(to(x), (4, 3)),
        lambda to: aten._adaptive_avg_pool2d(to(image[:, :, :0]), (4, 3)),
        lambda to: aten._adaptive_avg_pool2d(to(image.int()), (4, 3)),
        lambda to: aten.adaptive_avg_pool2d(to(image), (4, 3), out=to(flat.half())),
        lambda to: aten._adaptive_avg_pool2d_backward(to(flat[:, :, :0]), to(image)),
    ]
    assert_refused_as_on_the_cpu(calls, RuntimeError, NotImplementedError)


def test_arguments_with_which_the_cpu_reads_what_it_should_not():
    x, grad = torch.rand(2, 3, 5, 6, 7, device="mps"), torch.rand(2, 3, 2, 4, 3, device="mps")
    for wrong in (grad[:, :2], grad[:1], grad[0]):
        with pytest.raises(RuntimeError, match="adaptive_avg_pool3d_backward: Expected"):
            aten._adaptive_avg_pool3d_backward(wrong, x)
    for wrong in (grad[0, :, :, :, :2], grad[:1, 0], grad[0, 0]):
        with pytest.raises(RuntimeError, match="adaptive_avg_pool2d_backward: Expected"):
            aten._adaptive_avg_pool2d_backward(wrong, x[0])
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        aten._adaptive_avg_pool2d_backward(torch.rand(3, 5, 4, 3, device="mps").half(), x[0])
    with pytest.raises(RuntimeError, match="single memory location"):
        aten.adaptive_avg_pool3d(x, (5, 6, 7), out=x)
    with pytest.raises(RuntimeError, match="same device"):
        aten.adaptive_avg_pool3d(x, (2, 4, 3), out=torch.empty(0))


# ---- how they run --------------------------------------------------------------------------------


@by_float
def test_no_host_copy_and_no_stand_in(dtype):
    x = make((2, 3, 5, 6, 7), dtype).to("mps").requires_grad_()
    image = make((2, 3, 6, 7), dtype).to("mps").requires_grad_()

    def run():
        with testing.no_host_copies():
            F.adaptive_avg_pool3d(x, (2, 4, 3)).sum().backward()
            F.adaptive_avg_pool2d(image, (4, 3)).sum().backward()
            F.interpolate(image, size=(5, 9), mode="area").sum().backward()

    assert served_by_us(run) == []
