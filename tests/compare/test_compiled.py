"""metalops.debug.compare(compiled=True) compares the kernels of functions of torch.compile; by default they run uncompiled,
and so does the comparison itself."""

import metalops
import pytest
import torch
from metalops.debug import compare
from metalops.testing.faults import replaced
from torch import nn

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not metalops._is_software, reason="compiles for the software device"),
]


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(torch.sin(self.up(x)) * x)


def test_right_kernels_agree(fresh_compiler):
    model = Gated().to("mps")
    x = torch.randn(4, 8, device="mps")
    expected = model(x)
    with compare(compiled=True) as comparison:
        result = torch.compile(model)(x)
        result.square().mean().backward()
    torch.testing.assert_close(result, expected)
    assert comparison.differences == []
    assert comparison.compared >= 5
    assert model.up.weight.grad is not None


def test_a_kernel_that_is_compiled_wrongly_is_named(fresh_compiler, monkeypatch):
    from metalops._torch.inductor_metal import Overrides  # imports the compiler

    monkeypatch.setattr(Overrides, "sin", staticmethod(lambda x: f"metal::cos({x})"), raising=False)
    compiled = torch.compile(Gated().to("mps"))
    x = torch.randn(4, 8, device="mps")
    with compare(compiled=True, halt=False) as comparison, torch.no_grad():
        compiled(x)
    first = comparison.differences[0]
    assert "aten::sin" in first.arguments[-1]
    assert first.served_by == "a kernel of torch.compile"
    # The buffers behind it are computed from what it left, and are right.
    assert len(comparison.differences) == 1
    assert "norm" in first.module


def test_operators_that_compiled_functions_call_are_compared(fresh_compiler):
    """Matrix products are no generated kernels. The kernel that takes a wrong one is not blamed."""
    compiled = torch.compile(lambda x, y: (x @ y).sin())
    x = torch.randn(8, 8, device="mps")
    with replaced("mm.out", lambda kernel, *a, out, **k: kernel(*a, out=out, **k).mul_(2)):
        with compare(compiled=True, halt=False) as comparison:
            compiled(x, x)
    assert [d.operator for d in comparison.differences] == ["aten::mm.out"]
    assert "an operator before them" in comparison.report()


def test_compiled_functions_run_uncompiled_by_default(fresh_compiler):
    compiled = torch.compile(lambda x: x.sin() * 2)
    x = torch.randn(4, 8, device="mps")
    compiled(x)
    with compare() as comparison:
        compiled(x)
    assert comparison.compared == 2


def test_modules_that_were_compiled_have_their_names(fresh_compiler):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to("mps")
    compiled = torch.compile(model)
    calls = []

    def wrong(kernel, *args, **kwargs):
        calls.append(1)
        return kernel(*args, **kwargs) + len(calls) // 2

    with replaced("addmm", wrong), compare(halt=False) as comparison:
        compiled(torch.randn(4, 8, device="mps"))
    assert [d.module for d in comparison.differences] == ["1"]
