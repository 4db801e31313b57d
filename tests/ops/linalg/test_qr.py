"""The QR factorisation and products with its orthogonal factor: kernels/linalg/qr.metal."""

import pytest
import torch

from ..aten import assert_refused_as_on_the_cpu, only_ours
from ..benchmark import Benchmark
from .hard_matrices import HARD
from .linear_algebra import EPSILON, WIDE, dtypes, hard, norm, squares_of, wide
from .operators import MatrixOperator

OPINFOS = ("geqrf", "ormqr", "linalg.householder_product", "linalg.qr", "qr")

qr, geqrf, ormqr = torch.linalg.qr, torch.geqrf, torch.ormqr
householder_product = torch.linalg.householder_product


def _squares(x, out):
    return qr(squares_of(x))[0]


BENCHMARKS = (Benchmark.same("qr", _squares, only_dtype="float32"),)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def assert_factors(a, q, r):
    """In units of n eps; LAPACK's errors are up to 4."""
    assert q.device.type == r.device.type == "mps"
    a, q, r = wide(a), wide(q), wide(r)
    unit = max(a.shape[-2:]) * EPSILON
    # Denormal numbers have fewer digits, and a GPU takes them for zero.
    assert (norm(a - q @ r) <= 5 * unit * norm(a) + max(a.shape[-2:]) * 2.0**-126).all()
    assert (norm(q.mH @ q - torch.eye(q.shape[-1])) <= 5 * unit).all()
    assert torch.equal(r, r.triu())
    assert (r.diagonal(dim1=-2, dim2=-1).imag == 0).all() if r.is_complex() else True


def check(a, q, r, message):
    assert_factors(a, q, r)


def check_reflectors(a, factors, taus, message):
    steps = min(a.shape)
    q = householder_product(factors[:, :steps], taus)
    assert_factors(a, q, factors[:steps].triu())


def check_orthogonal(a, q, message):
    a, q = wide(a), wide(q)
    unit = len(a) * EPSILON
    assert norm(q.mH @ q - torch.eye(len(a))) <= 5 * unit, message
    assert norm((q.mH @ a).tril(-1)) <= 5 * unit * norm(a), message


def check_triangular(a, r, message):
    """That Q^H A is the R of A."""
    torch.testing.assert_close(r, qr(a.to("mps"))[1], rtol=0, atol=1e-4, msg=message)


SQUARES = ((3, 3), (8, 8), (20, 20), (40, 40))
LINALG = (
    MatrixOperator(
        "qr",
        qr,
        check,
        sizes=(*SQUARES, (20, 12), (12, 20), (150, 140)),
        hard_sizes=(1, 2, 3, 4, 5, 6, 17, 33, 64, 129),
    ),
    MatrixOperator("geqrf", geqrf, check_reflectors, sizes=(*SQUARES, (20, 12), (12, 20))),
    MatrixOperator(
        "householder_product",
        lambda x, **out: householder_product(*geqrf(x), **out),
        check_orthogonal,
        sizes=SQUARES,
    ),
    MatrixOperator(
        "ormqr",
        lambda x, **out: ormqr(*geqrf(x), x, True, True, **out),
        check_triangular,
        sizes=SQUARES,
    ),
)


# Sizes on both sides of where the next kernel, or one more panel, begins.
SHAPES = (
    *((n, n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 96, 128, 129, 252, 513, 1025)),
    *((1, 9), (9, 1), (1, 40), (40, 1), (5, 8), (8, 5), (20, 33), (33, 20), (31, 32), (32, 31)),
    *((40, 8), (8, 40), (64, 32), (32, 64), (300, 15), (15, 300), (130, 65), (32, 5), (64, 8)),
    *(
        (64, 9),
        (64, 16),
        (65, 9),
        (127, 40),
        (128, 9),
        (129, 32),
        (511, 12),
        (512, 12),
        (513, 12),
        (600, 40),
        (1100, 20),
        (2100, 20),
        (4000, 36),
    ),
)


@pytest.mark.usefixtures("taken_as_on")
@pytest.mark.sampled(2)
@pytest.mark.full
@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_and_mode(dtype, shape):
    m, n = shape
    a = torch.randn(2, m, n, dtype=dtype)
    q, r = qr(a.to("mps"))
    assert q.shape == (2, m, min(m, n)) and r.shape == (2, min(m, n), n)
    assert_factors(a, q, r)
    if m <= 300:
        complete, of_all = qr(a.to("mps"), "complete")
        assert complete.shape == (2, m, m) and of_all.shape == (2, m, n)
        assert_factors(a, complete, of_all)
        torch.testing.assert_close(complete[..., : min(m, n)], q, rtol=0, atol=1e-5)
    none, only = qr(a.to("mps"), "r")
    assert none.shape == (0,)
    assert torch.equal(only, r)


@pytest.mark.usefixtures("taken_as_on")
@pytest.mark.sampled(2)
@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_form_is_lapacks(dtype, shape):
    """Reflectors, their factors and R are LAPACK's, but for the last row's sign: of complex matrices, MKL may leave that as it is."""
    a = torch.randn(2, *shape, dtype=dtype) + 3 * torch.eye(*shape)
    factors, taus = geqrf(a.to("mps"))
    expected, of_them = geqrf(a.to(WIDE[dtype]))
    steps = min(shape)
    some = steps - 1 if dtype.is_complex and shape[0] <= shape[1] else steps
    scale = expected.abs().max() * EPSILON * 100 * (1 + steps)
    assert (wide(factors)[:, :some] - expected[:, :some]).abs().max() <= scale if some else True
    assert ((wide(taus) - of_them)[:, :some].abs() <= 1e-6 * (10 + steps)).all()
    diagonal = wide(factors).diagonal(dim1=-2, dim2=-1)
    assert (diagonal.imag == 0).all() if dtype.is_complex else True


@dtypes
def test_the_last_reflector(dtype):
    """Of a real number it is none; of a complex one it makes it real."""
    a = (
        torch.tensor([[-3.0 + 4j]]).to("mps")
        if dtype.is_complex
        else -3 * torch.ones(1, 1).to("mps")
    )
    r, tau = geqrf(a)
    expected, of_it = geqrf(a.cpu())
    torch.testing.assert_close(r.cpu(), expected)
    torch.testing.assert_close(tau.cpu(), of_it)


@dtypes
@pytest.mark.parametrize("name", HARD)
def test_hard_rectangles(dtype, name):
    a = hard(name, 33, dtype)
    assert_factors(a[:, :9], *qr(a[:, :9].to("mps")))
    assert_factors(a[:9], *qr(a[:9].to("mps")))


@pytest.mark.usefixtures("taken_as_on")
@dtypes
@pytest.mark.parametrize("n", [3, 8, 30, 70, 150])
def test_columns_of_every_scale(dtype, n):
    """Each column is as exact as if it were alone: factors are those of the matrix whose columns are of one size, scaled."""
    a = torch.randn(n, n, dtype=dtype)
    scales = 2.0 ** torch.linspace(-100, 110, n).round()[torch.randperm(n)]
    q, r = qr((a * scales).to("mps"))
    expected, of_it = qr(a.to("mps"))
    torch.testing.assert_close(q, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(r.cpu() / scales, of_it.cpu(), rtol=0, atol=1e-4 * n)


@pytest.mark.usefixtures("taken_as_on")
@dtypes
@pytest.mark.parametrize("n", [4, 40, 150])
@pytest.mark.parametrize("scale", [2.0**-60, 2.0**-100, 2.0**100, 2.0**120])
def test_reflectors_do_not_depend_on_the_scale(dtype, n, scale):
    a = torch.randn(n, n, dtype=dtype)
    factors, taus = geqrf(a.to("mps"))
    of_scaled, taus_of_scaled = geqrf((a * scale).to("mps"))
    torch.testing.assert_close(taus_of_scaled, taus, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_scaled.triu() / scale, factors.triu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [4, 40])
def test_a_tail_far_below_the_diagonal_is_reflected_as_by_lapack(n):
    a = torch.eye(n)
    a[1:, 0] = 1e-30
    a[0, 0] = -2
    factors, taus = geqrf(a.to("mps"))
    expected, of_it = geqrf(a)
    torch.testing.assert_close(factors.cpu(), expected)
    torch.testing.assert_close(taus.cpu(), of_it)


@dtypes
@pytest.mark.parametrize("n", [3, 40])
def test_a_denormal_column_has_an_orthogonal_reflector(dtype, n):
    a = torch.randn(n, 1, dtype=dtype) * 1e-40
    q, r = qr(a.to("mps"))
    assert abs(q.norm().item() - 1) < 1e-5
    torch.testing.assert_close(wide(q @ r), wide(a), rtol=0, atol=2e-43 * n)


def test_many_small_matrices():
    a = torch.randn(70_000, 3, 2)
    assert_factors(a, *qr(a.to("mps")))


def test_memory_is_in_proportion_to_the_matrix():
    """A square matrix of as many rows would take 36 GB."""
    a = torch.randn(95_000, 3)
    assert_factors(a, *qr(a.to("mps")))


@dtypes
@pytest.mark.parametrize(
    "size", [(3, 2), (8, 8), (20, 30), (33, 33), (100, 40), (70, 100)], ids=str
)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_products_with_the_orthogonal_factor(dtype, size, left, transpose):
    m, n = size
    factors, taus = geqrf(torch.randn(2, m, n, dtype=dtype))
    for others in (1, 5, 40):
        other = torch.randn(2, *((m, others) if left else (others, m)), dtype=dtype)
        found = ormqr(factors.to("mps"), taus.to("mps"), other.to("mps"), left, transpose)
        expected = ormqr(wide(factors), wide(taus), wide(other), left, transpose)
        assert found.mT.is_contiguous()
        assert (wide(found) - expected).abs().max() <= 10 * EPSILON * m


@dtypes
@pytest.mark.parametrize("m", [5, 8, 20, 32, 33, 80, 130])
def test_householder_product_with_any_number_of_reflectors(dtype, m):
    factors, taus = geqrf(torch.randn(3, m, m, dtype=dtype))
    for columns in {1, m // 2, m}:
        for reflectors in {0, 1, columns // 2, columns}:
            a, tau = factors[..., :columns], taus[..., :reflectors]
            found = householder_product(a.to("mps"), tau.to("mps"))
            expected = householder_product(wide(a), wide(tau))
            assert found.mT.is_contiguous()
            assert (wide(found) - expected).abs().max() <= 10 * EPSILON * m


@dtypes
@pytest.mark.parametrize("n", [6, 40])
def test_every_layout(dtype, n):
    a = torch.randn(4, 3, n, n, dtype=dtype)
    views = {
        "transposed": lambda x: x.mT,
        "every other": lambda x: x[::2, :, ::2, ::2],
        "from an odd place": lambda x: x[..., 1:, 1:],
        "expanded": lambda x: x[:1, :1].expand(2, 3, n, n),
        "flipped batch": lambda x: x.transpose(0, 1),
        "conjugate": lambda x: x.conj(),
        "imaginary part": lambda x: x.mT.imag if dtype.is_complex else x,
    }
    for name, view in views.items():
        here, there = view(a.to("mps")), view(a).contiguous()
        q, r = qr(here)
        assert q.mT.is_contiguous() and r.mT.is_contiguous(), name
        assert_factors(there, q, r)
        factors, taus = geqrf(here)
        assert factors.mT.is_contiguous() and taus.is_contiguous(), name
        for of_views in (lambda x: x, lambda x: x.mT.contiguous().mT, lambda x: x.contiguous()):
            product = ormqr(of_views(factors), taus, here, True, True)
            torch.testing.assert_close(product.triu(), r, rtol=0, atol=1e-4, msg=name)
            made = householder_product(of_views(factors), taus)
            torch.testing.assert_close(made, q, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    "shape", [(0, 3), (3, 0), (0, 0), (0, 4, 3), (2, 0, 3), (2, 3, 0)], ids=str
)
def test_empty_matrices(shape):
    a = torch.empty(shape)
    for call in (
        *(lambda x, mode=mode: qr(x, mode) for mode in ("reduced", "complete", "r")),
        geqrf,
        lambda x: householder_product(
            x.mT if shape[-1] > shape[-2] else x, x.new_ones(*shape[:-2], 0)
        ),
        lambda x: ormqr(x, x.new_ones(*shape[:-2], min(shape[-2:])), x),
    ):
        expected, found = call(a), call(a.to("mps"))
        for one, other in zip(
            *((x,) if isinstance(x, torch.Tensor) else x for x in (expected, found)), strict=True
        ):
            assert torch.equal(one, other.cpu())
            assert one.stride() == other.stride()


def test_outputs_that_are_given():
    a = torch.randn(2, 6, 5)
    x = a.to("mps")
    q, r = qr(x)
    for shape in ((2, 6, 5), (0,)):  # one of other strides, and one to be resized
        outputs = torch.empty(shape, device="mps"), torch.empty(0, device="mps")
        assert qr(x, out=outputs)[0] is outputs[0]
        assert torch.equal(outputs[0], q) and torch.equal(outputs[1], r)
    outputs = (
        torch.empty(2, 6, 5, dtype=torch.complex64, device="mps"),
        torch.empty(2, 5, device="mps"),
    )
    geqrf(x, out=outputs)
    factors, taus = geqrf(x)
    assert torch.equal(outputs[0], factors.to(torch.complex64)) and torch.equal(outputs[1], taus)
    out = torch.empty(2, 6, 5, device="mps")
    assert householder_product(factors, taus, out=out) is out
    torch.testing.assert_close(out, q)
    out = torch.empty(0, device="mps")
    assert ormqr(factors, taus, x, out=out) is out
    assert torch.equal(out, ormqr(factors, taus, x)) and out.mT.is_contiguous()


@dtypes
@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (40, 35)], ids=str)
def test_gradients_of_products(dtype, shape):
    m, n = shape
    factors, taus = geqrf(torch.randn(2, m, n, dtype=dtype))
    other = torch.randn(2, m, 3, dtype=dtype)
    weights = torch.randn(2, m, m, dtype=dtype)
    for call in (
        lambda a, t, _: householder_product(a, t),
        lambda a, t, c: ormqr(a, t, c),
        lambda a, t, c: ormqr(a, t, c.mH, False, True),
    ):
        gradients = []
        for move in (lambda x: x.to("mps"), wide):
            inputs = [move(x).requires_grad_() for x in (factors, taus, other)]
            result = call(*inputs)
            weight = move(weights)[:, : result.shape[-2], : result.shape[-1]]
            (result * weight).sum().abs().backward()
            gradients.append([x.grad.cpu().to(dtype) for x in inputs if x.grad is not None])
        for found, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * m)


@dtypes
@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (3, 5), (40, 35)], ids=str)
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_gradients_of_the_factorisation(dtype, shape, mode):
    m, n = shape
    if mode == "complete" and m > n:
        with pytest.raises(
            RuntimeError, match="not differentiable when mode='complete' and nrows > ncols"
        ):
            q, _ = qr(torch.randn(m, n, dtype=dtype, device="mps", requires_grad=True), mode)
            q.sum().abs().backward()
        return
    a = torch.randn(2, m, n, dtype=dtype) + 2 * torch.eye(m, n)
    k = min(m, n)
    weights = torch.randn(2, m, k, dtype=dtype), torch.randn(2, k, n, dtype=dtype)
    gradients = []
    for move in (lambda x: x.to("mps"), wide):
        x = move(a).requires_grad_()
        total = sum((y * move(w)).sum() for y, w in zip(qr(x, mode), weights, strict=True))
        torch.view_as_real(total)[0].backward() if dtype.is_complex else total.backward()
        gradients.append(x.grad.cpu().to(dtype))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


def test_compiled():
    a = torch.randn(3, 7, 5, device="mps")
    for call in (
        qr,
        geqrf,
        lambda x: ormqr(*geqrf(x), x),
        lambda x: householder_product(*geqrf(x)),
    ):
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(a), call(a))


def test_tensors_without_values():
    """torch itself has none of geqrf, and so traces it in some states of the process only."""
    for shape in ((3, 7, 5), (4, 6), (0, 3), (2, 1, 1)):
        found = geqrf(torch.empty(shape, dtype=torch.complex64, device="meta"))
        expected = geqrf(torch.ones(shape, dtype=torch.complex64))
        for x, y in zip(found, expected, strict=True):
            assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())


@only_ours("aten::geqrf.a")
def test_errors_are_the_cpus():
    a, t = torch.ones(3, 4, 2), torch.ones(3, 2)
    assert_refused_as_on_the_cpu(
        [
            lambda on: geqrf(on(t[0])),
            lambda on: qr(on(a), "x"),
            lambda on: qr(on(t[0])),
            lambda on: qr(on(a.int())),
            lambda on: householder_product(on(t[0]), on(t)),
            lambda on: householder_product(on(a.mT), on(t)),
            lambda on: householder_product(on(a), on(torch.ones(3, 3))),
            lambda on: householder_product(on(a), on(t[0])),
            lambda on: householder_product(on(a), on(t[:2])),
            lambda on: householder_product(on(a), on(t.to(torch.complex64))),
            lambda on: householder_product(on(a), on(t), out=on(torch.ones(3, 4, 2).int())),
            lambda on: ormqr(on(t[0]), on(t), on(a)),
            lambda on: ormqr(on(a), on(t), on(t[0])),
            lambda on: ormqr(on(a), on(torch.ones(3, 5)), on(a)),
            lambda on: ormqr(on(a), on(t), on(a[:, :3])),
            lambda on: ormqr(on(a), on(t), on(a[:, :1])),
            lambda on: ormqr(on(a), on(t), on(a), False),
            lambda on: ormqr(on(a), on(t[:, :1]), on(a)),
            lambda on: ormqr(on(a), on(t[0]), on(a)),
            lambda on: ormqr(on(a), on(t), on(a[0])),
            lambda on: ormqr(on(a), on(t[:2]), on(a)),
            lambda on: ormqr(on(a), on(t), on(a[:2])),
            lambda on: ormqr(on(a), on(t.to(torch.complex64)), on(a)),
            lambda on: ormqr(on(a), on(t), on(a.to(torch.complex64))),
            lambda on: ormqr(on(a), on(t), on(a), out=on(a.to(torch.complex64))),
            lambda on: geqrf(on(a), out=(on(a.int()), on(t))),
        ],
        RuntimeError,
    )  # fmt: skip
    for call in (
        geqrf,
        qr,
        lambda x: householder_product(x, x[:, 0]),
        lambda x: ormqr(x, x[:, 0], x),
    ):
        with pytest.raises(NotImplementedError, match="_mps\" not implemented for 'Half'"):
            call(torch.ones(3, 2, 2, dtype=torch.half, device="mps"))
