"""Operators that a package defines with <metalops/pointwise.h> and nothing more in Python: traced, differentiated and refused."""

import io
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from metalops import build

pytestmark = (
    pytest.mark.nightly
)  # builds an extension, as tests/building/test_load.py does in the full tier

FOLDER = Path(__file__).parent / "defined"


@dataclass
class Case:
    """function and reference: of tensors of these shapes."""

    function: object
    reference: object
    shapes: tuple = ((3, 5),)
    dtype: torch.dtype = torch.float32
    is_differentiable: bool = True

    def tensors(self, rows=3, requires_grad=False):
        shapes = [(rows, *shape[1:]) if shape[0] == 3 else shape for shape in self.shapes]
        requires_grad &= self.is_differentiable
        xs = [(3 * torch.randn(shape)).to(self.dtype) for shape in shapes]
        return [x.to("mps").requires_grad_(requires_grad) for x in xs]


ops = torch.ops.defined
CASES = {
    "one operand": Case(lambda x: ops.lisht(x), lambda x: x * x.tanh()),
    "a transposed operand": Case(lambda x: ops.lisht(x.t()), lambda x: x.t() * x.t().tanh()),
    "half precision": Case(lambda x: ops.lisht(x), lambda x: x * x.tanh(), dtype=torch.float16),
    "a number": Case(lambda x: ops.scaled(x, 0.5), lambda x: 0.5 * x * x),
    "a number left out": Case(lambda x: ops.scaled(x), lambda x: 2 * x * x),
    "two operands that broadcast": Case(
        lambda x, y: ops.mixed(x, 0.5, y),
        lambda x, y: x * x + 0.5 * x * y,
        ((3, 5), (1, 5)),
    ),
    "the gradient of one of them": Case(
        lambda x, y: ops.mixed(x.detach(), 0.5, y),
        lambda x, y: x.detach().square() + 0.5 * x.detach() * y,
        ((3, 1), (3, 5)),
    ),
    "two dtypes": Case(
        lambda x, y: ops.mixed(x, 0.5, y.half()),
        lambda x, y: x * x + 0.5 * x * y.half(),
        ((3, 5), (3, 5)),
    ),
    "two halves": Case(
        lambda x: ops.halved(x, 0.5),
        lambda x: x[:, :3].square() + 0.5 * x[:, :3] * x[:, 3:],
        ((3, 6),),
    ),
    "out=": Case(
        lambda x: ops.lisht(x.detach(), out=torch.empty_like(x)) + ops.lisht(x),
        lambda x: x.detach() * x.detach().tanh() + x * x.tanh(),
    ),
    "in place": Case(lambda x: ops.lisht_(x * 2) + x, lambda x: 2 * x * (2 * x).tanh() + x),
    "no gradient": Case(lambda x: ops.doubled(x), lambda x: 2 * x, is_differentiable=False),
    "integers": Case(
        lambda x: ops.doubled(x), lambda x: 2 * x, dtype=torch.int64, is_differentiable=False
    ),
    "a bool result": Case(
        lambda x, y: ops.larger(x, y),
        lambda x, y: x > y,
        ((3, 5), (5,)),
        is_differentiable=False,
    ),
    "complex": Case(lambda x: ops.squared(x), lambda x: x * x, dtype=torch.complex64),
    "a real result of complex": Case(
        lambda x: ops.magnitude(x),
        lambda x: x.abs(),
        dtype=torch.complex64,
        is_differentiable=False,
    ),
}


def make_extension(folder):
    folder.mkdir()
    sources = [str(FOLDER / name) for name in ("defined.metal", "defined.mm")]
    # Without optimisation, because compiling takes longer than all the tests.
    return build.load("defined", sources, ["-O0"], build_directory=str(folder))


@pytest.fixture(scope="module", autouse=True)
def extension(shared_folder, once):
    """torch.ops.defined, built once for a whole run."""
    folder = shared_folder / "defined"
    torch.ops.load_library(once("defined", lambda: make_extension(folder)))


def results_of(function, tensors, retain_graph=None):
    """Returns what a function returns, and the gradients of the tensors for which that is differentiable."""
    result = function(*tensors)
    inputs = [x for x in tensors if x.requires_grad]
    if not inputs:
        return result, ()
    gradients = torch.autograd.grad(
        result.abs().sum(), inputs, allow_unused=True, retain_graph=retain_graph
    )
    return result.detach(), gradients


def check(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.sampled(16)
def test_operators_are_traced_with_their_gradients(case, fresh_compiler):
    compiled = torch.compile(case.function, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 7, 4):
        tensors = case.tensors(rows, requires_grad=True)
        check(results_of(compiled, tensors), results_of(case.reference, tensors))


def test_all_in_one_function_for_inductor(fresh_compiler):
    cases = list(CASES.values())

    def everything(tensors):
        return [case.function(*xs) for case, xs in zip(cases, tensors, strict=True)]

    tensors = [case.tensors(requires_grad=True) for case in cases]
    results = torch.compile(everything, fullgraph=True)(tensors)
    for case, xs, result in zip(cases, tensors, results, strict=True):
        # All results belong to one graph, which the next case needs.
        actual = results_of(lambda *_: result, xs, retain_graph=True)  # noqa: B023
        check(actual, results_of(case.reference, xs))


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5))

    def forward(self, x):
        hidden = ops.mixed(ops.lisht(x), 0.5, self.weight)
        return ops.halved(torch.cat([hidden, ops.scaled(hidden, scale=0.1)], -1), 0.25)


def test_export_with_dynamic_shapes():
    module = Module().to("mps")
    x = torch.randn(4, 5, device="mps")
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    x = torch.randn(9, 5, device="mps")
    check(loaded(x), module(x))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_meta_tensors(case):
    tensors = case.tensors()
    expected = case.function(*tensors)
    result = case.function(*(x.to("meta") for x in tensors))
    assert (result.device.type, result.shape, result.dtype, result.stride()) == (
        "meta",
        expected.shape,
        expected.dtype,
        expected.stride(),
    )


def test_opcheck():
    x, y = torch.randn(3, 5, device="mps"), torch.randn(5, device="mps")
    torch.library.opcheck(ops.lisht.default, (x,))
    torch.library.opcheck(ops.lisht.out, (x,), {"out": torch.empty_like(x)})
    torch.library.opcheck(ops.lisht_.default, (x,))
    torch.library.opcheck(ops.mixed.default, (x, 0.5, y))
    torch.library.opcheck(ops.mixed_backward.default, (x, x, y, 0.5))
    torch.library.opcheck(ops.mixed_backward.default, (x, x, y, 0.5, [False, True]))
    torch.library.opcheck(
        ops.lisht.default,
        (x.requires_grad_(),),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def test_a_fake_kernel_of_the_author_has_precedence():
    calls = []

    @torch.library.register_fake("defined::squared_backward")
    def fake(grad_output, self):
        calls.append(self.shape)
        return torch.empty_like(self)

    z = torch.randn(3, dtype=torch.complex64, device="meta")
    ops.squared_backward(z, z)
    assert calls == [z.shape]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.int64, "Long"), (torch.uint8, "Byte"), (torch.bool, "Bool")],
    ids=str,
)
def test_dtypes_without_a_kernel_are_refused(dtype, name, compiled, fresh_compiler):
    x = torch.ones(3, 4, device="mps").to(dtype)
    for operator, function in (
        ("lisht", lambda x: ops.lisht(x)),
        ("lisht", lambda x: ops.lisht(x, out=torch.empty(3, 4, device="mps"))),
        ("scaled", lambda x: ops.scaled(x.t(), 0.5)),
        ("mixed", lambda x: ops.mixed(x, 0.5, x)),
        ("halved", lambda x: ops.halved(x, 0.5)),
        ("squared", lambda x: ops.squared(x)),
    ):
        call = (
            torch.compile(function, backend="aot_eager", fullgraph=True) if compiled else function
        )
        with pytest.raises(
            NotImplementedError, match=f'^"{operator}" not implemented for .{name}.'
        ):
            call(x)


def test_other_devices_are_refused():
    with pytest.raises(NotImplementedError, match="Could not run 'defined::lisht'.* 'CPU' backend"):
        ops.lisht(torch.ones(3))
