"""Checks of output paths, made before the work whose result is written there."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile


def check_file(path: str | os.PathLike) -> None:
    """Raises OSError if no file can be put at a path, under the name of another file in its folder: the folder does not
    exist or is read only, or a folder or a device is at the path."""
    path = os.fspath(path)
    with contextlib.suppress(FileNotFoundError):
        kind = os.lstat(path).st_mode
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            raise OSError(errno.EINVAL, "Not a regular file", path)
    _check_takes_files(os.path.dirname(os.path.abspath(path)), path)


def make_folder(path: str | os.PathLike) -> None:
    """Makes a folder unless it exists; raises OSError if it cannot hold files."""
    os.makedirs(path, exist_ok=True)
    _check_takes_files(path, path)


def _check_takes_files(folder: str | os.PathLike, path: str | os.PathLike) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
