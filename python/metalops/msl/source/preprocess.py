"""Runs the C preprocessor over Metal source.

In place of Metal's own headers there are headers of macros only (include/preprocess); the declarations come in when the
emitted C++ is compiled. Line markers stay in the text.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from . import compiler, includes, languages
from .errors import PROGRAM_SOURCE, Diagnostic, syntax_error
from .locations import MARKER, marker_of, texts_by_file
from .parse import Source
from .paths import HEADERS

_STUBS = os.path.join(HEADERS, "preprocess")
# Macros that Apple's compiler predefines about its target.
_TARGET = [
    "-D__LITTLE_ENDIAN__=1",
    "-D__ORDER_LITTLE_ENDIAN__=1234",
    "-D__ORDER_BIG_ENDIAN__=4321",
    "-D__BYTE_ORDER__=1234",
    "-D__CHAR_BIT__=8",
    "-D__SIZEOF_POINTER__=8",
    "-D__SIZEOF_LONG__=8",
    "-D__SIZEOF_INT__=4",
    "-D__INT_MAX__=2147483647",
    "-D__LONG_MAX__=9223372036854775807L",
]
_ERROR = re.compile(
    r"(?P<file>[^\n:]+):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<message>.*)"
)


@dataclass
class Preprocessed:
    """A preprocessed source. text: latin-1 decoded, so that offsets are byte offsets. dependencies: the files it came
    from. folders: the folders that compiled libraries omit from file names, the longest last. language:
    __METAL_VERSION__."""

    text: str
    name: str
    dependencies: list[str]
    sources: dict[str, str]
    language: int
    folders: tuple[str, ...] = ()

    @functools.cached_property
    def parsed(self) -> Source:
        """The parsed text, which everything that reads the program shares, since parsing takes long."""
        return Source(self.text)

    def portable_text(self) -> str:
        """Returns the text without the folders of this machine."""
        return MARKER.sub(self._portable_marker, self.text)

    def _portable_marker(self, match: re.Match) -> str:
        number, file = marker_of(match.group())
        if file is None:
            return match.group()
        name = self.recorded(file).replace("\\", "\\\\").replace('"', '\\"')
        return f'# {number} "{name.encode("utf-8", "surrogateescape").decode("latin-1")}"'

    def recorded(self, file: str) -> str:
        """Returns the name of a file in a compiled library, the same on any machine."""
        folder = next((f for f in reversed(self.folders) if file.startswith(f)), "")
        return file.removeprefix(folder)


@functools.cache
def torch_include() -> str | None:
    """Returns torch's include folder, found without importing torch; None without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return os.path.join(os.path.dirname(spec.origin), "include")


def include_path(include_dirs: Iterable[str] = ()) -> list[str]:
    """Returns the folders that `#include` searches, in order."""
    folders = [os.fspath(d) for d in include_dirs]
    torch = torch_include()
    return folders + ([torch] if torch else [])


def preprocess(
    source: str | None = None,
    path: str | None = None,
    *,
    name: str | None = None,
    include_dirs: Iterable[str] = (),
    defines: Iterable[str] = (),
    language: int | None = None,
    fast_math: bool = False,
) -> Preprocessed:
    """Preprocesses a source text, or the file at `path`. language: __METAL_VERSION__, by default what the environment
    chooses. Raises SyntaxError, and OSError for a file that cannot be read."""
    language = languages.current() if language is None else language
    host = compiler.find()
    arguments = [
        "-E",
        "-x",
        "c++",
        "-std=c++17",
        "-nostdinc",
        "-undef",
        "-w",
        *host.diagnostic_flags(),
    ]
    if host.kind == "gnu":
        arguments += ["-nostdinc++", "-D__has_feature(x)=0", "-D__has_extension(x)=0"]
    else:
        arguments.append("-Wno-builtin-macro-redefined")
    arguments += [
        "-U__cplusplus",
        *(f"-D{name}={value}" for name, value in languages.predefined(language).items()),
        "-D__METAL_MACOS__=1",
        "-D__AIR64__=1",
        *_TARGET,
        *(["-D__FAST_MATH__=1"] if fast_math else []),
        f"-I{_STUBS}",
        # Metal's standard library is there without an include.
        *("-imacros", os.path.join(_STUBS, "metal_stdlib")),
        *(f"-I{d}" for d in _folders_of(include_dirs, path)),
        *(f"-D{d}" for d in defines),
    ]
    sources: dict[str, str] = {}
    folders: tuple[str, ...] = ()
    allowed = [_STUBS, *include_path(include_dirs)]
    before: set[str] = set()
    if path is None:
        name = re.sub(r"[\0-\x1f]", " ", name or PROGRAM_SOURCE)
        text = includes.without_beginnings((source or "").removeprefix("\ufeff"))
        sources |= texts_by_file(text, name) or {name: text}
        _refuse(includes.refused(text, name, allowed, computed=False))
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        # The current folder must be one of the package's, since "file.h" is searched there.
        result = host.run([*arguments, "-"], input=f'# 1 "{quoted}"\n{text}\n'.encode(), cwd=_STUBS)
    else:
        name = os.fspath(path)
        if name.startswith(("-", "@")):  # an option, or a list of options
            name = os.path.join(os.curdir, name)
        own = os.path.dirname(os.path.abspath(name))
        allowed.append(own)
        with open(name, encoding="utf-8", errors="replace", newline="\n") as stream:
            written = stream.read()
        before = includes.beginnings(written)
        _refuse(includes.refused(written, name, allowed, computed=not before, own=own))
        found_in = {os.path.dirname(name), *include_path(include_dirs)} - {""}
        folders = tuple(sorted((os.path.join(f, "") for f in found_in), key=len))
        # The last matching map applies.
        arguments += [f"-fmacro-prefix-map={folder}=" for folder in folders]
        result = host.run([*arguments, name])
    text = result.stdout.decode("latin-1")
    _refuse(includes.entered_outside(text, name, allowed, before, is_file=path is not None))
    named = {file for file in before if not includes.is_within(file, [*allowed, name])}
    if named:
        text = includes.without_beginnings(text, named)
    if result.returncode:
        raise syntax_error(
            _diagnostics(result.stderr.decode(errors="replace"), name, sources, allowed)
        )
    return Preprocessed(text, name, _dependencies(text), sources, language, folders)


def _folders_of(include_dirs: Iterable[str], path: str | None) -> list[str]:
    """Returns the folders to search, relative to the folder in which the preprocessor runs."""
    folders = include_path(include_dirs)
    return [os.path.abspath(f) for f in folders] if path is None else folders


def _refuse(found: list[Diagnostic]) -> None:
    if found:
        raise syntax_error(found)


def _diagnostics(
    output: str, name: str, sources: dict[str, str], folders: list[str]
) -> list[Diagnostic]:
    found = []
    for match in _ERROR.finditer(output):
        file, line = match["file"], int(match["line"])
        if file in ("<stdin>", "-"):
            file = name
        # A file that is only named by a #line directive is not read.
        is_known = file in sources or includes.is_within(file, [*folders, name])
        source_line = _line_of(file, line, sources) if is_known else ""
        # g++ names no column for an unterminated directive.
        indent = len(source_line) - len(source_line.lstrip())
        column = int(match["column"] or indent + 1)
        found.append(Diagnostic(file, line, column, match["message"], source_line))
    return found or [Diagnostic(name, 1, 0, output.strip() or "the preprocessor failed")]


def _line_of(file: str, line: int, sources: dict[str, str]) -> str:
    text = sources.get(file)
    if text is None:
        try:
            with open(file, encoding="utf-8", errors="replace") as stream:
                text = stream.read()
        except OSError:
            return ""
    lines = text.split("\n")
    return lines[line - 1] if 0 < line <= len(lines) else ""


def _dependencies(text: str) -> list[str]:
    """Returns the files that line markers name, other than the package's own substitutes."""
    files: dict[str, None] = {}
    for line in re.findall(r"(?m)^#[^\n]*", text):
        marker = marker_of(line)
        if (
            marker
            and marker[1]
            and not marker[1].startswith("<")
            and not marker[1].startswith(_STUBS)
        ):
            files[marker[1]] = None
    return [f for f in files if os.path.isfile(f)]
