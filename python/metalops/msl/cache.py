"""Compiled kernel libraries on disk.

An entry is found by a key over everything that decides its content: source, options, compiler, CPU,
torch and this front end. Included files are part of an entry too: they are listed with it, with
their contents' hash, and looked at on every use. Entries are written beside and renamed into place,
so that several processes may share a folder. The least recently used go when the folder grows past
METALOPS_CACHE_SIZE (bytes, with K, M or G; default 2G).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable

DEFAULT_SIZE = 2 * 1024**3
_SUFFIX = ".so"


@functools.cache
def _make_directory(path: str) -> str:
    os.makedirs(path, exist_ok=True)
    return path


def directory() -> str:
    """The cache folder: METALOPS_CACHE_DIR, else metalops under the user's cache folder. It exists
    on return.
    """
    chosen = os.environ.get("METALOPS_CACHE_DIR")
    if not chosen:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        chosen = os.path.join(base, "metalops")
    try:
        return _make_directory(chosen)
    except OSError:
        return _make_directory(os.path.join(tempfile.gettempdir(), f"metalops-{os.getuid()}"))


def size_limit() -> int:
    """The size in bytes that the cache may reach."""
    text = os.environ.get("METALOPS_CACHE_SIZE", "").strip()
    if not text:
        return DEFAULT_SIZE
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)i?B?", text, re.IGNORECASE)
    if not match:
        raise ValueError(
            f"METALOPS_CACHE_SIZE is a number of bytes such as 500M or 2G, not {text!r}"
        )
    return int(float(match.group(1)) * 1024 ** " KMG".index(match.group(2).upper() or " "))


@functools.cache
def cpu_identity() -> str:
    """What distinguishes this CPU for -march=native."""
    try:
        with open("/proc/cpuinfo") as stream:
            text = stream.read(65536)
    except OSError:
        return platform.machine() + platform.processor()
    lines = re.findall(r"(?m)^(?:model name|flags|Features|CPU part)\s*:.*$", text)
    return platform.machine() + "\n".join(dict.fromkeys(lines[:4]))


def key_of(*parts: object) -> str:
    """A name for what is made of these parts."""
    state = hashlib.sha256()
    for part in parts:
        state.update(repr(part).encode())
        state.update(b"\0")
    return state.hexdigest()[:40]


def file_hash(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def lookup(key: str) -> str | None:
    """The library of an entry whose included files are unchanged, or None."""
    path = os.path.join(directory(), key + _SUFFIX)
    try:
        with open(path + ".json", "rb") as stream:
            note = json.load(stream)
        size = os.path.getsize(path)
        if size != note["bytes"] or any(file_hash(f) != h for f, h in note["files"].items()):
            return None
        with open(path, "rb") as stream:
            if hashlib.sha256(stream.read()).hexdigest() != note["hash"]:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    now = time.time()
    with contextlib.suppress(OSError):
        os.utime(path, (now, now))
    return path


def store(key: str, dependencies: list[str], build: Callable[[str], None]) -> str:
    """Has `build` write a library to a path of its own, and puts it in place. Returns its final
    path.
    """
    folder = directory()
    path = os.path.join(folder, key + _SUFFIX)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=key[:12], suffix=".tmp")
    os.close(handle)
    try:
        build(temporary)
        with open(temporary, "rb") as stream:
            content = stream.read()
        note = {
            "bytes": len(content),
            "hash": hashlib.sha256(content).hexdigest(),
            "files": {f: file_hash(f) for f in dependencies},
        }
        _place(temporary, path, json.dumps(note).encode())
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    prune(keep=path)
    return path


def _place(library: str, path: str, note: bytes) -> None:
    """Renames a library and its note into place; a reader that meets halves of two writers sees the
    hash differ.
    """
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".tmp")
    with os.fdopen(handle, "wb") as stream:
        stream.write(note)
    os.chmod(library, 0o755)
    os.replace(library, path)
    os.replace(temporary, path + ".json")


def entries() -> list[tuple[float, int, str]]:
    """(time of last use, bytes, path) of every entry, oldest first."""
    found = []
    with contextlib.suppress(OSError):
        for item in os.scandir(directory()):
            if item.name.endswith((_SUFFIX, ".gch", ".pch")):
                with contextlib.suppress(OSError):
                    status = item.stat()
                    found.append((status.st_mtime, status.st_size, item.path))
    return sorted(found)


def total_size() -> int:
    return sum(size for _, size, _ in entries())


def prune(keep: str | None = None) -> None:
    """Removes the least recently used entries until the cache fits its limit, and what crashed
    builds left.
    """
    found = entries()
    excess = sum(size for _, size, _ in found) - size_limit()
    for _, size, path in found:
        if excess <= 0:
            break
        if path == keep:
            continue
        for victim in (path + ".json", path):
            with contextlib.suppress(OSError):
                os.unlink(victim)
        excess -= size
    old = time.time() - 3600
    with contextlib.suppress(OSError):
        for item in os.scandir(directory()):
            if item.name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    if item.stat().st_mtime < old:
                        os.unlink(item.path)
