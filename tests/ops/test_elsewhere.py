"""Operators of metalops.ops on the CPU: what their kernels in Python do around the formulas, which tests/ops/test_operators.py
tries. Everything here runs where nothing of metalops is built, too."""

import itertools

import pytest
import torch
from metalops import ops

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def test_dtypes_are_promoted_as_torch_promotes_them():
    kinds = (*FLOATS, torch.int64, torch.int32, torch.uint8)
    for first, second in itertools.product(kinds, repeat=2):
        a, b = torch.ones(3, dtype=first), torch.ones(3, dtype=second)
        assert ops.fma(a, b, a).dtype == torch.result_type(a, b)
        assert ops.swiglu(a, b).dtype == torch.true_divide(a, b).dtype
        assert ops.swiglu(a, b[0]).dtype == torch.true_divide(a, b[0]).dtype


def test_integers_become_the_default_dtype():
    x = torch.arange(4)
    torch.set_default_dtype(torch.float64)
    try:
        result = ops.gelu_new(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result.float(), ops.gelu_new(x.float()))


def test_results_have_the_strides_that_torch_gives_them():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    transposed = torch.randn(5, 4).t()
    assert ops.gelu_new(x).stride() == torch.relu(x).stride()
    assert ops.swiglu(transposed, transposed).stride() == (transposed + transposed).stride()
    assert ops.swiglu(transposed, torch.randn(4, 1)).stride() == transposed.stride()


def test_out_is_resized_cast_to_and_may_be_an_input():
    x = torch.randn(4)
    expected = ops.gelu_new(x)
    out = torch.empty(0, dtype=torch.float16)
    assert ops.gelu_new(x, out=out) is out
    torch.testing.assert_close(out, expected.half())
    whole = torch.cat([x, torch.zeros(1)])
    torch.testing.assert_close(ops.gelu_new(whole[:4], out=whole[1:]), expected)
    with pytest.raises(RuntimeError, match="can't be cast"):
        ops.gelu_new(x, out=torch.empty(4, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="single memory location"):
        ops.gelu_new(x, out=torch.empty(1).expand(4))


def test_in_place():
    x = torch.randn(4)
    expected = ops.softcap(x, 2.0)
    assert ops.softcap_(x, 2.0) is x
    torch.testing.assert_close(x, expected)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        ops.swiglu_(torch.ones(3), torch.ones(2, 3))
    leaf = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        ops.gelu_new_(leaf)


def test_gradients_of_any_order():
    a, b = torch.randn(5, requires_grad=True), torch.randn(2, 5, requires_grad=True)
    first = torch.autograd.grad(ops.swiglu(a, b).sum(), (a, b), create_graph=True)
    expected = torch.autograd.grad(
        (torch.nn.functional.silu(a) * b).sum(), (a, b), create_graph=True
    )
    second, expected_second = (
        torch.autograd.grad(sum(x.square().sum() for x in g), (a, b)) for g in (first, expected)
    )
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, expected_second)


def test_the_gradient_alone_that_is_wanted():
    a, b = torch.randn(5), torch.randn(5, requires_grad=True)
    (gradient,) = torch.autograd.grad(ops.fatrelu_and_mul(torch.cat([a, b]), 0.5).sum(), b)
    torch.testing.assert_close(gradient, torch.where(a > 0.5, a, 0.0))
    (gradient,) = torch.autograd.grad(ops.fma(a, b, a).sum(), b)
    torch.testing.assert_close(gradient, a)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fma_rounds_once(dtype):
    torch.manual_seed(0)
    a, b, c = (torch.randn(10_000).to(dtype) for _ in range(3))
    # The second operand has the product's scale, so that what is cut off decides.
    c = -(a * b) * (1 + c * 2**-7)
    exact = (a.double() * b.double()) + c.double()
    if dtype == torch.float32:
        expected = torch.tensor([_rounded(*x) for x in zip(a[:200], b[:200], c[:200])])
        assert torch.equal(ops.fma(a, b, c)[:200], expected)
    else:
        error = (ops.fma(a, b, c).double() - exact).abs()
        neighbours = (exact.to(dtype).double() - exact).abs()
        assert (error <= neighbours).all()


def _rounded(a, b, c):
    from fractions import Fraction

    exact = Fraction(a.item()) * Fraction(b.item()) + Fraction(c.item())
    near = torch.tensor(float(exact))
    around = [near, torch.nextafter(near, near - 1), torch.nextafter(near, near + 1)]
    return min(around, key=lambda x: abs(Fraction(x.item()) - exact)).item()


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8], ids=str)
def test_integers_wrap_around(dtype):
    a = torch.tensor([200, 100, 3], dtype=dtype) * (2**24 if dtype == torch.int32 else 1)
    assert torch.equal(ops.fma(a, a, a), a * a + a)
    assert torch.equal(ops.reglu(a, a), torch.relu(a) * a)


def test_what_is_not_taken():
    for dtype, name in ((torch.float64, "Double"), (torch.complex64, "ComplexFloat")):
        with pytest.raises(NotImplementedError, match=f"\"gelu_new\" not implemented for '{name}'"):
            ops.gelu_new(torch.ones(2, dtype=dtype))
    with pytest.raises(RuntimeError, match=r"tensor a \(3\) must match .* tensor b \(5\) at .* 1"):
        ops.swiglu(torch.ones(4, 3), torch.ones(5))
    with pytest.raises(RuntimeError, match="silu_and_mul does not support 0-dimensional"):
        ops.silu_and_mul(torch.tensor(1.0))


def test_compile_and_export():
    def model(x, y):
        return ops.silu_and_mul(ops.swiglu(x, y)) + ops.softcap(x, 3.0)[..., :3]

    x, y = torch.randn(2, 6), torch.randn(6)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y), model(x, y))

    class Module(torch.nn.Module):
        def forward(self, x, y):
            return model(x, y)

    program = torch.export.export(Module(), (x, y))
    torch.testing.assert_close(program.module()(x, y), model(x, y))


@pytest.mark.full
def test_opcheck():
    x, y = torch.randn(2, 6, requires_grad=True), torch.randn(6)
    for name, arguments in {
        "gelu_new": (x,),
        "softcap": (x, 2.0),
        "silu_and_mul": (x,),
        "swiglu_clamped": (x, y),
        "fma": (x, y, y),
    }.items():
        torch.library.opcheck(getattr(torch.ops.metalops, name).default, arguments)
