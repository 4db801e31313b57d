"""Precompiled headers for kernels that are compiled at run time: g++ and clang take half of a small kernel's time, or
more, to read Metal's standard library.

A header is compiled for the includes with which an emitted text begins, the compiler and its flags, once these were
asked for a few times, since it takes as long as two kernels. It is an entry of the cache, which processes share, and is
used only while our headers are what they were. Without one the text's own #include lines are read, as they are by a
compiler that rejects the file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
from collections.abc import Sequence

from ... import cache
from ...source.compiler import Compiler
from ...source.paths import HEADERS

SUFFIX = cache.HEADER_SUFFIX
# The kernel, counted from the first, for which a header is compiled.
AFTER = 3
_INCLUDES = re.compile(r"(?:#include <msl/[\w/.]+>\n)+")
# Messages of compilers that cannot use the file, or fail because of it.
_REJECTED = re.compile(r"\bPCH\b|precompiled header|internal compiler error|AST file")
# By key: the entry that was found valid, and the state of it and of our headers then.
_valid: dict[str, tuple[str, list[tuple]]] = {}
_rejected: set[str] = set()


def flags(
    host: Compiler, text: str, others: Sequence[str], identity: str, folder: str
) -> list[str]:
    """Returns the flags that let a compiler read a precompiled header for the includes that a text begins with; none if
    there is no such header. others: the flags that the text is compiled with. identity: text that changes with
    everything else that the header depends on. folder: a temporary one for the time of the compilation."""
    begin = _INCLUDES.match(text)
    if begin is None or cache.size_limit() < cache.LEAST_SIZE_FOR_HEADERS:
        return []
    includes = re.findall(r"<(.*)>", begin[0])
    others = [flag for flag in others if not flag.startswith("-Wl,")]
    key = cache.key_of("precompiled header", identity, host.identity, includes, others)
    path = None if key in _rejected else _find(key) or _build(key, host, includes, others)
    if path is None:
        return []
    if host.kind == "clang":
        return ["-include-pch", path]
    # g++ looks for the file under the name of a header, and reads that if it cannot use the file.
    header = os.path.join(folder, "begin.h")
    with open(header, "w") as stream:
        stream.write(begin[0])
    os.symlink(path, header + ".gch")
    return ["-include", header]


def run(
    host: Compiler, flags: Sequence[str], header: Sequence[str], last: Sequence[str]
) -> subprocess.CompletedProcess:
    """Runs a compiler with the flags of a precompiled header, and without these if it rejects the file."""
    result = host.run([*flags, *header, *last])
    if result.returncode and reject(header, result.stderr.decode(errors="replace")):
        result = host.run([*flags, *last])
    return result


def reject(flags: Sequence[str], messages: str) -> bool:
    """Returns true if a failed compiler's messages are about the precompiled header, which is not used again."""
    if not flags or not _REJECTED.search(messages):
        return False
    path = flags[-1] if flags[0] == "-include-pch" else os.path.realpath(flags[-1] + ".gch")
    _rejected.add(os.path.basename(path).removesuffix(SUFFIX))
    return True


@functools.cache
def _headers() -> list[str]:
    found = []
    for folder, folders, names in os.walk(os.path.join(HEADERS, "msl")):
        folders[:] = [name for name in folders if name != "cuda"]
        found += [os.path.join(folder, name) for name in names]
    return sorted(found)


def _find(key: str) -> str | None:
    """Returns the entry if our headers are what they were when it was made. To read all of it takes long, so it is done
    once while no file changes."""
    with contextlib.suppress(OSError):
        known = _valid.get(key)
        if known and cache.is_trusted(known[0]) and known[1] == _state(known[0]):
            os.utime(known[0])  # it is in use
            return known[0]
    path = cache.lookup(key, SUFFIX)
    if path is not None:
        with contextlib.suppress(OSError):
            _valid[key] = (path, _state(path))
    return path


def _state(path: str) -> list[tuple]:
    entry = os.stat(path)  # its time is that of its last use
    return [(path, entry.st_ino, entry.st_size)] + [
        (file, status.st_ino, status.st_size, status.st_mtime_ns)
        for file in _headers()
        for status in [os.stat(file)]
    ]


def _build(key: str, host: Compiler, includes: list[str], others: list[str]) -> str | None:
    """Compiles the header if it was asked for often enough and nobody else does."""
    with cache.turn_if_free(key) as is_free:
        if not is_free:
            return None
        path = _find(key)  # compiled by another process in the meantime
        if path is not None or cache.count(key) < AFTER:
            return path
        # A compiler compares the file that it compiled with the present one, which has to last.
        command = [*others, *(["-Xclang", "-fno-pch-timestamp"] if host.kind == "clang" else [])]
        for name in includes:
            command += ["-include", name]

        def build(output: str) -> None:
            result = host.run([*command, "-x", "c++-header", os.devnull, "-o", output])
            if result.returncode:
                raise _NotCompiled

        try:
            cache.store(key, _headers(), build, SUFFIX)
        except (_NotCompiled, OSError):
            _rejected.add(key)
            return None
        cache.forget_count(key)
    return _find(key)


class _NotCompiled(Exception):
    """The compiler cannot precompile the header; the kernel tells why, if that has errors, too."""
