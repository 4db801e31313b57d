"""The sanitizers find faults in kernels that an extension launches from Objective-C, one of each kind: those of tests/sanitize that
need buffers only."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from metalops.msl.source import compiler

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the API itself"),
]

MODES = {"address": "address,undefined", "thread": "thread"}
PLAIN = re.compile(r"(kernel|raw)\(\[?((floats|ints)\([\d, ]+\)(, )?)+\]?[\w=(){}:, ]*\)")


@pytest.fixture(scope="session")
def of_kinds(load_script):
    """Mode -> {kind: a case of the gallery of tests/sanitize that can be launched from Objective-C}."""
    gallery = load_script(HERE.parent / "sanitize" / "gallery.py")
    chosen = {mode: {} for mode in MODES}
    for mode, cases in chosen.items():
        for case in gallery.cases(mode):
            plain = PLAIN.fullmatch(case.launch) and not (case.language or case.layout)
            if plain and "<metal_tensor>" not in case.source:
                if case.compiler in ("", compiler.find().kind):
                    cases.setdefault(case.expected[0].kind, case)
    return chosen


@pytest.mark.parametrize("target", ["stream", "queue"])
@pytest.mark.parametrize("mode", MODES)
def test_a_fault_of_each_kind_is_found_at_its_line(gallery, of_kinds, mode, target):
    cases = of_kinds[mode]
    kinds = {
        "address": {"heap-buffer-overflow", "signed-integer-overflow", "threadgroup-buffer-overflow"},
        "thread": {"data-race", "barrier-divergence", "uninitialized-threadgroup-read"},
    }[mode]  # fmt: skip
    assert kinds <= cases.keys()
    names = [case.name for case in cases.values()]
    done = subprocess.run(
        [sys.executable, HERE / "run_sanitizers.py", gallery("sanitizers")._name, target, *names],
        # In the order of positions, on which it depends which of two faults comes first.
        env={**os.environ, "METALOPS_SANITIZE": MODES[mode], "METALOPS_SANITIZE_SEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = {line.pop("case"): line for line in lines}
    assert found.keys() == set(names), done.stderr
    for kind, case in cases.items():
        expected = case.expected[0]
        wrong, right = found[case.name]["wrong"], found[case.name]["right"]
        assert kind in wrong, (case.name, wrong)
        assert f"program_source:{expected.line}:" in wrong, (case.name, wrong)
        assert right == "", (case.name, right)
    assert done.returncode == 0, done.stderr
