"""The files to check: Metal files below folders, headers that hold Metal code, and headers of others, which are left
out."""

from __future__ import annotations

import functools
import glob
import os
import re

from ..source.paths import HEADERS, PACKAGE_HEADERS
from ..source.preprocess import torch_include

_METAL_HEADER = re.compile(
    r"#\s*include\s*<(?:metal_\w+|c10/metal/\w+\.h)>|\busing\s+namespace\s+metal\b"
    r"|\b(?:device|threadgroup)\s+(?:const\s+)?\w+\s*[*&]"
)
_HOST_HEADER = re.compile(
    r"#\s*(?:include|import)\s*"
    r"<(?:ATen/(?!native/mps/kernels/)|c10/(?!metal/)|torch/|Foundation/|Metal/|vector|string|memory)"
)


def metal_files(paths: list[str]) -> list[str]:
    """Returns the files that PATHs name: a file itself, and below a folder every .metal file and every header that
    holds Metal code and no host code. Raises FileNotFoundError, also for a folder without any."""
    found: dict[str, None] = {}
    for path in paths:
        if os.path.isfile(path):
            found[path] = None
        elif os.path.isdir(path):
            before = len(found)
            for folder, folders, files in os.walk(path):
                folders[:] = sorted(f for f in folders if not f.startswith("."))
                for file in sorted(files):
                    full = os.path.join(folder, file)
                    if file.endswith(".metal") or (file.endswith(".h") and holds_metal(full)):
                        found[full] = None
            if len(found) == before:
                raise FileNotFoundError(f"there is no Metal file below {path}")
        else:
            raise FileNotFoundError(f"no file or folder at {path}")
    return list(found)


def holds_metal(header: str) -> bool:
    """Returns true if a header is written in Metal, judging by its includes and by address spaces."""
    with open(header, encoding="utf-8", errors="replace") as stream:
        text = stream.read()
    return bool(_METAL_HEADER.search(text)) and not _HOST_HEADER.search(text)


@functools.cache
def library_words(pattern: str) -> frozenset[str]:
    """Returns the matches of a regular expression in the software device's headers for kernels."""
    words: set[str] = set()
    for folder in ("msl", "msl/host"):
        for file in glob.glob(os.path.join(HEADERS, folder, "*.h")):
            with open(file, encoding="utf-8") as stream:
                words.update(re.findall(pattern, stream.read()))
    return frozenset(words)


class Wanted:
    """Decides if findings in a file are wanted: in the files that were named, and in the user's own headers, but not in
    torch's, metalops' or the standard library's unless they were named."""

    def __init__(self, files: list[str]):
        self.named = {os.path.realpath(f) for f in files}
        foreign = [HEADERS, PACKAGE_HEADERS, torch_include()]
        self.foreign = [os.path.realpath(f) + os.sep for f in foreign if f]

    def __call__(self, file: str) -> bool:
        path = os.path.realpath(file)
        if path in self.named:
            return True
        return not (
            path.startswith(tuple(self.foreign)) or "/c10/metal/" in path
        ) and not file.startswith("<")
