"""Reports the errors of Apple's own compiler, where it is installed."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess

from ..source.languages import standard
from ..source.paths import PACKAGE_HEADERS
from ..source.preprocess import include_path
from .checked import Finding
from .rules import rule

APPLE = rule("apple", "1.6", "Apple's Metal compiler accepts the file.")

_MESSAGE = re.compile(
    r"(?P<file>[^\n:]+):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<message>.*)"
)


@functools.cache
def is_installed() -> bool:
    """Returns true if `xcrun metal` runs here; Xcode may be installed without its Metal toolchain."""
    if shutil.which("xcrun") is None:
        return False
    found = subprocess.run(
        ["xcrun", "-sdk", "macosx", "metal", "--version"], capture_output=True, check=False
    )
    return found.returncode == 0


def check(path: str, language: int, include_dirs: list[str], defines: list[str]) -> list[Finding]:
    """Returns the errors that Apple's compiler reports for a file."""
    command = ["xcrun", "-sdk", "macosx", "metal", standard(language), "-fsyntax-only"]
    command += [f"-I{d}" for d in include_path([*include_dirs, PACKAGE_HEADERS])]
    command += [f"-D{d}" for d in defines]
    result = subprocess.run([*command, path], capture_output=True, text=True, check=False)
    found = [
        Finding(m["file"], int(m["line"]), int(m["column"]), APPLE.name, m["message"])
        for m in _MESSAGE.finditer(result.stderr)
    ]
    if result.returncode and not found:
        found.append(
            Finding(
                path, 1, 1, APPLE.name, " ".join(result.stderr.split()) or "the compiler failed"
            )
        )
    return found
