"""Least squares by each of LAPACK's drivers: csrc/ops/linalg/lstsq.mm."""

import itertools

import pytest
import torch

from ..aten import assert_refused_as_on_the_cpu, only_ours, served_by_us
from ..benchmark import Benchmark
from .hard_matrices import HARD
from .linear_algebra import EPSILON, dtypes, hard, norm, squares_of, wide

pytestmark = only_ours("aten::linalg_lstsq.out")

OPINFOS = ("linalg.lstsq",)

lstsq = torch.linalg.lstsq
DRIVERS = ("gels", "gelsy", "gelsd", "gelss")
drivers = pytest.mark.parametrize("driver", DRIVERS)
SHAPES = ((7, 7), (20, 6), (6, 20), (70, 3), (3, 70), (1, 9), (9, 1), (65, 65), (90, 80))
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def _solve(x, out):
    a = squares_of(x)
    return lstsq(a, a[..., :1])[0]


BENCHMARKS = (Benchmark.same("lstsq", _solve, only_dtype="float32"),)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def assert_least_squares(a, b, x):
    """A^H (b - A x) vanishes."""
    a, b, x = wide(a), wide(b), wide(x)
    size = norm(a)
    error = norm(a.mH @ (b - a @ x))
    scale = EPSILON * max(a.shape[-2:]) * norm(a.mH) * (size * norm(x) + norm(b))
    assert torch.all(error <= 10 * scale), (error / scale).max()


@pytest.mark.sampled(4)
@dtypes
@drivers
@shapes
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_solutions_of_least_norm(dtype, driver, shape, batch):
    a = torch.randn(*batch, *shape, dtype=dtype)
    b = torch.randn(*batch, shape[0], 4, dtype=dtype)
    found = lstsq(a.to("mps"), b.to("mps"), driver=driver)
    assert_least_squares(a, b, found.solution)
    exact = torch.linalg.pinv(wide(a)) @ wide(b)
    condition = torch.linalg.cond(wide(a)).max()
    error = norm(wide(found.solution) - exact) / norm(exact)
    assert torch.all(error <= 30 * EPSILON * condition)
    if driver != "gels":
        assert found.rank.tolist() == torch.full(batch, min(shape)).tolist()
    if driver in ("gelsd", "gelss"):
        values = torch.linalg.svdvals(wide(a))
        assert torch.all(
            (wide(found.singular_values) - values).abs() <= 40 * EPSILON * values.max()
        )
    if shape[0] > shape[1] and driver != "gelsy":
        residuals = (wide(b) - wide(a) @ exact).abs().square().sum(-2)
        assert torch.allclose(wide(found.residuals), residuals, rtol=1e-4)
    else:
        assert found.residuals.shape == (0,)


def of_rank(rank, shape, dtype):
    return torch.randn(*shape[:-1], rank, dtype=dtype) @ torch.randn(rank, shape[-1], dtype=dtype)


@pytest.mark.sampled(2)
@pytest.mark.full
@dtypes
@pytest.mark.parametrize("driver", DRIVERS[1:])
@pytest.mark.parametrize("shape", [(9, 9), (30, 8), (8, 30), (66, 66)], ids=str)
def test_deficient_ranks(dtype, driver, shape):
    whole = torch.randn(*shape, dtype=dtype)
    a = torch.stack(
        [whole, of_rank(3, shape, dtype), torch.zeros_like(whole), of_rank(1, shape, dtype)]
    )
    b = torch.randn(4, shape[0], 2, dtype=dtype)
    x, residuals, rank, _ = lstsq(a.to("mps"), b.to("mps"), rcond=1e-5, driver=driver)
    assert rank.tolist() == [min(shape), 3, 0, 1]
    assert residuals.shape == (0,)
    exact = torch.linalg.pinv(wide(a), rtol=1e-5) @ wide(b)
    assert torch.allclose(wide(x), exact, rtol=1e-3, atol=1e-3 * exact.abs().max())
    alone = lstsq(a[:1].to("mps"), b[:1].to("mps"), rcond=1e-5, driver=driver)[0]
    assert torch.equal(alone[0], x[0])


@pytest.mark.full
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.complex64, marks=pytest.mark.nightly)], ids=str
)
@pytest.mark.parametrize("name", HARD)
def test_hard_matrices(name, dtype):
    square = hard(name, 24, dtype)
    for a, driver in itertools.product((square, square[:, :9], square[:9]), DRIVERS[1:3]):
        largest = a.abs().nan_to_num().amax()
        b = torch.full((len(a), 1), 1.0, dtype=dtype) * largest
        found = lstsq(a.to("mps"), b.to("mps"), driver=driver)
        if torch.isfinite(a.abs()).all():
            assert_least_squares(a, b, found.solution)
        else:
            assert found.solution.isnan().all() and found.rank == 0


CASES = (
    ((5, 3), (5, 2)),
    ((3, 5), (3, 2)),
    ((4, 4), (4, 1)),
    ((5, 3), (5,)),
    ((4, 5, 3), (4, 5)),
    ((2, 4, 5, 3), (2, 4, 5, 2)),
    ((1, 5, 3), (4, 5, 2)),
    ((4, 3, 5), (1, 3, 2)),
    ((2, 1, 5, 3), (1, 4, 5, 2)),
    ((0, 3), (0, 2)),
    ((3, 0), (3, 2)),
    ((0, 3, 2), (0, 3, 1)),
    ((2, 0, 3), (2, 0, 3)),
)


@drivers
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_sizes_and_strides_are_those_of_the_cpu(driver, sizes):
    a, b = (torch.randn(size) for size in sizes)
    expected = lstsq(a, b, driver=driver)
    found = lstsq(a.to("mps"), b.to("mps"), driver=driver)
    for name in ("solution", "residuals", "rank", "singular_values"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (name, one.shape, one.dtype) == (name, other.shape, other.dtype)
        assert one.stride() == other.stride()
        if (driver, sizes[0], name) == ("gels", (3, 0), "residuals"):
            other = b.square().sum(
                -2
            )  # LAPACK leaves zeros where the solution is nothing but zeros
        assert torch.allclose(one.cpu(), other, rtol=1e-3, atol=1e-4)


@drivers
def test_no_right_hand_sides_and_matrices_of_zeros(driver):
    x, _, _, _ = lstsq(torch.randn(3, 2).to("mps"), torch.randn(3, 0).to("mps"), driver=driver)
    assert x.shape == (2, 0)
    b = torch.tensor([[3.0], [4.0], [0.0]])
    x, residuals, rank, values = lstsq(torch.zeros(3, 2, device="mps"), b.to("mps"), driver=driver)
    assert x.tolist() == [[0], [0]]
    if driver == "gels":
        assert residuals.tolist() == [25]
    else:
        assert rank == 0
    if driver in ("gelsd", "gelss"):
        assert values.tolist() == [0, 0]


@dtypes
@drivers
def test_what_is_not_finite_spoils_its_own_matrix_only(dtype, driver):
    a, b = torch.randn(3, 6, 4, dtype=dtype), torch.randn(3, 6, 2, dtype=dtype)
    good = lstsq(a[::2].to("mps"), b[::2].to("mps"), driver=driver)
    for value in (float("nan"), float("inf")):
        a[1, 2, 3] = value
        found = lstsq(a.to("mps"), b.to("mps"), driver=driver)
        assert found.solution[1].isnan().any()
        assert torch.equal(found.solution[::2], good.solution)
        if driver != "gels":
            assert found.rank.tolist() == [4, 0, 4]


def test_a_zero_on_the_diagonal_is_an_error_for_gels_only():
    a = torch.tensor([[[1.0, 2], [0, 1], [0, 0]], [[1, 5], [0, 0], [0, 0]]], device="mps")
    b = torch.ones(2, 3, 1, device="mps")
    message = r"lstsq: \(Batch element 1\): .* does not have full rank \(error code: 2\)"
    with pytest.raises(torch.linalg.LinAlgError, match=message):
        lstsq(a, b, driver="gels")
    assert lstsq(a, b).rank.tolist() == [2, 1]


@drivers
def test_views_and_out(driver):
    a, b = torch.randn(2, 6, 4, dtype=torch.complex64), torch.randn(2, 6, 3, dtype=torch.complex64)
    pairs = ((a.mH.to("mps").mH, b.conj().to("mps").conj()), (a.mT.contiguous().to("mps").mT, b.mT.contiguous().to("mps").mT))  # fmt: skip
    expected = lstsq(a.to("mps"), b.to("mps"), driver=driver)
    for pair in pairs:
        assert torch.allclose(lstsq(*pair, driver=driver)[0], expected[0], rtol=1e-4, atol=1e-5)
    outs = [
        torch.empty(2, 3, 4, dtype=torch.complex64, device="mps").mT,
        torch.empty(0, device="mps"),
        torch.empty(0, dtype=torch.int64, device="mps"),
        torch.empty(0, device="mps"),
    ]
    places = [outs[0].data_ptr(), outs[0].stride()]
    found = lstsq(a.to("mps"), b.to("mps"), driver=driver, out=tuple(outs))
    assert all(one is other for one, other in zip(found, outs))
    assert [outs[0].data_ptr(), outs[0].stride()] == places
    for one, other in zip(found, expected):
        assert torch.equal(one, other)


def test_refusals():
    x = torch.rand
    empty = torch.empty
    assert_refused_as_on_the_cpu(
        (
            lambda to: lstsq(to(x(5)), to(x(5))),
            lambda to: lstsq(to(x(5, 3)), to(torch.tensor(1.0))),
            lambda to: lstsq(to(x(5, 3)), to(x(4, 2))),
            lambda to: lstsq(to(x(5, 3)), to(x(4))),
            lambda to: lstsq(to(x(5, 3)), to(x(2, 5, 2))),
            lambda to: lstsq(to(x(2, 5, 3)), to(x(5))),
            lambda to: lstsq(to(x(2, 5, 3)), to(x(3, 5, 2))),
            lambda to: lstsq(to(x(5, 3)), to(x(5, 2) + 0j)),
            lambda to: lstsq(to(x(5, 3)), to(x(5, 2)), driver="gesv"),
            lambda to: lstsq(to(x(5, 3) + 0j), to(x(5, 2) + 0j), out=(*(to(empty(0)) for _ in range(2)), to(empty(0).long()), to(empty(0)))),
            lambda to: lstsq(to(x(5, 3)), to(x(5, 2)), out=(*(to(empty(0)) for _ in range(2)), to(empty(0).long()), to(empty(0).int()))),
        ),
        RuntimeError,
    )  # fmt: skip
    for dtype in (torch.float16, torch.int32):
        with pytest.raises(NotImplementedError, match="linalg_lstsq_mps"):
            lstsq(
                torch.ones(3, 2, dtype=dtype, device="mps"),
                torch.ones(3, 1, dtype=dtype, device="mps"),
            )


@dtypes
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 5, 5)], ids=str)
def test_gradients(dtype, shape):
    a, b = torch.randn(*shape, dtype=dtype), torch.randn(*shape[:-1], 2, dtype=dtype)
    weights = torch.randn(*shape[:-2], shape[-1], 2, dtype=dtype)

    def gradients(a, b, weights):
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        (lstsq(a, b).solution * weights).sum().abs().backward()
        return a.grad, b.grad

    exact = gradients(wide(a), wide(b), wide(weights))
    found = gradients(a.to("mps"), b.to("mps"), weights.to("mps"))
    for one, other in zip(found, exact):
        assert torch.allclose(wide(one), other, rtol=1e-3, atol=1e-3 * other.abs().max())


def test_no_stand_in_serves():
    a, b = torch.randn(2, 9, 5, device="mps"), torch.randn(2, 9, 3, device="mps")
    a[1, :, 1] = a[1, :, 0]
    for driver in DRIVERS[1:]:
        assert served_by_us(lambda driver=driver: lstsq(a, b, driver=driver)) == []
