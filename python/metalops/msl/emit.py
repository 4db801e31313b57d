"""Metal source to C++: preprocess, parse, rewrite, and add what launches the kernels.

The result knows where each emitted character came from, so that what the host compiler reports can
be said in terms of the user's source.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from . import restrictions
from .errors import Diagnostic, syntax_error
from .group_loops import Explanation, GroupLoops
from .locations import LineMap, Position
from .parse import Source, unbalanced_bracket
from .preprocess import Preprocessed
from .program import Program, ProgramError
from .rewrite import rewrite
from .thunks import GROUP_BUILTINS, Thunks

_HEAD = "#include <msl/metal.h>\n#include <msl/launch.h>\n"
_TEXTURES = "#include <msl/texture.h>\n"
_MENTIONS_TEXTURES = re.compile(
    r"\b(?:texture(?:\dd|cube|_buffer)|depth(?:2d|cube)|sampler\b|access\b)"
)
_COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}


@dataclass
class Emitted:
    """C++ text, the program it was emitted from, and the way back from the one to the other."""

    text: str
    program: Program
    lines: LineMap
    runs: list[tuple[int, int, bool]] = field(
        default_factory=list
    )  # (offset here, offset there, copied)
    thunks_at: int = 0  # where the user's code ends
    # By kernel: the engine that runs it ("loop", "group" or "fiber"), and why no group loop does.
    engines: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    # By kernel that has a group loop: how it is cut.
    group_loops: dict[str, Explanation] = field(default_factory=dict)

    def source_offset(self, offset: int) -> int | None:
        """The offset in the preprocessed source behind an offset of the emitted text; None where
        there is none.
        """
        index = bisect.bisect_right(self.runs, offset, key=lambda r: r[0]) - 1
        if index < 0 or self.runs[index][1] < 0:
            return None
        start, source, copied = self.runs[index]
        return source + (offset - start if copied else 0)

    def _offset(self, line: int, column: int) -> int | None:
        """The offset of a line and column (from 1, in bytes) of the emitted text."""
        if not hasattr(self, "_starts"):
            self._starts = [0]
            for text in self.text.split("\n"):
                self._starts.append(self._starts[-1] + len(text) + 1)
        return self._starts[line - 1] + max(column, 1) - 1 if 0 < line < len(self._starts) else None

    def position(self, line: int, column: int) -> Position | None:
        """The user's position behind a line and column (from 1, in bytes) of the emitted text."""
        offset = self._offset(line, column)
        offset = None if offset is None else self.source_offset(offset)
        return None if offset is None else self.lines.position(offset)

    def position_before(self, line: int, column: int) -> Position | None:
        """The user's last position before a line and column of the emitted text that nothing of the user's stands
        behind: what is missing at the end of the user's text is noticed only in what follows it.
        """
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
        """The text with line markers blanked, so that compilers report lines and columns of the
        text itself.
        """
        return "\n".join(
            " " * len(line) if line.startswith("# ") else line for line in self.text.split("\n")
        )


def emit(
    preprocessed: Preprocessed, only: Collection[str] = (), group_loops: bool = True
) -> Emitted:
    """Emits a host program, with the kernels named in `only` (default: all). group_loops: whether kernels that
    synchronise also become loops over the threads of a group, where they can.

    Raises SyntaxError for what Metal forbids and the host compiler would not notice, ValueError for
    kernels that are not there.
    """
    lines = LineMap(preprocessed.text, preprocessed.name, dict(preprocessed.sources))
    source = Source(preprocessed.text)
    try:
        fault = unbalanced_bracket(source.masked)
        if fault is not None:
            raise ProgramError(*fault)
        program = Program(source)
        if only:
            missing = sorted(set(only) - {i.name for i in program.instances})
            if missing:
                raise ValueError(f"the source has no kernel {missing[0]!r}")
            program.instances = [i for i in program.instances if i.name in only]
        restrictions.check(program)
        rewritten = rewrite(program)
        groups = GroupLoops(rewritten, GROUP_BUILTINS) if group_loops else None
        thunks = Thunks(program, rewritten, lines, preprocessed.recorded, groups)
        engines = thunks.engines()  # before the edits are applied, since group loops make more
        body, runs = rewritten.edits.apply()
        pieces = list(thunks.pieces())
    except ProgramError as error:
        position = lines.position(error.offset)
        raise syntax_error(
            [
                Diagnostic(
                    position.file,
                    position.line,
                    position.column,
                    error.message,
                    lines.source_line(position.file, position.line),
                )
            ]
        ) from None

    head = _HEAD + (_TEXTURES if _MENTIONS_TEXTURES.search(source.masked) else "")
    head += (
        "#include <msl/group.h>\n" if "group" in {engine for engine, _ in engines.values()} else ""
    )
    head += _accessors(rewritten.swizzles) + "namespace msl {\n"
    text = [head]
    all_runs = [(0, -1, False)]
    length = len(head)
    all_runs += [(length + at, there, copied) for at, there, copied in runs]
    text.append(body)
    length += len(body)
    text.append("\n}\n")
    all_runs.append((length, -1, False))
    thunks_at = length
    length += 3
    for piece in pieces:
        if piece.offset is not None:
            file, line = lines.place(piece.offset)
            marker = f"# {line} {json.dumps(file)}\n"
        else:
            marker = '# 1 "kernel table"\n'
        all_runs.append((length, -1 if piece.offset is None else piece.offset, False))
        text += [marker, piece.text]
        length += len(marker) + len(piece.text)
    cut = {
        instance.name: groups.explain(instance.kernel)
        for instance in thunks.instances
        if engines[instance.name][0] == "group"
    }
    return Emitted("".join(text), program, lines, all_runs, thunks_at, engines, cut)


def _accessors(swizzles: set[str]) -> str:
    if not swizzles:
        return ""
    lines = []
    for name in sorted(swizzles):
        if len(name) == 1:
            lines.append(f"MSL_COMPONENT({name}, {'xyzw'[_COMPONENTS[name]]})")
        else:
            lines.append(f"MSL_SWIZZLE({name}, {', '.join(str(_COMPONENTS[c]) for c in name)})")
    return "namespace msl::msl_support {\n" + "\n".join(lines) + "\n}\n"
