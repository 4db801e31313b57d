"""Edits of a text by exact ranges, applied all at once, with a map from the result back to the source.

Replacements keep the number of lines: a removed line break is put back, so that emitted code has the lines of the
source it came from.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_CLOSE, _APPEND, _OPEN, _REPLACE = 0, 1, 2, 3


@dataclass
class Mapped:
    """Text that was assembled from pieces of a source, with runs as apply() returns them."""

    text: str = ""
    runs: list[tuple[int, int, bool]] = field(default_factory=list)

    def add(self, more: str | Mapped) -> None:
        if isinstance(more, str):
            self.runs.append((len(self.text), -1, False))
            self.text += more
        else:
            length = len(self.text)
            self.runs += [(length + at, there, copied) for at, there, copied in more.runs]
            self.text += more.text


class Edits:
    def __init__(self, text: str):
        self.text = text
        # (position, kind, order, rank, end, text, layer), which sort as they are applied: no two have all of the first four
        # in common.
        self._events: list[tuple] = []
        self._sorted = True
        self._layer = ""

    @contextlib.contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Assigns the edits made inside to this layer, which apply() can leave out."""
        before, self._layer = self._layer, name
        yield
        self._layer = before

    def replace(self, start: int, end: int, text: str) -> None:
        """Replaces the range with `text`; edits inside the range are dropped when it is applied."""
        breaks = self.text.count("\n", start, end) - text.count("\n")
        self._add(start, _REPLACE, -end, end, text + "\n" * max(0, breaks))

    def blank(self, start: int, end: int) -> None:
        """Replaces the range with spaces, so that columns are kept."""
        self.replace(start, end, "".join(c if c == "\n" else " " for c in self.text[start:end]))

    def erase(self, start: int, end: int) -> None:
        self.replace(start, end, "")

    def wrap(self, start: int, end: int, before: str, after: str) -> None:
        """Puts `before` and `after` around the range; ranges may nest. Of equal ranges the later one encloses the
        earlier."""
        self._add(start, _OPEN, -end, start, before, -len(self._events))
        if after:
            self._add(end, _CLOSE, -start, end, after)

    def insert(self, position: int, text: str) -> None:
        """Inserts `text` before the character at `position`, after everything that closes there."""
        self._add(position, _OPEN, position, position, text)

    def append(self, position: int, text: str | Mapped) -> None:
        """Inserts `text` at `position`, after everything that closes there. A range that ends or begins there does not
        include it."""
        self._add(position, _APPEND, 0, position, text)

    def _add(self, position: int, kind: int, order: int, end: int, text: str, rank=None) -> None:
        """Adds an event. Events at one position are applied by kind, then order, then rank: by default the order in
        which they were added."""
        self._events.append(
            (
                position,
                kind,
                order,
                len(self._events) if rank is None else rank,
                end,
                text,
                self._layer,
            )
        )
        self._sorted = False

    def apply(
        self,
        start: int = 0,
        end: int | None = None,
        replaced: Sequence[tuple[int, int, str]] = (),
        without: str | None = None,
    ) -> tuple[str, list[tuple[int, int, bool]]]:
        """Returns the edited range, and a list of runs: (offset in the result, offset in the source, true if it is
        copied).

        replaced: (start, end, text) of further replacements. without: a layer to leave out.
        """
        if not self._sorted:
            self._events.sort()
            self._sorted = True
        if end is None:
            end = len(self.text)
        pieces: list[str] = []
        runs: list[tuple[int, int, bool]] = []
        length = 0
        position = start
        removed = (0, 0)
        first = bisect.bisect_left(self._events, (start,))
        events = itertools.islice(self._events, first, None)
        ends = {s: e for s, e, _ in replaced}
        if replaced:
            more = [(s, _REPLACE, -e, 0, e, text, "") for s, e, text in sorted(replaced)]
            events = heapq.merge(events, more, key=lambda e: e[:4])
        for event_position, kind, order, _, event_end, text, layer in events:
            if event_position > end or (event_position == end and kind != _CLOSE):
                break
            if layer and layer == without:
                continue
            if kind == _OPEN and event_position in ends and -order < ends[event_position]:
                continue  # belongs to replaced text
            if event_position < position:
                continue  # inside a replaced range
            if kind <= _APPEND and event_position == start:
                continue  # stands before the range
            if kind == _CLOSE and (-order < start or removed[0] < -order < removed[1]):
                continue  # closes something that opened before the range, or in removed text
            if kind == _OPEN and -order > end:
                continue  # opens something that encloses the range
            if event_position > position:
                runs.append((length, position, True))
                pieces.append(self.text[position:event_position])
                length += event_position - position
                position = event_position
            runs.append((length, event_position, False))
            if isinstance(text, Mapped):
                runs += [(length + at, there, copied) for at, there, copied in text.runs]
                text = text.text
            if text.startswith("::") and _last(pieces) == ":":
                text = f" {text}"  # `:::` would begin with `::`
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


def _last(pieces: list[str]) -> str:
    """Returns the last character of a text in pieces; "" if there is none."""
    return next((piece[-1] for piece in reversed(pieces) if piece), "")
