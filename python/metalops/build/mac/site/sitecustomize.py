"""Makes Python's build scripts believe that they run on a Mac; `python -m metalops build-mac` puts this folder on PYTHONPATH.

Only code of the project that is built sees a Mac: modules that its own files import as `sys`, `os` and `platform` differ
in a few names. The standard library, setuptools, torch and everything else that is installed see Linux, for which they
build.
"""

import builtins
import importlib.machinery
import importlib.util
import os
import platform
import sys
import sysconfig
import types

_HERE = os.path.dirname(os.path.abspath(__file__))
# metalops need not be installed among other packages.
_METALOPS = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


def _identity():
    path = os.path.join(os.path.dirname(_HERE), "identity.py")
    spec = importlib.util.spec_from_file_location("_metalops_mac_identity", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Seen(types.ModuleType):
    """A module as a project sees it: the true one, with some names of a Mac."""

    def __init__(self, true, names):
        super().__init__(true.__name__, true.__doc__)
        object.__getattribute__(self, "__dict__").update(_true=true, _names=names)

    def __getattribute__(self, name):
        own = object.__getattribute__(self, "__dict__")
        if name in own["_names"]:
            return own["_names"][name]
        return getattr(own["_true"], name)

    def __setattr__(self, name, value):
        setattr(object.__getattribute__(self, "__dict__")["_true"], name, value)

    def __delattr__(self, name):
        delattr(object.__getattribute__(self, "__dict__")["_true"], name)

    def __dir__(self):
        return dir(object.__getattribute__(self, "__dict__")["_true"])


def _install():
    identity = _identity()
    seen = {
        "sys": _Seen(sys, {"platform": "darwin"}),
        "os": _Seen(os, {"uname": identity.uname}),
        "platform": _Seen(platform, identity.functions_of_platform()),
    }
    paths = sysconfig.get_paths()
    installed = tuple(
        {os.path.join(paths[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    )
    true_import = builtins.__import__

    def of_project(scope):
        if scope is None:
            return False
        file = scope.get("__file__")
        if file is None:  # python -c, which build scripts ask for facts
            return scope.get("__name__") == "__main__"
        path = os.path.abspath(file)
        foreign = ("site-packages", "dist-packages", "pyproject_hooks")
        return not (
            path.startswith((*installed, os.path.join(_METALOPS, "")))
            or any(f"{os.sep}{x}{os.sep}" in path for x in foreign)
        )

    def mac_import(name, globals=None, locals=None, fromlist=(), level=0):
        module = true_import(name, globals, locals, fromlist, level)
        if "torch.backends.mps" in sys.modules:
            _build_for_mps(sys.modules["torch.backends.mps"])
        if level == 0:
            first = name if fromlist else name.partition(".")[0]
            if first in seen and module is sys.modules.get(first) and of_project(globals):
                return seen[first]
        return module

    builtins.__import__ = mac_import


def _build_for_mps(module):
    """torch's BuildExtension accepts .mm files, and build scripts build for Metal, if torch has mps."""
    if not getattr(module, "metalops_builds", False) and hasattr(module, "is_available"):
        module.metalops_builds = True
        if "metalops" not in sys.modules:  # which brings the device up, and says so itself
            module.is_built = lambda: True
            module.is_available = lambda: True


def _run_next():
    """Runs the sitecustomize that this one hides."""
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_next()
_install()
