"""The parts of the check of the macOS build that need neither torch's macOS wheel nor a compiler for macOS."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "crosscheck.py")


@pytest.fixture
def crosscheck(load_script):
    return load_script(PATH)


@pytest.mark.nightly
def test_every_kernel_file_can_be_embedded(crosscheck, capsys, monkeypatch, tmp_path):
    from metalops.build import paths

    monkeypatch.chdir(tmp_path)  # where the names in a text's line markers name no file

    include_dirs = [crosscheck.ROOT, *paths.include_paths(), paths.torch_include()]
    assert len(crosscheck.kernel_files()) >= 8
    assert crosscheck.check_kernels(include_dirs) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("include", "sentence"),
    [
        ("<c10/metal/common.h>", "still includes"),
        (
            '"/hidden.h"',
            "cannot be preprocessed: program_source:1:10: error: /hidden.h lies outside",
        ),
    ],
)
def test_an_include_that_cannot_be_embedded_is_a_fault(
    crosscheck, capsys, monkeypatch, tmp_path, include, sentence
):
    monkeypatch.setattr(crosscheck, "kernel_files", lambda: [str(tmp_path / "k.metal")])
    monkeypatch.setattr("metalops.msl.flatten", lambda *_: f"#include {include}\n")
    assert crosscheck.check_kernels([]) >= 1
    assert sentence in capsys.readouterr().out


def test_it_says_what_is_missing(tmp_path):
    command = [sys.executable, PATH, "--torch-wheel", "none.whl", "--sdk", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert (
        result.stderr
        == f"crosscheck: {tmp_path} is not a macOS SDK (it has no System/Library/Frameworks).\n"
    )


def test_a_wheel_of_another_torch_is_refused(crosscheck, tmp_path):
    version = tmp_path / "version.py"
    version.write_text(f"__version__ = {torch.__version__!r}\n")
    crosscheck.check_version(tmp_path)
    version.write_text("__version__ = '2.99.0'\n")
    with pytest.raises(SystemExit, match=r"the wheel is of torch 2\.99\.0, but metalops supports"):
        crosscheck.check_version(tmp_path)


STUB = """--- !tapi-tbd
tbd-version: 4
targets: [ arm64-macos ]
install-name: '/usr/lib/{name}.dylib'
exports:
  - targets: [ arm64-macos ]
    symbols: [ {symbols} ]
...
"""


@pytest.fixture
def empty_sdk(tmp_path, crosscheck):
    """The parts of an SDK that linking needs, and libraries of torch's names, all of them nearly empty."""
    sdk, libraries = tmp_path / "MacOSX.sdk", tmp_path / "lib"
    frameworks = sdk / "System" / "Library" / "Frameworks"
    files = {sdk / "usr" / "lib" / "libSystem.tbd": "dyld_stub_binder, _printf"}
    files[sdk / "usr" / "lib" / "libc++.tbd"] = ""
    files |= {frameworks / f"{n}.framework" / f"{n}.tbd": "" for n in ("Metal", "Foundation")}
    files |= {libraries / f"lib{n}.tbd": "" for n in crosscheck.LIBRARIES}
    for path, symbols in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STUB.format(name=path.stem, symbols=symbols))
    return str(sdk), str(libraries)


@pytest.mark.skipif(
    not (shutil.which("ld64.lld") or shutil.which("ld64.lld-19"))
    or not (shutil.which("clang++") or shutil.which("clang++-19")),
    reason="needs clang++ and ld64.lld",
)
def test_linking_with_an_sdk_names_every_undefined_symbol(crosscheck, empty_sdk, tmp_path):
    sdk, libraries = empty_sdk
    toolchain = crosscheck.find_toolchain(sdk, None)
    missing = [f"missing_{i}" for i in range(25)]  # more than the linker names by itself
    calls = "".join(f"  {name}();\n" for name in [*missing, "PyList_New", "printf"])
    names = ", ".join(f"{name}()" for name in [*missing, "PyList_New", "printf"])
    source = tmp_path / "one.cpp"
    source.write_text(f'extern "C" {{ int {names}; }}\nvoid f() {{\n{calls}}}\n')
    assert toolchain.compile(str(source), str(tmp_path / "one.o"), []) == ""
    undefined = toolchain.link([str(tmp_path / "one.o")], str(tmp_path / "one.so"), libraries)
    assert sorted(undefined) == sorted(missing)
