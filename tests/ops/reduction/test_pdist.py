"""pdist: kernels/reduction/pdist.metal."""

import math

import pytest
import torch
from metalops import testing
from metalops.testing.samples import make
from torch.ops import aten

from ..aten import assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import Benchmark

by_norm = pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 7.5, math.inf])
# Columns around the four and eight that a thread takes at once, and around the threads of a group, one for each.
SHAPES = [(2, 1), (3, 2), (5, 3), (4, 4), (6, 7), (7, 8), (5, 13), (33, 40), (1, 3), (4, 0)]
SHAPES += [(3, 16), (4, 17), (33, 32), (38, 33), (2, 64), (3, 256), (6, 257)]


# In torch's op_db.
OPINFOS = ("nn.functional.pdist",)


def _points(x):
    """As many points of up to 16 coordinates as have about as many distances as x has elements."""
    points = max(2, math.isqrt(2 * x.numel()))
    columns = min(16, x.numel() // points)
    return x.reshape(-1)[: points * columns].view(points, columns)


BENCHMARKS = Benchmark.with_gradient(
    "pdist",
    lambda x: torch.pdist(_points(x)),
    low=-6,
    high=-2,
    only_dtype="float32",
    gradient_reason="each coordinate sums over all other points, in parallel and without atomics, so each pair is "
    "computed twice",
)


def _distances(p):
    return lambda x: torch.pdist(x, p)


def _check(x, p):
    case = testing.Case(f"{tuple(x.shape)} {x.stride()}", (x,))
    testing.check_forward(_distances(p), _distances(p), case, "mps", name="pdist")
    testing.check_gradient(_distances(p), _distances(p), case, "mps", name="pdist")


@pytest.mark.sampled(2)
@by_norm
def test_distances_and_gradients(p):
    for shape in SHAPES:
        _check(make(shape, torch.float32), p)


@by_norm
def test_inputs_of_every_layout(p):
    for x in (
        make((6, 9), torch.float32).t(),
        make((9, 12), torch.float32)[1:, 1::2],
        make((1, 6), torch.float32).expand(5, 6),  # distances of zero
        make((5, 1), torch.float32).expand(5, 6),
        make((31,), torch.float32)[1:].view(6, 5),
    ):
        _check(x, p)


@by_norm
def test_no_points_have_no_distances(p):
    """torch's CPU operator crashes in the backward direction."""
    x = torch.empty(0, 3, device="mps", requires_grad=True)
    torch.pdist(x, p).sum().backward()
    assert x.grad.shape == (0, 3)


@by_norm
def test_equal_points_have_a_gradient_of_zero(p):
    for columns in (5, 40):
        x = torch.ones(3, columns, device="mps", requires_grad=True)
        torch.pdist(x, p).sum().backward()
        assert (x.grad == 0).all()


@by_norm
def test_equal_coordinates(p):
    for columns in (10, 40):
        x = make((6, columns), torch.float32)
        x[:, ::3] = 1
        _check(x, p)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
def test_gradients_at_infinities_and_nan_do_not_depend_on_the_number_of_columns(p):
    x = make((7, 4), torch.float32)
    x[1, 1], x[2, 2], x[3, 2], x[4, 3] = math.nan, math.inf, -math.inf, math.inf
    wide = torch.cat([x, x.new_zeros(7, 30)], 1)
    for points in (x, wide):
        points = points.to("mps").requires_grad_()
        torch.pdist(points, p).sum().backward()
        if points.shape == x.shape:
            expected = points.grad
    assert expected.isnan().any()
    torch.testing.assert_close(points.grad[:, :4], expected, equal_nan=True)


@by_norm
def test_infinities_and_nan(p):
    x = torch.tensor([[1.0, math.nan, 2], [0, 1, 2], [math.inf, 0, 2], [-math.inf, 0, -0.0]])
    torch.testing.assert_close(torch.pdist(x.to("mps"), p).cpu(), torch.pdist(x, p), equal_nan=True)


@pytest.mark.parametrize("points", [2, 3, 4, 257, 3001])
def test_every_pair_is_in_its_place(points):
    x = torch.arange(points).float().unsqueeze(1)
    i, j = torch.triu_indices(points, points, 1)
    assert torch.equal(torch.pdist(x.to("mps"), 1.0).cpu(), (j - i).float())


@by_norm
def test_gradients_that_are_not_contiguous(p):
    x = make((9, 5), torch.float32)
    distances = torch.pdist(x, p)
    wide = make((72, 2), torch.float32)
    for grad in (wide[::2, 1], wide[0, 0].expand(36)):
        on_device = [t.to("mps") for t in (wide, x, distances)]
        strided = on_device[0][::2, 1] if grad.stride(0) else on_device[0][0, 0].expand(36)
        actual = aten._pdist_backward(strided, on_device[1], p, on_device[2])
        expected = aten._pdist_backward(grad.double(), x.double(), p, torch.pdist(x.double(), p))
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-4, atol=1e-4)


def test_gradients_of_general_norms_do_not_overflow():
    x = (1e20 * make((5, 3), torch.float32)).requires_grad_()
    # The distance itself is beyond float32 for p = 3 on any device: it is given.
    distances = torch.pdist(x.detach().double(), 3.0)
    expected = aten._pdist_backward(torch.ones(10).double(), x.detach().double(), 3.0, distances)
    actual = aten._pdist_backward(
        torch.ones(10, device="mps"), x.detach().to("mps"), 3.0, distances.float().to("mps")
    )
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-5, atol=1e-6)


def test_arguments_that_the_cpu_refuses():
    x = torch.rand(3, 4)
    calls = [
        lambda to: torch.pdist(to(x[0])),
        lambda to: torch.pdist(to(x), -1.0),
        lambda to: torch.pdist(to(x), math.nan),
        lambda to: torch.pdist(to(x.int())),
        lambda to: torch.pdist(to(x.half())),
        lambda to: aten._pdist_forward(to(x.t()), 2.0),
        lambda to: aten._pdist_backward(to(x[0, :3]), to(x.t()), 2.0, to(x[0, :3])),
        lambda to: aten._pdist_backward(to(x[0, :3]), to(x), 2.0, to(x[:, 0])),
    ]
    assert_refused_as_on_the_cpu(calls, RuntimeError)
    with pytest.raises(RuntimeError, match="one element for each of 3 pairs"):
        y = x.to("mps")
        aten._pdist_backward(y[0], y, 2.0, y[0])


@by_norm
def test_no_host_copy_and_no_stand_in(p):
    x = make((5, 6), torch.float32).to("mps").requires_grad_()

    def run():
        with testing.no_host_copies():
            torch.pdist(x, p).sum().backward()

    assert served_by_us(run) == []
