"""metalops.functor in the rest of torch: opcheck, vmap, autocast, torch.compile, torch.export, pickling, threads."""

import copy
import inspect
import io
import pickle
import subprocess
import sys
import threading

import metalops
import pytest
import torch
from metalops.testing import make

from .functor_ports import port

pytestmark = pytest.mark.full

KINDS = ["silu", "elu", "swiglu", "huber", "lerp", "addcmul", "polar"]
by_kind = pytest.mark.parametrize("p", [port(name) for name in KINDS], ids=str)

# With tensors that require gradients; test_autograd_registration of opcheck does not know mps.
UTILITIES = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


def arguments(p, *shape, requires_grad=False):
    return [
        make(shape or (4, 6), torch.float32, low=0.1, high=3, seed=i)
        .to("mps")
        .requires_grad_(requires_grad)
        for i in range(len(p.inputs))
    ]


def tuple_of(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.sampled(2)
@by_kind
def test_opcheck(p):
    f = p.function
    scalars = {name: 0.5 for name in p.params}
    torch.library.opcheck(f.op.default, arguments(p), scalars)
    differentiable = arguments(p, requires_grad=True)
    torch.library.opcheck(f.op.default, differentiable, scalars, test_utils=UTILITIES)
    outs = ["out"] if len(f.definition.outputs) == 1 else ["out0", "out1"]
    out = {name: torch.empty(4, 6, device="mps") for name in outs}
    torch.library.opcheck(f.op.out, arguments(p), {**scalars, **out})
    if f.definition.has_inplace:
        inplace = getattr(torch.ops.ports, f"{p.name}_").default
        torch.library.opcheck(inplace, arguments(p), scalars)


def test_opcheck_of_bool_real_and_complex_results():
    x = torch.randn(3, 4, device="mps")
    z = torch.randn(3, 4, dtype=torch.complex64, device="mps")
    positive = metalops.functor("tests::positive", "x > 0", result="bool")
    torch.library.opcheck(positive.op.default, (x,))
    torch.library.opcheck(positive.op.default, (x.int(),))
    real = metalops.functor("tests::real_part", "z.x", inputs="z", complex="only", result="real")
    torch.library.opcheck(real.op.default, (z,))


@by_kind
def test_vmap(p):
    args = arguments(p, 5, 3, 4)
    expected = tuple_of(p.function(*args))
    batched = tuple_of(torch.vmap(p.function)(*args))
    last = [x.movedim(0, -1) for x in args]
    moved = tuple_of(torch.vmap(p.function, in_dims=-1, out_dims=-1)(*last))
    for a, b, e in zip(batched, moved, expected, strict=True):
        torch.testing.assert_close(a, e)
        torch.testing.assert_close(b.movedim(-1, 0), e)


def test_numbers_stand_for_tensors_under_vmap_and_on_meta():
    f = port("swiglu").function
    for dtype in (torch.float32, torch.float16):
        x = torch.randn(5, 4, device="mps", dtype=dtype)
        for batched in (x, x[:, 0]):
            actual = torch.vmap(lambda a: f(a, 2.5))(batched)
            assert actual.dtype == dtype
            torch.testing.assert_close(actual, f(batched, 2.5))
        assert f(3, x.to("meta")).dtype == dtype


def test_vmap_with_parameters_and_gradients():
    p = port("huber")
    x, y = arguments(p, 5, 4)
    batched = torch.vmap(lambda a: p.function(a, y[0], delta=0.25))(x)
    torch.testing.assert_close(batched, p.function(x, y[0], delta=0.25))
    gradient = torch.vmap(torch.func.grad(lambda a, b: p.function(a, b, delta=0.25).sum()))(x, y)
    expected = torch.func.grad(lambda a, b: p.reference(a, b, delta=0.25).sum())(x.cpu(), y.cpu())
    torch.testing.assert_close(gradient.cpu(), expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("policy", "mixed", "half"),
    [
        ("promote", torch.float32, torch.float16),
        ("float32", torch.float32, torch.float32),
        ("lower_precision", torch.float16, torch.float16),
    ],
)
def test_autocast(policy, mixed, half):
    f = metalops.functor(
        f"tests::autocast_{policy}", "x * y", inputs=("x", "y"), grad=("grad * y", "grad * x"), autocast=policy
    )  # fmt: skip
    x = torch.randn(4, device="mps", requires_grad=True)
    y = torch.randn(4, device="mps").half()
    with torch.autocast("mps", dtype=torch.float16):
        assert f(x, y).dtype == mixed
        assert f(y, y).dtype == half
        f(x, y).float().sum().backward()
    torch.testing.assert_close(x.grad, y.float())
    assert f(x, y).dtype == torch.float32


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["silu", "huber", "polar"])
def test_torch_compile(name, backend):
    p = port(name)
    f = p.function

    def model(*args):
        first, *_ = tuple_of(f(*(x * 2 for x in args), **{n: 0.5 for n in p.params}))
        scratch = first * 1
        tuple_of(f(*args, out=scratch if len(f.definition.outputs) == 1 else (scratch, first * 2)))
        return first + scratch

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    args = arguments(p)
    torch.testing.assert_close(compiled(*args), model(*args))

    def differentiable(*args):
        return sum(tuple_of(f(*(x * 2 for x in args))))

    compiled = torch.compile(differentiable, fullgraph=True, backend=backend)
    ours, theirs = arguments(p, requires_grad=True), arguments(p, requires_grad=True)
    compiled(*ours).sum().backward()
    differentiable(*theirs).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_torch_compile_with_numbers_and_in_place():
    f = port("swiglu").function

    def model(x):
        y = f(x, 2.0) + f(3, x)
        f.inplace(y, x)
        return y

    torch._dynamo.reset()
    x = torch.randn(4, 6, device="mps")
    torch.testing.assert_close(
        torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x)
    )


def test_torch_compile_with_dynamic_shapes():
    p = port("lerp")
    compiled = torch.compile(p.function, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (3, 5, 9):
        args = arguments(p, n, 4)
        torch.testing.assert_close(compiled(*args), p.function(*args))


@pytest.mark.parametrize("name", ["elu", "polar"])
def test_torch_export(name, tmp_path):
    p = port(name)

    class Model(torch.nn.Module):
        def forward(self, *args):
            return p.function(*args)

    args = tuple(arguments(p))
    program = torch.export.export(Model(), args).run_decompositions()
    nodes = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert p.function.op.default in nodes
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for a, b in zip(tuple_of(loaded(*args)), tuple_of(p.function(*args)), strict=True):
        torch.testing.assert_close(a, b)


def test_fake_results_have_the_strides_of_real_ones():
    p = port("swiglu")
    x, y = arguments(p, 2, 3, 4, 5)
    for a, b in (
        (x.permute(3, 1, 0, 2), y.permute(3, 1, 0, 2)),
        (x.to(memory_format=torch.channels_last), y[:, :1]),
    ):
        real = p.function(a, b)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = p.function(mode.from_tensor(a), mode.from_tensor(b))
        assert (real.shape, real.stride(), real.dtype) == (fake.shape, fake.stride(), fake.dtype)


def test_a_functor_is_pickled_by_its_definition():
    f = port("elu").function
    assert pickle.loads(pickle.dumps(f)) is f
    assert copy.deepcopy(f) is f
    program = (
        "import pickle, sys, metalops, torch\n"
        "f = pickle.loads(sys.stdin.buffer.read())\n"
        "x = torch.full((2,), -1.0, device='mps', requires_grad=True)\n"
        "f(x, alpha=2.0).sum().backward()\n"
        "print(repr(f), x.grad.tolist())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(f), capture_output=True, check=True
    )
    assert result.stdout.decode().startswith(
        "<metalops.functor ports::elu(Tensor x, *, float alpha=1.0) -> Tensor> [0.7357"
    )


def test_a_module_that_holds_a_functor_can_be_saved():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.activation = port("silu").function

        def forward(self, x):
            return self.activation(x)

    layer = Layer()
    buffer = io.BytesIO()
    torch.save(layer.activation, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False) is layer.activation


def test_what_a_functor_tells_about_itself():
    f = metalops.functor(
        "tests::described", "x * y + beta", inputs=("x", "y"), params={"beta": 0.5}, doc="Multiplies and adds."
    )  # fmt: skip
    assert (
        repr(f)
        == "<metalops.functor tests::described(Tensor x, Tensor y, *, float beta=0.5) -> Tensor>"
    )
    assert f.__name__ == "described" and f.__doc__ == "Multiplies and adds."
    assert "x / (1 + abs(x))" in port("softsign").function.__doc__
    assert str(inspect.signature(f)) == "(x, y, *, beta=0.5, out=None)"
    assert f.op is torch.ops.tests.described
    assert torch.Tag.pointwise in f.op.default.tags
    with pytest.raises(TypeError, match="described does not take inputs of torch.complex64"):
        f.source(torch.complex64)


def test_threads_that_define_and_call_the_same_functor():
    found, results = [], []

    def work():
        f = metalops.functor("tests::threaded", "x + 1", grad="grad * 2")
        x = torch.zeros(5, device="mps", requires_grad=True)
        y = f(x)
        y.sum().backward()
        found.append(f)
        results.append((y.tolist(), x.grad.tolist()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(f is found[0] for f in found)
    assert results == [([1.0] * 5, [2.0] * 5)] * 4


def test_errors_in_the_text_reach_the_caller_of_backward(monkeypatch):
    # The backward kernels are in the library of the forward ones, whose first use finds their errors.
    f = metalops.functor("tests::bad_backward", "x", grad="grad * nothing")
    x = torch.ones(2, device="mps", requires_grad=True)
    with pytest.raises(SyntaxError, match=r"bad_backward\.grad\[0\]:1:8"):
        f(x)


def test_tensor_subclasses_and_modes_see_the_operator():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(func)
            return func(*args, **(kwargs or {}))

    calls = []
    with Recorder():
        port("silu").function(torch.ones(2, device="mps"))
    assert torch.ops.ports.silu.default in calls

    class Marked(torch.Tensor):
        pass

    marked = torch.ones(2, device="mps").as_subclass(Marked)
    assert type(port("silu").function(marked)) is Marked
