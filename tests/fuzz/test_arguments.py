"""Operators with spoilt arguments, always the same ones: `python -m tests.fuzz.arguments` takes new ones."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .arguments import fault_of
from .calls import Call

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.parametrize("first", [0, 150])
def test_spoilt_arguments_are_taken_or_refused(first):
    command = [sys.executable, "-m", "tests.fuzz.arguments", f"--seed={first}", "--count=150"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    assert done.stdout.splitlines()[-1].startswith(f"{first + 149} ")


def _raises(error):
    def function(x):
        raise error

    return Call("function", function, (torch.ones(2),), {})


def test_what_is_a_fault():
    assert fault_of(Call("neg", torch.neg, (torch.ones(2),), {})) == ""
    for error in (RuntimeError("x"), IndexError("x"), TypeError("x")):
        assert fault_of(_raises(error)) == ""
    assert "x INTERNAL ASSERT FAILED" in fault_of(_raises(RuntimeError("x INTERNAL ASSERT FAILED")))
    assert fault_of(_raises(KeyError("x"))) == "KeyError: 'x'"
    assert fault_of(_raises(AttributeError("x"))) == "AttributeError: x"
