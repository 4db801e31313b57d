"""Checks that the compiled parts of this copy of metalops can be used here, before any of them is loaded.

A library built for another torch or platform fails in ways nobody can read (missing symbols, crashes), so the package
raises with one sentence first, or leaves the compiled parts out where the rest is useful without them. An extension
that lacks a name that the Python sources need raises, too.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from ._torch import versions

_BUILD_AGAIN = (
    "run `pip install .` in the folder that has setup.py, or `python setup.py build_ext --inplace` there to use "
    "its sources where they are."
)


def problem(torch_version: str, platform: str = sys.platform) -> str | None:
    """Returns one sentence with the reason why the compiled parts cannot be used with this torch on this platform, or
    None."""
    if platform not in ("linux", "darwin"):
        return f"metalops works on macOS and Linux, not on {platform}."
    missing = _missing(platform)
    if missing:
        here = os.path.dirname(os.path.abspath(__file__))
        return f"metalops has not been built: {here} is its source tree, without {', '.join(missing)}; {_BUILD_AGAIN}"
    from metalops import _build_info

    built = _build_info.TORCH_VERSION
    if not versions.fits(torch_version, built, platform):
        version = versions.release(torch_version)
        again = f"metalops again, which builds it for torch {version}"
        if not versions.is_supported(version):
            again = f"torch {versions.listed('or')} and metalops again"
        return (
            f"metalops was built for torch {built} and cannot be used with torch {version}; install "
            f'"{versions.needed(built, platform)}", or {again}.'
        )
    if platform != _build_info.PLATFORM:
        return f"metalops was built for {_build_info.PLATFORM} and cannot be used on {platform}."
    return None


def _missing(platform: str) -> list[str]:
    here = os.path.dirname(os.path.abspath(__file__))
    needed = [
        "_build_info.py",
        "_stock_overloads.py",
        "_C.so",
        *(["_host.so", "_c_functions.so"] if platform == "linux" else []),
    ]
    return [name for name in needed if not os.path.exists(os.path.join(here, name))]


def check() -> str | None:
    """Returns that sentence if metalops is useful all the same: in a source tree that is not built, and where torch has
    an NVIDIA GPU. (A CUDA build of torch alone does not tell, because it is what pip installs on Linux.)

    Raises ImportError with it otherwise: a build for mps that cannot be used is a mistake. torch must be importable.
    """
    import torch

    message = problem(torch.__version__)
    if message is None:
        return None
    is_of_use = sys.platform in ("linux", "darwin") and (
        _missing(sys.platform) or torch.cuda.is_available()
    )
    if not is_of_use:
        raise ImportError(message)
    return message


def check_names(extension: ModuleType) -> None:
    """Makes a missing name of the extension raise ImportError with what to do."""

    def __getattr__(name: str):
        if name.startswith("__"):  # Python itself asks for these
            raise AttributeError(f"module {extension.__name__!r} has no attribute {name!r}")
        raise ImportError(
            f"{extension.__name__} has no {name}: it is older than metalops's Python sources; {_BUILD_AGAIN}"
        )

    extension.__getattr__ = __getattr__
