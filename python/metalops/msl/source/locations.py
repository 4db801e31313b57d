"""Maps offsets in preprocessed text to positions in the files the user wrote.

The preprocessor leaves line markers (``# 12 "file.h"``); columns survive it up to macro expansion
and collapsed white space, which `column_in_line` undoes by matching tokens with the original line.
"""

from __future__ import annotations

import ast
import bisect
import functools
import re
from dataclasses import dataclass, field

MARKER = re.compile(r'(?m)^#[ \t]*(?:line[ \t]+)?(\d+)[ \t]*(?:("(?:\\.|[^"\\\n])*"))?')
TOKEN = re.compile(r'[A-Za-z_]\w*|\.?\d[\w.]*|"(?:\\.|[^"\\])*"|::|->|<<|>>|[^\s\w]')


@dataclass(frozen=True)
class Position:
    """A position in a file; line and column count from 1."""

    file: str
    line: int
    column: int


def marker_of(line: str) -> tuple[int, str | None] | None:
    """Returns the line number and file of a line marker, or None for any other line."""
    match = MARKER.match(line)
    if not match:
        return None
    if match.group(2) is None:
        return int(match.group(1)), None
    quoted = match.group(2)  # bytes, one character each
    name = ast.literal_eval(quoted) if "\\" in quoted else quoted[1:-1]
    return int(match.group(1)), name.encode("latin-1", "ignore").decode("utf-8", "surrogateescape")


@dataclass
class LineMap:
    """The map from offsets of one preprocessed text to positions."""

    text: str
    main_file: str
    sources: dict[str, str] = field(default_factory=dict)  # text of files that are not on disk

    def __post_init__(self):
        # For each time text was inserted: (end in the longer text, length so far) of each insertion.
        self._inserted: list[list[tuple[int, int]]] = []
        self.starts = [0]
        self.places: list[tuple[str, int]] = []
        # A file that is only named by a #line directive is not read.
        self.entered = {self.main_file}
        file, number = self.main_file, 1
        for line in self.text.split("\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)
            marker = marker_of(line) if line.startswith("#") else None
            self.places.append((file, number))
            if marker:
                number, file = marker[0], marker[1] or file
                if "1" in line.rpartition('"')[2].split():
                    self.entered.add(file)
            else:
                number += 1

    def insert(self, insertions: list[tuple[int, str]], text: str) -> str:
        """Returns `text`, which is this map's or has parts of it blanked, with (offset, text) inserted, in order of the
        offsets. All offsets that this map is given from then on are those of the longer text."""
        pieces, position, length = [], 0, 0
        inserted = []
        for offset, added in insertions:
            pieces += [text[position:offset], added]
            length += len(added)
            inserted.append((offset + length, length))
            position = offset
        self._inserted.append(inserted)
        return "".join([*pieces, text[position:]])

    def _without_insertions(self, offset: int) -> int:
        for inserted in reversed(self._inserted):
            index = bisect.bisect_right(inserted, offset, key=lambda i: i[0]) - 1
            before = inserted[index][1] if index >= 0 else 0
            if index + 1 < len(inserted):  # an offset within an insertion is where it stands
                end, length = inserted[index + 1]
                offset = min(offset, end - (length - before))
            offset -= before
        return offset

    def line_index(self, offset: int) -> int:
        offset = self._without_insertions(offset)
        return min(bisect.bisect_right(self.starts, offset) - 1, len(self.places) - 1)

    def place(self, offset: int) -> tuple[str, int]:
        """Returns the file and line of the character at `offset` of the preprocessed text."""
        return self.places[self.line_index(offset)]

    def position(self, offset: int) -> Position:
        """Returns the position in the user's file of the character at `offset` of the preprocessed text."""
        index = self.line_index(offset)
        offset = self._without_insertions(offset)
        file, line = self.places[index]
        start = self.starts[index]
        end = self.starts[index + 1] - 1
        original = self.source_line(file, line)
        column = column_in_line(self.text[start:end], offset - start, original) + 1
        return Position(file, line, column)

    def source_line(self, file: str, line: int) -> str:
        """Returns line `line` (from 1) of a file, or an empty string if it cannot be read."""
        if file not in self.sources:
            if file not in self.entered:
                return ""
            try:
                with open(file, encoding="utf-8", errors="replace") as stream:
                    self.sources[file] = stream.read()
            except OSError:
                self.sources[file] = ""
        lines = self.sources[file].split("\n")
        return lines[line - 1] if 0 < line <= len(lines) else ""


_MOST_LINES = 1_000_000


def texts_by_file(text: str, name: str) -> dict[str, str]:
    """Returns the lines of a source by the files that its own line markers name; without any, all of it belongs to
    `name`. Sources in traces are like that: the preprocessor's output on another machine."""
    places: dict[str, dict[int, str]] = {}
    for line, (file, number) in zip(text.split("\n"), LineMap(text, name).places, strict=False):
        if not (line.startswith("#") and marker_of(line)) and number <= _MOST_LINES:
            places.setdefault(file, {})[number] = line
    return {
        file: "\n".join(lines.get(number, "") for number in range(1, max(lines) + 1))
        for file, lines in places.items()
    }


@functools.lru_cache(maxsize=64)
def _tokens(line: str) -> list[tuple[int, str]]:
    return [(m.start(), m.group()) for m in TOKEN.finditer(line)]


def column_in_line(preprocessed: str, column: int, original: str) -> int:
    """Returns the column (from 0) in the original line of the character at `column` of the preprocessed line.

    Both lines are compared token by token; for an expanded macro it is the column of the macro's name.
    """
    if not original or preprocessed[: column + 1] == original[: column + 1]:
        return column
    theirs = _tokens(original.split("//")[0])
    ours = _tokens(preprocessed)
    target = max(0, bisect.bisect_right(ours, column, key=lambda token: token[0]) - 1)
    index = 0
    while index < len(ours) and index < len(theirs) and ours[index][1] == theirs[index][1]:
        if index == target:
            return theirs[index][0] + (column - ours[index][0])
        index += 1
    if index >= len(theirs):
        return min(column, len(original))
    # After a macro: align from the end of the line if the tails agree.
    tail = 0
    while tail < min(len(ours), len(theirs)) - index and ours[-1 - tail][1] == theirs[-1 - tail][1]:
        tail += 1
        if len(ours) - tail == target:
            return theirs[len(theirs) - tail][0] + (column - ours[target][0])
    return theirs[index][0]
