"""adaptive_max_pool3d, and 2d in the place of stock's while the fix is on: kernels/spatial/adaptive_max_pool.metal."""

import math

import metalops
import pytest
import torch
import torch.nn.functional as F
from metalops import testing
from metalops.testing.samples import FLOATS, make, to_device
from torch.ops import aten

from ..aten import assert_refused_as_on_the_cpu, reference, served_by_us
from ..benchmark import WINDOWS, Benchmark, adaptive
from .helpers import ADAPTIVE_SIZES_3D, assert_same, both, check, layouts, outs

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


# In torch's op_db.
OPINFOS = ("nn.functional.adaptive_max_pool3d",)


BENCHMARKS = (
    *Benchmark.with_gradient(
        "adaptive_max_pool3d", lambda x: adaptive(F.adaptive_max_pool3d, x, 3, 2.3), reason=WINDOWS
    ),
    *Benchmark.with_gradient(
        "adaptive_max_pool3d, few",
        lambda x: adaptive(F.adaptive_max_pool3d, x, 3, 7),
        reason=WINDOWS,
    ),
)


def _pool(size):
    return lambda x: F.adaptive_max_pool3d(x, size)


def _with_indices(size):
    return lambda x: aten.adaptive_max_pool3d(x, size)


@by_float
@pytest.mark.parametrize(("input_size", "output_size"), ADAPTIVE_SIZES_3D, ids=str)
def test_values_indices_and_gradients(dtype, input_size, output_size):
    for x in (make((2, 3, *input_size), dtype), make((3, *input_size), dtype)):
        check(_pool(output_size), x, "adaptive_max_pool")
        assert_same(*both(_with_indices(output_size), x))


@pytest.mark.parametrize("shape", [(2, 3, 5, 6, 7), (3, 5, 6, 7), (2, 1, 5, 6, 7)], ids=str)
def test_every_layout_and_the_strides_of_results(shape):
    size = (2, 4, 3)
    for x in layouts(*shape):
        check(_pool(size), x, "adaptive_max_pool")
        expected, actual = both(_with_indices(size), x)
        assert_same(expected, actual, strides=True)
        for grad in layouts(*expected[0].shape):
            gradients = both(aten.adaptive_max_pool3d_backward, grad, x, expected[1])
            assert_same(*gradients, strides=True)
        # torch's CPU operator takes any indices for contiguous ones.
        indices = expected[1].permute(*reversed(range(len(shape)))).contiguous()
        indices = to_device(indices, "mps").permute(*reversed(range(len(shape))))
        grad = make(expected[0].shape, torch.float32)
        gradient = aten.adaptive_max_pool3d_backward(grad.to("mps"), to_device(x, "mps"), indices)
        assert_same(aten.adaptive_max_pool3d_backward(grad, x, expected[1]), gradient)


def test_equal_elements_infinities_and_nan():
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([0.0, 1.0, 1.0, math.inf, -math.inf, math.nan, -0.0])
    for choice in ([0, 6], [4], [1, 2, 4], [3, 4, 1], [5, 1, 3], [5, 0, 1, 2, 3, 4, 6]):
        numbers = torch.randint(len(choice), (2, 3, 4, 5, 6), generator=generator)
        x = values[choice][numbers]
        for size in ((2, 3, 4), (5, 5, 5), (1, 2, 1)):
            expected, actual = both(_with_indices(size), x)
            assert_same(expected, actual)
            grad = make(expected[0].shape, torch.float32)
            assert_same(*both(aten.adaptive_max_pool3d_backward, grad, x, expected[1]))


def test_derivatives_of_gradients_and_tangents():
    x, tangent = make((2, 3, 5, 6, 7), torch.float32), make((2, 3, 5, 6, 7), torch.float32, seed=1)

    def second(x, tangent):
        x = x.detach().requires_grad_()
        grad = torch.autograd.grad((_pool((2, 4, 3))(x) ** 3).sum(), x, create_graph=True)[0]
        return torch.autograd.grad((grad * tangent).sum(), x)[0]

    expected, actual = both(second, x, tangent)
    torch.testing.assert_close(actual.cpu(), expected)
    assert_same(*both(lambda x, t: torch.func.jvp(_pool((2, 4, 3)), (x,), (t,))[1], x, tangent))


def test_empty_batches_and_outputs():
    for shape in ((0, 3, 5, 6, 7), (0, 5, 6, 7)):
        x = torch.empty(shape, device="mps", requires_grad=True)
        y = F.adaptive_max_pool3d(x, (2, 4, 3))
        assert y.shape == (*shape[:-3], 2, 4, 3)
        y.sum().backward()
        assert x.grad.shape == shape
    x = torch.rand(2, 3, 5, 6, 7, device="mps")
    assert [y.shape for y in aten.adaptive_max_pool3d(x, (2, 0, 3))] == [(2, 3, 2, 0, 3)] * 2


@by_float
def test_out_overloads(dtype):
    x = make((2, 3, 5, 6, 7), dtype).to("mps")
    output, indices = aten.adaptive_max_pool3d(x, (2, 4, 3))
    for out, where in zip(outs(output), outs(indices), strict=True):
        strides = out.stride(), where.stride()
        result = aten.adaptive_max_pool3d(x, (2, 4, 3), out=out, indices=where)
        assert result[0] is out and result[1] is where
        assert torch.equal(out, output) and torch.equal(where, indices)
        assert strides in ((out.stride(), where.stride()), ((1,), (1,)))
    expected = aten.adaptive_max_pool3d_backward(output, x, indices)
    for out in outs(expected):
        arguments = output, x, indices
        assert aten.adaptive_max_pool3d_backward(*arguments, grad_input=out) is out
        assert torch.equal(out, expected)


def test_arguments_that_the_cpu_refuses():
    x = torch.rand(2, 3, 5, 6, 7)
    y, indices = aten.adaptive_max_pool3d(x, (2, 4, 3))
    backward = aten.adaptive_max_pool3d_backward
    calls = [
        lambda to: aten.adaptive_max_pool3d(to(x), (2, 4)),
        lambda to: aten.adaptive_max_pool3d(to(x), (2, -1, 3)),
        lambda to: aten.adaptive_max_pool3d(to(x[0, 0]), (2, 4, 3)),
        lambda to: aten.adaptive_max_pool3d(to(x[:, :, :0]), (2, 4, 3)),
        lambda to: aten.adaptive_max_pool3d(to(x[:, :0]), (2, 4, 3)),
        lambda to: aten.adaptive_max_pool3d(to(x.int()), (2, 4, 3)),
        lambda to: aten.adaptive_max_pool3d(
            to(x), (2, 4, 3), out=to(y.half()), indices=to(indices.clone())
        ),
        lambda to: aten.adaptive_max_pool3d(
            to(x), (2, 4, 3), out=to(y.clone()), indices=to(indices.int())
        ),
        lambda to: backward(to(y.half()), to(x), to(indices)),
        lambda to: backward(to(y), to(x), to(indices.int())),
        lambda to: backward(to(y[:, :, :, :0]), to(x), to(indices[:, :, :, :0])),
        lambda to: backward(to(y[0]), to(x), to(indices[0])),
        lambda to: backward(to(y), to(x), to(indices[:1])),
        lambda to: backward(to(y), to(x), to(indices), grad_input=to(x.half())),
    ]
    assert_refused_as_on_the_cpu(calls, RuntimeError, NotImplementedError)


def test_arguments_with_which_the_cpu_reads_or_writes_what_it_should_not():
    x = torch.rand(2, 3, 5, 6, 7, device="mps")
    y, indices = aten.adaptive_max_pool3d(x, (2, 4, 3))
    backward = aten.adaptive_max_pool3d_backward
    for part in (lambda t: t[:, :2], lambda t: t[:1]):
        with pytest.raises(RuntimeError, match="adaptive_max_pool3d_backward: Expected"):
            backward(part(y), x, part(indices))
    with pytest.raises(RuntimeError, match="Expected 4D or 5D gradOutput"):
        backward(y[0, 0], x[0, 0], indices[0, 0])
    with pytest.raises(RuntimeError, match="single memory location"):
        aten.adaptive_max_pool3d(
            x, (5, 6, 7), out=x, indices=torch.empty_like(x, dtype=torch.int64)
        )
    with pytest.raises(RuntimeError, match="single memory location"):
        backward(x, x, aten.adaptive_max_pool3d(x, (5, 6, 7))[1], grad_input=x)
    with pytest.raises(RuntimeError, match="same device"):
        backward(y, x, indices.cpu())


@pytest.mark.parametrize(
    ("place", "index"),
    [(0, -1), (0, -(2**40)), (0, 210), (0, 2**40), (0, 209), (0, 4), (0, 126), (-1, 0), (-1, 206)],
)
def test_indices_outside_of_their_windows_are_reported(place, index):
    """Of the first element of the output: depths 0 to 2, heights 0 and 1, widths 0 to 2."""
    x = torch.zeros(2, 3, 5, 6, 7, device="mps")
    y, indices = aten.adaptive_max_pool3d(x, (2, 4, 3))
    indices[1, 2].view(-1)[place] = index
    grad = aten.adaptive_max_pool3d_backward(torch.ones_like(y), x, indices)
    message = rf"adaptive_max_pool3d_backward\(\): found an invalid max index: {index},"
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert grad.cpu().sum() == y.numel() - 1


@pytest.mark.parametrize("index", [0, 1, 2, 7, 9, 42, 93])
def test_any_index_of_the_window_is_taken(index):
    x = torch.zeros(1, 1, 5, 6, 7, device="mps")
    y, indices = aten.adaptive_max_pool3d(x, (2, 4, 3))
    indices.view(-1)[0] = index
    grad = torch.zeros_like(y)
    grad.view(-1)[0] = 3
    gradient = aten.adaptive_max_pool3d_backward(grad, x, indices)
    torch.mps.synchronize()
    assert gradient.sum() == gradient.view(-1)[index] == 3


@by_float
def test_no_host_copy_and_no_stand_in(dtype):
    x = make((2, 3, 5, 6, 7), dtype).to("mps").requires_grad_()

    def run():
        with testing.no_host_copies():
            F.adaptive_max_pool3d(x, (2, 4, 3)).sum().backward()

    assert served_by_us(run) == []


def test_half_precision_gradients_are_summed_in_float():
    x = torch.ones(1, 1, 1, 2).half()
    y, indices = aten.adaptive_max_pool3d(x, (1, 1, 4095))
    grad = torch.ones_like(y)
    actual = aten.adaptive_max_pool3d_backward(grad.to("mps"), x.to("mps"), indices.to("mps"))
    pool = reference(lambda grad, x: aten.adaptive_max_pool3d_backward(grad, x, indices))
    assert_same(pool(grad, x), actual)


# ---- two dimensions, while the fix is on --------------------------------------------------------


@by_float
@pytest.mark.parametrize(
    ("input_size", "output_size"), [((5, 5), (3, 3)), ((2, 2), (4, 4)), ((7, 10), (1, 8)), ((4, 10), (8, 5))], ids=str
)  # fmt: skip
def test_two_dimensions(dtype, input_size, output_size):
    with metalops.enable_fixes("adaptive_max_pool"):
        for shape in ((2, 3, *input_size), (3, *input_size)):
            x = make(shape, dtype)
            check(lambda x: F.adaptive_max_pool2d(x, output_size), x, "adaptive_max_pool")
            assert_same(*both(lambda x: aten.adaptive_max_pool2d(x, output_size), x))


def test_two_dimensions_in_every_layout():
    with metalops.enable_fixes("adaptive_max_pool"):
        x = make((2, 3, 7, 6), torch.float32)
        channels_last = x.contiguous(memory_format=torch.channels_last)
        for y in (x, channels_last, make((2, 3, 7, 12), torch.float32)[..., ::2], x.mT):
            expected, actual = both(lambda x: aten.adaptive_max_pool2d(x, (3, 4)), y)
            assert_same(expected, actual, strides=True)
            grad = make(expected[0].shape, torch.float32, seed=3)
            assert_same(*both(aten.adaptive_max_pool2d_backward, grad, y, expected[1]))


def test_two_dimensions_into_out():
    x = make((2, 3, 5, 6), torch.float32).to("mps")
    with metalops.enable_fixes("adaptive_max_pool"):
        output, indices = aten.adaptive_max_pool2d(x, (2, 4))
        for out, where in zip(outs(output), outs(indices), strict=True):
            result = aten.adaptive_max_pool2d(x, (2, 4), out=out, indices=where)
            assert result[0] is out and result[1] is where
            assert torch.equal(out, output) and torch.equal(where, indices)
        with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
            aten.adaptive_max_pool2d(x, (2, 4), out=output.half(), indices=indices)
        with pytest.raises(
            NotImplementedError, match="\"adaptive_max_pool2d\" not implemented for 'Int'"
        ):
            aten.adaptive_max_pool2d(x.int(), (2, 4))
