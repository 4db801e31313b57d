"""The on-disk cache of compiled kernel libraries.

An entry is found by a key over everything that decides its content: source, options, compiler, CPU, torch and this
front end. Included files are part of an entry, too: they are listed with it, with their contents' hash, and checked on
every use. Entries are written to a temporary file and renamed into place, so that several processes may share a folder.
The least recently used are removed when the folder grows past METALOPS_CACHE_SIZE (bytes, with K, M or G; default 2G).
Precompiled headers for kernels (targets/host/precompiled.py) are entries, too.
Other files in the folder stay: an entry is recognised by its name and by the note that was written with it.

Entries are code that this process runs, so nobody but this user and root may have written them: folders and files that
others own or may write, and files that are links, are not used.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import grp
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator

from .. import _environment

DEFAULT_SIZE = 2 * 1024**3
_SUFFIX = ".so"
_KEY_LENGTH = 40
HEADER_SUFFIX = ".pch"
_ENTRY = re.compile(rf"[0-9a-f]{{{_KEY_LENGTH}}}{re.escape(_SUFFIX)}")
_HEADER = re.compile(rf"[0-9a-f]{{{_KEY_LENGTH}}}{re.escape(HEADER_SUFFIX)}")
# A smaller cache holds no precompiled headers, of which one takes 4 MB (clang) or 25 MB (g++).
LEAST_SIZE_FOR_HEADERS = 256 * 1024**2
# Names of the files that a build writes before they are renamed; the 8 characters are mkstemp's.
_TEMPORARY_PREFIX, _TEMPORARY_SUFFIX = "metalops-", ".tmp"
# A file of this name has a byte for each time that something was counted.
_COUNT = "metalops-{}.count"
_TEMPORARY = re.compile(r"metalops-[a-z0-9_]{8}\.tmp|metalops-[0-9a-f]{40}\.count")


def directory() -> str:
    """Returns the folder that entries are written to: METALOPS_CACHE_DIR, else metalops under the user's cache folder;
    if that cannot be written, one in the temporary folder. It exists on return.

    Raises PermissionError if METALOPS_CACHE_DIR is a folder that other users may write.
    """
    return _folders()[0]


def _folders() -> tuple[str, ...]:
    """Returns the folders in which entries are looked up. The first one is also written to; another one is only read,
    as an administrator may have filled it."""
    chosen = _environment.value("METALOPS_CACHE_DIR")
    if chosen:
        return _usable_folders(os.path.abspath(chosen), is_chosen=True)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return _usable_folders(os.path.join(base, "metalops"), is_chosen=False)


@functools.cache
def _usable_folders(wanted: str, is_chosen: bool) -> tuple[str, ...]:
    try:
        os.makedirs(wanted, mode=0o700, exist_ok=True)
        reason = _why_unsafe(os.stat(wanted))
    except OSError:
        return (_temporary_folder(),)
    if reason is not None and is_chosen:
        raise PermissionError(
            f"METALOPS_CACHE_DIR={wanted} {reason}, and this process would run the code in it. "
            f"Take that away (chown, chmod go-w), or name a folder of your own."
        )
    if reason is not None:
        return (_temporary_folder(),)
    if not os.access(wanted, os.W_OK | os.X_OK):
        return (_temporary_folder(), wanted)
    return (wanted,)


@functools.cache
def _temporary_folder() -> str:
    """Returns a folder of this user's in the temporary folder. If someone else has made one of that name before, a
    fresh one, which is removed when the process ends."""
    usual = os.path.join(tempfile.gettempdir(), f"metalops-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(usual, 0o700)
    status = os.lstat(usual)
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if own and not status.st_mode & 0o022:
        return usual
    fresh = tempfile.mkdtemp(prefix="metalops-")
    owner = os.getpid()  # so that a forked child does not remove it
    atexit.register(
        lambda: os.getpid() == owner and shutil.rmtree(fresh, ignore_errors=True),
    )
    return fresh


def _why_unsafe(status: os.stat_result) -> str | None:
    """Returns what lets other users write a file or folder; None if nothing does."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to {_user_name(status.st_uid)}"
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IWOTH:
        return f"can be written by everyone (its mode is {mode:o})"
    if mode & stat.S_IWGRP and not _is_private_group(status.st_gid, status.st_uid):
        return f"can be written by its group (its mode is {mode:o})"
    return None


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _is_private_group(group: int, user: int) -> bool:
    """Returns true if a user is alone in a group of the same name, as on systems whose umask is 002."""
    try:
        entry = grp.getgrgid(group)
    except KeyError:
        return False
    name = _user_name(user)
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


def is_trusted(path: str) -> bool:
    """Returns true if a file is one that only this user and root can have written, and no link."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and _why_unsafe(status) is None


def size_limit() -> int:
    """Returns the size in bytes that the cache may reach."""
    text = _environment.value("METALOPS_CACHE_SIZE")
    return _environment.number_of_bytes(text) if text else DEFAULT_SIZE


@functools.cache
def cpu_identity() -> str:
    """Returns text that identifies this CPU for -march=native."""
    try:
        with open("/proc/cpuinfo") as stream:
            text = stream.read(65536)
    except OSError:
        return platform.machine() + platform.processor()
    lines = re.findall(r"(?m)^(?:model name|flags|Features|CPU part)\s*:.*$", text)
    return platform.machine() + "\n".join(dict.fromkeys(lines[:4]))


def key_of(*parts: object) -> str:
    """Returns the key of an entry that depends on these parts."""
    state = hashlib.sha256()
    for part in parts:
        state.update(repr(part).encode())
        state.update(b"\0")
    return state.hexdigest()[:_KEY_LENGTH]


def file_hash(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def lookup(key: str, suffix: str = _SUFFIX) -> str | None:
    """Returns the library of an entry whose included files are unchanged, or None. suffix: HEADER_SUFFIX for a
    precompiled header."""
    found = (_lookup_in(folder, key + suffix) for folder in _folders())
    return next((path for path in found if path is not None), None)


def _lookup_in(folder: str, name: str) -> str | None:
    path = os.path.join(folder, name)
    if not is_trusted(path) or not is_trusted(path + ".json"):
        return None
    try:
        note = _note(path)
        if note is None or any(file_hash(f) != h for f, h in note["files"].items()):
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


@contextlib.contextmanager
def turn(key: str) -> Iterator[None]:
    """Holds a lock of this entry and a few others while the block runs, so that processes that want the same entry at
    once build it once. Does nothing where files have no locks."""
    path = os.path.join(directory(), f"metalops-{key[:2]}.lock")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # A forked child has the descriptor, too: closing it here alone would not free the lock.
            stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        yield


@contextlib.contextmanager
def turn_if_free(key: str) -> Iterator[bool]:
    """Holds a lock of a precompiled header while the block runs, which is told whether it could. No thread that holds
    one waits for another lock."""
    path = os.path.join(directory(), f"metalops-{key[:2]}-header.lock")
    with contextlib.ExitStack() as stack:
        is_free = False
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
            is_free = True
        yield is_free


def count(key: str) -> int:
    """Counts how often this was called for an entry that is missing, in all processes; 0 where files cannot be
    written. Counts of an hour ago are forgotten."""
    path = os.path.join(directory(), _COUNT.format(key))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        with open(os.open(path, flags, 0o600), "ab") as stream:
            stream.write(b".")
        return os.path.getsize(path)
    return 0


def forget_count(key: str) -> None:
    """Removes what count() wrote, for an entry that is there now."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory(), _COUNT.format(key)))


def store(
    key: str, dependencies: list[str], build: Callable[[str], None], suffix: str = _SUFFIX
) -> str:
    """Lets `build` write a library to a temporary path, and moves it into place. Returns its final path."""
    folder = directory()
    path = os.path.join(folder, key + suffix)
    handle, temporary = temporary_file(folder)
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
    room = (folder, size_limit())
    _room[room] = _room.get(room, 0) - len(content)
    if _room[room] < 0:
        prune(keep=path)
    return path


def _place(library: str, path: str, note: bytes) -> None:
    """Renames a library and its note into place; a reader that sees the halves of two writers finds that the hash
    differs."""
    handle, temporary = temporary_file(os.path.dirname(path))
    with os.fdopen(handle, "wb") as stream:
        stream.write(note)
    os.chmod(temporary, 0o644)  # a folder that root has filled may be readable for all
    os.chmod(library, 0o755)
    os.replace(library, path)
    os.replace(temporary, path + ".json")


def temporary_file(folder: str) -> tuple[int, str]:
    """Creates a file to be renamed when it is complete: (descriptor, path). prune removes it if its process ends
    before."""
    return tempfile.mkstemp(dir=folder, prefix=_TEMPORARY_PREFIX, suffix=_TEMPORARY_SUFFIX)


def _note(path: str) -> dict | None:
    """Returns the note that was written with a library of this path and size, or None."""
    try:
        with open(path + ".json", "rb") as stream:
            note = json.load(stream)
        is_ours = isinstance(note, dict) and note.keys() == {"bytes", "hash", "files"}
        return note if is_ours and note["bytes"] == os.path.getsize(path) else None
    except (OSError, ValueError):
        return None


def entries(pattern: re.Pattern = _ENTRY) -> list[tuple[float, int, str]]:
    """Returns (time of last use, bytes, path) of every library by its name, oldest first."""
    found = []
    with contextlib.suppress(OSError):
        for item in os.scandir(directory()):
            if pattern.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    status = item.stat()
                    found.append((status.st_mtime, status.st_size, item.path))
    return sorted(found)


def total_size() -> int:
    return sum(size for _, size, _ in [*entries(), *entries(_HEADER)])


# Bytes that this process may store before it prunes, by folder and limit: an eighth of what was free. Looking through
# thousands of entries takes as long as translating a kernel.
_room: dict[tuple[str, int], float] = {}


def prune(keep: str | None = None) -> None:
    """Removes the least recently used entries until the cache fits its limit, and leftovers of crashed builds."""
    libraries, headers = entries(), entries(_HEADER)
    limit = size_limit()
    # A cache that is too small for headers does not keep them.
    is_small = limit < LEAST_SIZE_FOR_HEADERS
    found = [*headers, *libraries] if is_small else sorted([*headers, *libraries])
    excess = sum(size for _, size, _ in found) - limit
    _room[directory(), limit] = max(-excess, 0) / 8
    for _, size, path in found:
        if excess <= 0:
            break
        if path == keep or _note(path) is None:
            continue
        for victim in (path + ".json", path):
            with contextlib.suppress(OSError):
                os.unlink(victim)
        excess -= size
    old = time.time() - 3600
    with contextlib.suppress(OSError):
        for item in os.scandir(directory()):
            if _TEMPORARY.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    if item.stat().st_mtime < old:
                        os.unlink(item.path)
