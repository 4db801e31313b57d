"""What must hold of the front end for any text: a kernel library or a SyntaxError that says where, in the user's own text,
in bounded time; and findings of the checker, never its traceback."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator

from metalops.msl.build import Options, compile_emitted
from metalops.msl.check import check_source
from metalops.msl.source import languages
from metalops.msl.source.paths import HEADERS
from metalops.msl.source.preprocess import preprocess
from metalops.msl.targets.host.emit import emit

NAME = "program_source"
# Of one text; the front end takes far less than a second, so this is a hang on a busy machine too.
SECONDS = 120

# Messages do name the variable that chooses the language.
_GENERATED = re.compile(
    rf"\bmsl(?:::|_)\w|/msl/|kernels\.cpp|MSL_\w+|(?!{languages.VARIABLE}\b)METALOPS_\w+"
)


class Fault(AssertionError):
    """The front end broke its promise."""


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def too_long(*_):
        raise Fault(f"takes more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check(text: str, with_compiler: bool) -> str:
    """Takes a text through the front end; with_compiler: and through the C++ compiler, up to its syntax and types.

    Returns the stage that refused it, or "compiles". Raises Fault.
    """
    with _time_limit():
        stage = "preprocessor"
        try:
            preprocessed = preprocess(text)
            stage = "front end"
            emitted = emit(preprocessed)
            if not with_compiler:
                return "emitted"
            stage = "C++ compiler"
            compile_emitted(emitted, os.devnull, Options(optimize=0, flags=("-fsyntax-only",)))
        except SyntaxError as error:
            _check_error(error, text)
            return stage
        except Fault:
            raise
        except Exception as error:
            raise Fault(f"{stage}: {type(error).__name__}: {error}") from error
    return "compiles"


def check_checker(text: str, with_compiler: bool) -> None:
    """Findings have places in the text. Raises Fault."""
    with _time_limit():
        try:
            findings = check_source(text, compiles=with_compiler)
        except Exception as error:
            raise Fault(f"checker: {type(error).__name__}: {error}") from error
    for finding in findings:
        _check_place(finding.file, finding.line, finding.column, text)


def _check_error(error: SyntaxError, text: str) -> None:
    if not getattr(error, "diagnostics", None):
        raise Fault(f"a SyntaxError without diagnostics: {error}")
    for diagnostic in error.diagnostics:
        _check_place(diagnostic.file, diagnostic.line, diagnostic.column, text)
        if diagnostic.column == 0:
            raise Fault(f"no place: {diagnostic.render()}")
        generated = _GENERATED.search(diagnostic.message)
        if generated and generated[0] not in text:
            raise Fault(f"speaks of generated code: {diagnostic.render()}")


def _check_place(file: str, line: int, column: int, text: str) -> None:
    if file != NAME:
        if file in text:  # a #line directive says so
            return
        if os.path.abspath(file).startswith(HEADERS):
            raise Fault(f"points into the standard library: {file}:{line}")
        if not os.path.isfile(file):
            raise Fault(f"points at no file: {file}:{line}")
        with open(file, encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        raise Fault(f"points at line {line} of {len(lines)}: {file}")
    if column > len(lines[line - 1].encode()) + 1:
        raise Fault(f"points at column {column} of {file}:{line}: {lines[line - 1]!r}")
