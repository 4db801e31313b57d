"""Functors on CUDA tensors, without a GPU: the kernels that they launch run on the software device, on tensors of the CPU, for
whose dispatch key they are registered here too."""

import functools
import itertools

import metalops
import pytest
import torch
from metalops.kernel.functor import cuda_launch, metal_text
from metalops.kernel.functor.functor import _implement

from .recorded import needs_nvrtc, needs_software_device

pytestmark = needs_software_device


class HostLibrary:
    """Takes metalops.cuda.library.Library's place."""

    def __init__(self, text):
        from metalops import _host, msl

        self._library = _host.Library(str(msl.compile_source(text)))

    def launch(self, name, arguments, grid, group):
        launched.append(name.rpartition("_")[0].rpartition("_")[2])
        self._library.launch(name, arguments, list(grid), list(group))


launched = []


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    monkeypatch.setattr("metalops.cuda.library.Library", HostLibrary)
    launched.clear()


_count = itertools.count()


def functor(*arguments, **options):
    """A functor that takes tensors of the CPU."""
    made = metalops.functor(f"cuda_tests::f{next(_count)}", *arguments, **options)
    d = made.definition
    needed = metal_text.needed_by_gradient(d)
    backward = "" if d.grad is None else d.backward_schema(needed)
    _implement(d, backward, needed, "CPU")
    return made


@pytest.fixture(scope="module")
def squares():
    return functor("x * x + a", params={"a": 1.0}, grad="2 * x * grad")


@pytest.fixture(scope="module")
def hypotenuse():
    return functor(
        "sqrt(x * x + y * y)", inputs=("x", "y"), grad=("grad * x / out", "grad * y / out")
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool], ids=str
)
def test_layouts(squares, dtype):
    x = (torch.randn(6, 7, 8) * 3).to(dtype)
    long = (torch.randn(5, 302) * 3).to(dtype)
    views = {
        "four": x,
        "four permuted": x.permute(2, 0, 1),
        "fourrows": x[:, 2:4],
        "fourrows permuted": x[:, 2:4].permute(2, 0, 1),
        "fourstrided short lines without gaps": x.flatten()[:99],
        "fourstrided short lines": x[:, ::2, ::2],
        "fourstrided short lines of one": x[:1, :1, :1],
        "fourstrided short lines in all": x.permute(1, 2, 0)[::2, ::3, 1:],
        "fourstrided short lines without dimensions": x[0, 0, 0],
        "fourstrided short lines with one dimension": x[0, :, 0],
        "fourstrided": long[:, ::2],
        "fourstrided misaligned": long[:, 1:151],
        "fourstrided permuted": long.t()[1:],
        "fourstrided with one dimension": long.flatten()[1:1003],
    }
    for name, view in views.items():
        launched.clear()
        result = squares(view, a=2.0)
        expected = (view.float() ** 2 + 2).to(
            torch.float32 if dtype in (torch.int64, torch.bool) else dtype
        )
        torch.testing.assert_close(result, expected, check_stride=view.numel() > 1)
        assert launched == [name.split()[0]], name
    odd = x.flatten()[4:].as_strided((20, 3), (3, 1))
    launched.clear()
    torch.testing.assert_close(squares(odd), squares(odd.clone()))
    # Where it starts decides, for elements of less than 4 bytes.
    assert launched == ["four" if x.element_size() >= 4 else "fourstrided", "four"]
    launched.clear()
    assert squares(x[:0]).shape == (0, 7, 8) and launched == []


def test_numbers_have_their_defaults(squares):
    x = torch.randn(5)
    torch.testing.assert_close(squares(x), x * x + 1)
    torch.testing.assert_close(squares(x, a=-1), x * x - 1)


@pytest.mark.full
def test_operands_broadcast_and_are_promoted(hypotenuse):
    x, y = torch.randn(3, 1, 5), torch.randn(4, 1)
    torch.testing.assert_close(hypotenuse(x, y), torch.hypot(*torch.broadcast_tensors(x, y)))
    for other in (y.half(), y.long(), y.bool(), 3.0, torch.tensor(2.0)):
        expected = torch.sqrt(x * x + torch.as_tensor(other).float() ** 2)
        torch.testing.assert_close(hypotenuse(x, other), expected)
    mixed = hypotenuse(torch.tensor([3, 4]), torch.tensor([4, 3], dtype=torch.int32))
    assert mixed.tolist() == [5, 5] and mixed.dtype == torch.float32
    half = hypotenuse(torch.ones(2, dtype=torch.float16), torch.tensor([1, 2]))
    assert half.dtype == torch.float16


def test_out_and_in_place(squares, hypotenuse):
    x = torch.randn(4, 5)
    expected = x * x + 1
    for out in (torch.empty(0), torch.empty(5, 4).t(), torch.empty(4, 10)[:, ::2]):
        assert squares(x, out=out) is out
        torch.testing.assert_close(out, expected)
    low = torch.empty(0, dtype=torch.float16)
    squares(x, out=low)
    torch.testing.assert_close(low, expected.half())
    y = x.clone()
    squares.inplace(y.t())
    torch.testing.assert_close(y, expected)
    with pytest.raises(RuntimeError, match="can't be cast"):
        squares(x, out=torch.empty(4, 5, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        hypotenuse.inplace(torch.ones(3), torch.ones(2, 3))


def test_gradients(squares, hypotenuse):
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    hypotenuse(x, y).sum().backward()
    length = torch.sqrt(x * x + y * y).detach()
    torch.testing.assert_close(x.grad, (x / length).detach())
    torch.testing.assert_close(y.grad, (y / length).sum(0).detach())
    (with_number,) = torch.autograd.grad(hypotenuse(x, 2.0).sum(), x)
    torch.testing.assert_close(with_number, (x / torch.sqrt(x * x + 4)).detach())
    (one,) = torch.autograd.grad(hypotenuse(x, y).sum(), y)
    torch.testing.assert_close(one, y.grad)
    z = torch.randn(4, dtype=torch.float16, requires_grad=True)
    squares(z, a=3.0).sum().backward()
    torch.testing.assert_close(z.grad, 2 * z.detach())
    (first,) = torch.autograd.grad((squares(x) ** 2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 12 * x.detach() ** 2 + 4)


@pytest.mark.nightly
def test_several_results_and_other_dtypes():
    both = functor(
        ("x + y", "x - y"),
        inputs=("x", "y"),
        grad=("grad_out0 + grad_out1", "grad_out0 - grad_out1"),
    )
    x, y = torch.randn(3, requires_grad=True), torch.randn(2, 3)
    total, difference = both(x, y)
    torch.testing.assert_close(total, x + y)
    torch.testing.assert_close(difference, x - y)
    (gradient,) = torch.autograd.grad((2 * total + difference).sum(), x)
    assert gradient.tolist() == [6, 6, 6]
    positive = functor("x > 0", result="bool")
    assert positive(torch.tensor([-1, 2])).tolist() == [False, True]
    assert positive(y).dtype == torch.bool
    magnitude = functor("length(z)", inputs="z", complex="only", result="real")
    numbers = torch.tensor([3 + 4j, 1j])
    assert magnitude(numbers).tolist() == [5, 1]
    assert magnitude(numbers.conj()).tolist() == [5, 1]
    kept = functor("x * n", params={"n": 3}, integers="stay")
    assert torch.equal(kept(torch.arange(3)), 3 * torch.arange(3))


def test_compile_and_export(hypotenuse):
    def model(x, y):
        return 2 * hypotenuse(x, y)

    x, y = torch.randn(3, 4).t(), torch.randn(4, 1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y), model(x, y), check_stride=True)


def test_what_is_refused(squares):
    with pytest.raises(NotImplementedError, match="not implemented for 'Double'"):
        squares(torch.ones(2, dtype=torch.float64))
    refused = functor("x", integers="refuse")
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        refused(torch.ones(2, dtype=torch.int64))


@pytest.mark.full
@needs_nvrtc
def test_kernels_compile_for_gpus(monkeypatch):
    monkeypatch.undo()
    from metalops.cuda.library import Library

    made = functor(
        ("x * y + a", "x - y"),
        inputs=("x", "y"),
        params={"a": 1.0},
        grad=("grad_out0 * y + grad_out1", "grad_out0 * x - grad_out1"),
    )
    for element in ("float", "half", "bfloat", "long", "bool"):
        text = metal_text.source(made.definition, element, for_mps=False)
        assert Library(text).compile("sm_90")[:4] == b"\x7fELF"


def test_plans_are_kept_for_layouts(squares):
    name = squares.definition.name
    source = functools.partial(metal_text.source, squares.definition, for_mps=False)
    launcher = cuda_launch.Launcher(name, f"metalops_{name}", source, [float], has_mask=False)
    for n in (3, 4, 3):
        launcher([torch.empty(n)], [torch.ones(n)], [1.0])
    assert len(launcher._plans) == 2
