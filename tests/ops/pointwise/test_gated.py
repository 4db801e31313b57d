"""Gated linear units: kernels/pointwise/gated.metal."""

import math

import pytest
import torch
from metalops import debug, ops
from metalops.testing import Operator
from metalops.testing.promotion import floating, halves
from metalops.testing.samples import FLOATS, make
from torch import Tensor
from torch.nn import functional

from ..aten import clamped
from ..benchmark import Benchmark
from ..matrix import Matrix

# ---- references ----------------------------------------------------------------------------------


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    return _silu(floating(a, b)) * floating(b, a)


def geglu(a: Tensor, b: Tensor) -> Tensor:
    return _gelu(floating(a, b)) * floating(b, a)


def reglu(a: Tensor, b: Tensor) -> Tensor:
    return torch.relu(a.to(torch.result_type(a, b))) * b


def swiglu_clamped(a: Tensor, b: Tensor, limit: float = 7.0) -> Tensor:
    gate = clamped(floating(a, b), -math.inf, limit)
    return (clamped(floating(b, a), -limit, limit) + 1) * (gate * torch.sigmoid(1.702 * gate))


def silu_and_mul(x: Tensor) -> Tensor:
    return swiglu(*halves(x))


def mul_and_silu(x: Tensor) -> Tensor:
    a, b = halves(x)
    return swiglu(b, a)


def gelu_and_mul(x: Tensor) -> Tensor:
    return geglu(*halves(x))


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    a, b = halves(floating(x))
    return 0.5 * a * (1 + torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))) * b


def fatrelu_and_mul(x: Tensor, threshold: float = 0.0) -> Tensor:
    a, b = halves(x)
    threshold = torch.tensor(threshold, dtype=torch.float32).item()
    return torch.where(a > threshold, a, 0) * b


POINTWISE = (
    Operator(silu_and_mul),
    Operator(mul_and_silu),
    Operator(gelu_and_mul),
    Operator(gelu_tanh_and_mul),
    Operator(fatrelu_and_mul, arguments=({}, {"threshold": 1.25})),
    Operator(swiglu),
    Operator(geglu),
    Operator(reglu),
    Operator(swiglu_clamped, arguments=({}, {"limit": 2.5}), low=-9, high=9),
)


def _clamped(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    gate = a.clamp(max=7.0)
    return torch.mul((b.clamp(-7.0, 7.0) + 1) * gate, torch.sigmoid(1.702 * gate), out=out)


def _times(activation):
    """activation(a) b, of two tensors."""
    return lambda a, b, out: torch.mul(activation(a), b, out=out)


def _of_halves(function):
    return lambda x, out: function(*halves(x), out)


BENCHMARKS = (
    Benchmark.of(silu_and_mul, _of_halves(_times(functional.silu))),
    Benchmark.of(gelu_and_mul, _of_halves(_times(functional.gelu))),
    Benchmark.of(
        gelu_tanh_and_mul, _of_halves(_times(lambda a: functional.gelu(a, approximate="tanh")))
    ),
    Benchmark.of(
        mul_and_silu,
        _of_halves(lambda a, b, out: torch.mul(functional.silu(b), a, out=out)),
    ),
    Benchmark.of(
        fatrelu_and_mul, _of_halves(_times(lambda a: functional.threshold(a, 0.1, 0.0))), 0.1
    ),
    Benchmark.of(swiglu, _times(functional.silu)),
    Benchmark.of(geglu, _times(functional.gelu)),
    Benchmark.of(reglu, _times(functional.relu)),
    Benchmark.of(swiglu_clamped, _clamped, 7.0),
)


class TestGated(Matrix):
    operators = POINTWISE


# ---- what is particular to each ------------------------------------------------------------------


HALVING = [
    ops.silu_and_mul,
    ops.mul_and_silu,
    ops.gelu_and_mul,
    ops.gelu_tanh_and_mul,
    ops.fatrelu_and_mul,
]


@pytest.fixture
def x():
    return torch.linspace(-4, 4, 60).view(5, 12)


def test_halves_are_the_first_and_the_second_half_of_the_last_dimension(x):
    a, b = x.chunk(2, dim=-1)
    on_device = x.to("mps")
    for function, expected in [
        (ops.silu_and_mul, functional.silu(a) * b),
        (ops.mul_and_silu, a * functional.silu(b)),
        (ops.gelu_and_mul, functional.gelu(a) * b),
        (ops.gelu_tanh_and_mul, functional.gelu(a, approximate="tanh") * b),
        (ops.fatrelu_and_mul, torch.relu(a) * b),
    ]:
        torch.testing.assert_close(function(on_device).cpu(), expected)


def test_halving_and_two_input_forms_agree(x):
    x = x.to("mps")
    a, b = x.chunk(2, dim=-1)
    assert torch.equal(ops.silu_and_mul(x), ops.swiglu(a, b))
    assert torch.equal(ops.mul_and_silu(x), ops.swiglu(b, a))
    assert torch.equal(ops.gelu_and_mul(x), ops.geglu(a, b))
    assert torch.equal(ops.fatrelu_and_mul(x), ops.reglu(a, b))


@pytest.mark.parametrize("columns", [4, 6, 100, 10_000])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_that_begin_anywhere(columns, dtype, taken_as_on):
    for first, total in (
        (0, 2 * columns),
        (0, 2 * columns + 8),
        (1, 2 * columns + 8),
        (4, 2 * columns + 5),
    ):
        whole = make((7, total + 4), dtype)
        x = whole[:, first : first + 2 * columns]
        on_device = whole.to("mps")[:, first : first + 2 * columns]
        a, b = on_device.chunk(2, -1)
        for name, two_inputs, scalars in (
            ("silu_and_mul", torch.ops.metalops.swiglu, ()),
            ("gelu_and_mul", torch.ops.metalops.geglu, ()),
            ("gelu_tanh_and_mul", None, ()),
            ("fatrelu_and_mul", None, (0.2,)),
        ):
            expected = globals()[name](x.float(), *scalars).to(dtype)
            actual = getattr(ops, name)(on_device, *scalars)
            torch.testing.assert_close(actual.cpu(), expected)
            if two_inputs is not None:
                out = torch.empty(7, columns + 8, dtype=dtype, device="mps")[:, 4:-4]
                assert torch.equal(two_inputs.out(a, b, out=out), actual)
        torch.testing.assert_close(ops.reglu(a, b).cpu(), reglu(*halves(x)))
        torch.testing.assert_close(
            ops.swiglu_clamped(a, b, 1.0).cpu(), swiglu_clamped(*halves(x.float()), 1.0).to(dtype)
        )


def test_halves_are_taken_in_tiles_on_a_gpu_and_row_by_row_where_they_are_small(tmp_path):
    x = torch.rand(256, 1024, device="mps")
    with debug.capture(tmp_path / "a.trace", gpu=True) as trace:
        for part in (x, x[:, 1:513], x[:8]):
            ops.silu_and_mul(part)
    assert [(launch.kernel, launch.grid[:2]) for launch in trace.launches] == [
        ("swiglu_tiles_float_float", (128, 64)),
        ("swiglu_tiles_float_float", (64, 64)),
        ("swiglu_rows_float", (512, 8)),
    ]


@pytest.mark.parametrize("function", HALVING)
def test_shapes_that_cannot_be_halved_are_refused(function):
    with pytest.raises(RuntimeError, match="must be even, but dimension 1 is size 3"):
        function(torch.ones(2, 3, device="mps"))
    with pytest.raises(RuntimeError, match="0-dimensional"):
        function(torch.ones((), device="mps"))


@pytest.mark.parametrize("function", HALVING)
def test_halving_into_a_part_of_its_own_input(function, x):
    # Each element of `a` is read before the same place is written, so this is allowed and right.
    x = x.to("mps")
    expected = function(x)
    assert torch.equal(function(x, out=x[:, :6]), expected)
    assert torch.equal(x[:, :6], expected)
    row = x[0].clone()
    with pytest.raises(RuntimeError, match="single memory location"):
        function(row, out=row[3:9])


def test_threshold_is_exclusive_and_keeps_no_nan_of_the_gate():
    a = torch.tensor([1.0, 1.5, 2.0, float("nan"), float("inf")])
    b = torch.tensor([3.0, 3.0, 3.0, 3.0, 3.0])
    y = ops.fatrelu_and_mul(torch.cat([a, b]).to("mps"), 1.5).cpu()
    assert y.tolist() == [0, 0, 6, 0, float("inf")]


def test_clamps_keep_nan():
    nan = torch.full((3,), float("nan"), device="mps")
    one = torch.ones(3, device="mps")
    assert ops.swiglu_clamped(nan, one).isnan().all()
    assert ops.swiglu_clamped(one, nan).isnan().all()


def test_gradient_of_a_clamp_passes_on_its_limit_and_not_beyond():
    a = torch.tensor([2.0, 2.5, 3.0], device="mps", requires_grad=True)
    b = torch.tensor([-2.5, 2.5, 2.6], device="mps", requires_grad=True)
    ops.swiglu_clamped(a, b, 2.5).sum().backward()
    assert (a.grad != 0).tolist() == [True, True, False]
    assert (b.grad != 0).tolist() == [True, True, False]


def test_integers_wrap_around_like_mul():
    a = torch.tensor([100, 200, 3], dtype=torch.uint8)
    b = torch.tensor([3, 2, 5], dtype=torch.uint8)
    assert torch.equal(ops.reglu(a.to("mps"), b.to("mps")).cpu(), a * b)
    a, b = torch.tensor([2**53 + 1]), torch.tensor([3])
    assert torch.equal(ops.reglu(a.to("mps"), b.to("mps")).cpu(), a * b)


def test_cpu_tensors_without_dimensions_stand_among_device_tensors(x):
    a = x.to("mps")
    for scalar in (torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64), torch.tensor(2)):
        expected = functional.silu(x) * scalar.float()
        result = ops.swiglu(a, scalar)
        assert result.dtype == torch.float32 and result.device.type == "mps"
        torch.testing.assert_close(result.cpu(), expected)
        torch.testing.assert_close(ops.swiglu(scalar, a).cpu(), functional.silu(scalar.float()) * x)


def test_in_place_does_not_broadcast_its_target():
    a, b = torch.ones(3, device="mps"), torch.ones(2, 3, device="mps")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        ops.swiglu_(a, b)
    assert ops.swiglu_(b, a).shape == (2, 3)


def test_only_wanted_gradients_are_given():
    a = torch.randn(3, 4, device="mps", requires_grad=True)
    b = torch.randn(4, device="mps")
    ops.geglu(a, b).sum().backward()
    assert a.grad is not None and b.grad is None


def test_half_precision_with_float32_gives_float32_and_gradients_of_their_own_dtypes():
    a = torch.randn(3, 4, device="mps", dtype=torch.float16, requires_grad=True)
    b = torch.randn(3, 4, device="mps", requires_grad=True)
    y = ops.swiglu(a, b)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert a.grad.dtype == torch.float16 and b.grad.dtype == torch.float32


def test_vmap_aligns_operands_as_one_element_of_the_batch_does():
    a = torch.randn(5, 3, 4, device="mps")
    b = torch.randn(5, 4, device="mps")
    s = torch.randn(5, device="mps")
    expected = torch.stack([ops.swiglu(x, y) for x, y in zip(a, b)])
    torch.testing.assert_close(torch.vmap(ops.swiglu)(a, b), expected)
    half = a.half()
    expected = torch.stack([ops.swiglu(x, y) for x, y in zip(half, s)])
    actual = torch.vmap(ops.swiglu)(half, s)
    assert actual.dtype == expected.dtype == torch.float16
    torch.testing.assert_close(actual, expected)
    with pytest.raises(RuntimeError, match="0-dimensional"):
        torch.vmap(ops.silu_and_mul)(torch.ones(4, device="mps"))


@pytest.mark.full
def test_inductor_keeps_the_operator_among_its_own_kernels():
    x = torch.randn(6, 16, device="mps", requires_grad=True)

    def function(x):
        return (ops.silu_and_mul(x * 2) + 1).sum(-1).exp()

    expected = function(x)
    torch._dynamo.reset()
    actual = torch.compile(function, fullgraph=True)(x)
    torch.testing.assert_close(actual, expected)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(torch.autograd.grad(actual.sum(), x)[0], gradient)
