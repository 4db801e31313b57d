"""Whether this copy of metalops can be used here, decided before anything of it is loaded.

A library built for another torch or platform fails in ways nobody can read (missing symbols, crashes), so the package
refuses with one sentence first.
"""

from __future__ import annotations

import sys


def problem(torch_version: str, platform: str = sys.platform) -> str | None:
    """One sentence that says why metalops cannot be imported with this torch on this platform, or None."""
    if platform not in ("linux", "darwin"):
        return f"metalops works on macOS and Linux, not on {platform}."
    try:
        from metalops import _build_info
    except ImportError:
        return (
            "metalops has not been built: this is its source tree; run `pip install .` in the folder that has "
            "setup.py, and start python from elsewhere."
        )
    # What follows a plus (cpu, cu130) names a build of the same version with the same interface.
    version = torch_version.split("+")[0]
    if version != _build_info.TORCH_VERSION:
        return (
            f"metalops was built for torch {_build_info.TORCH_VERSION} and cannot be used with torch {version}; "
            f"install torch=={_build_info.TORCH_VERSION}, or install metalops again with your torch."
        )
    if platform != _build_info.PLATFORM:
        return f"metalops was built for {_build_info.PLATFORM} and cannot be used on {platform}."
    return None


def check() -> None:
    """Raises ImportError with that sentence. torch must be importable."""
    import torch

    message = problem(torch.__version__)
    if message is not None:
        raise ImportError(message)
