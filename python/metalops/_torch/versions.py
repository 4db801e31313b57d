"""The versions of torch that metalops supports. No other file names them.

setup.py, the build backend and the scripts of .ci read this file where neither torch nor metalops can be imported yet, some
of them with runpy.run_path, so it imports nothing of either.
"""

from __future__ import annotations

import importlib.metadata
import site
import sys

# Minor versions, oldest first.
SUPPORTED = ("2.13", "2.14", "2.15")
# Builds on Linux take this one where the environment has no torch. The numbers in README.md and docs/ are about it.
DEFAULT = "2.13.0"


class Unsupported(Exception):
    """Its text is one sentence for users."""


def release(version: str) -> str:
    """Returns a version without the suffix after a plus (cpu, cu130), which names a build of the same version with the
    same interface."""
    return version.split("+")[0]


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def listed(conjunction: str = "and") -> str:
    """Returns the supported versions as part of a sentence."""
    return f"{', '.join(SUPPORTED[:-1])} {conjunction} {SUPPORTED[-1]}"


def is_supported(version: str) -> bool:
    return minor(version) in SUPPORTED


def is_documented(version: str) -> bool:
    """Returns true if the numbers in README.md and docs/ are about a version."""
    return minor(version) == minor(DEFAULT)


def to_build_with(installed: str | None, forced: str, platform: str = sys.platform) -> str:
    """Returns the requirement of the torch that metalops is built with. Raises Unsupported.

    installed: the version of torch in the environment that metalops is built for, if there is one. forced: the value of
    METALOPS_TORCH, a version or a minor version, or "".
    """
    if forced:
        if not is_supported(forced):
            raise Unsupported(
                f"METALOPS_TORCH is {forced}, but metalops supports torch {listed()}."
            )
        return f"torch=={forced}.*" if forced == minor(forced) else f"torch=={forced}"
    if installed is not None:
        check(installed)
        return f"torch=={release(installed)}"
    return f"torch=={SUPPORTED[-1]}.*" if platform == "darwin" else f"torch=={DEFAULT}"


def check(installed: str, forced: str = "") -> None:
    """Raises Unsupported if metalops cannot be built with a version of torch, or METALOPS_TORCH names another one."""
    if not is_supported(installed):
        raise Unsupported(
            f"metalops supports torch {listed()}, but torch {installed} is installed; install one of these versions, or "
            "build for one with METALOPS_TORCH=VERSION."
        )
    if forced and not f"{installed}.".startswith((f"{forced}.", f"{forced}+")):
        raise Unsupported(
            f"METALOPS_TORCH is {forced}, but a build without isolation uses the torch that is installed, {installed}."
        )


def needed(built: str, platform: str = sys.platform) -> str:
    """Returns the requirement of what was built with a version of torch.

    The interface of torch stays the same within a minor version. On Linux the requirement is the version itself, because
    pip would exchange a CPU build of torch for a newer CUDA build.
    """
    if platform == "darwin":
        major, second = minor(built).split(".")
        return f"torch>={major}.{second},<{major}.{int(second) + 1}"
    return f"torch=={release(built)}"


def fits(installed: str, built: str, platform: str = sys.platform) -> bool:
    """Returns true if a version of torch is one that `needed` names."""
    compared = minor if platform == "darwin" else release
    return compared(installed) == compared(built)


def find_installed() -> str | None:
    """Returns the version of torch in the environment that metalops is built for, or None.

    A build that pip isolates runs in the environment's own interpreter, without its packages; their folders are searched all the
    same. The isolated environments of `python -m build` and of uv have interpreters of their own, from which the environment
    around them cannot be seen.
    """
    folders = [*sys.path, *site.getsitepackages()]
    if sys.prefix == sys.base_prefix:
        folders.append(site.getusersitepackages())
    found = importlib.metadata.distributions(name="torch", path=folders)
    return next((x.version for x in found if x.version), None)


if __name__ == "__main__":  # for scripts
    print(*SUPPORTED)
