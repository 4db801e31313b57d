"""Derivatives of the pointwise operators beyond the first gradient, against torch's autograd of the formulas in float64."""

import itertools
from functools import partial

import pytest
import torch
from metalops import ops
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from .families import gather

# For references that have no derivative: fma's is rounded to odd.
FORMULAS = {"fma": lambda a, b, c: a * b + c}

# name, with the arguments that are not tensors -> operator, formula, number of tensors
OPERATORS = {
    "-".join([operator.name, *map(str, arguments.values())]): (
        partial(operator.function, **arguments),
        partial(FORMULAS.get(operator.name, operator.reference), **arguments),
        operator.operands,
    )
    for operator in gather("POINTWISE")
    for arguments in operator.arguments
}


@pytest.fixture(params=OPERATORS)
def operator(request):
    return OPERATORS[request.param]


def numbers(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def operands(count, dtype=torch.float32):
    """Tensors that broadcast, of a dtype."""
    shapes = [(3, 4), (4,), (3, 1)][:count]
    return [numbers(*shape, seed=i).to(dtype) for i, shape in enumerate(shapes)]


def both(operator, measure, dtype=torch.float32):
    """What measure(function, tensors) gives for the operator on mps and for the formula in float64, and compares."""
    function, formula, count = operator
    tensors = operands(count, dtype)
    actual = measure(function, [x.to("mps") for x in tensors])
    expected = measure(formula, [x.double() for x in tensors])
    tolerance = 8 * torch.finfo(dtype).eps
    for x, y in zip(actual, expected, strict=True):
        assert x.device.type == "mps" and x.dtype == dtype
        torch.testing.assert_close(x.cpu().double(), y, rtol=tolerance, atol=tolerance)


def weights_like(x):
    return torch.arange(1, x.numel() + 1, dtype=x.dtype, device=x.device).view_as(x) / x.numel()


def gradients_of_gradients(function, tensors):
    tensors = [x.requires_grad_() for x in tensors]
    result = function(*tensors)
    weights = weights_like(result).requires_grad_()
    gradients = torch.autograd.grad(result, tensors, weights, create_graph=True)
    total = sum((g * weights_like(g)).sum() for g in gradients)
    return torch.autograd.grad(total, [weights, *tensors], materialize_grads=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_second_derivatives(operator, dtype):
    both(operator, gradients_of_gradients, dtype)


def test_third_derivatives(operator):
    def measure(function, tensors):
        x = tensors[0].requires_grad_()
        value = function(*tensors)
        for _ in range(3):
            total = (value * weights_like(value)).sum() + 0 * x.sum()
            (value,) = torch.autograd.grad(total, x, create_graph=True)
        return [value]

    both(operator, measure)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.sampled(4)
def test_forward_mode(operator, dtype):
    def measure(function, tensors):
        return [torch.func.jvp(function, tuple(tensors), tuple(map(weights_like, tensors)))[1]]

    both(operator, measure, dtype)


def test_forward_mode_of_some_arguments(operator):
    def measure(function, tensors):
        last = tensors[-1]
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(last, weights_like(last))
            return [forward_ad.unpack_dual(function(*tensors[:-1], dual)).tangent]

    both(operator, measure)


@pytest.mark.sampled(2)
def test_hessians_of_either_mode_first(operator):
    def measure(function, tensors):
        def loss(x):
            value = function(x, *tensors[1:])
            return (value * weights_like(value)).sum()

        x = tensors[0]
        return [
            torch.func.hessian(loss)(x),  # forward over reverse
            torch.func.jacrev(torch.func.jacfwd(loss))(x),
        ]

    both(operator, measure)


@pytest.mark.parametrize("name", ["gelu_new", "swiglu", "fma"])
def test_forward_mode_in_place(name):
    function, _, count = OPERATORS[name]
    inplace = getattr(ops, name + "_")
    tensors = [x.to("mps").expand(3, 4).contiguous() for x in operands(count)]
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x.clone(), weights_like(x)) for x in tensors]
        expected = forward_ad.unpack_dual(function(*duals))
        actual = forward_ad.unpack_dual(inplace(*duals))
    assert torch.equal(actual.primal, expected.primal)
    assert torch.equal(actual.tangent, expected.tangent)


def test_a_plain_tensor_gets_a_tangent_in_place():
    x, y = (numbers(3, seed=i).to("mps") for i in range(2))
    with forward_ad.dual_level():
        tangent = torch.ones_like(y)
        result = ops.swiglu_(x.clone(), forward_ad.make_dual(y, tangent))
        actual = forward_ad.unpack_dual(result).tangent
    torch.testing.assert_close(actual, ops.swiglu(x, tangent))


def test_out_of_a_dual_tensor_is_an_error():
    x = torch.ones(3, device="mps")
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError, match="forward AD with metalops::gelu_new"):
            ops.gelu_new(dual, out=torch.empty_like(x))


def test_second_derivatives_through_torch_compile():
    x = numbers(3, 4, seed=0).to("mps")

    def gradient(t):
        return torch.func.grad(lambda s: ops.silu_and_mul(s).square().sum())(t)

    torch.testing.assert_close(torch.compile(gradient, backend="aot_eager")(x), gradient(x))


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_an_unwanted_gradient_does_not_arrive(operator, wanted):
    function, formula, count = operator
    if wanted >= count:
        pytest.skip("the operator has fewer tensors")
    tensors = [x.to("mps") for x in operands(count)]
    tensors[wanted].requires_grad_()
    (gradient,) = torch.autograd.grad(function(*tensors).sum(), tensors[wanted])
    reference = [x.detach().cpu().double() for x in tensors]
    reference[wanted].requires_grad_()
    (expected,) = torch.autograd.grad(formula(*reference).sum(), reference[wanted])
    torch.testing.assert_close(gradient.cpu().double(), expected, rtol=1e-6, atol=1e-6)


class BackwardResults(TorchDispatchMode):
    """What backward operators of ours return."""

    def __init__(self):
        super().__init__()
        self.results = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        if func.name().startswith("metalops::") and func.name().endswith("_backward"):
            self.results += results if isinstance(results, tuple) else [results]
        return results


def test_an_unwanted_gradient_is_not_allocated(operator):
    function, _, count = operator
    for wanted in range(count):
        tensors = [x.to("mps") for x in operands(count)]
        tensors[wanted].requires_grad_()
        total = function(*tensors).sum()
        with BackwardResults() as backward:
            torch.autograd.grad(total, tensors[wanted])
        assert sum(x is not None for x in backward.results) <= 1


@pytest.mark.parametrize("layout", ["dense", "rows", "strided"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "count"), [("swiglu", 2), ("swiglu_clamped", 2), ("lerp_clamped", 3)]
)
def test_wanted_gradients_are_those_of_all(name, count, dtype, layout):
    backward = getattr(torch.ops.metalops, f"{name}_backward")
    tensors = [numbers(6, 5, 8, seed=i).to("mps", dtype) for i in range(count + 1)]
    if layout == "rows":
        tensors = [x[..., :4] for x in tensors]
    elif layout == "strided":
        tensors = [x.permute(*order) for x, order in zip(tensors, [(0, 1, 2), (0, 2, 1)] * 2)]
        tensors = [x[:5, :5, :5] for x in tensors]
    scalars = [0.5] if name == "swiglu_clamped" else []
    expected = backward(*tensors, *scalars)
    for mask in itertools.product([False, True], repeat=count):
        actual = backward(*tensors, *scalars, list(mask))
        for x, y, wanted in zip(actual, expected, mask, strict=True):
            assert torch.equal(x, y) if wanted else x is None


@pytest.mark.full
def test_wanted_gradients_under_vmap_and_torch_compile():
    a, b = (numbers(3, 4, seed=i).to("mps") for i in range(2))

    def gradient(x, y):
        return torch.func.grad(lambda s: ops.swiglu(s, y).square().sum())(x)

    expected = gradient(a, b)
    torch.testing.assert_close(torch.vmap(gradient)(a, b), expected)
    for backend in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(gradient, backend=backend)(a, b), expected)
    leaf = b.clone().requires_grad_()
    torch.compile(ops.swiglu, backend="inductor")(a, leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, torch.nn.functional.silu(a))


def test_the_gradient_of_a_summand_takes_no_kernel():
    a, b, c = (x.to("mps") for x in operands(3))
    c.requires_grad_()
    result = ops.fma(a, b, c)
    with torch.profiler.profile() as profile:
        (gradient,) = torch.autograd.grad(result, c, torch.ones_like(result))
    assert "metalops::fma_backward" not in {event.key for event in profile.key_averages()}
    assert torch.equal(gradient.cpu(), torch.full((3, 1), 4.0))


def backward_of(function, tensors):
    function(*tensors).square().sum().backward()
    return [x.grad for x in tensors]


@pytest.mark.full
@pytest.mark.sampled(3)
def test_compiled_autograd(operator):
    function, _, count = operator

    def leaves():
        return [x.to("mps").requires_grad_() for x in operands(count)]

    expected = backward_of(function, leaves())
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        actual = backward_of(function, leaves())
        again = backward_of(function, leaves())
    for results in (actual, again):
        torch.testing.assert_close(results, expected)


def test_compiled_autograd_tells_numbers_apart():
    x = numbers(5, seed=0).to("mps")

    def gradient(cap):
        leaf = x.clone().requires_grad_()
        return backward_of(lambda t: ops.softcap(t, cap), [leaf])

    expected = [gradient(cap) for cap in (0.5, 1.5)]
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        actual = [gradient(cap) for cap in (0.5, 1.5)]
    torch.testing.assert_close(actual, expected)


def test_compiled_autograd_with_a_gradient_that_is_not_wanted():
    a, b = (x.to("mps") for x in operands(2))

    def gradient():
        leaf = b.clone().requires_grad_()
        ops.swiglu(a, leaf).sum().backward()
        return leaf.grad

    expected = gradient()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        actual = gradient()
    torch.testing.assert_close(actual, expected)
