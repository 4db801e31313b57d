"""Solving with triangular matrices: kernels/linalg/triangular.metal."""

import pytest
import torch

from ..aten import assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import Benchmark
from .linear_algebra import EPSILON, dtypes, hard, norm, squares_of, wide
from .operators import MatrixOperator, diagonally_dominant

OPINFOS = ("linalg.solve_triangular", "triangular_solve")

solve_triangular = torch.linalg.solve_triangular

# Of triangles whose inverses do not overflow.
TAME = ("random", "Kahan", "Frank", "Grcar", "Hilbert", "identity", "Jordan block", "ones")


def _squares(x, out):
    a = squares_of(x)
    return solve_triangular(a, a, upper=True)


BENCHMARKS = (Benchmark.same("solve_triangular", _squares, only_dtype="float32"),)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def assert_solves(a, x, b, left=True):
    """The residual in units of n eps |A| |X|: what substitution guarantees, however ill A is."""
    product = wide(a) @ wide(x) if left else wide(x) @ wide(a)
    unit = a.shape[-1] * EPSILON * norm(wide(a).mT if left else wide(a))
    size = norm(wide(x)) if left else norm(wide(x).mT)
    residual = norm(product - wide(b)) if left else norm((product - wide(b)).mT)
    assert (residual <= 4 * unit * size + 1e-37).all()


def _operator(upper):
    def check(a, x, message):
        assert_solves(a.triu() if upper else a.tril(), x, a)

    return MatrixOperator(
        f"solve_triangular, {upper=}",
        lambda a, **out: solve_triangular(a, a, upper=upper, **out),
        check,
        made=diagonally_dominant,
        sizes=((3, 3), (6, 6), (20, 20), (70, 70)),
    )


LINALG = (_operator(False), _operator(True))


# On both sides of a pack of columns, a block of rows, and where halves are solved apart.
@dtypes
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 64, 65, 129, 260])
@pytest.mark.parametrize("upper", [False, True])
def test_sizes_sides_and_diagonals(dtype, n, upper):
    a = torch.randn(2, 1, n, n, dtype=dtype) / n + 2 * torch.eye(n)
    for columns in (1, 2, 3, 4, 5, 33):
        for left in (True, False):
            b = torch.randn(3, *((n, columns) if left else (columns, n)), dtype=dtype)
            for unit in (False, True):
                options = {"upper": upper, "left": left, "unitriangular": unit}
                found = solve_triangular(a.to("mps"), b.to("mps"), **options)
                triangle = a.triu() if upper else a.tril()
                if unit:
                    triangle = triangle - torch.diag_embed(triangle.diagonal(dim1=-2, dim2=-1))
                    triangle = triangle + torch.eye(n)
                assert found.shape == (2, 3, *b.shape[1:])
                assert found.stride() == solve_triangular(a, b, **options).stride()
                assert_solves(triangle, found, b, left)


@dtypes
@pytest.mark.parametrize("name", TAME)
def test_hard_matrices(dtype, name):
    for n in (5, 17, 65):
        a = hard(name, n, dtype)
        a = a.triu() + 1e-3 * (a.diagonal() == 0).to(dtype).diag()
        b = torch.randn(n, 3, dtype=dtype)
        assert_solves(a, solve_triangular(a.to("mps"), b.to("mps"), upper=True), b)


def test_complex_divisors_at_the_ends_of_the_range():
    numbers = [1e-38, 1e-30j, 1e30 + 1e30j, 1e38j, 1 + 1e-30j, 1e-30 + 1j]
    divisors = torch.tensor(numbers, dtype=torch.complex64)
    a, b = divisors.diag(), (divisors * (2 - 1j))[:, None].expand(6, 3)
    found = solve_triangular(a.to("mps"), b.to("mps"), upper=True).cpu()
    torch.testing.assert_close(found, torch.full((6, 3), 2 - 1j), rtol=1e-6, atol=0)


def test_zeros_on_the_diagonal_stay_in_their_columns():
    """Division by zero, as on the CPU: no error, and other matrices and rows before are right."""
    a = torch.eye(4).repeat(2, 1, 1)
    a[0, 2, 2] = 0
    b = torch.ones(2, 4, 2)
    found = solve_triangular(a.to("mps"), b.to("mps"), upper=False).cpu()
    assert torch.equal(found[1], b[1])
    assert torch.equal(found[0, :2], b[0, :2])
    assert not found[0, 2].isfinite().any()


@dtypes
def test_the_older_operator(dtype):
    x = torch.ones(70, 70, dtype=dtype, device="mps")
    assert served_by_us(lambda: torch.triangular_solve(x, x)) == []
    a, b = torch.randn(3, 9, 9, dtype=dtype) / 9 + torch.eye(9), torch.randn(2, 1, 9, 4).to(dtype)
    for upper in (False, True):
        for transpose in (False, True):
            found, copy = torch.triangular_solve(b.to("mps"), a.to("mps"), upper, transpose)
            expected, of_cpu = torch.triangular_solve(b, a, upper, transpose)
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
            assert torch.equal(copy.cpu(), of_cpu)
            assert (found.stride(), copy.stride()) == (expected.stride(), of_cpu.stride())


@dtypes
def test_outputs_of_any_strides(dtype):
    a, b = torch.randn(5, 5, dtype=dtype) + 3 * torch.eye(5), torch.randn(5, 4, dtype=dtype)
    expected = solve_triangular(a, b, upper=True)
    wider = torch.full((5, 8), 7, dtype=dtype, device="mps")
    for out in (torch.empty(5, 4, dtype=dtype, device="mps"), wider[:, ::2]):
        assert solve_triangular(a.to("mps"), b.to("mps"), upper=True, out=out) is out
        torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert (wider[:, 1::2] == 7).all()
    own = b.to("mps")
    solve_triangular(a.to("mps"), own, upper=True, out=own)
    torch.testing.assert_close(own.cpu(), expected, rtol=1e-4, atol=1e-5)
    conjugate = torch.empty(5, 4, dtype=dtype, device="mps").conj()
    solve_triangular(a.to("mps"), b.to("mps"), upper=True, out=conjugate)
    torch.testing.assert_close(conjugate.cpu(), expected, rtol=1e-4, atol=1e-5)


@dtypes
def test_gradients(dtype):
    a, b = torch.randn(4, 4, dtype=dtype) + 3 * torch.eye(4), torch.randn(4, 3, dtype=dtype)
    found = []
    for device in ("mps", "cpu"):
        x, y = a.to(device).requires_grad_(), b.to(device).requires_grad_()
        solve_triangular(x, y, upper=True).abs().square().sum().backward()
        found.append((x.grad.cpu(), y.grad.cpu()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_arguments_are_refused_as_on_the_cpu():
    a, b = torch.ones(3, 3), torch.ones(3, 2)
    assert_refused_as_on_the_cpu(
        (
            lambda to: solve_triangular(to(a[:2]), to(b), upper=True),
            lambda to: solve_triangular(to(a), to(b[:2]), upper=True),
            lambda to: solve_triangular(to(a[0]), to(b), upper=True),
            lambda to: torch.triangular_solve(to(b), to(a[:2])),
            lambda to: torch.triangular_solve(to(b[:2]), to(a)),
        ),
        RuntimeError,
    )
    # The CPU casts one to the dtype of the other, and drops imaginary parts.
    with pytest.raises(RuntimeError, match="Expected A and B to have the same dtype"):
        solve_triangular(a.to("mps"), b.to("mps", torch.complex64), upper=True)
    with pytest.raises(RuntimeError, match="Low precision dtypes not supported. Got Half"):
        solve_triangular(a.half().to("mps"), b.half().to("mps"), upper=True)
