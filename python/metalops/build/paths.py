"""Paths of the parts of metalops that a build needs."""

from __future__ import annotations

import importlib.util
import os
import sys

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def software_device() -> bool:
    """Returns true if extensions are built for the software Metal device, that is, anywhere but on macOS."""
    return sys.platform != "darwin"


def include_paths() -> list[str]:
    """Returns the folders of the headers <metalops/...> for C++ and Objective-C++ sources and for Metal sources, and of
    substitutes for torch's headers that only a Mac can read. They go before torch's own include folder."""
    folders = [os.path.join(PACKAGE, "include")]
    if software_device():
        folders.append(os.path.join(PACKAGE, "include", "software_device"))
    return folders


def torch_include() -> str:
    """Returns the folder of torch's headers, <c10/metal/...> among them; torch is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("metalops.build needs torch, which is not installed")
    return os.path.join(next(iter(spec.submodule_search_locations)), "include")


def message_flags() -> list[str]:
    """Returns compiler flags that remove this machine's folders from file names in messages: those of the project, of
    the package and of torch's headers."""
    folders = {os.getcwd(), os.path.dirname(PACKAGE), torch_include()}
    # The last matching map applies.
    return [f"-fmacro-prefix-map={os.path.join(f, '')}=" for f in sorted(folders, key=len)]


def host_library() -> str:
    """Returns the library that defines torch's Metal classes where torch's own do not exist (not on macOS).

    Extensions are linked against it. At run time `import metalops` has loaded it already, and the dynamic linker finds
    it by its soname.
    """
    return os.path.join(PACKAGE, "_host.so")
