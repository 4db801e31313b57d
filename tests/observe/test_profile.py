"""metalops.debug.profile(): time and bytes of operators and kernels, as tables and as a trace."""

import json

import metalops
import pytest
import torch
from metalops.debug import profile
from torch import nn

software = pytest.mark.skipif(not metalops._is_software, reason="a Mac does not time kernels")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x):
        return self.second(metalops.ops.softcap(self.first(x), 3.0))


def test_operators_modules_and_bytes():
    model = Model().to("mps")
    x = torch.randn(32, 8, device="mps")
    with profile() as found:
        model(x).sum().backward()
    costs = {cost.name: cost for cost in found.costs()}
    addmm = costs["aten::addmm"]
    assert addmm.calls == 2 and addmm.seconds > 0
    sizes = (8 * 16 + 16 + 32 * (8 + 16)), (16 * 4 + 4 + 32 * (16 + 4))
    assert addmm.bytes == 4 * sum(sizes)
    assert "aten::t" not in costs  # a view
    modules = {cost.name for cost in found.costs("module")}
    assert {"first", "second"} <= modules
    backward = {e.name for e in found.events if e.is_backward and e.module == "second"}
    assert "aten::mm" in backward
    assert all(e.begin <= e.end for e in found.events)
    listed = [cost.seconds for cost in found.costs()]
    assert listed == sorted(listed, reverse=True)


def test_operators_of_jagged_tensors_are_those_of_their_values():
    values = torch.randn(10, 4, device="mps")
    jagged = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 10], device="mps"))
    with profile() as found:
        result = jagged.sin()
    (cost,) = found.costs()
    assert (cost.name, cost.calls, cost.bytes) == ("aten::sin", 1, 2 * 4 * 40)
    assert torch.equal(result.values().cpu(), values.sin().cpu())


@software
def test_kernels_belong_to_the_operators_that_launch_them():
    x = torch.randn(1000, device="mps")
    with profile() as found:
        metalops.ops.softcap(x, 3.0)
    kernels = [e for e in found.events if e.kind == "kernel"]
    assert kernels and all(e.operator == "metalops::softcap" for e in kernels)
    (operator,) = (e for e in found.events if e.name == "metalops::softcap")
    assert operator.begin <= kernels[0].begin <= kernels[-1].end <= operator.end
    assert sum(e.seconds for e in kernels) <= operator.seconds
    assert kernels[0].bytes == 2 * 4000


@software
def test_launches_outside_of_operators():
    library = torch.mps.compile_shader(
        "kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }"
    )
    x = torch.ones(10, device="mps")
    with profile() as found:
        library.twice(x)
    assert [(e.name, e.operator, e.bytes) for e in found.events] == [("twice", "", 40)]
    library.twice(x)
    assert len(found.events) == 1 and bool((x == 4).all())


def test_tables():
    x = torch.randn(100, 100, device="mps")
    with profile() as found:
        (x @ x).sin()
    lines = found.table().splitlines()
    assert lines[0].split() == ["operator", "calls", "time", "share", "bytes", "GB/s"]
    assert {line.split()[0] for line in lines[1:-1]} == {"aten::mm", "aten::sin"}
    assert "(no module)" in found.table("module") and "and 1 more, " in found.table(most=1)
    with pytest.raises(ValueError, match='by must be "operator", "kernel" or "module", got \'x\''):
        found.table("x")
    assert profile().table().splitlines()[-1] == "together 0.000 ms"


def test_the_trace(tmp_path):
    path = tmp_path / "trace.json"
    model = Model().to("mps")
    x = torch.randn(4, 8, device="mps")
    with profile(model=model, path=path) as found:
        model(x)
    written = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in written if event["ph"] == "X"]
    assert len(spans) == len(found.events)
    assert min(event["ts"] for event in spans) == 0 and all(e["dur"] >= 0 for e in spans)
    first = next(event for event in spans if event["name"] == "aten::addmm")
    assert first["args"]["module"] == "first" and first["args"]["pass"] == "forward"
    assert "float32 [4, 8]" in first["args"]["sizes"] and first["cat"] == "operator"
    with pytest.raises(OSError):
        profile(path=tmp_path / "missing" / "trace.json")


def test_a_decorator_and_a_call_that_raises():
    found = profile()

    @found
    def step(x, again):
        return step(x + 1, False) if again else x.sin()

    step(torch.ones(3, device="mps"), True)
    with found, pytest.raises(RuntimeError):
        torch.ones(3, device="mps") @ torch.ones(4, device="mps")
    assert {cost.name for cost in found.costs()} >= {"aten::add.Tensor", "aten::sin"}
    torch.ones(3, device="mps").cos()
    assert "aten::cos" not in {cost.name for cost in found.costs()}
