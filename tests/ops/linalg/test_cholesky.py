"""Cholesky factorisation and what is solved with it: kernels/linalg/cholesky.metal."""

import math

import pytest
import torch

from ..aten import assert_refused_as_on_the_cpu, only_ours, served_by_us
from ..benchmark import Benchmark
from .linear_algebra import EPSILON, dtypes, norm, squares_of, wide
from .operators import MatrixOperator, positive

OPINFOS = (
    "linalg.cholesky",
    "linalg.cholesky_ex",
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
)

cholesky_ex = torch.linalg.cholesky_ex


def _squares(x, out):
    a = squares_of(x)
    n = a.shape[-1]
    a = a / n
    return cholesky_ex(a @ a.mT + torch.eye(n, device=a.device))[0]


BENCHMARKS = (Benchmark.same("cholesky", _squares, only_dtype="float32"),)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def assert_factor(a, factor, upper):
    """|A - L L^H| in units of n eps |A|; the diagonal real, the other triangle zero."""
    c = wide(factor)
    assert torch.equal(c, c.triu() if upper else c.tril())
    if c.is_complex():
        assert not c.diagonal(dim1=-2, dim2=-1).imag.any()
    product = c.mH @ c if upper else c @ c.mH
    n = a.shape[-1]
    assert (norm(product - wide(a)) <= 3 * n * EPSILON * norm(wide(a))).all()


def check(a, factor, info, message):
    assert not info.any(), message
    assert_factor(a, factor, upper=False)


LINALG = (
    MatrixOperator("cholesky_ex", cholesky_ex, check, made=positive),
    MatrixOperator("cholesky_inverse", torch.cholesky_inverse, made=positive),
    MatrixOperator(
        "cholesky_solve", lambda x, **out: torch.cholesky_solve(x, x, **out), made=positive
    ),
)


@pytest.mark.usefixtures("taken_as_on")
@pytest.mark.sampled(4)
@pytest.mark.full
@dtypes
@pytest.mark.parametrize(
    "n", [1, 2, 3, 4, 5, 8, 9, 12, 13, 16, 17, 31, 32, 33, 64, 65, 129, 260, 513, 1025]
)
@pytest.mark.parametrize("upper", [False, True])
def test_sizes(dtype, n, upper):
    """One triangle is read, and of the diagonal the real part."""
    a = positive(3, n, n, dtype=dtype)
    other = torch.full((n, n), math.nan)
    given = a.triu() if upper else a.tril()
    given = torch.where((other.tril(-1) if upper else other.triu(1)).isnan(), math.nan, given)
    if dtype.is_complex:
        given = given + 3j * torch.eye(n)
    factor, info = cholesky_ex(given.to("mps"), upper=upper)
    assert not info.any()
    assert factor.stride() == cholesky_ex(a, upper=upper)[0].stride()
    assert_factor(a, factor, upper)


@pytest.mark.usefixtures("taken_as_on")
@dtypes
def test_graded_matrices(dtype):
    """Pivots far smaller than those before, which nothing may take for larger ones."""
    a = positive(40, 40, dtype=dtype, shift=1)
    grades = torch.logspace(0, -12, 40)
    factor, info = cholesky_ex((grades[:, None] * a * grades).to("mps"))
    assert info.item() == 0
    expected = grades[:, None] * cholesky_ex(wide(a))[0]
    error = (wide(factor) - expected).abs() / grades[:, None]
    assert error.max() <= 100 * EPSILON


@pytest.mark.usefixtures("taken_as_on")
@dtypes
@pytest.mark.parametrize(
    ("n", "order"),
    [
        *((3, 1), (4, 4), (5, 2), (8, 8), (9, 9), (13, 1), (13, 6), (16, 16)),
        *((70, order) for order in (1, 2, 8, 31, 32, 33, 40, 65, 70)),
    ],
)
def test_the_order_of_the_minor_that_is_not_positive(dtype, n, order):
    a = positive(3, n, n, dtype=dtype)
    for bad in (-1.0, 0.0, math.nan):
        spoilt = a.clone()
        spoilt[1, order - 1, :] = 0
        spoilt[1, :, order - 1] = 0
        spoilt[1, order - 1, order - 1] = bad
        factor, info = cholesky_ex(spoilt.to("mps"))
        assert info.tolist() == [0, order, 0]
        for i in (0, 2):
            assert torch.equal(factor[i], cholesky_ex(a[i].to("mps"))[0])


@dtypes
@pytest.mark.parametrize("n", [1, 4, 33, 100])
@pytest.mark.parametrize("upper", [False, True])
def test_solutions_and_inverses(dtype, n, upper):
    a = positive(3, n, n, dtype=dtype)
    factor = cholesky_ex(a.to("mps"), upper=upper)[0]
    b = torch.randn(2, 1, n, 5, dtype=dtype)
    x = torch.cholesky_solve(b.to("mps"), factor, upper=upper)
    assert x.stride() == torch.cholesky_solve(b, factor.cpu(), upper=upper).stride()
    residual = norm(wide(a) @ wide(x) - wide(b))
    assert (residual <= 10 * n * EPSILON * norm(wide(a)) * norm(wide(x))).all()
    inverse = torch.cholesky_inverse(factor, upper=upper)
    exact = torch.linalg.inv(wide(a))
    condition = norm(exact) * norm(wide(a))
    assert (norm(wide(inverse) - exact) <= 3 * n * EPSILON * condition * norm(exact)).all()


@only_ours("aten::cholesky")
@dtypes
@pytest.mark.parametrize("upper", [False, True])
def test_the_older_operator(dtype, upper):
    """torch 2.15 has it no longer."""
    a = positive(3, 6, 6, dtype=dtype).to("mps")
    factor = torch.cholesky(a, upper=upper)
    torch.testing.assert_close(factor, cholesky_ex(a, upper=upper)[0])
    wider = torch.empty(3, 6, 12, dtype=dtype, device="mps")[..., ::2]
    assert torch.equal(torch.cholesky(a, upper=upper, out=wider), factor)
    assert served_by_us(lambda: torch.cholesky(torch.eye(70, device="mps"))) == []
    bad = torch.diag(torch.tensor([1.0, -1, 1]))
    assert_refused_as_on_the_cpu(
        (
            lambda to: torch.cholesky(to(bad.expand(2, 3, 3))),
            lambda to: torch.cholesky(to(bad[0])),
        ),
        RuntimeError,
    )


@dtypes
def test_gradients(dtype):
    a = positive(2, 5, 5, dtype=dtype, shift=1)
    found = []
    for device in ("mps", "cpu"):
        x = a.to(device).requires_grad_()
        factor = torch.linalg.cholesky(x)
        torch.cholesky_solve(factor, factor).abs().square().sum().backward()
        found.append(x.grad.cpu())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3 * found[1].abs().max().item())


def test_arguments_are_refused_as_on_the_cpu():
    bad = torch.diag(torch.tensor([1.0, -1, 1]))
    assert_refused_as_on_the_cpu(
        (
            lambda to: torch.linalg.cholesky(to(bad)),
            lambda to: cholesky_ex(to(bad), check_errors=True),
            lambda to: torch.linalg.cholesky(to(bad[:2])),
            lambda to: torch.cholesky_inverse(to(bad[:2])),
            lambda to: torch.cholesky_solve(to(bad), to(bad[:2])),
        ),
        RuntimeError,
    )
    with pytest.raises(RuntimeError, match="Low precision dtypes not supported. Got Half"):
        torch.linalg.cholesky(bad.half().to("mps"))
