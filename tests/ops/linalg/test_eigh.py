"""Eigenvalues and eigenvectors of Hermitian matrices: kernels/linalg/eigh.metal."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..aten import assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import Benchmark
from .hard_matrices import HARD
from .linear_algebra import WIDE, dtypes, squares_of
from .spectra import check, check_values, hermitian

OPINFOS = ("linalg.eigh", "linalg.eigvalsh")

eigh = torch.linalg.eigh
eigvalsh = torch.linalg.eigvalsh


def _squares(function):
    return lambda x, out: function(squares_of(x, most=32))


BENCHMARKS = (
    Benchmark.same("eigh", _squares(eigh), only_dtype="float32"),
    Benchmark.same("eigvalsh", _squares(eigvalsh), only_dtype="float32"),
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def batch(shape, dtype):
    x = torch.randn(shape, dtype=dtype)
    return x + x.mH


@dtypes
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 48, 49, 64, 65])
def test_hard_matrices(dtype, n):
    """On both sides of each boundary between kernels, all in one batch."""
    a = torch.stack([hermitian(name, n, dtype) for name in HARD])
    values, vectors = eigh(a.to("mps"))
    for i, name in enumerate(HARD):
        check(a[i], values[i], vectors[i], name)
    check_values(a, eigvalsh(a.to("mps")))


@dtypes
@pytest.mark.parametrize("n", [3, 8, 20, 40, 70])
def test_only_one_triangle_and_real_diagonals_are_read(dtype, n):
    a = batch((2, n, n), dtype)
    nans = torch.full((n, n), math.nan, dtype=dtype)
    for uplo, spoilt in (("L", nans.triu(1)), ("u", nans.tril(-1))):
        stored = a.tril() + spoilt if uplo == "L" else a.triu() + spoilt
        stored = stored.where(stored.isfinite() | spoilt.isnan(), 0)
        if dtype.is_complex:
            stored += 1j * torch.eye(n)
        values, vectors = eigh(stored.to("mps"), UPLO=uplo)
        check(a, values, vectors, uplo)


def test_exact_matrices():
    zeros = torch.zeros(2, 5, 5, device="mps")
    values, vectors = eigh(zeros)
    assert torch.equal(values, zeros[..., 0])
    assert torch.equal(vectors.cpu(), torch.eye(5).expand(2, 5, 5))
    for n in (3, 8, 30, 64, 100):
        values = eigvalsh(torch.arange(n, 0, -1.0).diag().to("mps"))
        assert torch.equal(values.cpu(), torch.arange(1.0, n + 1))


@dtypes
@pytest.mark.parametrize("n", [2, 7, 30, 66])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_an_error(dtype, n, bad):
    a = batch((3, n, n), dtype)
    a[1, n - 1, 0] = bad
    message = r"linalg.eigh: \(Batch element 1\): The algorithm failed to converge because the input matrix is ill"
    with pytest.raises(torch.linalg.LinAlgError, match=message):
        eigh(a.to("mps"))
    with pytest.raises(torch.linalg.LinAlgError, match=r"error code: 1\)"):
        eigvalsh(a[1].to("mps"))


@dtypes
@pytest.mark.parametrize("n", [4, 12, 68])
def test_every_layout(dtype, n):
    a = batch((4, 3, 2 * n, 2 * n), dtype)
    views = {
        "transposed": lambda x: x[..., :n, :n].mT,
        "every other": lambda x: x[::2, :, ::2, ::2],
        "expanded": lambda x: x[:1, :1, :n, :n].expand(2, 3, n, n),
        "flipped batch": lambda x: x[..., :n, :n].transpose(0, 1),
        "conjugate": lambda x: x[..., :n, :n].conj(),
        "negative": lambda x: torch._neg_view(x[..., :n, :n]),
        "offset": lambda x: x[1, 1, n:, n:],
        "empty batch": lambda x: x[:0],
        "empty": lambda x: x[..., :0, :0],
    }
    for name, view in views.items():
        values, vectors = eigh(view(a.to("mps")))
        expected = view(a).resolve_conj().resolve_neg()
        assert values.shape == expected.shape[:-1] and values.is_contiguous(), name
        assert vectors.shape == expected.shape and vectors.mT.is_contiguous(), name
        if expected.numel() > 0:
            check(expected.contiguous(), values, vectors, name)


@dtypes
@pytest.mark.parametrize("n", [6, 40, 70])
def test_out_of_other_strides(dtype, n):
    a = batch((2, n, n), dtype)
    values = torch.empty(2, 2 * n, device="mps")[:, ::2]
    vectors = torch.empty(2, n, n, dtype=dtype, device="mps")
    found = eigh(a.to("mps"), out=(values, vectors))
    assert found[0] is values and found[1] is vectors and vectors.is_contiguous()
    check(a, values, vectors)
    assert eigvalsh(a.to("mps"), out=values) is values


def test_errors_are_those_of_the_cpu():
    a = torch.randn(2, 3, 3)
    assert_refused_as_on_the_cpu(
        (
            lambda move: eigh(move(a[:, :2])),
            lambda move: eigh(move(a[0, 0])),
            lambda move: eigh(move(a), UPLO="X"),
            lambda move: eigh(move(a), out=(move(a[0].int()), move(a))),
        ),
        RuntimeError,
    )
    for dtype, name in ((torch.half, "Half"), (torch.int32, "Int")):
        with pytest.raises(NotImplementedError, match=f"not implemented for '{name}'"):
            eigh(a.to("mps", dtype))


@dtypes
def test_gradients(dtype):
    """Of what does not depend on the phases of the vectors."""
    a = batch((3, 6, 6), dtype)
    weights = torch.randn(3, 6, 6, dtype=dtype)
    gradients = []
    for x, w in ((a.to("mps"), weights.to("mps")), (a.to(WIDE[dtype]), weights.to(WIDE[dtype]))):
        x.requires_grad_()
        values, vectors = eigh(x)
        ((vectors * values.exp()[:, None]) @ vectors.mH * w).sum().abs().backward()
        (torch.linalg.eigvalsh(x) ** 3).sum().backward()
        gradients.append(x.grad.cpu().to(dtype))
    scale = gradients[1].abs().max()
    torch.testing.assert_close(gradients[0] / scale, gradients[1] / scale, rtol=1e-4, atol=2e-5)


@dtypes
def test_what_torch_makes_of_it(dtype):
    a = batch((3, 9, 9), dtype)
    a[1] = a[1, :, :1] @ a[1, :, :1].mH
    x = a.to("mps")
    ranks = torch.linalg.matrix_rank(x, hermitian=True)
    assert ranks.tolist() == [9, 1, 9]
    inverse = torch.linalg.pinv(x, rtol=1e-4, hermitian=True)
    torch.testing.assert_close(x @ inverse @ x, x, rtol=1e-3, atol=1e-3)
    compiled = torch.compile(lambda x: eigvalsh(x) * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), 2 * eigvalsh(x))


@pytest.mark.parametrize("is_general", [False, True])
@pytest.mark.parametrize("largest", [False, True])
def test_lobpcg_finds_the_ends_of_a_spectrum(is_general, largest):
    a = batch((60, 60), torch.float32) / 60 + torch.arange(60.0).diag()
    b = torch.randn(60, 60)
    b = b @ b.T / 60 + torch.eye(60) if is_general else None
    root = torch.linalg.cholesky(b).inverse() if is_general else torch.eye(60)
    exact = torch.linalg.eigvalsh((root @ a @ root.T).double())
    values, vectors = torch.lobpcg(
        a.to("mps"),
        B=b.to("mps") if is_general else None,
        X=torch.randn(60, 4).to("mps"),
        niter=200,
        largest=largest,
    )
    expected = exact.flip(0)[:4] if largest else exact[:4]
    torch.testing.assert_close(values.cpu().double(), expected, rtol=1e-4, atol=1e-3)
    right = vectors.cpu() if b is None else b @ vectors.cpu()
    torch.testing.assert_close(a @ vectors.cpu(), right * values.cpu(), rtol=1e-3, atol=2e-2)


def test_batches_are_solved_one_by_one():
    """Bit for bit, in batches and alone, and each time."""
    for n, count in ((3, 70), (12, 9), (66, 3)):
        a = batch((count, n, n), torch.float32).to("mps")
        together = eigh(a)
        for i in (0, count - 1):
            for found, expected in zip(eigh(a[i]), together, strict=True):
                assert torch.equal(found, expected[i])


def test_no_stand_in():
    a = batch((3, 5, 5), torch.float32).to("mps")
    assert served_by_us(lambda: (eigh(a), eigvalsh(a))) == []


def test_fake_tensors_have_the_results_properties():
    a = batch((3, 5, 5), torch.complex64).to("mps")
    with FakeTensorMode() as mode:
        fakes = eigh(mode.from_tensor(a))
    for fake, real in zip(fakes, eigh(a), strict=True):
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride()
