"""The parts of the check of the macOS build that need neither torch's macOS wheel nor a compiler for macOS."""

import os
import subprocess
import sys

import pytest

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "crosscheck.py")


@pytest.fixture
def crosscheck(load_script):
    return load_script(PATH)


@pytest.mark.slow
def test_every_kernel_file_can_be_embedded(crosscheck, capsys):
    from metalops.build import paths

    include_dirs = [crosscheck.ROOT, *paths.include_paths(), paths.torch_include()]
    assert len(crosscheck.metal_sources()) >= 8
    assert crosscheck.check_kernels(include_dirs) == 0, capsys.readouterr().out


def test_an_include_that_cannot_be_embedded_is_a_fault(crosscheck, capsys, monkeypatch, tmp_path):
    (tmp_path / "k.metal").write_text('#include "hidden.h"\nkernel void f() {}\n')
    (tmp_path / "hidden.h").write_text("constant int x = 1;\n")
    monkeypatch.setattr(crosscheck, "metal_sources", lambda: [str(tmp_path / "k.metal")])
    monkeypatch.setattr("metalops.msl.flatten", lambda *_: f'#include "{tmp_path}/hidden.h"\n')
    assert crosscheck.check_kernels([]) == 1
    assert f"still includes {tmp_path}/hidden.h" in capsys.readouterr().out


def test_it_says_what_is_missing(tmp_path):
    command = [sys.executable, PATH, "--torch-wheel", "none.whl", "--sdk", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert (
        result.stderr
        == f"crosscheck: {tmp_path} is not a macOS SDK (it has no System/Library/Frameworks).\n"
    )
