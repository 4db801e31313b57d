"""The example package in tests/extension_example, installed as a user installs it, into a clean folder."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "extension_example")


def install(sources, target):
    shutil.copytree(EXAMPLE, sources)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    ]
    result = subprocess.run(
        [*command, "--target", target, sources], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def installed(shared_folder, once):
    """(folder of a copy of the example's sources, folder where it is installed)"""
    sources, target = shared_folder / "example" / "sources", shared_folder / "example" / "target"
    once("extension_example", lambda: install(sources, target))
    return sources, target


def test_the_installed_package_passes_its_own_tests(installed):
    sources, target = installed
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", sources / "tests"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(target), *sys.path])},
        cwd=target,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout


@pytest.mark.skipif(
    sys.platform == "darwin", reason="a metallib is made only where Xcode is installed"
)
def test_the_kernels_are_installed_beside_the_extension(installed):
    _, target = installed
    assert (target / "metal_example" / "_kernels.so").is_file()
    assert (target / "metal_example" / "_kernels.kernels" / "example.so").is_file()
