"""Flattens a Metal file and its includes into one source, for compilers that have no include path.

Includes are embedded as text, conditionals are left alone. Includes of Metal's own headers, and of files that are not
found in the include path, lie outside of its folders and are no headers relative to a file, stay as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from .source.includes import is_relative_header, is_within
from .source.preprocess import include_path

_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?P<word>\w+)(?P<rest>[^\n]*)$")
_INCLUDE = re.compile(r'\s*(?:"(?P<quoted>[^"]+)"|<(?P<angled>[^>]+)>)')


def flatten(path: str | os.PathLike, include_dirs: Iterable[str | os.PathLike] = ()) -> str:
    """Returns the text of a Metal file with its includes embedded. Compilers report errors in terms of the original
    files. Raises OSError if the file cannot be read."""
    path = os.path.abspath(os.fspath(path))
    flattener = _Flattener(include_path(include_dirs), os.path.dirname(path), markers=True)
    text = flattener.file(path, os.path.basename(path))
    # On a Mac torch passes sources as ASCII; in practice other characters occur in comments.
    return text.encode("ascii", "replace").decode()


def flatten_text(text: str, include_dirs: Iterable[str | os.PathLike] = ()) -> str:
    """Returns the text of a Metal source that is not in a file, with its includes embedded."""
    return _Flattener(include_path(include_dirs)).lines(text.split("\n"), os.path.abspath("source"))


class _Flattener:
    def __init__(self, folders: list[str], own: str | None = None, markers: bool = False):
        self.folders = folders
        # The folders that files may come from; own: the folder of the file itself.
        self.places = folders + ([own] if own is not None else [])
        self.is_file = own is not None
        self.markers = markers  # true if line markers name the file and line of each part
        self.embedded: set[str] = set()  # files with #pragma once, surely embedded already
        self.open_files: list[str] = []
        self.guards: dict[str, str] = {}  # of files with #pragma once, by path

    def file(self, path: str, name: str, conditional: bool = False, once: bool = False) -> str:
        """Returns the text of a file. name: its name in messages; conditional: true if it may be skipped; once: true to
        embed it once even without #pragma once."""
        with open(path, encoding="utf-8-sig") as stream:
            return self.lines(stream.read().split("\n"), path, name, conditional, once)

    def lines(
        self,
        lines: list[str],
        path: str,
        name: str = "source",
        conditional: bool = False,
        once: bool = False,
    ) -> str:
        once = once or any(re.match(r"\s*#\s*pragma\s+once\b", line) for line in lines)
        if once and path in self.embedded:
            return ""
        if path in self.open_files:
            if once:
                return ""
            if self.open_files.count(path) > 50:
                raise RecursionError(f"{path} includes itself")
        if once and not conditional:
            self.embedded.add(path)
        self.open_files.append(path)
        name_in_guard = re.sub(r"[^A-Za-z0-9]", "_", os.path.basename(path)).upper()
        guard = self.guards.setdefault(
            path, f"METALOPS_EMBEDDED_{len(self.guards)}_{name_in_guard}"
        )
        depth = 0
        guard_depth = _guard_depth(lines)
        output = [f"#ifndef {guard}", f"#define {guard}"] if once and self.open_files[:-1] else []
        if self.markers:
            output.append(f'#line 1 "{name}"')
        in_comment = False
        for number, line in enumerate(lines, 1):
            directive = None if in_comment else _DIRECTIVE.match(line)
            in_comment = _ends_in_comment(line, in_comment)
            word = directive["word"] if directive else None
            if word in ("if", "ifdef", "ifndef"):
                depth += 1
            elif word == "endif":
                depth -= 1
            elif word == "pragma" and re.match(r"\s*once\b", directive["rest"]):
                output.append("")
                continue
            elif word in ("include", "import"):
                found = self._resolve(directive["rest"], path)
                if found is not None:
                    conditional_here = conditional or depth > guard_depth
                    output.append(
                        self.file(*found, conditional=conditional_here, once=word == "import")
                    )
                    if self.markers:
                        output.append(f'#line {number + 1} "{name}"')
                    continue
            output.append(line)
        if once and self.open_files[:-1]:
            output.append("#endif")
        self.open_files.pop()
        return "\n".join(output)

    def _resolve(self, rest: str, path: str) -> tuple[str, str] | None:
        """Returns the path of an included file and the name it is included by, or None."""
        match = _INCLUDE.match(rest)
        if not match:
            return None
        name = match["quoted"] or match["angled"]
        if match["angled"] and (name.startswith("metal_") or name.startswith("simd/")):
            return None
        own = os.path.dirname(path) if match["quoted"] else None
        for folder in [*([own] if own else []), *self.folders]:
            candidate = os.path.abspath(os.path.join(folder, name))
            is_relative = self.is_file and folder == own and is_relative_header(name)
            if (is_relative or is_within(candidate, self.places)) and os.path.isfile(candidate):
                return candidate, name
        return None


def _guard_depth(lines: list[str]) -> int:
    """Returns 1 if the whole file stands inside an include guard, else 0."""
    directives = [m for m in map(_DIRECTIVE.match, lines) if m]
    if (
        len(directives) < 3
        or directives[0]["word"] != "ifndef"
        or directives[1]["word"] != "define"
    ):
        return 0
    same = directives[0]["rest"].split()[:1] == directives[1]["rest"].split()[:1]
    return 1 if same and directives[-1]["word"] == "endif" else 0


def _ends_in_comment(line: str, in_comment: bool) -> bool:
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|//|/\*|\*/', line):
        token = match.group()
        if in_comment:
            in_comment = token != "*/"
        elif token == "//":
            return False
        elif token == "/*":
            in_comment = True
    return in_comment
