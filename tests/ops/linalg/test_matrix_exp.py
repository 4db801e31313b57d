"""The matrix exponential: kernels/linalg/matrix_exp.metal."""

import math

import pytest
import torch

from ..aten import only_ours
from ..benchmark import Benchmark
from .hard_matrices import HARD
from .linear_algebra import EPSILON, WIDE, dtypes, hard, norm, squares_of
from .operators import MatrixOperator, general

pytestmark = only_ours("aten::linalg_matrix_exp")

OPINFOS = ("matrix_exp",)

exp = torch.linalg.matrix_exp


def _squares(x, out):
    return exp(squares_of(x) / 8)


BENCHMARKS = (Benchmark.same("matrix_exp", _squares),)


def check(a, found, message):
    """As well as torch's CPU, whose order of sums differs."""
    torch.testing.assert_close(found.cpu(), exp(a), rtol=2e-5, atol=2e-5, msg=message)


LINALG = (
    MatrixOperator(
        "matrix_exp",
        lambda x, **out: torch.ops.aten.linalg_matrix_exp.out(x, **out) if out else exp(x),
        check,
        made=lambda *shape, dtype: general(*shape, dtype=dtype) / shape[-1],
        sizes=((3, 3), (10, 10), (40, 40)),
        is_contiguous=True,
    ),
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def error(found, a):
    """Of each exponential, in units of n eps |exp(a)| max(1, |a|), where n is at least 8: coefficients up to 11 are rounded too."""
    exact = exp(a.to(WIDE[a.dtype]))
    scale = max(a.shape[-1], 8) * EPSILON * norm(exact) * norm(a).clamp(min=1)
    return norm(found.cpu() - exact) / scale


@dtypes
@pytest.mark.parametrize("n", [1, 2, 3, 8, 17, 33, 64, 129])
def test_every_polynomial_and_squarings(dtype, n):
    """Norms on both sides of where the next polynomial begins, and up to 40, all in one batch."""
    begins = torch.tensor([1.192e-7, 5.979e-4, 5.117e-2, 5.801e-1, 1.462, 3.010, 6.02, 12.04, 40])
    norms = torch.cat([0.99 * begins, 1.01 * begins])
    a = torch.randn(len(norms), n, n, dtype=dtype)
    a = a - a.mH  # whose exponentials have the norm 1
    a = a * (norms / norm(a).clamp(min=1e-3))[:, None, None]
    found = exp(a.to("mps"))
    assert (error(found, a) <= 1).all()
    assert (error(found, a) <= 3 * error(exp(a), a) + 0.5).all()


@dtypes
@pytest.mark.parametrize("name", HARD)
def test_hard_matrices(dtype, name):
    for n in (1, 2, 3, 4, 5, 17, 33, 65):
        a = hard(name, n, dtype)
        a = a * min(1, 10 / max(norm(a).item(), 1e-30))  # its exponential must have room
        found = exp(a.to("mps"))
        assert error(found, a) <= 3 * error(exp(a), a) + 1, n


def test_zero_and_nilpotent_matrices_are_exact():
    identity = torch.eye(9).expand(4, 9, 9)
    assert torch.equal(exp(torch.zeros(4, 9, 9, device="mps")).cpu(), identity)
    shift = torch.tensor([[0, 1e30], [0, 0]])
    assert torch.equal(exp(shift.to("mps")).cpu(), torch.eye(2) + shift)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_a_bad_matrix_leaves_the_others_alone(bad):
    """Of other polynomials, of its own, and with as many squarings."""
    a = torch.randn(7, 6, 6) * torch.tensor([1e-8, 1e-4, 1e-2, 0.1, 0.2, 3, 30])[:, None, None]
    alone = [exp(x.to("mps")).cpu() for x in a]
    for place in range(len(a)):
        spoilt = a.clone()
        spoilt[place, 2, 3] = bad
        spoilt[place, 3, 2] = bad
        found = exp(spoilt.to("mps")).cpu()
        assert not found[place].isfinite().any()
        for i in range(len(a)):
            assert i == place or torch.equal(found[i], alone[i])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(dtype):
    """torch's CPU loses all digits here: exp of the identity in bfloat16 is -1.3e30."""
    a = (torch.randn(5, 8, 8) / 2).to(dtype)
    expected = exp(a.double())
    found = exp(a.to("mps")).cpu()
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-3)
    identity = torch.eye(3, dtype=dtype, device="mps")
    torch.testing.assert_close(exp(identity).cpu(), (math.e * torch.eye(3)).to(dtype))


@dtypes
def test_gradients(dtype):
    a = torch.randn(3, 4, 4, dtype=dtype)
    weights = torch.randn(3, 4, 4, dtype=dtype)
    gradients = []
    for x, w in ((a.to("mps"), weights.to("mps")), (a.to(WIDE[dtype]), weights.to(WIDE[dtype]))):
        x.requires_grad_()
        (exp(x) * w).sum().abs().backward()
        gradients.append(x.grad.cpu().to(dtype))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_the_derivative_of_a_compiled_flow():
    """d exp(t a) / dt = a exp(t a)."""
    a = torch.randn(5, 5, device="mps")
    flow = torch.compile(lambda t: exp(t * a), backend="aot_eager", fullgraph=True)
    t = torch.tensor(0.3, device="mps")
    value, slope = torch.func.jvp(lambda t: exp(t * a), (t,), (torch.ones_like(t),))
    torch.testing.assert_close(flow(t), value)
    torch.testing.assert_close(slope, a @ value, rtol=1e-4, atol=1e-4)


def test_out_and_errors():
    a = torch.randn(2, 3, 3, device="mps")
    out = torch.empty(2, 3, 3, device="mps").mT
    assert torch.ops.aten.linalg_matrix_exp.out(a, out=out) is out
    torch.testing.assert_close(out, exp(a))
    for wrong, message in (
        (a[..., :2], "A must be batches of square matrices, but they are 3 by 2 matrices"),
        (a[0, 0], "The input tensor A must have at least 2 dimensions."),
        (a.int(), "Expected a floating point or complex tensor as input. Got Int"),
    ):
        with pytest.raises(RuntimeError, match=f"linalg.matrix_exp: {message}"):
            exp(wrong)
