"""Restricts the files that a Metal text may include: Apple's and torch's headers of which there are substitutes or
copies, files in the given folders, and headers that a file names in quotes, relative to itself. Others are rejected, and
nothing of their content is revealed."""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Collection, Iterable, Iterator

from .errors import Diagnostic
from .locations import marker_of

_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_LEXEME = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
      | (?P<raw>(?<!\w)(?:u8|[uUL])?R"(?!\s))
      | (?<![\w.])\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*
      | "(?:\\[^\n]|[^"\\\n])*" | '(?:\\[^\n]|[^'\\\n])*'""",
    re.S | re.X,
)
_DIRECTIVE = re.compile(
    r"(?m)^[ \t\f\v]*(?:\#|%:)[ \t\f\v]*(?P<name>include(?:_next)?|import|embed)\b[ \t\f\v]*(?P<what>[^\n]*)"
)
_PROBE = re.compile(r"\b__has_(?:include(?:_next)?|embed)\b[ \t]*\(?[ \t]*(?P<what>[^\n)]*)")
_HEADER = re.compile(r'<(?P<angle>[^>\n]*)>|"(?P<quote>[^"\n]*)"')
_ENTERED = re.compile(r'(?m)^# \d+ "(?:\\.|[^"\\\n])*"[ \d]*')


_SUFFIXES = (".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".metal", ".msl")


def is_relative_header(name: str) -> bool:
    """Returns true if a quoted name may be that of a header outside of the folders, relative to the file it is in."""
    return not os.path.isabs(name) and name.endswith(_SUFFIXES)


def refused(
    text: str, name: str, folders: Iterable[str], computed: bool, own: str | None = None
) -> list[Diagnostic]:
    """Returns errors for the files that a text requests outside of the folders, before a compiler looks for them.
    computed: true if a macro may name a file. own: the folder of the file that the text is; None if it is no file."""
    if not re.search(r"(?:#|%:|\?\?=)|__has_", text):
        return []
    lines = text.split("\n")
    found = []
    for offset, message in _requests(text, list(folders), computed, own):
        line = text.count("\n", 0, offset) + 1
        column = offset - (text.rfind("\n", 0, offset) + 1) + 1
        found.append(Diagnostic(name, line, column, message, lines[line - 1]))
    return found


def _requests(
    text: str, folders: list[str], computed: bool, own: str | None
) -> Iterator[tuple[int, str]]:
    """Yields (offset, error) of each faulty #include or the like."""
    plain, original = _without_comments(text)
    raw = next((m for m in _LEXEME.finditer(plain) if m.lastgroup == "raw"), None)
    if raw is not None:  # its end is not looked for here
        yield original(raw.start()), "raw string literals do not exist in Metal"
        return
    for match in _DIRECTIVE.finditer(plain):
        if match["name"] == "embed":
            yield original(match.start("name")), "Metal has no #embed"
            continue
        header = _HEADER.match(match["what"])
        if header is None:
            if not computed and re.match(r"\w", match["what"]):
                yield (
                    original(match.start("what")),
                    "#include names its file itself here, not by a macro",
                )
        elif (reason := _outside(header, folders, own)) is not None:
            yield original(match.start("what")), reason
    for match in _PROBE.finditer(plain):
        if "embed" in match[0]:
            yield original(match.start()), "Metal has no #embed"
            continue
        header = _HEADER.match(match["what"])
        reason = _outside(header, folders, own) if header else None
        if reason is not None:
            yield original(match.start("what")), reason


def _outside(header: re.Match, folders: list[str], own: str | None) -> str | None:
    """Returns why a file is not included by this name; None if it may be."""
    name = header["angle"] or header["quote"] or ""
    if header["quote"] and own is not None and is_relative_header(name):
        return None
    if not os.path.isabs(name) and ".." not in re.split(r"[/\\]", name):
        return None
    places = [name] if os.path.isabs(name) else [os.path.join(f, name) for f in folders]
    if any(is_within(p, folders) and (os.path.isabs(name) or os.path.isfile(p)) for p in places):
        return None
    return _message(name)


def _is_beside(name: str, includer: str) -> bool:
    """Returns true if a preprocessor found a header relative to the file that includes it."""
    folder = os.path.dirname(includer)
    relative = name[len(folder) + 1 :] if folder and name.startswith(f"{folder}/") else name
    return (relative != name or not folder) and is_relative_header(relative)


def _message(name: str) -> str:
    return (
        f"{name} lies outside of the folders that headers are taken from: this file's, those given as include_dirs (-I), "
        "and those of metalops, torch and Apple's standard library; in a file, a name in quotes may also be that of a "
        f"header ({', '.join(_SUFFIXES)}) relative to it"
    )


def is_within(path: str, places: Iterable[str]) -> bool:
    """Returns true if a path is one of `places`, or below one, by its name."""
    path = os.path.abspath(path)
    places = map(os.path.abspath, places)
    return any(path == p or path.startswith(os.path.join(p, "")) for p in places)


def _without_comments(text: str):
    """Returns the text with lines joined and comments blanked, and a function from its offsets to those of the text."""
    pieces: list[str] = []
    starts: list[tuple[int, int]] = [(0, 0)]  # (offset in the result, offset in the text)
    at = position = 0
    joined = text
    if "\\" in text:
        for match in _SPLICE.finditer(text):
            pieces.append(text[position : match.start()])
            at += match.start() - position
            position = match.end()
            starts.append((at, position))
        joined = "".join([*pieces, text[position:]])

    def original(offset: int) -> int:
        here, there = starts[bisect.bisect_right(starts, (offset, len(text) + 1)) - 1]
        return min(there + offset - here, len(text))

    def blank(match: re.Match) -> str:
        return " " * len(match[0]) if match.lastgroup == "comment" else match[0]

    return _LEXEME.sub(blank, joined), original


# A line marker at the beginning of a file, with its flags.
_BEGINS = re.compile(r'(?m)^([ \t]*#[ \t]*\d+[ \t]+"(?:\\.|[^"\\\n])*")((?:[ \t]+\d+)+[ \t]*)$')


def without_beginnings(text: str, files: Collection[str] | None = None) -> str:
    """Returns a text that was preprocessed before, with the flags of the line markers of these files (None: of any)
    blanked: the files are named but do not begin."""

    def plain(match: re.Match) -> str:
        if files is not None and (marker_of(match[1].lstrip()) or (0, None))[1] not in files:
            return match[0]
        return match[1] + " " * len(match[2])

    return _BEGINS.sub(plain, text)


def beginnings(text: str) -> set[str]:
    """Returns the files that begin in a text according to its line markers, as in one that was preprocessed before."""
    return {
        marker[1]
        for m in _BEGINS.finditer(text)
        if (marker := marker_of(m[1].lstrip())) and marker[1]
    }


def entered_outside(
    text: str, main: str, folders: Iterable[str], before: Collection[str], is_file: bool
) -> list[Diagnostic]:
    """Returns errors for the files outside of the folders that a preprocessed text came from, each at the line that
    includes it. before: the files that began in the text already before. is_file: true if `main` is a file, whose
    headers may be relative to those that include them."""
    folders = list(folders)
    found, known = [], set(before)
    file, line, last = main, 1, 0
    for match in _ENTERED.finditer(text):
        marker = marker_of(match[0])
        if marker is None:
            continue
        number, name = marker
        line += text.count("\n", last, match.start())
        flags = match[0].rsplit('"', 1)[1].split()
        if (
            "1" in flags
            and name
            and not name.startswith("<")
            and name not in known
            and name != main
        ):
            known.add(name)
            is_relative = is_file and _is_beside(name, file)
            if not is_relative and not is_within(name, folders):
                found.append(Diagnostic(file, max(line, 1), 1, _message(name)))
        file, line, last = name or file, number - 1, match.start()
    return found
