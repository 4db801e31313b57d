"""Makes modules of metalops importable in the programs of this folder without running the packages' __init__.py, which
would bring the device up."""

from __future__ import annotations

import os
import sys
import types

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def import_without_device() -> None:
    for name, folder in (("metalops", PACKAGE), ("metalops.build", os.path.join(PACKAGE, "build"))):
        shell = types.ModuleType(name)
        shell.__path__ = [folder]
        sys.modules[name] = shell
