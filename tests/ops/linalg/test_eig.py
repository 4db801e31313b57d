"""Eigenvalues and eigenvectors of general matrices: kernels/linalg/eig.metal."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..aten import assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import Benchmark
from .eigenpairs import check, check_all
from .hard_matrices import HARD
from .linear_algebra import EPSILON, VIEWS, WIDE, dtypes, hard, squares_of

OPINFOS = ("linalg.eig", "linalg.eigvals")

eig = torch.linalg.eig
eigvals = torch.linalg.eigvals


def _squares(function):
    return lambda x, out: function(squares_of(x, most=32))


BENCHMARKS = (
    Benchmark.same("eig", _squares(eig), only_dtype="float32"),
    Benchmark.same("eigvals", _squares(eigvals), only_dtype="float32"),
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@dtypes
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 40])
def test_hard_matrices(dtype, n):
    """On both sides of each boundary between kernels, all in one batch."""
    a = torch.stack([hard(name, n, dtype) for name in HARD])
    check_all(a, list(HARD))


@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        *((torch.float32, n) for n in (41, 56, 57, 64)),
        *((torch.complex64, n) for n in (41, 64)),
    ],
    ids=str,
)
def test_larger_matrices(dtype, n):
    """In threadgroup memory, and in device memory where there is no room."""
    check_all(torch.stack([hard(name, n, dtype) for name in HARD]), list(HARD))


@dtypes
def test_companions_of_roots_of_one(dtype):
    """Without shifts, or with those of symmetric matrices, their iterations never end."""
    for n in (2, 3, 4, 7, 8, 24):
        a = torch.eye(n, dtype=dtype).roll(1, 0)
        found = torch.view_as_real(eigvals(a.to("mps"))).cpu().double()
        angles = torch.arange(n, dtype=torch.float64) * 2 * math.pi / n
        exact = torch.stack([angles.cos(), angles.sin()], -1)
        assert torch.cdist(found, exact).amin(0).max() <= 10 * n * EPSILON


@dtypes
def test_badly_scaled_matrices_are_balanced(dtype):
    """Eigenvalues of D A / D are those of A, to almost all digits, though it has elements of 1e-8 to 1e8."""
    for n in (3, 8, 20):
        a = torch.randn(n, n, dtype=dtype)
        d = 2.0 ** torch.randint(-13, 14, (n,))
        found = eigvals((d[:, None] * a / d).to("mps")).cpu()
        exact = torch.linalg.eigvals(a.to(WIDE[dtype]))
        distances = (found.to(exact.dtype)[:, None] - exact).abs()
        assert distances.amin(1).max() <= 2e-4 * exact.abs().max()


@dtypes
def test_exact_matrices(dtype):
    for n in (1, 3, 8, 20):
        zeros = torch.zeros(2, n, n, dtype=dtype, device="mps")
        values, vectors = eig(zeros)
        assert torch.equal(values, torch.zeros(2, n, dtype=torch.complex64, device="mps"))
        assert torch.equal(vectors.cpu(), torch.eye(n, dtype=torch.complex64).expand(2, n, n))
        # Triangular in some order of rows and columns: eigenvalues are elements of the diagonal.
        order = torch.randperm(n)
        triangle = torch.randn(n, n, dtype=dtype).tril()[order][:, order]
        found = eigvals(triangle.to("mps")).cpu()
        expected = triangle.diagonal().to(torch.complex64)
        pairs = torch.view_as_real(found)[:, None] == torch.view_as_real(expected)
        assert (pairs.all(-1).sum(0) == 1).all()


@dtypes
@pytest.mark.parametrize("n", [2, 7, 30])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_an_error(dtype, n, bad):
    a = torch.randn(3, n, n, dtype=dtype)
    a[1, n - 1, 0] = bad
    message = "torch.linalg.{}: input tensor should not contain infs or NaNs."
    with pytest.raises(RuntimeError, match=message.format("eig")):
        eig(a.to("mps"))
    with pytest.raises(RuntimeError, match=message.format("eigvals")):
        eigvals(a[1].to("mps"))


@dtypes
@pytest.mark.parametrize("n", [4, 12])
def test_every_layout(dtype, n):
    a = torch.randn(4, 3, n, n, dtype=dtype)
    for name, view in VIEWS.items():
        values, vectors = eig(view(a.to("mps")))
        expected = view(a).resolve_conj().resolve_neg()
        assert values.shape == expected.shape[:-1] and values.is_contiguous(), name
        assert vectors.shape == expected.shape and vectors.mT.is_contiguous(), name
        assert values.dtype == vectors.dtype == torch.complex64
        assert eigvals(view(a.to("mps"))).shape == values.shape
        if expected.numel() > 0:
            for index in ((0, 0), (-1, -1)):
                check(expected[index], values[index], vectors[index], name)
    assert eig(torch.empty(0, 3, 3, dtype=dtype, device="mps"))[1].shape == (0, 3, 3)


@dtypes
@pytest.mark.parametrize("n", [6, 20])
def test_out_of_other_strides(dtype, n):
    a = torch.randn(2, n, n, dtype=dtype)
    values = torch.empty(2, 2 * n, dtype=torch.complex64, device="mps")[:, ::2]
    vectors = torch.empty(2, n, n, dtype=torch.complex64, device="mps")
    found = eig(a.to("mps"), out=(values, vectors))
    assert found[0] is values and found[1] is vectors and vectors.is_contiguous()
    for i in range(2):
        check(a[i], values[i], vectors[i])
    expected = eigvals(a.to("mps"))
    assert eigvals(a.to("mps"), out=values) is values
    assert torch.equal(values, expected)


def test_errors_are_those_of_the_cpu():
    a = torch.randn(2, 3, 3)
    c = torch.empty(2, 3, 3, dtype=torch.complex64)
    assert_refused_as_on_the_cpu(
        (
            lambda move: eig(move(a[:, :2])),
            lambda move: eig(move(a[0, 0])),
            lambda move: eig(move(a.int())),
            lambda move: eigvals(move(a[:, :2])),
            lambda move: eigvals(move(a), out=move(a[0])),
            lambda move: eig(move(a), out=(move(a[0]), move(c))),
            lambda move: eig(move(a), out=(move(c[0]), move(a))),
        ),
        RuntimeError,
    )
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
        eig(a.to("mps", torch.half))


@dtypes
def test_gradients(dtype):
    """Of what does not depend on the phases of the vectors."""
    a = torch.randn(3, 6, 6, dtype=dtype)
    weights = torch.rand(3, 6, 6)
    gradients = []
    for x, w in ((a.to("mps"), weights.to("mps")), (a.to(WIDE[dtype]), weights.double())):
        x.requires_grad_()
        values, vectors = eig(x)
        # In an order that both devices share.
        order = values.abs().sub(values.imag, alpha=1e-3).argsort(-1)
        vectors = vectors.gather(-1, order[:, None].expand_as(vectors))
        (vectors.abs().square() * w).sum().backward()
        (eigvals(x) ** 3).sum().abs().backward()
        gradients.append(x.grad.cpu().to(dtype))
    scale = gradients[1].abs().max()
    torch.testing.assert_close(gradients[0] / scale, gradients[1] / scale, rtol=1e-3, atol=1e-4)


@dtypes
def test_compiled(dtype):
    a = torch.randn(3, 9, 9, dtype=dtype, device="mps")
    compiled = torch.compile(lambda x: eigvals(x) * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(a), 2 * eigvals(a))
    compiled = torch.compile(lambda x: eig(x)[1] * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(a), 2 * eig(a)[1])


def test_batches_are_solved_one_by_one():
    """Bit for bit, in batches and alone, and each time."""
    for n, count in ((3, 70), (12, 9)):
        a = torch.randn(count, n, n, device="mps")
        together = eig(a)
        for i in (0, count - 1):
            for found, expected in zip(eig(a[i]), together, strict=True):
                assert torch.equal(found, expected[i])


def test_no_stand_in():
    a = torch.randn(3, 5, 5, device="mps")
    assert served_by_us(lambda: (eig(a), eigvals(a))) == []


def test_fake_tensors_have_the_results_properties():
    for n in (5, 20):
        a = torch.randn(3, n, n, device="mps")
        with FakeTensorMode() as mode:
            fakes = (*eig(mode.from_tensor(a)), eigvals(mode.from_tensor(a)))
        for fake, real in zip(fakes, (*eig(a), eigvals(a)), strict=True):
            assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
            assert fake.stride() == real.stride()
