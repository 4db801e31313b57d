"""The self-test for users, as they run it: python -m metalops selftest"""

import ctypes
import os
import subprocess
import sys

import metalops
import pytest
import torch
from metalops import __main__
from metalops.msl.check import check_source
from metalops.selftest import gpu_family, interfaces, parts

# A CPU takes the kernels of the family "convolution".
FOR_GPUS = {"convolution_packed", "convolution_packed.tensors", "convolution_depthwise"}


def run(tmp_path, *arguments):
    """The status of a run in this process, and the file."""
    path = tmp_path / "report.txt"
    status = __main__.main(["selftest", "--output", str(path), *arguments])
    return status, path.read_text(encoding="utf-8")


@pytest.mark.nightly  # compiles all that an installation leaves out
def test_all_is_right_and_every_kernel_file_is_used(tmp_path):
    command = [sys.executable, "-m", "metalops", "selftest", "--seconds", "3600"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    *_, right, wrote = result.stdout.splitlines()
    assert right.endswith("checks are right")  # with no word of checks for which there was no time
    assert wrote == "wrote metalops_selftest.txt"
    text = (tmp_path / "metalops_selftest.txt").read_text(encoding="utf-8")
    assert right in text
    lines = text.split("The kernel libraries that were used:\n")[1].splitlines()
    used = {line.split()[0] for line in lines} - {"built"}
    families = {entry["family"] for entry in metalops._C.kernel_libraries()}
    assert used <= families
    unused = families - used - FOR_GPUS
    if not hasattr(torch.ops.aten, "_philox_key_split"):  # an operator of later versions
        unused -= {"philox"}
    # A later torch has operators of some families itself.
    assert not unused or "left to torch" in {entry.status for entry in metalops.coverage()}


@pytest.mark.nightly
def test_a_wrong_result_is_reported_with_its_inputs(tmp_path, monkeypatch, capsys):
    special = torch.special.airy_ai

    def wrong(x):
        return special(x) + 0.5 if x.is_mps else special(x)

    monkeypatch.setattr(torch.special, "airy_ai", wrong)
    status, text = run(tmp_path, "--part", "ATen operators")
    assert status == 1
    assert text.count("FAILED") == 3 + 1  # three dtypes, and the line of the part
    failure = text.split("FAILED special.airy_ai float32\n")[1]
    assert "case 'contiguous': special.airy_ai: 1650 of 1650 elements are wrong" in failure
    assert "with the inputs\n  float32 (50, 33), strides (33, 1), offset 0\n" in failure
    printed = capsys.readouterr().out
    assert "ATen operators: 3 of " in printed and "Please attach it to an issue" in printed


@pytest.mark.full
def test_the_report_begins_with_what_the_package_is_and_runs_on(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", sys.prefix)
    status, text = run(tmp_path, "--part", "kernels from Python")
    assert status == 0
    assert text.startswith("metalops selftest, ")
    assert torch.__version__ in text and torch.backends.mps.get_name() in text
    assert "Python 3." in text
    assert sys.prefix not in text  # the home folder's name is nobody's business


def test_what_there_is_no_time_for_is_told(tmp_path, capsys):
    status, text = run(tmp_path, "--part", "products", "--seconds", "0")
    assert status == 1  # nothing was compared
    assert "there was no time for 16" in text


@pytest.mark.full
def test_a_kernel_that_ends_the_process_is_the_last_line(tmp_path):
    script = """\
import os, torch
from metalops import __main__
torch.special.airy_ai = lambda x: os._exit(7)
__main__.main(["selftest", "--part", "ATen operators"])
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert result.returncode == 7
    text = (tmp_path / "metalops_selftest.txt").read_text(encoding="utf-8")
    assert text.splitlines()[-1] == "ATen operators: special.airy_ai float32"


@pytest.mark.full
def test_its_kernels_are_right():
    for source in (interfaces._ROW_SUMS, interfaces._TILES, interfaces._REVERSED):
        assert check_source(source) == []


def test_every_part_has_checks_with_names_of_their_own():
    names = [check.name for checks in parts().values() for check in checks()]
    assert len(names) == len(set(names)) > 250


@pytest.mark.parametrize(
    ("newest", "expected"), [(1009, ["Apple9", "Metal3"]), (1010, ["Apple10", "Metal4"])]
)
def test_the_families_of_a_mac_are_the_newest_that_it_supports(monkeypatch, newest, expected):
    supported = {*range(1001, newest + 1), 5001} | ({5002} if newest >= 1010 else set())

    class Library:
        def __init__(self, path):
            assert path in (
                "/System/Library/Frameworks/Metal.framework/Metal",
                "/usr/lib/libobjc.dylib",
            )
            self.MTLCreateSystemDefaultDevice = type("F", (), {"__call__": lambda self: 11})()
            self.sel_registerName = type("F", (), {"__call__": lambda self, name: (22, name)})()

    def prototype(*types):
        assert types == (ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)
        return lambda symbol: (
            lambda device, selector, family: (
                (device, selector) == (11, (22, b"supportsFamily:")) and family in supported
            )
        )

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(ctypes, "CFUNCTYPE", prototype)
    assert gpu_family.names() == expected


def test_there_are_no_families_without_metal():
    assert gpu_family.names() == [] or os.uname().sysname == "Darwin"
