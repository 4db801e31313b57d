"""What a user reads when metalops cannot be built or imported: one sentence."""

import os
import subprocess
import sys
import types

import metalops
import pytest
import torch
from metalops import _build_info, _compiled
from metalops._torch import versions
from metalops.build import compilers

BUILD_WITHOUT_COMPILER = """\
from metalops.build import BuildExtension, MetalExtension
from setuptools import setup
setup(
    name="x",
    ext_modules=[MetalExtension("x", ["x.cpp"])],
    cmdclass={"build_ext": BuildExtension},
    script_args=["build_ext", "--build-lib", "lib", "--build-temp", "temp"],
)
"""


@pytest.mark.full
def test_a_build_without_a_working_compiler_says_so_in_one_sentence(tmp_path):
    (tmp_path / "x.cpp").write_text("")
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    result = subprocess.run(
        [sys.executable, "-c", BUILD_WITHOUT_COMPILER],
        cwd=tmp_path,
        env={**os.environ, "CXX": str(broken)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert f"the C++ compiler CXX={broken} cannot compile a C++20 program." in result.stderr
    assert "Traceback" not in result.stderr


def test_no_compiler_at_all_is_told_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        compilers.MissingCompiler, match=r"install g\+\+ .* or clang\+\+ .* or set CXX"
    ):
        compilers.find_cxx()


def test_this_torch_and_platform_are_fine():
    assert _compiled.problem(torch.__version__) is None


def test_another_build_of_the_same_torch_version_is_fine():
    assert _compiled.problem(_build_info.TORCH_VERSION + "+cu130") is None


def _another(version):
    """A supported version that is not compatible with this one."""
    return next(f"{other}.0" for other in versions.SUPPORTED if other != versions.minor(version))


def test_another_supported_torch_is_refused_with_what_to_install():
    built = _build_info.TORCH_VERSION
    other = _another(built)
    assert _compiled.problem(f"{other}+cpu") == (
        f"metalops was built for torch {built} and cannot be used with torch {other}; install "
        f'"{versions.needed(built)}", or metalops again, which builds it for torch {other}.'
    )


def test_an_unsupported_torch_is_refused_with_the_supported_versions():
    built = _build_info.TORCH_VERSION
    assert _compiled.problem("2.99.1+cpu") == (
        f"metalops was built for torch {built} and cannot be used with torch 2.99.1; install "
        f'"{versions.needed(built)}", or torch {versions.listed("or")} and metalops again.'
    )


# torch says that it is another version, and perhaps that it is a CUDA build or has a GPU.
WITH_ANOTHER_TORCH = """\
import sys
import torch
version, build, gpu = sys.argv[1:]
torch.__version__ = version
torch.version.cuda = build or None
torch.cuda.is_available = lambda: gpu == "GPU"
import metalops
print(metalops._problem)
"""


def import_with(*arguments):
    return subprocess.run(
        [sys.executable, "-c", WITH_ANOTHER_TORCH, *arguments],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("build", ["", "13.0"])
def test_a_build_for_one_torch_is_not_imported_with_another(build):
    other = _another(_build_info.TORCH_VERSION)
    result = import_with(other, build, "no GPU")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == f"ImportError: {_compiled.problem(other)}"


@pytest.mark.nightly
def test_with_a_gpu_of_nvidia_the_parts_that_are_not_compiled_are_imported():
    other = _another(_build_info.TORCH_VERSION)
    result = import_with(other, "13.0", "GPU")
    assert result.stdout == f"{_compiled.problem(other)}\n", result.stderr


def test_another_platform_is_refused():
    assert (
        _compiled.problem(torch.__version__, "win32")
        == "metalops works on macOS and Linux, not on win32."
    )


def test_a_library_built_for_another_platform_is_refused(monkeypatch):
    monkeypatch.setattr(_build_info, "PLATFORM", "darwin" if sys.platform == "linux" else "linux")
    assert "cannot be used on" in _compiled.problem(torch.__version__)


def test_a_half_built_tree_names_what_is_missing(monkeypatch, tmp_path):
    for name in ("_build_info.py", "_stock_overloads.py", "_C.so", "_c_functions.so"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(_compiled, "__file__", str(tmp_path / "_compiled.py"))
    assert "without _host.so;" in _compiled.problem(torch.__version__, "linux")


def test_an_extension_older_than_the_python_sources_says_so():
    old = types.ModuleType("metalops._old")
    old.present = 1
    _compiled.check_names(old)
    assert old.present == 1
    assert not hasattr(old, "__path__")
    with pytest.raises(ImportError, match=r"metalops\._old has no added: .* `pip install \.`"):
        _ = old.added


def test_the_extensions_of_metalops_are_checked():
    with pytest.raises(ImportError, match="metalops._C has no such_function"):
        _ = metalops._C.such_function
