"""Programs that use the software device without being Python: they start it before main() (program.c). Imports neither torch
nor the device."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig

from metalops.build import objective_c
from metalops.build.mac import flags, tools

_SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.c")


def is_program(words: list[str]) -> bool:
    """Returns whether a linker's command makes a program, and not a library."""
    return not {"-shared", "-r", "-static", "--version", "-v"} & set(words)


def uses(path: str, library: str) -> bool:
    """Returns whether a linked program loads a library, directly or through others."""
    printed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    return any(line.split()[0] == os.path.basename(library) for line in printed.splitlines())


def _shared_library() -> str:
    """Returns the path of Python's shared library. Raises Impossible."""
    folder, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    path = os.path.join(folder or "", name or "")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED") or not os.path.isfile(path):
        raise flags.Impossible(
            f"a program needs Python's shared library, and {sys.executable} was built without one"
            " (--enable-shared)"
        )
    return path


def _libraries(python: str) -> list[str]:
    """Returns the flags that link Python, and that say where the device's libraries and torch's are: in a process of Python,
    imports have loaded them before."""
    spec = importlib.util.find_spec("torch")
    torch = os.path.join(os.path.dirname(spec.origin), "lib") if spec and spec.origin else ""
    host = os.path.join(tools.DEVELOPER, "lib", "libmetalops_host.so")
    os.makedirs(os.path.dirname(host), exist_ok=True)
    target = os.path.join(objective_c.PACKAGE, "_host.so")
    if os.path.realpath(host) != os.path.realpath(target):
        temporary = f"{host}.{os.getpid()}"
        os.symlink(target, temporary)
        os.replace(temporary, host)  # others may link at this moment
    folders = (os.path.dirname(python), os.path.dirname(host), torch)
    return [
        "-Wl,--push-state,--no-as-needed",
        python,
        "-Wl,--pop-state",
        # Old tags also apply to the libraries of libraries.
        "-Wl,--disable-new-dtags",
        *(f"-Wl,-rpath,{folder}" for folder in folders),
    ]


def support(cc: str, folder: str) -> list[str]:
    """Compiles what starts Python, in `folder`; returns the flags that link it. Raises Impossible."""
    libraries = _libraries(_shared_library())
    output = os.path.join(folder, "program.o")
    words = [
        *shlex.split(cc),
        "-O1",
        "-fPIC",
        f'-DMETALOPS_PYTHON="{sys.executable}"',
        f"-I{sysconfig.get_path('include')}",
        *("-c", _SOURCE, "-o", output),
    ]
    subprocess.run(words, check=True)
    return [output, *libraries]
