"""The rules that Macs enforce for programs in Objective-C: each broken one is told of with its name and the line of the program,
and the corrected program is silent (gallery/rules.mm)."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .common import rules_in

ROOT = Path(__file__).parents[2]
RULES = ROOT / "csrc" / "validation" / "rules.cpp"
CASES = rules_in("rules")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the API itself"),
]


def rule_of(case):
    return case.partition("__")[0].replace("_", "-")


@pytest.fixture(scope="module")
def table(load_script):
    """Name -> (severity, whether it is always on, sentence, source)."""
    return load_script(ROOT / "docs" / "generate.py").rules()


@pytest.fixture(scope="module")
def results(gallery, once):
    """What every case raises or warns of in a process with METALOPS_VALIDATE=1."""

    def run():
        command = [sys.executable, Path(__file__).parent / "run_rules.py"]
        done = subprocess.run(
            [*command, gallery("rules")._name, *CASES],
            env={**os.environ, "METALOPS_VALIDATE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return {line.pop("case"): line for line in lines}, done.returncode, done.stderr

    return once("results-of-objc-rules", run)


def text_of(results, case, which):
    found, status, errors = results
    assert case in found, f"the run ended before this case: {status}\n{errors}"
    return found[case][which]


@pytest.mark.parametrize("case", CASES)
def test_a_broken_rule_is_named_with_the_line_of_the_program(results, case):
    text = text_of(results, case, "wrong")
    assert f"[{rule_of(case)}] " in text, text
    assert f"rules.mm:{CASES[case]}" in text, text


@pytest.mark.parametrize("case", CASES)
def test_the_corrected_program_is_silent(results, case):
    assert text_of(results, case, "right") == ""


def test_the_run_ends_well(results):
    _, status, errors = results
    assert status == 0, errors


def test_every_rule_has_a_case(table):
    assert {rule_of(case) for case in CASES} == table.keys()
    assert len(table) == RULES.read_text().count("{Rule::k")


def test_errors_and_warnings_are_as_the_table_says(results, table):
    for case in CASES:
        severity = table[rule_of(case)][0]
        text = text_of(results, case, "wrong")
        if f": {'warning' if severity == 'error' else 'error'} [{rule_of(case)}]" in text:
            pytest.fail(f"{case}: {text}")


# They depend on what torch does besides.
BY_TORCH = {"second_encoder", "encoder_not_ended__on_torchs_buffer"}


@pytest.mark.parametrize("case", sorted(CASES.keys() - BY_TORCH))
def test_what_ends_the_process_on_a_mac_is_always_an_error(gallery, table, case):
    """Without METALOPS_VALIDATE the other rules are off."""
    library = gallery("rules")
    x, out = torch.arange(64.0, device="mps"), torch.zeros(64, device="mps")
    pointers = [ctypes.c_void_p(tensor.untyped_storage().data_ptr()) for tensor in (x, out)]
    library.set_tensors(*pointers)
    function = library[f"wrong_{case}"]
    function.restype = ctypes.c_char_p
    text = function().decode()
    library.end_case()
    assert (f"error [{rule_of(case)}] " in text) == table[rule_of(case)][1], text


def test_an_encoder_beside_torchs_is_always_an_error(gallery):
    library = gallery("rules")
    function = library.wrong_second_encoder
    function.restype = ctypes.c_char_p
    x = torch.arange(4.0, device="mps")
    scale = torch.mps.compile_shader(
        "kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }"
    )
    scale.twice(x)
    assert "torch's, for a kernel that torch launched" in function().decode()
    x.cpu()  # ends the encoder
    assert function() == b""
    with pytest.raises(RuntimeError, match="was released without endEncoding"):
        x + 1
    assert (x + 1)[0].item() == 1  # once is enough
    library.end_case()


def test_torch_does_not_go_on_while_an_encoder_is_open_on_its_buffer(gallery):
    library = gallery("rules")
    library.wrong_encoder_not_ended__on_torchs_buffer.restype = ctypes.c_char_p
    x = torch.arange(4.0, device="mps")
    library.wrong_encoder_not_ended__on_torchs_buffer()
    with pytest.raises(RuntimeError, match=r"error \[encoder-not-ended\] torch encodes"):
        x + 1
    library.end_case()
    assert (x + 1)[0].item() == 1
