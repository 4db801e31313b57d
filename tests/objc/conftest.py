"""Compiles the gallery: Objective-C++ sources as for a Mac, against the headers and the library of the software device."""

import ctypes
import subprocess
import sysconfig
from pathlib import Path

import metalops
import pytest
import torch
from metalops.build import objective_c
from torch.utils import cpp_extension

from .common import GALLERY

ROOT = Path(__file__).parents[2]
PACKAGE = Path(metalops.__file__).parent
FLAGS = [
    *(
        "-std=c++20",
        "-x",
        "objective-c++",
        "-fobjc-runtime=gnustep-2.0",
        "-fblocks",
        "-fobjc-exceptions",
    ),
    *(
        "-O0",
        "-g0",
        "-fPIC",
        "-Wall",
        "-Wno-unused-function",
        "-Wno-deprecated-declarations",
        "-Werror",
    ),
]


def build(name: str, folder: Path) -> str:
    source = GALLERY / f"{name}.mm"
    comment = source.read_text().partition("\n#")[0]
    output = folder / f"{name}.so"
    command = [
        objective_c.find_compiler(),
        *FLAGS,
        f"-I{PACKAGE / 'include' / 'apple'}",
        f"-I{ROOT}",
    ]
    command += [flag for flag in ("-fobjc-arc", "-gline-tables-only") if flag in comment]
    link = [
        "-x",
        "none",
        "-Wl,--no-as-needed",
        str(PACKAGE / "_objc.so"),
        str(PACKAGE / "_host.so"),
    ]
    if comment.rstrip().endswith("torch"):
        paths = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
        command += [f"-isystem{path}" for path in paths]
        link += [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10"]
    command += [str(source), *link, f"-Wl,-rpath,{PACKAGE}", "-shared", "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(output)


@pytest.fixture(scope="session")
def gallery(shared_folder, once):
    """gallery(name): the compiled file, as a ctypes library. Each is compiled once for a whole run."""
    if objective_c.find_compiler() is None:
        pytest.skip("clang, which compiles Objective-C, is not installed (apt-get install clang)")

    def load(name):
        path = once(f"objc-{name}", lambda: build(name, Path(shared_folder)))
        return ctypes.CDLL(path)

    return load


@pytest.fixture(scope="session")
def run(gallery):
    """run(file, test): runs a test of the gallery. Asserts that it passes."""

    def call(name, test, prepare=lambda library: None):
        library = gallery(name)
        prepare(library)
        function = library[f"test_{test}"]
        function.restype = ctypes.c_char_p
        failure = function()
        assert failure is None, f"{name}.mm: {failure.decode(errors='replace')}"

    return call
