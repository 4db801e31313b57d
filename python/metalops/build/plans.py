"""The library of launch plans (csrc/plans) for callers that are not C++: it uses neither torch nor a GPU."""

from __future__ import annotations

import shlex
import subprocess
from glob import glob

from . import compilers, paths

NAME = "_plans.so"


def sources(root: str) -> list[str]:
    """Returns the C++ files of the library in the source tree at `root`."""
    return sorted(glob("csrc/plans/**/*.cpp", root_dir=root, recursive=True))


def headers(root: str) -> list[str]:
    """Returns the headers that the library's sources include from the source tree, and maybe others."""
    patterns = ("csrc/plans/**/*.h", "kernels/**/*.h", "python/metalops/include/metalops/*.h")
    return sorted(x for p in patterns for x in glob(p, root_dir=root, recursive=True))


def build_plans(root: str, output: str) -> None:
    """Compiles the library from the source tree at `root`. Raises CompileError, CalledProcessError."""
    folders = [root, *paths.include_paths(), paths.torch_include()]
    command = [
        *shlex.split(compilers.find_cxx()),
        *("-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"),
        *(f"-I{folder}" for folder in folders),
        *("-x", "c++", "-", "-o", output),
    ]
    # One unit: most of the time goes into reading the same headers.
    unit = "".join(f"#include <{source}>\n" for source in sources(root))
    subprocess.run(command, input=unit, text=True, check=True)
