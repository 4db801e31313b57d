"""C++ emitted for a Metal source, and the map from the one to the other, so that a compiler's messages can be reported
in terms of the user's source."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from ..source.locations import LineMap, Position


@dataclass
class Emitted:
    """C++ text, with the source offsets that its parts come from."""

    text: str
    lines: LineMap
    # (offset here, offset in the source, copied); -1 for generated text without a source
    runs: list[tuple[int, int, bool]] = field(default_factory=list)

    def source_offset(self, offset: int) -> int | None:
        """Returns the offset in the preprocessed source of an offset of the emitted text; None for generated text."""
        index = bisect.bisect_right(self.runs, offset, key=lambda r: r[0]) - 1
        if index < 0 or self.runs[index][1] < 0:
            return None
        start, source, copied = self.runs[index]
        return source + (offset - start if copied else 0)

    def _offset(self, line: int, column: int) -> int | None:
        """Returns the offset of a line and column (from 1, in bytes) of the emitted text."""
        if not hasattr(self, "_starts"):
            self._starts = [0]
            for text in self.text.split("\n"):
                self._starts.append(self._starts[-1] + len(text) + 1)
        return self._starts[line - 1] + max(column, 1) - 1 if 0 < line < len(self._starts) else None

    def position(self, line: int, column: int) -> Position | None:
        """Returns the user's position of a line and column (from 1, in bytes) of the emitted text, or None."""
        offset = self._offset(line, column)
        offset = None if offset is None else self.source_offset(offset)
        return None if offset is None else self.lines.position(offset)

    def position_before(self, line: int, column: int) -> Position | None:
        """Returns the user's last position before a line and column of generated text: a token that is missing at the
        end of the user's text is noticed only in the text that follows it."""
        offset = self._offset(line, column)
        if offset is None:
            return None
        before = [run for run in self.runs if run[0] <= offset and run[1] >= 0 and run[2]]
        if not before:
            return None
        start = before[-1][0]
        end = next((run[0] for run in self.runs if run[0] > start), len(self.text))
        written = self.text[start:end].rstrip()
        return self.lines.position(before[-1][1] + max(len(written) - 1, 0))

    def without_markers(self) -> str:
        """Returns the text with line markers blanked, so that compilers report lines and columns of the text itself."""
        return "\n".join(
            " " * len(line) if line.startswith("# ") else line for line in self.text.split("\n")
        )
