"""metalops.functor: values, dtypes, layouts and gradients of functors against torch."""

import itertools
import pickle

import metalops
import pytest
import torch
from metalops.kernel.functor.metal_text import needed_by_gradient
from metalops.msl.check import check_source
from metalops.testing import check_forward, check_gradient, check_inplace, check_out, no_standins
from metalops.testing.samples import FLOATS, INTEGERS, Case, elementwise_cases, make

from .functor_ports import PORTS, port

pytestmark = pytest.mark.full

# One for each way to launch: unary, binary and ternary kernels of torch's, with and without a scalar, and our own.
KINDS = ["silu", "elu", "swiglu", "huber", "lerp", "addcmul", "polar"]
by_kind = pytest.mark.parametrize("p", [port(name) for name in KINDS], ids=str)
by_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def sample(p, dtype, *shape, seed=0):
    return make(shape, dtype, low=p.low, high=p.high, seed=seed)


def simple_case(p, dtype=torch.float32, shape=(4, 6)):
    args = tuple(sample(p, dtype, *shape, seed=i) for i in range(len(p.inputs)))
    return Case("simple", args, {name: 0.75 for name in list(p.params)[:1]})


def gradients(function, args, kwargs):
    args = [x.detach().requires_grad_() for x in args]
    results = function(*args, **kwargs)
    results = results if isinstance(results, tuple) else (results,)
    cotangents = [
        make(y.shape, y.dtype, low=-2, high=2, seed=i).to(y.device) for i, y in enumerate(results)
    ]
    return torch.autograd.grad(results, args, cotangents)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("p", PORTS, ids=str)
def test_values_and_gradients_agree_with_torch(p):
    case = simple_case(p, shape=(7, 33))
    check_forward(p.function, p.reference, case, "mps", name=p.name)
    if p.grad is None:
        return
    actual = gradients(p.function, [x.to("mps") for x in case.args], case.kwargs)
    expected = gradients(p.reference, [x.double() for x in case.args], case.kwargs)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e.float(), rtol=1e-5, atol=2e-5)


@pytest.mark.sampled(12)
@by_dtype
@by_kind
def test_values_in_every_layout_shape_and_promotion(p, dtype):
    for case in elementwise_cases(len(p.inputs), dtype, specials=False):
        check_forward(p.function, p.reference, case, "mps", name=p.name)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", (*INTEGERS, torch.bool), ids=str)
@pytest.mark.parametrize("name", ["sigmoid", "swiglu", "polar"])
def test_integers_become_floating_point(name, dtype):
    p = port(name)
    case = simple_case(p, dtype, (33,))
    check_forward(p.function, p.reference, case, "mps", name=p.name)
    mixed = Case(
        "mixed integers",
        tuple(x.to(t) for x, t in zip(case.args, (dtype, torch.int32), strict=False)),
    )
    check_forward(p.function, p.reference, mixed, "mps", name=p.name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_that_stay_wrap_around(dtype):
    x = torch.tensor([torch.iinfo(dtype).max, torch.iinfo(dtype).min, 3, 100], dtype=dtype)
    assert torch.equal(port("square").function(x.to("mps")).cpu(), torch.square(x))


def test_integers_are_refused_on_demand():
    f = metalops.functor("tests::floats_only", "x + 1", integers="refuse")
    assert f(torch.ones(2, device="mps")).tolist() == [2, 2]
    with pytest.raises(NotImplementedError, match="\"floats_only\" not implemented for 'Int'"):
        f(torch.ones(2, dtype=torch.int32, device="mps"))
    with pytest.raises(
        NotImplementedError, match="\"floats_only\" not implemented for 'ComplexFloat'"
    ):
        f(torch.ones(2, dtype=torch.complex64, device="mps"))


@pytest.mark.sampled(12)
@by_dtype
@pytest.mark.parametrize("name", [name for name in KINDS if name != "polar"])
def test_gradients_in_every_layout_and_promotion(name, dtype):
    p = port(name)
    cases = list(elementwise_cases(len(p.inputs), dtype, low=0, high=2, specials=False))
    for case in cases[:: 3 if dtype == torch.float32 else 12]:
        check_gradient(p.function, p.reference, case, "mps", name=p.name)


@pytest.mark.sampled(4)
@by_dtype
@pytest.mark.parametrize("name", [name for name in KINDS if name != "polar"])
def test_out_and_in_place(name, dtype):
    p = port(name)
    check_out(p.function, p.reference, simple_case(p, dtype), "mps", name=p.name)
    check_inplace(p.function.inplace, p.reference, simple_case(p, dtype), "mps", name=p.name)


def test_gradient_through_in_place():
    p = port("silu")

    def through_inplace(x):
        changed = x * 1
        p.function.inplace(changed)
        return changed

    check_gradient(through_inplace, p.reference, simple_case(p), "mps", name=p.name)


def test_half_precision_is_rounded_once():
    x = torch.linspace(-6, 6, 20001).half()
    expected = (x.double() * torch.sigmoid(x.double())).half()
    different = port("silu").function(x.to("mps")).cpu() != expected
    assert different.float().mean() < 1e-3


def test_it_runs_without_stand_ins():
    for name in KINDS:
        p = port(name)
        args = [x.to("mps") for x in simple_case(p).args]
        with no_standins():
            p.function(*args)
        cotangents = torch.ones(4, 6, device="mps")
        leaves = [x.requires_grad_() for x in args]
        results = p.function(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        with no_standins():
            torch.autograd.grad(results, leaves, [cotangents] * len(results))


def test_several_results_can_be_written_to_given_tensors():
    p = port("polar")
    args = [x.to("mps") for x in simple_case(p).args]
    expected = p.function(*args)
    outs = (torch.empty(0, device="mps"), torch.empty(12, 4, device="mps").t()[:, ::2])
    assert all(a is b for a, b in zip(p.function(*args, out=outs), outs, strict=True))
    torch.testing.assert_close(outs[0], expected[0])
    torch.testing.assert_close(outs[1], expected[1])
    halves = tuple(torch.empty(4, 6, dtype=torch.float16, device="mps") for _ in range(2))
    p.function(*args, out=halves)
    torch.testing.assert_close(halves[1], expected[1].half())
    with pytest.raises(RuntimeError, match="overlap|single memory location"):
        p.function(*args, out=(outs[0], outs[0]))
    with pytest.raises(TypeError, match="argument 'out' must be 2 tensors"):
        p.function(*args, out=outs[0])


def test_only_one_of_several_results_needs_a_gradient():
    p = port("polar")
    args = simple_case(p).args
    actual = [x.to("mps").requires_grad_() for x in args]
    expected = [x.double().requires_grad_() for x in args]
    p.function(*actual)[1].sum().backward()
    p.reference(*expected)[1].sum().backward()
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.grad.float())


@by_kind
def test_an_unwanted_gradient_is_not_allocated(p):
    args = [x.to("mps") for x in simple_case(p).args]
    count = len(args)
    if count == 1:
        pytest.skip("there is one gradient only")
    needed = [
        x for x in p.function.definition.inputs if x in needed_by_gradient(p.function.definition)
    ]
    tensors = [args[p.function.definition.inputs.index(x)] for x in needed]
    cotangents = [torch.randn_like(args[0]) for _ in p.function.definition.outputs]
    scalars = [1.0 for _ in p.params]
    backward = getattr(torch.ops.ports, f"{p.name}_backward")
    expected = backward(*cotangents, *tensors, *scalars)
    for mask in itertools.product([False, True], repeat=count):
        actual = backward(*cotangents, *tensors, *scalars, list(mask))
        for x, y, wanted in zip(actual, expected, mask, strict=True):
            assert torch.equal(x, y) if wanted else x is None


def test_parameters_have_defaults_and_reach_the_kernel_unrounded():
    elu = port("elu").function
    x = torch.full((4,), -30.0, dtype=torch.float16, device="mps")
    assert torch.equal(elu(x), elu(x, alpha=1.0))
    assert torch.equal(elu(x, alpha=2), elu(x, alpha=2.0))
    assert elu(x, alpha=30.01)[0].item() == torch.tensor(-30.01).half().item()


def test_parameters_of_all_types():
    f = metalops.functor(
        "tests::typed",
        "negate ? -(x + float(shift) + scale) : x + float(shift) + scale",
        params={"shift": 2**40, "negate": False, "scale": float},
    )
    x = torch.tensor([1.0, 2.0], device="mps")
    assert f(x, scale=0.5, shift=3).tolist() == [4.5, 5.5]
    assert f(x, scale=0.5, shift=3, negate=True).tolist() == [-4.5, -5.5]
    assert f(x, scale=0).tolist() == [2.0**40, 2.0**40]
    one = metalops.functor("tests::power", "pow(x, float(n))", params={"n": 2})
    assert one(x, n=3).tolist() == [1, 8]
    flag = metalops.functor("tests::flip", "up ? x : -x", params={"up": True})
    assert flag(x, up=False).tolist() == [-1, -2]


def test_more_inputs_than_torch_has_kernels_for():
    names = tuple("abcdefghij")
    f = metalops.functor(
        "tests::sum_of_ten", " + ".join(names), inputs=names, grad=["grad"] * 10, integers="stay"
    )
    args = [make((5, 7), torch.float32, seed=i) for i in range(10)]
    args[3], args[7] = args[3][:, :1], args[7].t().contiguous().t()
    check_gradient(f, lambda *xs: sum(xs), Case("floats", tuple(args)), "mps", name="sum")
    ints = [make((5, 7), torch.int32 if i else torch.int64, seed=i) for i in range(10)]
    check_forward(f, lambda *xs: sum(xs), Case("integers", tuple(ints)), "mps", name="sum")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("other", [2, 2.5, True])
def test_numbers_stand_for_tensors(other):
    f = metalops.functor("tests::plus", "x + y", inputs=("x", "y"), integers="stay")
    for x in (
        torch.tensor([1, 2], dtype=torch.uint8),
        torch.tensor([1.0, 2.0]).half(),
        torch.tensor(3),
        torch.tensor(3.0).half(),
    ):
        for actual, expected in (
            (f(x.to("mps"), other), x + other),
            (f(other, x.to("mps")), other + x),
        ):
            assert actual.dtype == expected.dtype and actual.device.type == "mps"
            torch.testing.assert_close(actual.cpu(), expected)


def test_tensors_without_dimensions_may_lie_on_the_cpu():
    f = port("swiglu").function
    x = torch.randn(3, device="mps")
    scale = torch.tensor(2.0, dtype=torch.float64)
    torch.testing.assert_close(f(x, scale), f(x, torch.full_like(x, 2)))
    assert f(x, scale).dtype == torch.float32


def test_complex_numbers():
    mul = metalops.functor(
        "tests::multiply",
        "c10::metal::mul(a, b)",
        inputs=("a", "b"),
        grad=("c10::metal::mul(grad, conj(b))", "c10::metal::mul(grad, conj(a))"),
        header="""
            inline float2 conj(float2 z) { return float2(z.x, -z.y); }
            inline float conj(float x) { return x; }
        """,
        complex=True,
    )
    a, b = (make((4, 6), torch.complex64, seed=i) for i in range(2))
    for first, second in (
        (a, b),
        (a, b.real.contiguous()),
        (a.t(), b.t()),
        (a, b.conj()),
        (a, b[0, 0]),
    ):
        actual = [x.to("mps").requires_grad_() for x in (first.detach(), second.detach())]
        expected = [x.detach().clone().requires_grad_() for x in (first, second)]
        result, wanted = mul(*actual), torch.mul(*expected)
        torch.testing.assert_close(result.cpu(), wanted)
        (result.abs() ** 2).sum().backward()
        (wanted.abs() ** 2).sum().backward()
        for x, y in zip(actual, expected, strict=True):
            torch.testing.assert_close(x.grad.cpu(), y.grad, rtol=1e-4, atol=1e-3)
    half = a.to(torch.complex32)
    product = mul(half.to("mps"), half.to("mps"))
    assert product.dtype == torch.complex32
    torch.testing.assert_close(
        product.cpu().to(torch.complex64), half.to(torch.complex64) ** 2, rtol=2e-3, atol=2e-3
    )


def test_complex_numbers_only_and_their_real_results():
    f = metalops.functor(
        "tests::modulus", "length(z)", inputs="z", complex="only", result="real",
        grad="grad.x * z / length(z)",
    )  # fmt: skip
    z = make((4, 6), torch.complex64).requires_grad_()
    on_device = z.detach().to("mps").requires_grad_()
    result = f(on_device)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.cpu(), z.abs())
    result.sum().backward()
    z.abs().sum().backward()
    torch.testing.assert_close(on_device.grad.cpu(), z.grad)
    out = torch.empty(4, 6, dtype=torch.float16, device="mps")
    torch.testing.assert_close(f(on_device.detach(), out=out).cpu(), z.abs().half())
    assert f(on_device.detach().to(torch.complex32)).dtype == torch.float16
    with pytest.raises(NotImplementedError, match="not implemented for 'Float'"):
        f(torch.ones(2, device="mps"))


def test_predicates():
    less = metalops.functor(
        "tests::less", "x < y", inputs=("x", "y"), integers="stay", result="bool"
    )
    for dtype, other in (
        (torch.float32, torch.float32),
        (torch.int64, torch.float16),
        (torch.uint8, torch.int8),
    ):
        x, y = make((4, 6), dtype), make((6,), other, seed=1)
        actual = less(x.to("mps"), y.to("mps"))
        assert torch.equal(actual.cpu(), x < y)
    x = torch.ones(3, device="mps", requires_grad=True)
    assert not less(x, 2.0).requires_grad
    assert (
        less(x.detach(), 2.0, out=torch.zeros(3, dtype=torch.int32, device="mps")).tolist()
        == [1] * 3
    )
    with pytest.raises(NotImplementedError, match="do not work in place"):
        less.inplace(x.detach(), x.detach())


def test_a_functor_struct_with_several_results():
    f = metalops.functor(
        "tests::divmod",
        """
        struct divmod_functor {
          template <typename T>
          inline metal::array<T, 2> operator()(const T x, const T y, const float offset) {
            const T q = floor(x / y);
            return {q, x - q * y + offset};
          }
        };
        """,
        inputs=("x", "y"),
        params={"offset": 0.0},
        outputs=("q", "r"),
        grad=("grad_r", "-grad_r * q"),
    )
    x, y = make((3, 5), torch.float32), make((5,), torch.float32, low=1)
    q, r = f(x.to("mps"), y.to("mps").requires_grad_(), offset=1.0)
    torch.testing.assert_close(q.detach().cpu(), torch.floor(x / y))
    torch.testing.assert_close(r.detach().cpu(), x - torch.floor(x / y) * y + 1)
    assert q.requires_grad and r.requires_grad


def test_empty_tensors():
    for name in KINDS:
        p = port(name)
        args = [torch.empty(0, 3, device="mps", requires_grad=True) for _ in p.inputs]
        results = p.function(*args)
        results = results if isinstance(results, tuple) else (results,)
        assert all(y.shape == (0, 3) for y in results)
        assert all(g.shape == (0, 3) for g in torch.autograd.grad([y.sum() for y in results], args))


# For references without second derivatives.
FORMULAS = {"hardsigmoid": lambda x: (x + 3).clamp(0, 6) / 6}
DIFFERENTIABLE = pytest.mark.parametrize("p", [p for p in PORTS if p.grad is not None], ids=str)


def tuple_of(results):
    return results if isinstance(results, tuple) else (results,)


def second_gradients(function, args):
    """Of all gradients together: those of the cotangents and of the inputs."""
    args = [x.detach().requires_grad_() for x in args]
    results = tuple_of(function(*args))
    cotangents = [(0.5 + 0.5 * y.detach()).requires_grad_() for y in results]
    gradients = torch.autograd.grad(results, args, cotangents, create_graph=True)
    weights = [
        torch.linspace(1, 2 + i, g.numel(), device=g.device) for i, g in enumerate(gradients)
    ]
    total = sum((g * w.view_as(g)).sum().real for g, w in zip(gradients, weights, strict=True))
    return gradients + torch.autograd.grad(total, [*cotangents, *args], materialize_grads=True)


@pytest.mark.sampled(12)
@DIFFERENTIABLE
def test_second_derivatives(p):
    args = [
        sample(p, torch.float32, *shape, seed=i) for i, shape in enumerate([(4, 6), (6,), (4, 1)])
    ]
    args = args[: len(p.inputs)]
    actual = second_gradients(p.function, [x.to("mps") for x in args])
    reference = FORMULAS.get(p.name, p.reference)
    expected = second_gradients(reference, [x.double() for x in args])
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu().double(), e, rtol=1e-4, atol=1e-4)


@by_dtype
def test_second_derivatives_have_the_dtype_of_the_inputs(dtype):
    p = port("swiglu")
    args = [sample(p, dtype, 4, 6, seed=i) for i in range(2)]
    actual = second_gradients(p.function, [x.to("mps") for x in args])
    expected = second_gradients(p.reference, [x.double() for x in args])
    tolerance = 8 * torch.finfo(dtype).eps
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(
            a.cpu().double(), e, rtol=0, atol=tolerance * e.abs().max().item()
        )


@by_kind
def test_forward_mode_and_hessians(p):
    args = [sample(p, torch.float32, 3, seed=i) for i in range(len(p.inputs))]

    def measure(function, args):
        def loss(x):
            return sum((y * y).sum() for y in tuple_of(function(x, *args[1:])))

        x = args[0]
        tangents = tuple(torch.ones_like(x) * 0.5 for x in args)
        return (
            torch.func.hessian(loss)(x),  # forward over reverse
            torch.func.jacrev(torch.func.jacrev(loss))(x),
            torch.func.jacrev(torch.func.jacrev(torch.func.jacfwd(loss)))(x),
            *tuple_of(torch.func.jvp(function, tuple(args), tangents)[1]),
        )

    actual = measure(p.function, [x.to("mps") for x in args])
    expected = measure(p.reference, [x.double() for x in args])
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu().double(), e, rtol=1e-3, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("text", "grad", "reference"),
    [
        ("x > 0 ? log(x) : x", "grad * (x > 0 ? 1 / x : 1.0f)", lambda x: torch.where(x > 0, torch.log(x.clamp(min=1e-3)), x)),
        ("select(x, sqrt(x), x > 0)", "x > 0 ? grad * 0.5f * rsqrt(x) : grad", lambda x: torch.where(x > 0, x.clamp(min=1e-3).sqrt(), x)),
    ],
)  # fmt: skip
def test_an_arm_of_a_condition_leaves_other_elements_alone(text, grad, reference):
    f = metalops.functor(f"tests::arms_{len(text)}", text, grad=grad)
    x = torch.tensor([-2.0, 0.0, 0.5, 3.0])

    def second(function, x):
        return torch.func.jacrev(torch.func.jacrev(lambda t: function(t).sum()))(x)

    actual = second(f, x.to("mps")).cpu()
    torch.testing.assert_close(actual.double(), second(reference, x.double()))
    torch.testing.assert_close(second(f, x[1].to("mps")).cpu(), torch.tensor(0.0))


def test_integers_in_a_gradient_are_those_of_metal():
    f = metalops.functor(
        "tests::halves", "n / 2 * x * x + 1 / 2 * x", params={"n": 3}, grad="grad * (n / 2 * 2 * x + 1 / 2)"
    )  # fmt: skip
    x = torch.tensor([1.0, -2.0], device="mps", requires_grad=True)
    (gradient,) = torch.autograd.grad(f(x, n=5).sum(), x, create_graph=True)
    assert gradient.tolist() == [4, -8]
    assert torch.autograd.grad(gradient.sum(), x)[0].tolist() == [4, 4]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("grad", "header", "reason"),
    [
        ("grad * x * (half)2", "", "'half' is not known"),
        ("grad * twice(x)", "inline float twice(float x) { float y = x; return y + y; }", "'twice' with 1 arg"),
        ("grad * TWICE(x)", "#define TWICE(x) (2 * x)", "its header has macros"),
        ("grad * as_type<float>(x)", "", "'as_type' is not known"),
        ("grad * fmod(x, 2.0f)", "", "'fmod' with 2 arguments is not known"),
    ],
)  # fmt: skip
def test_a_gradient_that_cannot_be_read_has_no_derivative_and_says_why(grad, header, reason):
    name = f"unreadable_{len(grad)}_{len(header)}"
    f = metalops.functor(f"tests::{name}", "x * x", grad=grad, header=header)
    x = torch.ones(3, device="mps", requires_grad=True)
    (gradient,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    message = (
        f"tests::{name}_backward is not implemented: it cannot be derived from grad, as {reason}"
    )
    with pytest.raises(NotImplementedError, match=f"{message}.*; give '{name}' a torch_grad"):
        gradient.sum().backward()


def cubed_gradient(grad, x, *, scale):
    return grad * 3 * scale * x * x


def test_torch_grad_gives_derivatives_of_a_gradient_that_cannot_be_read():
    f = metalops.functor(
        "tests::cubed",
        "scale * x * x * x",
        params={"scale": 1.0},
        grad="grad * 3 * scale * fma(x, as_type<float>(x), 0.0f)",
        torch_grad=cubed_gradient,
    )
    x = torch.tensor([1.0, -2.0], device="mps", requires_grad=True)
    (gradient,) = torch.autograd.grad(f(x, scale=0.5).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, 1.5 * x * x)
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x)[0], 3 * x)
    assert pickle.loads(pickle.dumps(f)) is f


def test_torch_grad_of_complex_inputs():
    f = metalops.functor(
        "tests::complex_square",
        "c10::metal::mul(z, z)",
        inputs="z",
        complex="only",
        grad="c10::metal::mul(grad, 2 * float2(z.x, -z.y))",
        torch_grad=lambda grad, z: grad * 2 * z.conj(),
    )
    z = torch.tensor([1 + 2j, -0.5j])
    actual = second_gradients(f, [z.to("mps")])
    expected = second_gradients(torch.square, [z.to(torch.complex128)])
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e.to(torch.complex64))


def test_errors_of_torch_grad():
    with pytest.raises(TypeError, match="functor 'f': torch_grad must be a function, but got 3"):
        metalops.functor("f", "x", grad="grad", torch_grad=3)
    with pytest.raises(ValueError, match="what grad does, which is not given"):
        metalops.functor("f", "x", torch_grad=torch.sin)
    f = metalops.functor(
        "tests::two_for_one", "x", grad="grad", torch_grad=lambda grad, x: (grad, grad)
    )
    x = torch.ones(3, device="mps", requires_grad=True)
    with pytest.raises(ValueError, match="two_for_one: torch_grad must return the gradients of 1"):
        torch.autograd.grad(f(x).sum(), x, create_graph=True)


def test_backward_without_grad_is_an_error_that_names_the_functor():
    x = torch.ones(3, device="mps", requires_grad=True)
    y = port("gelu_tanh").function(x)
    with pytest.raises(
        NotImplementedError, match="ports::gelu_tanh is not implemented: it was defined without"
    ):
        y.sum().backward()
    with torch.no_grad():
        assert not port("gelu_tanh").function(x).requires_grad


def test_forward_mode():
    x = torch.linspace(-3, 3, 7)
    tangent = torch.linspace(1, 2, 7)
    actual = torch.func.jvp(port("silu").function, (x.to("mps"),), (tangent.to("mps"),))
    expected = torch.func.jvp(torch.nn.functional.silu, (x,), (tangent,))
    torch.testing.assert_close([y.cpu() for y in actual], list(expected))


def test_forward_mode_of_several_results():
    polar = metalops.functor(
        "tests::polar_tangents",
        ["r * cos(phi)", "r * sin(phi)"],
        inputs=["r", "phi"],
        grad=[
            "grad_out0 * cos(phi) + grad_out1 * sin(phi)",
            "r * (grad_out1 * cos(phi) - grad_out0 * sin(phi))",
        ],
    )
    point = (torch.tensor([1.0, 2.0]), torch.tensor([[0.5], [1.5]]))
    tangents = (torch.tensor([0.3, -0.2]), torch.tensor([[1.0], [2.0]]))

    def reference(r, phi):
        return r * phi.cos(), r * phi.sin()

    _, expected = torch.func.jvp(reference, point, tangents)
    on_mps = [tuple(x.to("mps") for x in xs) for xs in (point, tangents)]
    _, actual = torch.func.jvp(polar, *on_mps)
    torch.testing.assert_close([y.cpu() for y in actual], list(expected))


def test_forward_mode_of_complex_tensors_is_an_error_that_names_the_functor():
    square = metalops.functor(
        "tests::complex_tangents",
        "c10::metal::mul(x, x)",
        inputs=["x"],
        complex="only",
        grad=["c10::metal::mul(grad, 2 * x)"],
    )
    x = torch.ones(3, device="mps", dtype=torch.complex64)
    with pytest.raises(NotImplementedError, match="tests::complex_tangents of complex tensors"):
        torch.func.jvp(square, (x,), (x,))


def test_forward_mode_without_grad_is_an_error_that_names_the_functor():
    x = torch.ones(3, device="mps")
    with pytest.raises(NotImplementedError, match="forward AD with ports::gelu_tanh"):
        torch.func.jvp(port("gelu_tanh").function, (x,), (x,))


def test_the_default_dtype_decides_what_integers_become():
    x = torch.arange(5, device="mps")
    try:
        torch.set_default_dtype(torch.float16)
        result = port("sigmoid").function(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert result.dtype == torch.float16
    torch.testing.assert_close(result, port("sigmoid").function(x).half())


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", KINDS)
def test_the_generated_text_is_what_apples_compiler_takes(name):
    source = port(name).function.source(torch.float16)
    assert "#include <c10" not in source  # a Mac has no include path at run time
    assert check_source(source) == []


def test_ports_are_distinct():
    assert len({p.name for p in PORTS}) == len(PORTS) >= 20
