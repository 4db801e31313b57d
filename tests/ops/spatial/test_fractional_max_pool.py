"""fractional_max_pool2d and fractional_max_pool3d: kernels/spatial/fractional_max_pool.metal."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from metalops import testing
from metalops.testing.samples import FLOATS, make, to_device
from torch.ops import aten

from ..aten import assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import WINDOWS, Benchmark, images
from .helpers import assert_same, both, check, layouts, outs

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
# Input, windows, output: windows apart, side by side, that overlap, of the whole input, of one element.
CASES = [
    ((9, 10), (2, 3), (3, 2)),
    ((11, 10), (2, 2), (5, 4)),
    ((13, 12), (3, 3), (9, 4)),
    ((9, 10), (3, 5), (7, 6)),
    ((5, 6), (5, 6), (1, 1)),
    ((4, 70), (1, 1), (4, 33)),
    ((30, 3), (20, 1), (11, 3)),
    ((6, 7, 8), (2, 3, 2), (2, 3, 4)),
    ((9, 5, 12), (1, 3, 6), (7, 2, 5)),
    ((6, 7, 70), (5, 1, 2), (1, 5, 34)),
]
SHAPES = [(2, 3, 6, 7, 8), (3, 6, 7, 8), (2, 1, 6, 7, 8), (2, 3, 7, 8), (3, 7, 8), (1, 1, 7, 8)]


# In torch's op_db.
OPINFOS = (
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
)


@functools.lru_cache(maxsize=4)
def _random_samples(planes, dimensions, dtype, device):
    return torch.rand(1, planes, dimensions).to(device, dtype)


def _pool_images(function, x, dimensions):
    x = images(x, dimensions)
    samples = _random_samples(x.shape[1], dimensions, x.dtype, x.device)
    size = max(1, x.shape[-1] * 3 // 7)
    return function(x, min(2, x.shape[-1] - size), size, _random_samples=samples)


BENCHMARKS = (
    *Benchmark.with_gradient(
        "fractional_max_pool2d",
        lambda x: _pool_images(F.fractional_max_pool2d, x, 2),
        reason=WINDOWS,
    ),
    *Benchmark.with_gradient(
        "fractional_max_pool3d",
        lambda x: _pool_images(F.fractional_max_pool3d, x, 3),
        reason=WINDOWS,
    ),
)


def _operator(dimensions):
    return getattr(aten, f"fractional_max_pool{dimensions}d")


def _backward(dimensions):
    return getattr(aten, f"fractional_max_pool{dimensions}d_backward")


def _samples(shape, dimensions, dtype=torch.float32, seed=0):
    """Never where a window's place is an integer that rounding could miss."""
    batch = () if len(shape) == dimensions + 2 else (1,)
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(32, (*batch, *shape[:-dimensions], dimensions), generator=generator)
    return (numbers / 32 + 1 / 64).to(dtype)


def _pool(window, size, samples):
    return lambda x: _operator(len(size))(x, window, size, samples.to(x.device, x.dtype))


def _first(function):
    return lambda *arguments: function(*arguments)[0]


# ---- values, indices and gradients ---------------------------------------------------------------


@by_float
@pytest.mark.parametrize(("input_size", "window", "size"), CASES, ids=str)
def test_values_indices_and_gradients(dtype, input_size, window, size):
    for shape in ((2, 3, *input_size), (3, *input_size)):
        x = make(shape, dtype)
        pool = _pool(window, size, _samples(shape, len(size)))
        check(_first(pool), x, "fractional_max_pool")
        expected = pool(x.float())  # the CPU misplaces windows of half precision
        assert_same((expected[0].to(dtype), expected[1]), pool(x.to("mps")))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_and_the_strides_of_results(shape):
    size = (2, 3, 4) if shape[-3:] == (6, 7, 8) else (3, 4)
    window = (2, 3, 2)[3 - len(size) :]
    pool = _pool(window, size, _samples(shape, len(size)))
    for x in layouts(*shape):
        expected, actual = both(pool, x)
        assert_same(expected, actual, strides=True)
        indices = expected[1]
        turned = indices.permute(*reversed(range(len(shape)))).contiguous()
        turned = to_device(turned, "mps").permute(*reversed(range(len(shape))))
        for grad in layouts(*expected[0].shape):
            expected_grad = _backward(len(size))(grad, x, window, size, indices)
            for on_device in (indices.to("mps"), turned):
                arguments = to_device((grad, x), "mps")
                actual_grad = _backward(len(size))(*arguments, window, size, on_device)
                assert_same(expected_grad, actual_grad, strides=True)


@pytest.mark.parametrize("low", [-9, 0, 1])
@pytest.mark.parametrize("dimensions", [2, 3])
def test_windows_are_where_torch_places_them(low, dimensions):
    """Also for samples that are not between 0 and 1 as long as they leave the windows in place."""
    size, window = (19, 30, 7)[:dimensions], (3, 1, 2)[:dimensions]
    x = make((2, 4, 40, 37, 11)[: 2 + dimensions], torch.float32)
    for seed in range(4):
        samples = make((3, 4, dimensions), torch.float32, low=low, high=low + 1, seed=seed)
        pool = _pool(window, size, samples)  # of three images, though there are two
        expected, actual = both(pool, x)
        assert_same(expected, actual)
        grad = make(expected[0].shape, torch.float32)
        gradients = both(_backward(dimensions), grad, x, window, size, expected[1])
        torch.testing.assert_close(gradients[1].cpu(), gradients[0])
    torch.mps.synchronize()


def test_samples_with_strides():
    samples = make((2, 6, 3), torch.float32, low=0, high=1).transpose(1, 2)[:, :, ::3]
    x = make((2, 3, 9, 10), torch.float32)
    assert_same(*both(aten.fractional_max_pool2d, x, (2, 3), (4, 4), samples))


@pytest.mark.full
@pytest.mark.parametrize("length", [5_000, 70_000, 3_000_001])
def test_long_rows(length):
    for size in (length // 2, length // 3, length - 1, 7):
        x = make((1, 1, length), torch.float32)
        samples = torch.tensor([[[0.71875, 0.5]]])
        expected, actual = both(_pool((1, 2), (1, size), samples), x)
        assert_same(expected, actual)
        grad = torch.ones_like(expected[0])
        assert_same(
            *both(aten.fractional_max_pool2d_backward, grad, x, (1, 2), (1, size), expected[1])
        )
    torch.mps.synchronize()


def test_equal_elements_infinities_and_nan():
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([0.0, 1.0, 1.0, math.inf, -math.inf, math.nan, -0.0])
    for choice in ([0, 6], [4], [1, 2, 4], [3, 4, 1], [5, 1, 3], [5, 0, 1, 2, 3, 4, 6]):
        x = values[choice][torch.randint(len(choice), (2, 3, 9, 8), generator=generator)]
        pool = _pool((3, 2), (4, 6), _samples(x.shape, 2))
        expected, actual = both(pool, x)
        assert_same(expected, actual)
        grad = make(expected[0].shape, torch.float32)
        arguments = grad, x, (3, 2), (4, 6), expected[1]
        gradients = both(aten.fractional_max_pool2d_backward, *arguments)
        torch.testing.assert_close(gradients[1].cpu(), gradients[0])


@pytest.mark.parametrize("dimensions", [2, 3])
def test_derivatives_of_gradients_and_tangents(dimensions):
    shape = (2, 3, 7, 8, 9)[: 2 + dimensions]
    x, tangent = make(shape, torch.float32), make(shape, torch.float32, seed=1)
    samples = _samples(shape, dimensions)
    pool = _first(_pool((2, 3, 2)[:dimensions], (4, 4, 3)[:dimensions], samples))

    def second(x, tangent):
        x = x.detach().requires_grad_()
        grad = torch.autograd.grad((pool(x) ** 3).sum(), x, create_graph=True)[0]
        return torch.autograd.grad((grad * tangent).sum(), x)[0]

    expected, actual = both(second, x, tangent)
    torch.testing.assert_close(actual.cpu(), expected)
    assert_same(*both(lambda x, t: torch.func.jvp(pool, (x,), (t,))[1], x, tangent))


def test_modules_make_their_own_samples():
    torch.manual_seed(0)
    x = make((2, 3, 12, 14), torch.float32)
    for module, inputs in (
        (torch.nn.FractionalMaxPool2d(3, output_ratio=0.5, return_indices=True), x),
        (
            torch.nn.FractionalMaxPool3d(2, output_size=3, return_indices=True),
            x.unsqueeze(2).expand(2, 3, 5, 12, 14),
        ),
    ):
        y, indices = module(inputs.to("mps"))
        flat = inputs.flatten(2).gather(2, indices.cpu().flatten(2))
        assert torch.equal(flat.view(y.shape), y.cpu())


# ---- sizes of zero, out=, errors -----------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [2, 3])
def test_empty_batches_and_outputs(dimensions):
    size = (2, 3, 4)[:dimensions]
    x = torch.empty((0, 3, 9, 9, 9)[: 2 + dimensions], device="mps", requires_grad=True)
    y, _ = _pool(size, size, torch.rand(0, 3, dimensions))(x)
    assert y.shape == (0, 3, *size)
    y.sum().backward()
    assert x.grad.shape == x.shape
    x = torch.rand((2, 3, 9, 9, 9)[: 2 + dimensions], device="mps")
    empty = (0, *size[1:])
    results = _pool(size, empty, torch.rand(2, 3, dimensions))(x)
    assert [y.shape for y in results] == [(2, 3, *empty)] * 2
    grad = _backward(dimensions)(results[0], x, size, empty, results[1])
    assert grad.shape == x.shape and not grad.cpu().any()


@by_float
@pytest.mark.parametrize("dimensions", [2, 3])
def test_out_overloads(dtype, dimensions):
    x = make((2, 3, 7, 8, 9)[: 2 + dimensions], dtype).to("mps")
    size, window = (2, 3, 4)[:dimensions], (3, 2, 3)[:dimensions]
    samples = _samples(x.shape, dimensions, dtype).to("mps")
    arguments = x, window, size, samples
    output, indices = _operator(dimensions)(*arguments)
    for out, where in zip(outs(output), outs(indices), strict=True):
        strides = out.stride(), where.stride()
        result = _operator(dimensions)(*arguments, output=out, indices=where)
        assert result[0] is out and result[1] is where
        assert torch.equal(out, output) and torch.equal(where, indices)
        assert strides in ((out.stride(), where.stride()), ((1,), (1,)))
    arguments = output, x, window, size, indices
    expected = _backward(dimensions)(*arguments)
    for out in outs(expected):
        assert _backward(dimensions)(*arguments, grad_input=out) is out
        assert torch.equal(out, expected)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_arguments_that_the_cpu_refuses(dimensions):
    x = torch.rand((2, 3, 7, 8, 9)[: 2 + dimensions])
    size, window, too_large = (2, 3, 4)[:dimensions], (3, 2, 3)[:dimensions], (1, 8, 2)[:dimensions]
    samples = torch.rand(2, 3, dimensions)
    pool, backward = _operator(dimensions), _backward(dimensions)
    y, where = pool(x, window, size, samples)
    calls = [
        lambda to: pool(to(x), window[:1], size, to(samples)),
        lambda to: pool(to(x), window, size[:1], to(samples)),
        lambda to: pool(to(x), too_large, size, to(samples)),
        lambda to: pool(to(x), window, (-1, *size[1:]), to(samples)),
        lambda to: pool(to(x[0, 0]), window, size, to(samples)),
        lambda to: pool(to(x[..., :0]), window, size, to(samples)),
        lambda to: pool(to(x[:, :0]), window, size, to(samples[:, :0])),
        lambda to: pool(to(x.int()), window, size, to(samples.int())),
        lambda to: pool(to(x), window, size, to(samples.half())),
        lambda to: pool(to(x), window, size, to(samples[0])),
        lambda to: pool(to(x), window, size, to(samples[:1])),
        lambda to: pool(to(x), window, size, to(samples[:, :1])),
        lambda to: pool(to(x), window, size, to(samples[:, :, :1])),
        lambda to: pool(
            to(x), window, size, to(samples), output=to(y.half()), indices=to(where.clone())
        ),
        lambda to: pool(
            to(x), window, size, to(samples), output=to(y.clone()), indices=to(where.int())
        ),
        lambda to: backward(to(y[..., :1]), to(x), window, size, to(where)),
        lambda to: backward(to(y[0]), to(x), window, size, to(where)),
        lambda to: backward(to(y), to(x[0]), window, size, to(where)),
        lambda to: backward(to(y.half()), to(x), window, size, to(where)),
        lambda to: backward(to(y), to(x), window, size, to(where.int())),
        lambda to: backward(to(y), to(x), window, size, to(where), grad_input=to(x.half())),
    ]
    assert_refused_as_on_the_cpu(calls, RuntimeError, NotImplementedError)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_arguments_with_which_the_cpu_reads_or_writes_what_it_should_not(dimensions):
    x = torch.rand((2, 3, 7, 8, 9)[: 2 + dimensions], device="mps")
    size, window = (2, 3, 4)[:dimensions], (3, 2, 3)[:dimensions]
    samples = torch.rand(2, 3, dimensions, device="mps")
    pool, backward = _operator(dimensions), _backward(dimensions)
    y, where = pool(x, window, size, samples)
    for wrong in (0, -1):
        # torch 2.15 checks it itself.
        texts = "expected a kernel_size of at least 1|kernel size should be greater than zero"
        with pytest.raises(RuntimeError, match=texts):
            pool(x, (wrong, *window[1:]), size, samples)
    with pytest.raises(RuntimeError, match="kernel_size must have"):
        backward(y, x, window[:1], size, where)
    with pytest.raises(RuntimeError, match="are too large for an input"):
        backward(y, x, (7, *window[1:]), size, where)
    with pytest.raises(RuntimeError, match="indices sizes unexpected"):
        backward(y, x, window, size, where[:1])
    unexpected = "gradOutput sizes unexpected" if dimensions == 2 else "have the batch size and the"
    with pytest.raises(RuntimeError, match=unexpected):
        backward(y[:, :2], x, window, size, where[:, :2])
    with pytest.raises(RuntimeError, match="gradOutput (sizes|time) unexpected"):
        backward(y, x, window, size[:1], where)
    with pytest.raises(RuntimeError, match="single memory location"):
        pool(x, window, size, samples, output=y, indices=where[:1].expand(where.shape))
    with pytest.raises(RuntimeError, match="same device"):
        pool(x, window, size, samples.cpu())


@pytest.mark.parametrize(
    ("input_size", "size"), [((600, 30), (200, 10)), ((5, 600, 6), (2, 200, 3))], ids=str
)
def test_samples_that_place_windows_outside_are_reported(input_size, size):
    """Next to 1.1e8 float knows every eighth number, so that windows are too far from each other."""
    x, window = make((1, 2, *input_size), torch.float32).to("mps"), (2, 2, 2)[: len(size)]
    samples = torch.full((1, 2, len(size)), 0.5)
    good, _ = _pool(window, size, samples)(x)
    torch.mps.synchronize()
    samples[0, 1, 1] = 1.1e8
    message = rf"fractional_max_pool{len(size)}d\(\): a random sample is not between 0 and 1"
    y, indices = _pool(window, size, samples)(x)
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert torch.equal(y[0, 0].cpu(), good[0, 0].cpu())
    assert torch.equal(
        y[0, 1].cpu().flatten(), x[0, 1].cpu().flatten()[indices[0, 1].cpu().flatten()]
    )


@pytest.mark.parametrize("sample", [math.nan, math.inf, -math.inf, 1e30])
def test_samples_without_a_place_stay_inside(sample):
    x = make((1, 2, 9, 10), torch.float32).to("mps")
    y, indices = _pool((2, 3), (4, 5), torch.full((1, 2, 2), sample))(x)
    torch.mps.synchronize()
    assert torch.equal(y.cpu().flatten(2), x.cpu().flatten(2).gather(2, indices.cpu().flatten(2)))


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize(
    ("place", "index"), [(0, -1), (0, -(2**40)), (0, 2**40), (0, "count"), (0, "last"), (-1, 0)]
)
def test_indices_that_no_window_has_are_reported(place, index, dimensions):
    x = torch.zeros((2, 3, 12, 13, 14)[: 2 + dimensions], device="mps")
    size, window = (3, 3, 3)[:dimensions], (2, 2, 2)[:dimensions]
    y, where = _pool(window, size, torch.full((2, 3, dimensions), 0.5))(x)
    count = x[0, 0].numel()
    where[1, 2].view(-1)[place] = {"count": count, "last": count - 1}.get(index, index)
    grad = _backward(dimensions)(torch.ones_like(y), x, window, size, where)
    message = rf"fractional_max_pool{dimensions}d_backward\(\): found an invalid max index"
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert grad.cpu().sum() == y.numel() - 1


@by_float
@pytest.mark.parametrize("dimensions", [2, 3])
def test_no_host_copy_and_no_stand_in(dtype, dimensions):
    x = make((2, 3, 7, 8, 9)[: 2 + dimensions], dtype).to("mps").requires_grad_()
    samples = torch.rand(2, 3, dimensions).to("mps", dtype)
    function = getattr(F, f"fractional_max_pool{dimensions}d")

    def run():
        with testing.no_host_copies():
            function(x, 2, output_size=3, _random_samples=samples).sum().backward()

    assert served_by_us(run) == []
