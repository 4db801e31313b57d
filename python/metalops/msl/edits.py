"""Edits of a text by exact ranges, applied all at once, with a map from the result back to the
source.

Replacements keep the number of lines: a removed line break is put back, so that emitted code has
the lines of the source it came from.
"""

from __future__ import annotations

import bisect
import itertools

_CLOSE, _APPEND, _OPEN, _REPLACE = 0, 1, 2, 3


class Edits:
    def __init__(self, text: str):
        self.text = text
        self._events: list[tuple] = []  # (position, kind, order, end, text, rank)
        self._sorted = True

    def replace(self, start: int, end: int, text: str) -> None:
        """Puts `text` for the range; edits inside the range are dropped when it is applied."""
        breaks = self.text.count("\n", start, end) - text.count("\n")
        self._add(start, _REPLACE, -end, end, text + "\n" * max(0, breaks))

    def blank(self, start: int, end: int) -> None:
        """Puts spaces for the range, so that columns stay."""
        self.replace(start, end, "".join(c if c == "\n" else " " for c in self.text[start:end]))

    def erase(self, start: int, end: int) -> None:
        self.replace(start, end, "")

    def wrap(self, start: int, end: int, before: str, after: str) -> None:
        """Puts `before` and `after` around the range; ranges may nest. Of equal ranges the later
        one encloses the earlier.
        """
        self._add(start, _OPEN, -end, start, before, -len(self._events))
        if after:
            self._add(end, _CLOSE, -start, end, after)

    def insert(self, position: int, text: str) -> None:
        """Puts `text` before the character at `position`, after what closes there."""
        self._add(position, _OPEN, position, position, text)

    def append(self, position: int, text: str) -> None:
        """Puts `text` at `position`, after what closes there. A range that ends or begins there
        does not include it.
        """
        self._add(position, _APPEND, 0, position, text)

    def _add(self, position: int, kind: int, order: int, end: int, text: str, rank=None) -> None:
        """Events at one position are applied by kind, then order, then rank: by default the order in
        which they were added.
        """
        self._events.append(
            (position, kind, order, end, text, len(self._events) if rank is None else rank)
        )
        self._sorted = False

    def apply(
        self, start: int = 0, end: int | None = None
    ) -> tuple[str, list[tuple[int, int, bool]]]:
        """The edited range, and a list of runs: (offset in the result, in the source, is it
        copied).
        """
        if not self._sorted:
            self._events.sort(key=lambda e: (e[0], e[1], e[2], e[5]))
            self._sorted = True
        if end is None:
            end = len(self.text)
        pieces: list[str] = []
        runs: list[tuple[int, int, bool]] = []
        length = 0
        position = start
        removed = (0, 0)
        first = bisect.bisect_left(self._events, start, key=lambda e: e[0])
        for event_position, kind, order, event_end, text, _ in itertools.islice(
            self._events, first, None
        ):
            if event_position > end or (event_position == end and kind != _CLOSE):
                break
            if event_position < position:
                continue  # inside a replaced range
            if kind <= _APPEND and event_position == start:
                continue  # stands before the range
            if kind == _CLOSE and (-order < start or removed[0] < -order < removed[1]):
                continue  # closes something that opened before the range, or in what was removed
            if kind == _OPEN and -order > end:
                continue  # opens something that encloses the range
            if event_position > position:
                runs.append((length, position, True))
                pieces.append(self.text[position:event_position])
                length += event_position - position
                position = event_position
            runs.append((length, event_position, False))
            pieces.append(text)
            length += len(text)
            if kind == _REPLACE:
                position = max(position, event_end)
                removed = (event_position, event_end)
        if position < end:
            runs.append((length, position, True))
            pieces.append(self.text[position:end])
        return "".join(pieces), runs

    def text_of(self, start: int, end: int) -> str:
        return self.apply(start, end)[0]
