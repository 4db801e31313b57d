"""The file of traces and comparisons: a ZIP archive of a JSON document and of contents, which are named after their SHA-256.

Equal contents are stored once. Another member is the SHA-256 of the document, so damage is noticed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import textwrap
import zipfile
from collections.abc import Callable, Mapping
from typing import TypeVar

from . import schema

LONGEST = 2**28  # bytes of the document, and of contents whose size nothing says

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Format:
    """A kind of file. document: its member. kind, version: what the document says of itself. error: the class that its
    readers raise. foreign, unreadable: what is said of a file of another kind, and of one that cannot be read."""

    document: str
    kind: str
    version: int
    error: type[ValueError]
    foreign: str
    unreadable: str

    def load(self, path: str | os.PathLike, read: Callable[[zipfile.ZipFile, dict], T]) -> T:
        """Returns what `read` makes of the archive and its document. Raises self.error, OSError."""
        path = os.fspath(path)
        with open(path, "rb") as stream:
            try:
                with zipfile.ZipFile(stream) as archive:
                    return read(archive, self._checked_document(archive, path))
            except self.error:
                raise
            except Exception as error:  # of many kinds, by zipfile, zlib, struct, json and torch
                # zipfile quotes as much of the file as a damaged header says.
                reason = textwrap.shorten(str(error), 200) or type(error).__name__
                problem = "is damaged" if isinstance(error, schema.Misfit) else self.unreadable
                raise self.error(f"{path} {problem}: {reason}") from None

    def _checked_document(self, archive: zipfile.ZipFile, path: str) -> dict:
        text = member(archive, self.document, LONGEST)
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("kind") != self.kind:
            raise self.error(f"{path} {self.foreign}")
        if document.get("version") != self.version:
            version = str(document.get("version"))[:20]
            raise self.error(
                f"{path} is of version {version} of the format; this metalops reads version {self.version}"
            )
        digest = hashlib.sha256(text).hexdigest()
        if member(archive, f"{self.document}.sha256", 64) != digest.encode():
            raise schema.Misfit(f"{self.document} is not as it was written")
        return document


def save(path: str | os.PathLike, name: str, document: object, blobs: Mapping[str, bytes]) -> None:
    """Writes a document under a name and contents by theirs; leaves nothing at the path on failure."""
    path = os.fspath(path)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            text = json.dumps(document).encode()
            archive.writestr(name, text)
            archive.writestr(f"{name}.sha256", hashlib.sha256(text).hexdigest())
            for blob, data in blobs.items():
                archive.writestr(blob, data)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def contents(archive: zipfile.ZipFile, name: str) -> bytes:
    """Returns contents; raises schema.Misfit if they are absent, or not as they were written."""
    data = member(archive, name, size(archive, name))
    if hashlib.sha256(data).hexdigest() != name:
        raise schema.Misfit(f"the contents {name} are not as they were written")
    return data


def size(archive: zipfile.ZipFile, name: str) -> int:
    """Returns the number of bytes of contents; raises schema.Misfit if they are absent."""
    try:
        return archive.getinfo(name).file_size
    except KeyError:
        raise schema.Misfit(f"it lacks the contents {name}") from None


def member(archive: zipfile.ZipFile, name: str, largest: int) -> bytes:
    """Returns the bytes of a member, at most as many as its entry says."""
    if archive.getinfo(name).file_size > largest:
        raise schema.Misfit(f"{name} has {archive.getinfo(name).file_size} bytes")
    with archive.open(name) as stream:
        data = stream.read(largest + 1)
        if len(data) > largest:
            raise schema.Misfit(f"{name} has more than {largest} bytes")
    return data
