"""The file of traces and comparisons: a ZIP archive of a JSON document and of contents, which are named after their SHA-256.

Equal contents are stored once. Another member is the SHA-256 of the document, so damage is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping

from . import schema

LONGEST = 2**28  # bytes of the document, and of contents whose size nothing says


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


def document(archive: zipfile.ZipFile, name: str) -> object:
    """Returns the document of this name, whether or not it is as it was written."""
    return json.loads(member(archive, name, LONGEST))


def is_as_written(archive: zipfile.ZipFile, name: str) -> bool:
    """Returns true if the document has the SHA-256 that is stored beside it."""
    digest = hashlib.sha256(member(archive, name, LONGEST)).hexdigest()
    return member(archive, f"{name}.sha256", 64) == digest.encode()


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
