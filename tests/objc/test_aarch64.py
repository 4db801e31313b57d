"""The Objective-C runtime, blocks, dispatch and Foundation on an emulated aarch64: messages pass their arguments in other
registers there, and return structs in another way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs import C10, ROOT, build, clang_for_aarch64, python_headers, run, run_emulated

from .common import GALLERY, names_in
from .conftest import FLAGS

HERE = Path(__file__).parent
HOST = ROOT / "csrc" / "host"
# The files of the gallery that need neither torch nor a device.
FILES = ["runtime", "arc", "blocks", "dispatch", "foundation"]
TESTS = [name for file in FILES for name in names_in(file)]
# What is about torch or Metal.
OF_TORCH = ("torch_mps.cpp",)

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not HOST.exists(), reason="needs the sources of the device"),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, str]:
    """What the program prints of each test."""
    folder = tmp_path_factory.mktemp("aarch64")
    clang = clang_for_aarch64()
    objects = []
    for name in FILES:
        objects.append(folder / f"{name}.o")
        arc = ["-fobjc-arc"] if "-fobjc-arc" in (GALLERY / f"{name}.mm").read_text() else []
        includes = [f"-I{ROOT / 'python' / 'metalops' / 'include' / 'apple'}", f"-I{ROOT}"]
        command = [clang, "--target=aarch64-linux-gnu", *FLAGS, *arc, *includes]
        done = run([*command, "-c", str(GALLERY / f"{name}.mm"), "-o", str(objects[-1])])
        assert done.returncode == 0, done.stderr
    objc = HOST / "objc"
    sources = [
        *(path for path in sorted(objc.glob("*.cpp")) if path.name not in OF_TORCH),
        *sorted((objc / "foundation").glob("*.cpp")),
        *sorted(objc.glob("*.S")),
        *sorted((ROOT / "csrc" / "validation").glob("*.cpp")),
        HOST / "locks.cpp",
        C10,
        HERE / "program.cpp",
    ]
    apple = ROOT / "python" / "metalops" / "include" / "apple"
    compiler = ["aarch64-linux-gnu-g++", f"-I{python_headers(folder)}", f"-I{apple}"]
    result = run_emulated(build(compiler, folder, sources, *objects, "-rdynamic"), *TESTS)
    assert result.returncode == 0, result.stdout + result.stderr
    return dict(re.findall(r"^(\w+): (.*)$", result.stdout, re.MULTILINE))


@pytest.mark.parametrize("name", TESTS)
def test_gallery(outcomes, name):
    assert outcomes[name] == "passed"
