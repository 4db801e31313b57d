"""Inductor's Metal code for what follows a reduction: stored once, in place, through out= and atomically."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from .common import software_device_only
from .inductor_reductions import ALL, Case, differences, some

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("fresh_compiler")]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize(("turn", "width"), [(0, 9), (1, 200), (2, 1500)])
def test_the_result_of_a_reduction_is_written_once(turn, width, part):
    assert differences(some(width, turn)[part::3]) == []


def test_a_count_is_added_in_place_once():
    c, x = torch.zeros(2, dtype=torch.int64, device="mps"), torch.ones(2, 9, device="mps")
    assert torch.compile(lambda c, x: c.add_((x > 0).sum(1)))(c, x).tolist() == [9, 9]


def test_arguments_that_share_memory():
    def function(whole, part, x):
        part.add_(x.sum(1))
        whole.mul_(2)
        return whole[:2] + x.mean(1)

    results = []
    for f in (function, torch.compile(function)):
        whole = torch.arange(4.0, device="mps")
        x = torch.arange(18.0, device="mps").view(2, 9)
        results.append((f(whole, whole[1:3], x), whole))
    torch.testing.assert_close(results[1], results[0])


def test_dynamic_shapes():
    function = lambda c, x: c.mul_(0.5).add_(x.sum(1), alpha=0.5)
    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    for columns in (9, 40, 1500):
        x = torch.randn(3, columns, device="mps")
        actual, expected = torch.ones(2, 3, device="mps")
        compiled(actual, x)
        function(expected, x)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("samples", [3, 40])
def test_running_statistics_of_batch_norm(samples):
    eager, compiled = nn.BatchNorm2d(4).to("mps"), nn.BatchNorm2d(4).to("mps")
    step = torch.compile(compiled, fullgraph=True)
    for _ in range(2):
        x = torch.randn(samples, 4, 6, 5, device="mps") + 1
        torch.testing.assert_close(step(x), eager(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compiled.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)


# Of each kind of store, for the thread sanitizer.
SANITIZED = [
    Case(9, "sum", "add_", "nothing"),
    Case(200, "sum", "mul_, add_", "nothing"),
    Case(1500, "variance", "lerp_", "nothing"),
    Case(1500, "place of the largest", "copy_", "in place"),
    Case(200, "two reductions", "index_add_", "its rows"),
]


@pytest.mark.nightly
@software_device_only
def test_no_threads_race():
    process = subprocess.run(
        [
            *(sys.executable, "-m", "tests.metal.inductor_reductions"),
            *(str(ALL.index(case)) for case in SANITIZED),
        ],
        env={**os.environ, "METALOPS_SANITIZE": "thread"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.splitlines()[-1] == f"{len(SANITIZED)} cases, 0 wrong"


def test_code_that_others_wrote_to_the_disk_is_not_used(monkeypatch):
    from torch._inductor.codegen import common

    common.init_backend_registration()
    ours = common.get_custom_backend_pass_for_device("mps")
    assert ours.uuid()
    function, x = (lambda x: x.sum(1) + 1), torch.ones(2, 9, device="mps")
    misses = []
    for key in (b"one", b"one", b"another"):
        monkeypatch.setattr(ours, "uuid", lambda key=key: key)
        torch._dynamo.reset()
        counters.clear()
        torch.compile(function)(x)
        misses.append(counters["inductor"]["fxgraph_cache_miss"])
    assert misses == [1, 0, 1]
