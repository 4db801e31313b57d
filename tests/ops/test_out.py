"""out= of every operator: where the operands are, and of a dtype that takes the result, or refused."""

import inspect
import random

import metalops
import pytest
import torch
from torch._subclasses import FakeTensorMode

from tests.fuzz.calls import Call, our_calls

from .aten import is_left_to_torch
from .families import gather
from .test_aten_opinfo import OPERATORS as ATEN

DECLARED = {operator.name: operator for operator in gather("POINTWISE")}
NAMES = [
    name
    for name in metalops.ops.__all__
    if "out" in inspect.signature(getattr(metalops.ops, name)).parameters
]
names = pytest.mark.parametrize("name", NAMES)


def call_of(name: str) -> Call:
    """A right one on the CPU. A new operator that is not pointwise has one in tests/fuzz/calls.py."""
    if name in DECLARED:
        operator = DECLARED[name]
        case = operator.simple_case(torch.float32, 4, 6)
        return Call(name, operator.function, case.args, {**operator.arguments[0], **case.kwargs})
    found = [call for call in our_calls(random.Random(1)) if call.function is getattr(metalops.ops, name)]  # fmt: skip
    assert found, f"tests/fuzz/calls.py has no call of {name}"
    options = {key: x for key, x in found[0].options.items() if key != "out"}
    return found[0]._replace(options=options)


def run(call: Call, device: str, **out):
    args, options = ([_moved(x, device) for x in values] for values in (call.args, call.options.values()))  # fmt: skip
    return call.function(*args, **dict(zip(call.options, options)), **out)


def _moved(x, device):
    return x.to(device) if isinstance(x, torch.Tensor) else x


def test_overloads_are_those_of_functions():
    """So that what is tried of functions is tried of all overloads."""
    schemas = [x for x in torch._C._jit_get_all_schemas() if x.name.startswith("metalops::")]
    outs = {
        x.name.removeprefix("metalops::") for x in schemas if any(a.is_out for a in x.arguments)
    }
    assert outs <= set(NAMES)
    assert len(NAMES) >= 20


@pytest.mark.sampled(2)
@names
@pytest.mark.parametrize(
    ("device", "place"), [("cpu", "mps"), ("cpu", "meta"), ("mps", "cpu"), ("mps", "meta")]
)
def test_on_another_device_it_is_refused_and_not_written(name, device, place):
    call = call_of(name)
    with torch.no_grad():
        expected = run(call, device)
        out = torch.full(expected.shape, 7, dtype=expected.dtype, device=place)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            run(call, device, out=out)
    assert place == "meta" or torch.all(out == 7)


@names
@pytest.mark.parametrize("device", ("cpu", "mps"))
def test_its_dtype_must_take_the_result(name, device):
    call = call_of(name)
    with torch.no_grad():
        expected = run(call, device)
        for dtype in (torch.int32, torch.bool):
            out = torch.ones(expected.shape, dtype=dtype, device=device)
            with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
                run(call, device, out=out)
            assert torch.all(out == 1)
        out = torch.empty(0, dtype=torch.float16, device=device)
        assert run(call, device, out=out) is out
        torch.testing.assert_close(out, expected.half(), rtol=0, atol=0, equal_nan=True)


@names
def test_fake_tensors_on_another_device_are_refused(name):
    call = call_of(name)
    mode = FakeTensorMode()

    def faked(x):
        return mode.from_tensor(x.to("mps")) if isinstance(x, torch.Tensor) else x

    args = [faked(x) for x in call.args]
    options = {key: faked(x) for key, x in call.options.items()}
    with torch.no_grad(), mode:
        expected = call.function(*args, **options)
        out = torch.empty_like(expected)
        assert call.function(*args, **options, out=out) is out
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call.function(*args, **options, out=torch.empty_like(out, device="cpu"))


def _with_out():
    # torch.lu is a function of Python, which copies what it has computed wherever out= is.
    return [op for op in ATEN if op.supports_out and torch.float32 in op.dtypes and op.name != "lu"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", _with_out(), ids=lambda op: op.formatted_name)
def test_of_aten_operators_too(op):
    if is_left_to_torch(f"aten::{op.name.replace('.', '_')}"):
        pytest.skip("torch's kernel is another one")
    sample = next(iter(op.sample_inputs("mps", torch.float32)))
    results = op.op(sample.input, *sample.args, **sample.kwargs)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    outs = [torch.empty(x.shape, dtype=x.dtype) for x in results]
    with pytest.raises(RuntimeError, match="device"):
        op.op(
            sample.input,
            *sample.args,
            **sample.kwargs,
            out=outs[0] if len(outs) == 1 else tuple(outs),
        )
