"""metalops.functor: a name that is defined again means the new functor; what was made with the old one stays right."""

import copy
import io
import itertools
import pickle
import subprocess
import sys
import threading

import metalops
import pytest
import torch

_numbers = itertools.count()


@pytest.fixture
def name():
    """A name that no other test has defined."""
    return f"again{next(_numbers)}"


def define(name, text, **options):
    return metalops.functor(f"redefined::{name}", text, **options)


def operator(name):
    return getattr(torch.ops.redefined, name)


def ones(*shape, **options):
    return torch.ones(shape or 3, device="mps", **options)


def test_the_name_means_the_new_functor_and_the_old_one_stays_what_it_was(name):
    old = define(name, "x + 1")
    assert operator(name)(ones()).tolist() == [2] * 3
    new = define(name, "x + 2")
    for _ in range(2):
        assert old(ones()).tolist() == old.op(ones()).tolist() == [2] * 3
        assert new(ones()).tolist() == new.op(ones()).tolist() == [3] * 3
        assert operator(name)(ones()).tolist() == [3] * 3
    assert new.op is operator(name)
    assert old.op is not new.op
    assert old.inplace(ones()).tolist() == [2] * 3
    assert new.inplace(ones()).tolist() == operator(f"{name}_")(ones()).tolist() == [3] * 3
    assert old(ones(), out=torch.empty(3, device="mps")).tolist() == [2] * 3
    assert operator(name).out(ones(), out=torch.empty(3, device="mps")).tolist() == [3] * 3


def test_the_same_definition_is_the_same_functor(name):
    first = define(name, "x + 1", inputs=["x"])
    assert define(name, "x + 1") is first
    second = define(name, "x + 2")
    assert define(name, "x + 2") is second
    third = define(name, "x + 1")
    assert [f(ones()).tolist()[0] for f in (first, second, third)] == [2, 3, 2]
    assert operator(name)(ones()).tolist()[0] == 2


def test_references_to_the_operator_follow_the_name(name):
    define(name, "x + 1")
    packet, overload = operator(name), operator(name).default
    define(name, "x + y", inputs=("x", "y"), params={"scale": 1.0})
    assert packet(ones(), ones()).tolist() == overload(ones(), ones()).tolist() == [2] * 3
    assert str(overload._schema).startswith(f"redefined::{name}(Tensor x, Tensor y, *, float scale")
    with pytest.raises(RuntimeError, match="missing value for argument 'y'"):
        overload(ones())


def test_graphs_that_were_recorded_before_get_the_old_gradient(name):
    old = define(name, "x * x", grad="grad * 2 * x")
    x = ones(requires_grad=True)
    recorded, by_name = old(x), operator(name)(x)
    new = define(name, "x * x * x", grad="grad * 3 * x * x")
    for result, gradient in ((recorded, 2), (by_name, 2), (old(x), 2), (new(x), 3)):
        assert torch.autograd.grad(result.sum(), x)[0].tolist() == [gradient] * 3
    without = define(name, "x * 5")
    with pytest.raises(NotImplementedError, match="without a gradient"):
        without(x).sum().backward()
    assert torch.autograd.grad(new(x).sum() + old(x).sum(), x)[0].tolist() == [5] * 3


BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_sees_the_new_functor(name, backend):
    functors = {"f": define(name, "x * x", grad="grad * 2 * x")}
    by_object = torch.compile(lambda x: functors["f"](x) + 1, backend=backend)
    by_name = torch.compile(lambda x: getattr(torch.ops.redefined, name)(x) + 1, backend=backend)
    old = functors["f"]
    by_old = torch.compile(lambda x: old(x) + 1, backend=backend)
    x = ones(requires_grad=True)
    for compiled in (by_object, by_name, by_old):
        assert compiled(2 * x).tolist() == [5] * 3
    in_flight = by_object(2 * x)
    functors["f"] = define(name, "x * x * x", grad="grad * 3 * x * x")
    for compiled, value, gradient in ((by_object, 9, 24), (by_name, 9, 24), (by_old, 5, 8)):
        result = compiled(2 * x)
        assert result.tolist() == [value] * 3
        assert torch.autograd.grad(result.sum(), x)[0].tolist() == [gradient] * 3
    assert torch.autograd.grad(in_flight.sum(), x)[0].tolist() == [8] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_sees_another_kind_of_result(name, backend):
    define(name, "x - 1")
    compiled = torch.compile(lambda x: getattr(torch.ops.redefined, name)(x) + 1, backend=backend)
    x = torch.tensor([1.0, 2.0, 4.0], device="mps")
    assert compiled(x).tolist() == [1, 2, 4]
    define(name, "x > 1", result="bool")
    result = compiled(x)
    assert result.dtype == torch.int64
    assert result.tolist() == [1, 2, 2]


KINDS = {
    "another input": (dict(text="x + y", inputs=("x", "y")), lambda x, y: x + y),
    "another name": (dict(text="z * 3", inputs=("z",), grad="grad * 3"), lambda z: z * 3),
    "a parameter": (dict(text="x * by", params={"by": 2.0}, grad="grad * by"), lambda x: x * 2),
    "two results": (
        dict(text=("x + 1", "x - 1"), grad="grad_out0 + 2 * grad_out1"),
        lambda x: (x + 1, x - 1),
    ),
    "a predicate": (dict(text="x > 0", result="bool"), lambda x: x > 0),
    "integers": (dict(text="x + x", integers="stay"), lambda x: x + x),
}


@pytest.mark.parametrize("order", [1, -1, 2])
def test_the_new_functor_may_have_another_signature(name, order):
    """Every kind of functor after another, on three ways through them, with all that depends on the signature."""
    kinds = list(KINDS)
    kinds = kinds[::order] if abs(order) == 1 else [*kinds[::2], *kinds[1::2]]
    made = []
    for kind in kinds:
        options = dict(KINDS[kind][0])
        made.append((define(name, options.pop("text"), **options), KINDS[kind][1]))
        check_functor(operator(name), *made[-1])
        assert hasattr(torch.ops.redefined, f"{name}_") == made[-1][0].definition.has_inplace
        for functor, expected in made:
            check_functor(functor, functor, expected)


def check_functor(call, functor, expected):
    """call: the functor or its operator."""
    d = functor.definition
    x = torch.tensor([-1.0, 0.0, 2.5])
    count = len(d.inputs)
    dtype = torch.int32 if d.integers == "stay" else torch.float32
    on_device = x.to("mps", dtype)
    wanted = expected(*[x.to(dtype)] * count)
    torch.testing.assert_close(call(*[on_device] * count), _to(wanted, "mps"), rtol=0, atol=0)
    batch = torch.vmap(call)(*[on_device.reshape(3, 1)] * count)
    torch.testing.assert_close(_flat(batch), _flat(_to(wanted, "mps")), rtol=0, atol=0)
    meta = call(*[on_device.to("meta")] * count)
    assert [m.dtype for m in _leaves(meta)] == [w.dtype for w in _leaves(wanted)]
    if d.grad:
        leaves = [x.to(device).requires_grad_() for device in ("mps", "cpu")]
        for function, leaf in zip((call, expected), leaves, strict=True):
            results = _leaves(function(*[leaf] * count))
            sum(result.sum() * (n + 1) for n, result in enumerate(results)).backward()
        # That of two results is no true one, to tell its parts from each other.
        wanted_gradient = leaves[1].grad if isinstance(wanted, torch.Tensor) else 5 * torch.ones(3)
        assert torch.equal(leaves[0].grad.cpu(), wanted_gradient)


def _leaves(results):
    return list(results) if isinstance(results, tuple) else [results]


def _to(results, device):
    moved = [result.to(device) for result in _leaves(results)]
    return tuple(moved) if isinstance(results, tuple) else moved[0]


def _flat(results):
    return [result.flatten() for result in _leaves(results)]


def test_autocast_does_what_the_new_functor_says(name):
    old = define(name, "x + 1", autocast="lower_precision")
    new = define(name, "x + 2")
    with torch.autocast("mps", dtype=torch.bfloat16):
        assert old(ones()).dtype == torch.bfloat16
        assert new(ones()).dtype == operator(name)(ones()).dtype == torch.float32


def test_modes_see_the_new_operator(name):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append((func, len(args)))
            return func(*args, **(kwargs or {}))

    def record(functor, *arguments):
        calls.clear()
        with Recorder():
            result = functor(*arguments)
        assert str(calls[0][0]._schema) == str(functor.op.default._schema)
        assert calls == [(functor.op.default, len(arguments))]
        return result.tolist()

    calls = []
    old = define(name, "x + 1")
    assert record(old, ones()) == [2] * 3
    new = define(name, "x + 2 * y", inputs=("x", "y"))
    assert record(new, ones(), ones()) == [3] * 3
    assert record(old, ones()) == [2] * 3


def test_an_exported_program_means_the_operator_of_the_name(name):
    class Module(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def forward(self, x):
            return self.function(x)

    def saved(functor):
        buffer = io.BytesIO()
        torch.export.save(torch.export.export(Module(functor), (ones(),)), buffer)
        return buffer

    old = define(name, "x + 1")
    before = saved(old)
    new = define(name, "x + 2")
    for buffer, expected in ((before, 3), (saved(new), 3), (saved(old), 2)):
        buffer.seek(0)
        assert torch.export.load(buffer).module()(ones()).tolist() == [expected] * 3


def test_a_copy_of_the_old_functor_does_not_take_the_name_back(name):
    old = define(name, "x + 1")
    text = pickle.dumps(old)
    new = define(name, "x + 2")
    assert pickle.loads(text) is old
    assert copy.deepcopy(old) is old
    assert pickle.loads(pickle.dumps(new)) is new
    assert operator(name)(ones()).tolist() == [3] * 3


def test_unpickling_a_functor_leaves_a_name_that_means_another_one(name):
    text = pickle.dumps(define(name, "x + 1", grad="grad * 7"))
    program = (
        "import pickle, sys, metalops, torch\n"
        f"own = metalops.functor('redefined::{name}', 'x + 2')\n"
        "other = pickle.loads(sys.stdin.buffer.read())\n"
        "x = torch.ones(1, device='mps', requires_grad=True)\n"
        "other(x).backward()\n"
        f"named = torch.ops.redefined.{name}(x)\n"
        "print(own(x).item(), other(x).item(), named.item(), x.grad.item())\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], input=text, capture_output=True, check=True
    ).stdout
    assert output.split() == [b"3.0", b"2.0", b"3.0", b"7.0"]


def test_names_of_other_operators_stay_theirs(name):
    old = define(name, "x > 1", result="bool")
    library = torch.library.Library("redefined", "FRAGMENT")
    library.define(f"{name}_(Tensor x) -> Tensor")
    with pytest.raises(ValueError, match=f"already is an operator redefined::{name}_"):
        define(name, "x + 1")
    assert old(ones()).tolist() == operator(name)(ones()).tolist() == [False] * 3


def test_threads_that_call_while_the_name_gets_new_meanings(name):
    old = define(name, "x + 1", grad="grad * 2")
    wrong, stop = [], threading.Event()

    def work():
        while not stop.is_set():
            x = ones(requires_grad=True)
            y = old(x)
            y.sum().backward()
            if (y.tolist(), x.grad.tolist()) != ([2] * 3, [2] * 3):
                wrong.append((y, x.grad))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(3):
        new = define(name, f"x + 2 + {number}")
        assert new(ones()).tolist() == [3 + number] * 3
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
