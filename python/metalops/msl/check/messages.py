"""Parses the messages of a C++ compiler, and maps them to positions in the user's source."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..source.locations import Position

_LINE = re.compile(
    r"(?P<file>[^\n:]+):(?P<line>\d+):(?P<column>\d+): +"
    r"(?:(?P<kind>(?:fatal )?error|warning|note): )?(?P<text>.*)"
)
# g++ prints the instantiation backtrace of a template before the error, clang after it.
_GNU_TRAIL = re.compile(r"required (?:from|by)|in .constexpr. expansion of")
_CLANG_TRAIL = re.compile(r"in (?:instantiation|evaluation|call)|requested here|while substituting")


@dataclass(frozen=True)
class Message:
    """An error: its text, and the lines and columns of the compiled text that it may belong to, the most exact first.
    Positions in other files are left out. notes: the texts of its notes."""

    text: str
    places: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]


def errors(output: str, file: str) -> list[Message]:
    """Returns the errors in a compiler's output about the text in `file`."""
    found: list[tuple[str, list[tuple[int, int]], list[str]]] = []
    trail: list[tuple[int, int]] = []  # backtrace of g++, before the error
    for line in output.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        here = [(int(match["line"]), int(match["column"]))] if match["file"] == file else []
        kind, text = match["kind"], match["text"]
        if kind is None:
            if _GNU_TRAIL.search(text):
                trail += here
        elif "error" in kind:
            found.append((re.sub(r" \[-W[^\]]*\]$", "", text), [*here, *trail], []))
            trail = []
        elif kind == "note" and found:
            found[-1][2].append(text)
            if _CLANG_TRAIL.search(text):
                found[-1][1].extend(here)
        elif kind == "warning":
            trail = []
    return [Message(text, tuple(places), tuple(notes)) for text, places, notes in found]


def place_of(
    message: Message,
    position: Callable[[int, int], Position | None],
    is_wanted: Callable[[str], bool],
) -> Position | None:
    """Returns where to report a message: its first position in a wanted file, else its first position in any file; None
    if all of it is in generated text."""
    places = [p for p in (position(*place) for place in message.places) if p is not None]
    return next((p for p in places if is_wanted(p.file)), places[0] if places else None)
