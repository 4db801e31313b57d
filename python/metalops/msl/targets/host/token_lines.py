"""Emitted C++ with every token of the user's source on a line of its own.

Debug information of g++ reaches this package (through addr2line) as lines only. In this layout a line is a position in
the Metal source to the column, whichever compiler and reader there is. The position of each line is kept in a table
that becomes part of the kernel library (see csrc/host/exec/sanitize/source_positions.cpp).
"""

from __future__ import annotations

import re
import struct

from .emit import HostCode

# Directives stay whole. Everything else may be broken between any two tokens.
_TOKEN = re.compile(
    r"(?P<directive>(?:^|(?<=\n))[ \t]*\#(?:[^\n\\]|\\.|\\\n)*)"
    r'|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\''
    r"|[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*"
    r"|<<=|>>=|\.\.\.|->\*|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|\.\*|\#\#"
    r"|[^\s\w]"
)
_ENTRY = re.compile(r"msl_thread_\d+")


def one_token_a_line(emitted: HostCode) -> tuple[str, bytes]:
    """Returns the text, and the table of the positions of its lines.

    The table: the numbers of files and of lines; the files' names, each with a zero byte; zero bytes up to a multiple
    of four; for each line its file (from 1; 0 for lines without a position), line and column. All numbers have 32 bits.
    """
    text = emitted.without_markers()
    lines: list[str] = []
    places: list[tuple[int, int, int]] = []
    files: dict[str, int] = {}
    in_head = False
    for match in _TOKEN.finditer(text):
        lines.append(match.group())
        place = (0, 0, 0)
        # After the user's code the head of a kernel's entry stands for the kernel itself.
        in_head = bool(_ENTRY.fullmatch(match.group())) or (in_head and lines[-2] not in "{}")
        is_place = match.start() < emitted.thunks_at or in_head
        is_place = is_place and match["directive"] is None
        offset = emitted.source_offset(match.start()) if is_place else None
        if offset is not None:
            position = emitted.lines.position(offset)
            file = files.setdefault(position.file, len(files) + 1)
            place = (file, position.line, position.column)
        # A directive may extend over several lines.
        places += [place] * (match.group().count("\n") + 1)
    names = b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in files)
    names += b"\0" * (-len(names) % 4)
    table = struct.pack("=II", len(files), len(places)) + names
    table += b"".join(struct.pack("=III", *place) for place in places)
    return "\n".join(lines) + "\n", table
