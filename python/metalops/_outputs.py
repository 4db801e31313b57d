"""Paths to which something is to be written, looked at before the work whose result it is."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile


def check_file(path: str | os.PathLike) -> None:
    """Raises OSError where no file can be put at a path, by the name of another in its folder: there is no such folder, it
    takes no files, or a folder or a device is at the path.
    """
    path = os.fspath(path)
    with contextlib.suppress(FileNotFoundError):
        kind = os.lstat(path).st_mode
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            raise OSError(errno.EINVAL, "Not a regular file", path)
    _check_takes_files(os.path.dirname(os.path.abspath(path)), path)


def make_folder(path: str | os.PathLike) -> None:
    """Makes a folder, unless it is there, and raises OSError where it takes no files."""
    os.makedirs(path, exist_ok=True)
    _check_takes_files(path, path)


def _check_takes_files(folder: str | os.PathLike, path: str | os.PathLike) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
