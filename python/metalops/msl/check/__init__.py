"""A strict checker: finds what Apple's Metal compiler would reject and the host build would let through.

check_file and check_source return findings; the command line is cli.py. The rules here read the source and run first;
then compilers are asked, which know names and types.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from ..analysis.absent import present_part
from ..analysis.program import Program, ProgramError
from ..dialect.thread_values import with_parameters
from ..source.languages import FLOOR
from ..source.locations import LineMap
from ..source.paths import PACKAGE_HEADERS
from ..source.preprocess import Preprocessed, preprocess
from . import (
    address_spaces,
    atomics,
    compiled,
    confined,
    divergence,
    language,
    names,
    opencl,
    signatures,
    tensors,
)
from .checked import Checked, Finding, let_pass
from .rules import RULES, Rule, rule
from .sources import Wanted

PREPROCESSOR = rule(
    "preprocessor", "1.5.3", "Every #include is found and every directive is well formed."
)


@dataclasses.dataclass(frozen=True)
class Checkup:
    """The findings in a Metal file, and the kernels of it that this device has not what they need for, with the reasons."""

    findings: list[Finding]
    left_out: list[tuple[str, str]]


GROUPS = (confined, names, language, address_spaces, signatures, atomics, divergence, tensors)


def check_source(
    source: str,
    name: str | None = None,
    *,
    language: int = FLOOR,
    include_dirs: Iterable[str | os.PathLike] = (),
    defines: Iterable[str] = (),
    compiles: bool = True,
) -> list[Finding]:
    """Returns the findings in a Metal source text, in order of position. language: __METAL_VERSION__, such as 310.
    compiles: true if compilers are asked, too."""
    return _check(
        lambda: preprocess(
            source,
            name=name,
            include_dirs=[*include_dirs, PACKAGE_HEADERS],
            defines=defines,
            language=language,
        ),
        language,
        Wanted([]),
        compiles,
    ).findings


def check_file(
    path: str | os.PathLike,
    *,
    language: int = FLOOR,
    include_dirs: Iterable[str | os.PathLike] = (),
    defines: Iterable[str] = (),
    is_checked: Callable[[str], bool] | None = None,
) -> list[Finding]:
    """Returns the findings in a Metal file and in the user's headers that it includes. is_checked: returns true for the
    files to check; default: all but torch's, metalops' and the standard library's headers. A header by itself is not
    compiled: it may need what precedes it where it is included."""
    return check_up(path, language, include_dirs, defines, is_checked).findings


def check_up(
    path: str | os.PathLike,
    language: int,
    include_dirs: Iterable[str | os.PathLike],
    defines: Iterable[str],
    is_checked: Callable[[str], bool] | None = None,
) -> Checkup:
    """Checks a Metal file as check_file() does."""
    path = os.fspath(path)
    return _check(
        lambda: preprocess(
            path=path,
            include_dirs=[*include_dirs, PACKAGE_HEADERS],
            defines=defines,
            language=language,
        ),
        language,
        is_checked or Wanted([path]),
        path.endswith(".metal"),
    )


def _check(read: Callable[[], Preprocessed], language: int, is_checked, compiles: bool) -> Checkup:
    try:
        preprocessed = read()
    except SyntaxError as error:
        findings = [
            Finding(
                d.file,
                d.line,
                max(d.column, 1),
                PREPROCESSOR.name,
                f"{d.message} (MSL {PREPROCESSOR.section})",
            )
            for d in error.diagnostics
        ]
        return Checkup(findings, [])
    program = Program(preprocessed.parsed, let_pass)
    present = present_part(program, let_pass)
    lines = LineMap(preprocessed.text, preprocessed.name, dict(preprocessed.sources))
    with contextlib.suppress(ProgramError):  # compiled.py reports it
        program = with_parameters(program, lines, let_pass)
    checked = Checked(
        program.source,
        program,
        lines,
        language,
        is_checked,
    )
    with ThreadPoolExecutor() as pool:
        opinions = []
        if compiles:
            opinions = [
                pool.submit(compiled.check, preprocessed, is_checked),
                pool.submit(opencl.check, preprocessed, present, is_checked),
            ]
        for group in GROUPS:
            group.check(checked)
        findings = _without_consequences(checked.findings)
        for opinion in opinions:
            findings = _with_opinion(findings, opinion.result())
    return Checkup(in_order(findings), present.skipped())


def _with_opinion(findings: list[Finding], others: list[Finding]) -> list[Finding]:
    """Returns the findings with a compiler's findings about other lines added: about the same line it would say the
    same, in its own words."""
    said = {(f.file, f.line) for f in findings if f.is_error}
    memory = " ".join(f.sentence for f in findings if f.rule == signatures.MEMORY.name)
    return findings + [
        f
        for f in others
        if (f.file, f.line) not in said
        and not (f.rule == signatures.MEMORY.name and _is_said(f.sentence, memory))
    ]


def _is_said(sentence: str, memory: str) -> bool:
    """Returns true if findings about threadgroup memory name the kernel that a sentence of the compiler names."""
    name = sentence.split(" of ")[1].split(" take ")[0]
    return f" of {name} to " in memory or f" as {name} to " in memory


def _without_consequences(findings: list[Finding]) -> list[Finding]:
    """Returns the findings without those at lines where a keyword is used as a name: they follow from the keyword's
    meaning."""
    misread = {(f.file, f.line) for f in findings if f.rule == names.RESERVED.name}
    return [f for f in findings if f.rule == names.RESERVED.name or (f.file, f.line) not in misread]


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Returns each finding once, sorted by position."""
    return sorted(set(findings), key=lambda f: (f.file, f.line, f.column, f.rule))


__all__ = ["RULES", "Finding", "Rule", "check_file", "check_source"]
