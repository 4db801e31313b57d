"""The part of metalops's own C++ code that is compiled into an extension, beside the extension's sources.

A header <metalops/X.h> may have a file X.cpp beside it, which has to be part of every extension that includes the
header: each has its own copy, with hidden symbols, so that two extensions never interfere. One C++ file is generated
that includes all of them that an extension needs, which is faster than to compile them one by one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from metalops.build import paths
from metalops.build.ninja import write_if_changed

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*(?:include|import)[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_HEADERS = os.path.join(paths.PACKAGE, "include")
# g++ 12 warns that torch's packing of values for compiled autograd reads past an array, which is wrong.
_NO_FALSE_WARNINGS = """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Warray-bounds"
#endif
"""
_LIBRARY = os.path.join(_HEADERS, "metalops", "library.h")  # registrations of kernels need it


def _included(source: str, include_dirs: Sequence[str]) -> list[str]:
    """Returns the files that a source includes, as far as they are found beside it or in the folders."""
    with open(source, encoding="utf-8", errors="replace") as f:
        names = _INCLUDE.findall(f.read())
    folders = [os.path.dirname(source), *include_dirs]
    candidates = (os.path.join(folder, name) for name in names for folder in folders)
    return [os.path.abspath(path) for path in candidates if os.path.isfile(path)]


def _parts(sources: Iterable[str], include_dirs: Sequence[str]) -> list[str]:
    """Returns the `.cpp` files beside metalops's headers that the sources include, directly or through other files."""
    waiting = [os.path.abspath(source) for source in sources]
    seen = set(waiting)
    parts = []
    while waiting:
        path = waiting.pop()
        part = os.path.splitext(path)[0] + ".cpp"
        needed = _included(path, include_dirs)
        if path.startswith(_HEADERS + os.sep) and path != part and os.path.isfile(part):
            parts.append(part)
            needed.append(part)
        waiting += {*needed} - seen
        seen.update(needed)
    return sorted(parts)


def write_runtime(
    sources: Iterable[str], has_kernels: bool, include_dirs: Sequence[str], build_folder: str
) -> list[str]:
    """Generates that C++ file for an extension of these C++ and Objective-C++ sources and returns its path in a list,
    which is empty if they need nothing of it, as those for torch's stable ABI.

    has_kernels: whether the extension has Metal files. include_dirs: folders of the extension's own headers and of
    metalops's; torch's headers include none of either.
    """
    needing = [*sources, *([_LIBRARY] if has_kernels else [])]
    names = [os.path.relpath(part, _HEADERS) for part in _parts(needing, include_dirs)]
    if not names:
        return []
    path = os.path.join(build_folder, "metalops_runtime.cpp")
    includes = "".join(f"#include <{name}>\n" for name in names)
    write_if_changed(path, _NO_FALSE_WARNINGS + includes)
    return [path]
