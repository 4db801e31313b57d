"""Errors of the front end: SyntaxError with the position in the user's own Metal source.

Every stage reports positions of the source that the user wrote, never of preprocessed or emitted text. A source without
a file is called ``program_source``, as Apple's compiler calls it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PROGRAM_SOURCE = "program_source"


class CompilerNotFound(RuntimeError):
    """No C++ compiler that can build kernels is installed."""


@dataclass(frozen=True)
class Diagnostic:
    """One error at one position. line and column count from 1; column 0 means unknown."""

    file: str
    line: int
    column: int
    message: str
    source_line: str = ""

    def render(self) -> str:
        place = f"{self.file}:{self.line}" + (f":{self.column}" if self.column else "")
        text = f"{place}: error: {self.message}"
        if self.source_line.strip():
            text += f"\n{self.source_line.rstrip()}"
            if self.column:
                pad = re.sub(r"[^\t]", " ", self.source_line[: self.column - 1])
                text += f"\n{pad}^"
        return text


def syntax_error(diagnostics: list[Diagnostic]) -> SyntaxError:
    """Returns a SyntaxError that shows all diagnostics and points at the first."""
    first = diagnostics[0]
    message = "\n".join(d.render() for d in diagnostics)
    error = SyntaxError(
        message, (first.file, first.line, first.column or None, first.source_line.rstrip() or None)
    )
    error.diagnostics = diagnostics
    return error
