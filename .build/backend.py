"""The build backend of metalops: that of setuptools, which also requires the torch to build with.

metalops/_torch/versions.py chooses it. setup.py then reads the version from the torch that it finds.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

PACKAGE = Path(__file__).parents[1] / "python" / "metalops"


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    """Returns the requirement of torch. setuptools' own hook is not asked, because it runs setup.py, which needs torch."""
    versions = runpy.run_path(str(PACKAGE / "_torch" / "versions.py"))
    environment = runpy.run_path(str(PACKAGE / "_environment.py"))
    try:
        forced = environment["value"]("METALOPS_TORCH")
        return [versions["to_build_with"](versions["find_installed"](), forced)]
    except (ValueError, versions["Unsupported"]) as error:
        sys.exit(str(error))


get_requires_for_build_editable = get_requires_for_build_wheel
get_requires_for_build_sdist = get_requires_for_build_wheel
