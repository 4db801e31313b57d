"""Which fixes `import metalops` turns on: those of the environment variable METALOPS_FIXES or else of the settings file,
and those that are always needed with this torch on a Mac.

The settings file is JSON, {"fixes": ["matmul", ...]}: `python -m metalops doctor --apply` writes it.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

from .. import _environment


def path() -> Path:
    """Returns the path of the settings file, which need not exist."""
    chosen = _environment.value("METALOPS_SETTINGS")
    if chosen:
        return Path(chosen)
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(folder) / "metalops" / "settings.json"


def write(names: list[str]) -> Path:
    """Writes the fixes of these names to the settings file, with what else it holds. Returns its path."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    settings = {**_read(file), "fixes": names}
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    beside.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, file)
    return file


def install() -> None:
    """Turns on the fixes that are chosen. Raises ValueError for names in METALOPS_FIXES that are none; what is wrong with
    the settings file is a warning."""
    text = _environment.value("METALOPS_FIXES")
    file = path()
    if text:
        _turn_on_by_environment(text)
        return
    settings = _read(file) if file.exists() else {}
    if settings.get("fixes"):
        _turn_on_by_settings(settings["fixes"], file)
    if sys.platform == "darwin":
        _turn_on_automatic_ones()


def _turn_on_by_environment(text: str) -> None:
    from . import FIXES, _turn_on

    names = [name.strip() for name in text.split(",")]
    if names == ["none"]:
        return
    _turn_on(FIXES if names == ["all"] else names, "METALOPS_FIXES")


def _turn_on_by_settings(names: object, file: Path) -> None:
    from . import FIXES, _turn_on

    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        warnings.warn(f'metalops: {file}: "fixes" is not a list of names', stacklevel=2)
        return
    for name in names:
        if name not in FIXES:
            warnings.warn(f"metalops: {file}: there is no fix {name!r}", stacklevel=2)
    _turn_on([name for name in names if name in FIXES], str(file))


def _turn_on_automatic_ones() -> None:
    import torch

    from . import FIXES, _turn_on

    minor = ".".join(torch.__version__.split(".")[:2])
    names = [fix.name for fix in FIXES.values() if minor in fix.automatic]
    _turn_on(names, f"stock is always wrong in torch {minor}")


def _read(file: Path) -> dict:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        warnings.warn(f"metalops: {file} cannot be read, and is ignored: {error}", stacklevel=2)
        return {}
    if not isinstance(settings, dict):
        warnings.warn(f"metalops: {file} is no JSON object, and is ignored", stacklevel=2)
        return {}
    return settings
