"""LU factorisation and what is made of it: kernels/linalg/lu.metal."""

import math

import pytest
import torch
from metalops import debug
from torch._subclasses.fake_tensor import FakeTensorMode

from ..aten import assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import Benchmark
from .hard_matrices import HARD
from .linear_algebra import EPSILON, dtypes, norm, one_thread, squares_of, wide
from .operators import MatrixOperator, diagonally_dominant

OPINFOS = (
    "linalg.lu_factor_ex",
    "linalg.lu_factor",
    "linalg.lu",
    "linalg.lu_solve",
    "linalg.solve",
    "linalg.solve_ex",
    "linalg.inv",
    "linalg.inv_ex",
    "linalg.det",
    "linalg.slogdet",
    "lu",
    "lu_solve",
    "logdet",
    "linalg.tensorinv",
    "linalg.tensorsolve",
)

linalg = torch.linalg

# Of which the last column doubles with each step, with any partial pivoting.
GROWS = "growth"


def _squares(x, out):
    return linalg.lu_factor_ex(squares_of(x))[0]


BENCHMARKS = (Benchmark.same("lu_factor", _squares, only_dtype="float32"),)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def assert_factors(a, factors, pivots):
    """|P A - L U| in units of n eps |A|, with |L| at most one (for complex numbers, the root of two)."""
    p, lower, upper = (wide(x) for x in torch.lu_unpack(factors.cpu(), pivots.cpu()))
    error = norm(p @ lower @ upper - wide(a))
    assert (error <= 5 * max(a.shape[-2:]) * EPSILON * norm(wide(a)) + 1e-37).all()
    assert lower.abs().max() <= (math.sqrt(2) if a.is_complex() else 1) + 4 * EPSILON


def check(a, factors, pivots, info, message):
    assert_factors(a, factors, pivots)
    zeros = factors.cpu().diagonal() == 0
    assert info.item() == (zeros.nonzero()[0, 0].item() + 1 if zeros.any() else 0), message


def _lu_solved(a, **out):
    return linalg.lu_solve(*linalg.lu_factor_ex(a)[:2], a, adjoint=True, **out)


_OF_ITSELF = {"made": diagonally_dominant, "sizes": ((4, 4), (8, 8), (12, 12), (40, 40), (70, 70))}
LINALG = (
    MatrixOperator(
        "lu_factor_ex",
        linalg.lu_factor_ex,
        check,
        sizes=((7, 7), (13, 13), (30, 20), (20, 30), (40, 40), (70, 70)),
        hard_names=[name for name in HARD if name != GROWS],
        hard_sizes=(1, 2, 3, 4, 5, 17, 33, 64, 129),
    ),
    MatrixOperator("lu", linalg.lu, **_OF_ITSELF),
    MatrixOperator("lu_solve", _lu_solved, **_OF_ITSELF),
    MatrixOperator("inv_ex", linalg.inv_ex, **_OF_ITSELF),
    MatrixOperator("solve_ex", lambda x, **out: linalg.solve_ex(x, x, **out), **_OF_ITSELF),
    MatrixOperator("det", linalg.det, **_OF_ITSELF),
    MatrixOperator("slogdet", linalg.slogdet, **_OF_ITSELF),
)


# Sizes on both sides of packs, of what threads and lanes hold, panels and halves; wide and tall.
SHAPES = (
    *((n, n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 63, 65, 96, 129, 260, 513, 1025)),
    *(
        (1, 9),
        (9, 1),
        (5, 7),
        (9, 16),
        (16, 10),
        (18, 31),
        (32, 19),
        (30, 70),
        (33, 34),
        (34, 33),
        (70, 30),
        (65, 200),
        (300, 40),
    ),
)


@pytest.mark.usefixtures("taken_as_on")
@pytest.mark.sampled(2)
@pytest.mark.full
@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes(dtype, shape):
    a = torch.randn(3, *shape, dtype=dtype)
    factors, pivots, info = linalg.lu_factor_ex(a.to("mps"))
    assert not info.any()
    assert (pivots.dtype, info.dtype) == (torch.int32, torch.int32)
    assert_factors(a, factors, pivots)
    with one_thread():
        of_cpu = linalg.lu_factor_ex(a)
    assert factors.stride() == of_cpu[0].stride()
    if max(shape) <= 200:  # rounding errors decide some of very many
        assert torch.equal(pivots.cpu(), of_cpu[1])


@pytest.mark.usefixtures("taken_as_on")
@dtypes
def test_pivots_of_ties_are_the_first(dtype):
    for n in (5, 20, 40):
        signs = torch.ones(n)
        signs[1::2] = -1
        a = torch.ones(n, n, dtype=dtype).tril() * signs[:, None]
        factors, pivots, info = linalg.lu_factor_ex(a.to("mps"))
        expected = linalg.lu_factor_ex(a)
        assert torch.equal(pivots.cpu(), expected[1])
        assert torch.equal(factors.cpu(), expected[0])
        assert info.item() == 0


def test_the_pivot_of_complex_numbers_has_the_largest_cabs1():
    """As LAPACK has it: |3 + 3i| is 4.2, but 6 is more than 5."""
    a = torch.tensor([[5, 1], [3 + 3j, 1]], dtype=torch.complex64)
    assert linalg.lu_factor_ex(a.to("mps"))[1].tolist() == [2, 2]


@pytest.mark.usefixtures("taken_as_on")
@dtypes
def test_singular_matrices_are_factored_to_the_end(dtype):
    a = torch.tensor([[1, 2, 3], [2, 4, 6], [1, 1, 1]], dtype=dtype)
    b = torch.diag(torch.tensor([1, 0, 2, 0], dtype=dtype))
    for matrix, order in ((a, 3), (b, 2), (torch.zeros(4, 4, dtype=dtype), 1)):
        found = linalg.lu_factor_ex(matrix.to("mps"))
        expected = linalg.lu_factor_ex(matrix)
        assert found.info.item() == expected.info.item() == order
        assert torch.equal(found.pivots.cpu(), expected.pivots)
        assert torch.equal(found.LU.cpu(), expected.LU)
    for n, row in ((30, 20), (70, 50)):
        large = torch.eye(n, dtype=dtype)
        large[row, row] = 0
        assert linalg.lu_factor_ex(large.to("mps")).info.item() == row + 1


@pytest.mark.usefixtures("taken_as_on")
@dtypes
def test_without_pivots(dtype):
    for n in (30, 70):
        a = torch.randn(2, n, n, dtype=dtype) / n + torch.eye(n)
        factors, pivots, info = linalg.lu_factor_ex(a.to("mps"), pivot=False)
        assert torch.equal(pivots.cpu(), torch.arange(1, n + 1, dtype=torch.int32).expand(2, n))
        assert_factors(a, factors, pivots)
    zero = torch.tensor([[0, 1], [1, 0]], dtype=dtype)
    assert linalg.lu_factor_ex(zero.to("mps"), pivot=False).info.item() == 1
    p, lower, upper = linalg.lu(a.to("mps"), pivot=False)
    assert p.numel() == 0
    torch.testing.assert_close((lower @ upper).cpu(), a, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("taken_as_on")
@dtypes
@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
@pytest.mark.parametrize("n", [7, 13, 30, 40])
def test_a_bad_matrix_leaves_the_others_alone(dtype, bad, n):
    a = torch.randn(4, n, n, dtype=dtype)
    alone = [[x.cpu() for x in linalg.lu_factor_ex(matrix.to("mps"))] for matrix in a]
    spoilt = a.clone()
    spoilt[1] = bad
    found = linalg.lu_factor_ex(spoilt.to("mps"))
    for i in (0, 2, 3):
        for ours, expected in zip(found, alone[i], strict=True):
            assert torch.equal(ours[i].cpu(), expected)
    if math.isnan(bad):
        assert found.info[1].item() == 0
        assert found.pivots[1].tolist() == list(range(1, n + 1))


@pytest.mark.usefixtures("taken_as_on")
@dtypes
@pytest.mark.parametrize("n", [4, 7, 13, 33, 40, 64, 70])
def test_columns_before_an_infinite_one_are_as_without_it(dtype, n):
    """What is made of infinities is none of the business of what was finished before."""
    for column in range(1, n, 5):
        a = torch.randn(n, n, dtype=dtype)
        a[torch.randint(n, ()), column] = math.inf
        found = linalg.lu_factor_ex(a.to("mps"))
        expected = linalg.lu_factor_ex(a[:, :column])
        assert torch.equal(found.pivots[:column].cpu(), expected.pivots)
        ours = found.LU[:column, :column].cpu().triu()
        torch.testing.assert_close(ours, expected.LU[:column].triu(), rtol=1e-3, atol=1e-3)
        assert found.LU[:, :column].isfinite().all()


@pytest.mark.usefixtures("taken_as_on")
@dtypes
@pytest.mark.parametrize("m", [500, 600, 1500, 2500, 4500])
def test_tall_panels(dtype, m):
    """As many rows as the threads of a threadgroup hold, one to eight each, and more."""
    a = torch.randn(2, m, 40, dtype=dtype)
    a[1, 3 * m // 4] = 10  # the first pivot row
    factors, pivots, info = linalg.lu_factor_ex(a.to("mps"))
    assert not info.any()
    assert pivots[1, 0].item() == 3 * m // 4 + 1
    assert_factors(a, factors, pivots)


@dtypes
def test_more_panels_than_are_factored_at_once(dtype):
    a = torch.randn(3, 100_000, 2, dtype=dtype)
    factors, pivots, info = linalg.lu_factor_ex(a.to("mps"))
    expected = linalg.lu_factor_ex(a)
    assert not info.any()
    assert torch.equal(pivots.cpu(), expected.pivots)
    torch.testing.assert_close(factors.cpu(), expected.LU, rtol=1e-4, atol=1e-4)


@dtypes
@pytest.mark.parametrize(
    ("n", "columns"),
    [*((n, 5) for n in (1, 2, 3, 4, 5, 7, 8, 9, 33, 70, 130)), (3, 1), (4, 4), (6, 50), (8, 8)],
)
def test_solutions(dtype, n, columns):
    a = torch.randn(3, n, n, dtype=dtype)
    factors, pivots, _ = linalg.lu_factor_ex(a.to("mps"))
    for left in (True, False):
        b = torch.randn(2, 1, *((n, columns) if left else (columns, n)), dtype=dtype)
        for adjoint in (False, True):
            found = linalg.lu_solve(factors, pivots, b.to("mps"), left=left, adjoint=adjoint)
            op = wide(a.mH if adjoint else a)
            x = wide(found)
            product = op @ x if left else x @ op
            unit = n * EPSILON * op.abs().sum(-1).amax(-1)[..., None, None] * x.abs().amax()
            assert ((product - wide(b)).abs() <= 8 * unit).all()
            of_cpu = linalg.lu_solve(factors.cpu(), pivots.cpu(), b, left=left, adjoint=adjoint)
            assert found.stride() == of_cpu.stride()
    vectors = torch.randn(3, n, dtype=dtype)
    found = linalg.solve(a.to("mps"), vectors.to("mps"))
    residual = wide(a) @ wide(found)[..., None] - wide(vectors)[..., None]
    size = norm(wide(a).mT) * wide(found).abs().amax(-1)
    assert (residual.abs().amax((-1, -2)) <= 10 * n * EPSILON * size).all()


@dtypes
@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
def test_a_bad_system_leaves_the_others_alone(dtype, bad):
    for n in (3, 8, 12):
        a, b = torch.randn(2, 4, n, n, dtype=dtype).to("mps")
        expected = linalg.solve_ex(a, b).result
        a[1] = bad
        found = linalg.solve_ex(a, b).result
        for i in (0, 2, 3):
            assert torch.equal(found[i], expected[i])
        assert not found[1].isfinite().any()


@dtypes
def test_outputs_that_share_memory_with_arguments(dtype):
    for n in (4, 8, 12):
        a, b = torch.randn(2, 3, n, n, dtype=dtype).to("mps")
        factors, pivots, _ = linalg.lu_factor_ex(a)
        expected = linalg.lu_solve(factors, pivots, b)
        for choose in (lambda x, y: x, lambda x, y: x.mT, lambda x, y: y, lambda x, y: y.mT):
            x, y = b.clone(), factors.clone()
            assert torch.equal(linalg.lu_solve(y, pivots, x, out=choose(x, y)), expected)


def test_small_systems_take_a_launch_for_factors_and_one_for_solutions(tmp_path):
    a = torch.randn(100, 6, 6, device="mps")
    factors, pivots, _ = linalg.lu_factor_ex(a)
    for call, kernels in (
        (lambda: linalg.lu_solve(factors, pivots, a), ["lu_solve_thread_8_float"]),
        (lambda: linalg.solve(a, a), ["lu_thread_8_float", "lu_solve_thread_8_float"]),
    ):
        with debug.capture(tmp_path / "a.trace") as trace:
            call()
        assert [launch.kernel for launch in trace.launches] == kernels


def test_invalid_pivots_are_an_error():
    a, b = torch.eye(3, device="mps"), torch.ones(3, 2, device="mps")
    for pivots, bound in (
        ([1, 7, 3], "smaller or equal to LU.size"),
        ([0, 2, 3], "greater or equal to 1"),
    ):
        with pytest.raises(RuntimeError, match=f"Pivots given to lu_solve must all be {bound}"):
            linalg.lu_solve(a, torch.tensor(pivots, dtype=torch.int32, device="mps"), b)
            torch.mps.synchronize()


@dtypes
@pytest.mark.parametrize("n", [0, 1, 2, 5, 32, 33, 100])
def test_determinants(dtype, n):
    a = torch.randn(4, n, n, dtype=dtype) / math.sqrt(max(n, 1))
    exact = linalg.det(wide(a))
    found = linalg.det(a.to("mps")).cpu()
    assert ((found - exact).abs() <= 50 * (n + 1) * EPSILON * exact.abs()).all()
    sign, logarithm = linalg.slogdet(a.to("mps"))
    exact_sign, exact_logarithm = linalg.slogdet(wide(a))
    torch.testing.assert_close(wide(sign), exact_sign, rtol=0, atol=1e-4)
    torch.testing.assert_close(logarithm.cpu().double(), exact_logarithm, rtol=0, atol=1e-4)


@dtypes
def test_determinants_of_singular_matrices(dtype):
    for a in (torch.zeros(2, 3, 3, dtype=dtype), torch.ones(2, 40, 40, dtype=dtype)):
        assert not linalg.det(a.to("mps")).any()
        sign, logarithm = linalg.slogdet(a.to("mps"))
        assert not sign.any()
        assert (logarithm == -math.inf).all()


@dtypes
@pytest.mark.parametrize("function", [linalg.det, linalg.inv, lambda x: linalg.solve(x, x.mH)])
def test_gradients(dtype, function):
    a = torch.randn(2, 4, 4, dtype=dtype) + 2 * torch.eye(4)
    found = []
    for device in ("mps", "cpu"):
        x = a.to(device).requires_grad_()
        function(x).abs().square().sum().backward()
        found.append(x.grad.cpu())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3 * found[1].abs().max().item())


@dtypes
def test_outputs_of_what_raises_errors(dtype):
    a = torch.randn(3, 6, 6, dtype=dtype, device="mps")
    for function in (linalg.inv, lambda x, **out: linalg.solve(x, x, **out)):
        out = torch.empty(3, 6, 6, dtype=dtype, device="mps")
        assert torch.equal(function(a, out=out), function(a))
        assert served_by_us(lambda function=function: function(a)) == []


def test_arguments_are_refused_as_on_the_cpu():
    singular = torch.diag(torch.tensor([1.0, 0, 1]))
    a, pivots = torch.eye(3), torch.tensor([1, 2, 3], dtype=torch.int32)
    assert_refused_as_on_the_cpu(
        (
            lambda to: linalg.lu_factor(to(singular)),
            lambda to: linalg.lu_factor_ex(to(singular.expand(2, 3, 3)), check_errors=True),
            lambda to: linalg.inv(to(singular)),
            lambda to: linalg.inv_ex(to(singular), check_errors=True),
            lambda to: linalg.inv(to(a.half())),
            lambda to: linalg.inv(to(a[:2])),
            lambda to: linalg.solve(to(singular), to(a)),
            lambda to: linalg.solve(to(a), to(a[:2])),
            lambda to: linalg.solve_ex(to(singular), to(a), check_errors=True),
            lambda to: linalg.det(to(a[:2])),
            lambda to: linalg.det(to(a.int())),
            lambda to: linalg.lu(to(a[0])),
            lambda to: linalg.lu_solve(to(a), to(pivots[:2]), to(a)),
            lambda to: linalg.lu_solve(to(a), to(pivots.long()), to(a)),
            lambda to: linalg.lu_solve(to(a), to(pivots), to(a.to(torch.complex64))),
        ),
        RuntimeError,
    )


def test_fake_tensors_and_compiled_calls():
    a = torch.randn(3, 5, 5, device="mps")
    with FakeTensorMode() as mode:
        fake = linalg.lu_factor_ex(mode.from_tensor(a))
    for x, y in zip(fake, linalg.lu_factor_ex(a), strict=True):
        assert (x.shape, x.dtype, x.device, x.stride()) == (y.shape, y.dtype, y.device, y.stride())
    solve = torch.compile(linalg.solve, backend="aot_eager", fullgraph=True)
    assert torch.equal(solve(a, a), linalg.solve(a, a))
