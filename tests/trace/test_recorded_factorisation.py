"""What benchmarks/gpu_large_linear_algebra.py writes down of a factorisation is all that it does."""

from pathlib import Path

import pytest
import torch
from metalops.trace.replay import SoftwareDevice

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_large_linear_algebra.py"


@pytest.mark.full
@pytest.mark.parametrize("name", ["lu_factor", "eig"])
def test_a_recorded_factorisation_runs_again(name, load_script):
    script = load_script(SCRIPT)
    recorded = script.record(name, 80, torch.float32)
    again = script.Replay(recorded, SoftwareDevice())
    again.runner(lambda run: run)()
    a = again.tensor(recorded.matrix)
    expected = script.CASES[name].function(a.to("mps"))
    for x, y in zip(again.factors, expected, strict=True):
        torch.testing.assert_close(x, y.cpu(), rtol=0, atol=0)
