"""Text that is inserted into a source before it is rewritten, and the steps that insert it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..source.locations import LineMap


@dataclass(frozen=True)
class Insertion:
    """Text to insert into the source. until: where what it takes the place of ends; 0 if it takes no place."""

    offset: int
    text: str
    until: int = 0


def inserted(text: str, insertions: list[Insertion], lines: LineMap) -> str:
    """Returns a text with insertions, in order of their offsets, and what they take the place of blanked. lines: the map of
    the text, which becomes that of the longer one."""
    for insertion in insertions:
        if insertion.until:
            blanks = re.sub(r"[^\n]", " ", text[insertion.offset : insertion.until])
            text = f"{text[: insertion.offset]}{blanks}{text[insertion.until :]}"
    return lines.insert([(i.offset, i.text) for i in insertions], text)
