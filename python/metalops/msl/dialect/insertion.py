"""Text that is inserted into a source before it is rewritten, and the steps that insert it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Insertion:
    """Text to insert into the source."""

    offset: int
    text: str
