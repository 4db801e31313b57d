"""Rejects words that the vocabulary of docs/inside.md replaced: `python -m tests.vocabulary`, which .ci/style runs.

It reads the comments, docstrings and messages of kernels/, csrc/ and python/, and the prose of README.md, CONTRIBUTING.md and
docs/. Code, raw strings, text in backticks and the parts of pages that docs/generate.py writes are left alone. Two kinds of
findings:

- a phrase of OLD, also where a line break divides it;
- a comment or docstring, no message, that begins with a word of DANGLING. Such a sentence lacks its subject: begin with the subject.

Prints a line for each, FILE:LINE: old word -> new word, and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ("kernels", "csrc", "python")
PROSE = ("README.md", "CONTRIBUTING.md", "docs")
CODE, PAGES = {".py", ".h", ".cpp", ".mm", ".metal", ".S"}, {".md"}
GENERATED = {"_build_info.py", "_stock_overloads.py"}

# Regular expressions, in small letters, and the term to use instead.
OLD = {
    r"products? of few rows": "skinny GEMM",
    r"products? of one row": "GEMV",
    r"products? of tiles": "tile GEMM",
    r"without (?:its|the|their) scores": "flash attention",
    r"encoded weights": "quantised weights",
    r"line of weights": "row of W",
    r"taken apart": "unpacked, dequantised",
    r"merge regions|regions? that merges?|merged regions?": "D&C level, subproblem",
    r"patience": "iteration limit, timeout",
    r"blocks? of reflectors": "block reflector",
    r"(?:threads|lanes) (?:that )?part(?:ed)?(?! of\b)": "diverge",
    r"(?:threads|lanes) (?:that )?(?:meet|met)": "reconverge, synchronise",
    r"kept for each thread": "privatised",
    r"that there (?:are|is) not": "absent, out of range, unknown",
}
DANGLING = ("Of", "What", "Those", "The same", "That", "Whose", "Whom")

# Findings that are meant: the file, the words as they are found, and the reason.
EXCEPTIONS: dict[tuple[str, str], str] = {}

_OLD = re.compile("|".join(rf"(\b(?:{old})\b)" for old in OLD), re.IGNORECASE)
_NEW = list(OLD.values())
_DANGLING = re.compile(rf"\W*({'|'.join(DANGLING)})\b")
_BEGIN = "begin with the subject"
_IN_BACKTICKS = re.compile(r"(`+)[^`]+\1")

_C = re.compile(
    r"""R"(?P<d>[^\s()]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'"""
    r"""|(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)""",
    re.DOTALL,
)
_PYTHON = re.compile(
    r"""(?P<string>"{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<line>\#[^\n]*)""",
    re.DOTALL,
)
# What precedes a docstring: a colon, or no code at all, and then a line break.
_BEFORE_DOCSTRING = re.compile(r"(?::[ \t]*(?:#[^\n]*)?\n\s*|\A\s*(?:#[^\n]*\n\s*)*)[rR]?\Z")
_NOT_PROSE = re.compile(
    r"^(?P<f>`{3,})[^\n]*\n.*?^(?P=f)$|<!-- BEGIN.*?<!-- END -->|\]\([^)]*\)", re.DOTALL | re.M
)


class Finding(NamedTuple):
    line: int
    old: str
    new: str


class Text(NamedTuple):
    """A comment, a docstring or a page: its first line, its lines, and whether it may not begin with a word of DANGLING."""

    line: int
    lines: list[str]
    begins: bool = True


def comments(text: str, is_python: bool) -> Iterator[Text]:
    """The comments and strings, docstrings among them. Comments on successive lines are one, unless code comes before one
    of them."""
    starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
    last, column = Text(0, []), -1
    for found in (_PYTHON if is_python else _C).finditer(text):
        begin = found.start()
        if found["line"] is None:
            if not found[0].startswith('R"'):
                begins = not is_python and found["block"] is not None
                if is_python:
                    begins = bool(_BEFORE_DOCSTRING.search(text, max(0, begin - 400), begin))
                body = found[0].strip("\"'/*").split("\n")
                yield Text(bisect_right(starts, begin), body, begins)
            continue
        line = bisect_right(starts, begin)
        stripped = found["line"].lstrip("/#")
        is_alone = not text[starts[line - 1] : begin].strip()
        follows = line == last.line + len(last.lines) and begin - starts[line - 1] == column
        if is_alone and follows:
            last.lines.append(stripped)
            continue
        if last.lines:
            yield last
        last, column = Text(line, [stripped]), begin - starts[line - 1]
    if last.lines:
        yield last


def prose(text: str) -> Text:
    """A page of Markdown without its code, links and generated parts; lines keep their numbers."""
    blank = _NOT_PROSE.sub(lambda found: "\n" * found[0].count("\n"), text)
    return Text(1, blank.split("\n"), begins=False)


def findings(text: str, suffix: str) -> list[Finding]:
    """The findings in a file's text, by line. suffix: that of the file's name, such as ".py"."""
    texts = [prose(text)] if suffix == ".md" else comments(text, suffix == ".py")
    return sorted(finding for part in texts for finding in _in(part))


def _in(text: Text) -> Iterator[Finding]:
    # Lines keep their lengths but for code, so that a phrase is found across a line break.
    lines = [_IN_BACKTICKS.sub("`", line).strip() for line in text.lines]
    joined = " ".join(lines)
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    for found in _OLD.finditer(joined):
        line = text.line + bisect_right(starts, found.start()) - 1
        yield Finding(line, found[0], _NEW[found.lastindex - 1])
    begin = _DANGLING.match(joined) if text.begins else None
    if begin and "`" not in begin[0]:
        line = text.line + bisect_right(starts, begin.start(1)) - 1
        yield Finding(line, f"{begin[1]} ...", _BEGIN)


def files() -> list[str]:
    """Returns the sources and pages, by their paths from the root."""
    found = [path for name in (*SOURCES, *PROSE) for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])]  # fmt: skip
    return sorted(
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.suffix in (PAGES if path.relative_to(ROOT).parts[0] in PROSE else CODE)
        and path.is_file()
        and path.name not in GENERATED
    )


def main() -> int:
    found = [
        (path, finding)
        for path in files()
        for finding in findings((ROOT / path).read_text(encoding="utf-8"), Path(path).suffix)
        if (path, finding.old) not in EXCEPTIONS
    ]
    for path, (line, old, new) in found:
        print(f"{path}:{line}: {old} -> {new}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
