"""Recorded operations do again all that they did."""

from pathlib import Path

import pytest
import torch
from metalops.trace import operators, operators_capture
from metalops.trace.replay import SoftwareDevice

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_large_linear_algebra.py"


def recorded(function, *arguments):
    function(*arguments)  # so that libraries and constants are there
    recording = operators_capture.record(function, *arguments)
    return recording, operators.replay(recording, SoftwareDevice())


def check(again, expected):
    for x, y in zip(again.results, expected, strict=True):
        torch.testing.assert_close(x, y.cpu(), rtol=0, atol=0)


@pytest.mark.full
def test_a_factorisation_of_one_launch():
    a = torch.randn(2, 6, 6)
    a = (a + a.mT).to("mps")
    recording, again = recorded(torch.linalg.eigh, a)
    assert [x.kernel for x in recording.trace.launches] == ["eigh_thread_8_float"]
    assert torch.equal(again.arguments[0], a.cpu())
    check(again, torch.linalg.eigh(a))
    for x in again.results:
        x.zero_()
    again.run()
    check(again, torch.linalg.eigh(a))


def test_operators_of_torch_between_launches():
    a = torch.randn(3, 4, dtype=torch.complex64, device="mps")

    def function(x):
        y = torch.zeros(3, 3, dtype=x.dtype, device="mps")
        y.add_(x.conj() @ x.mT)
        return y, y[1:].mH, x.imag[0:0]

    recording, again = recorded(function, a)
    calls = [event for event in recording.trace.events if isinstance(event, operators.Call)]
    assert "aten::mm" in {call.name for call in calls}
    product, part, empty = again.results
    torch.testing.assert_close(product, a.cpu().conj() @ a.cpu().mT)
    torch.testing.assert_close(part, product[1:].mH, rtol=0, atol=0)
    assert empty.shape == (0, 4)


def test_contents_that_the_host_writes_between_steps():
    a = torch.ones(5, device="mps")

    def function(x):
        y = x + 1
        y.copy_(torch.arange(5.0))
        return (y + x,)

    _, again = recorded(function, a)
    assert again.results[0].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.full
def test_what_the_benchmark_records_runs_again(load_script):
    script = load_script(SCRIPT)
    (name,) = (name for name, case in script.CASES.items() if case.ours is None)
    again = script.Timed(script.record(name, 80, torch.float32), SoftwareDevice())
    again.run()
    check(again, [script.CASES[name].function(again.arguments[0].to("mps"))])
