"""Every case of the gallery is reported with its kind at its line and column, and its corrected
twin is silent (see gallery.py). One process for each sanitizer runs all of them.
"""

import functools
import json
import os
import re
import subprocess
import sys

import gallery
import pytest
from metalops.msl.source import compiler

HERE = os.path.dirname(os.path.abspath(__file__))
PLACE = re.compile(r"program_source:(\d+):(\d+)")

pytestmark = pytest.mark.nightly


def run_gallery(mode, *names, sanitizer=None):
    """The findings of the cases of a mode, of all or of those with these names, the exit status and what was printed on
    standard error. sanitizer: that of the mode by default."""
    process = subprocess.run(
        [sys.executable, os.path.join(HERE, "run_gallery.py"), mode, *names],
        env={**os.environ, "METALOPS_SANITIZE": mode if sanitizer is None else sanitizer},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    return {line.pop("case"): line for line in lines}, process.returncode, process.stderr


@pytest.fixture(scope="module")
def results(once):
    """A function from a mode to what run_gallery returns."""
    return functools.cache(lambda mode: once(f"gallery_{mode}", lambda: run_gallery(mode)))


CASES = [
    pytest.param(mode, case, id=f"{mode}-{case.name}")
    for mode in ("address", "thread")
    for case in gallery.cases(mode)
]


def findings(results, mode, name, which):
    found, status, errors = results(mode)
    assert name in found, f"the run ended before this case: {status}\n{errors}"
    return found[name][which]


@pytest.mark.parametrize("mode, case", CASES)
def test_a_wrong_kernel_is_reported_at_its_place(results, mode, case):
    if case.compiler not in ("", compiler.find().kind):
        pytest.skip(f"only {case.compiler} checks this")
    found = findings(results, mode, case.name, "wrong")
    for expected in case.expected:
        matching = [message for kind, message, _ in found if kind in (expected.kind, "")]
        assert matching, f"no {expected.kind} among {found}"
        places = [tuple(map(int, place)) for text in matching for place in PLACE.findall(text)]
        assert any(
            line == expected.line and column in expected.columns for line, column in places
        ), (expected, matching)


@pytest.mark.parametrize("mode, case", CASES)
def test_the_corrected_kernel_is_silent(results, mode, case):
    assert findings(results, mode, case.name, "twin") == []


def test_the_runs_end_well(results):
    for mode in {param.values[0] for param in CASES}:
        _, status, errors = results(mode)
        assert status == 0, errors


def test_wrong_kernels_with_tensors_leave_a_process_without_sanitizers_alive():
    names = [case.name for case in gallery.cases("address") if "<metal_tensor>" in case.source]
    found, status, errors = run_gallery("address", *names, sanitizer="")
    assert status == 0, errors
    assert sorted(found) == sorted(names)
    refused = {name: found[name]["wrong"] for name in names if found[name]["wrong"]}
    assert list(refused) == ["too_few_threads_for_simdgroups"]
    assert all(found[name]["twin"] == [] for name in names)
