"""A strict checker: what Apple's Metal compiler would reject and the host build would let through.

check_file and check_source return findings; the command line is cli.py. Nothing is compiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from ..kernels import Program
from ..locations import LineMap
from ..parse import Source
from ..preprocess import Preprocessed, preprocess
from . import address_spaces, atomics, divergence, kernels, language
from .program import Checked, Finding
from .rules import RULES, Rule, rule
from .sources import PACKAGE_HEADERS, Wanted

PREPROCESSOR = rule(
    "preprocessor", "1.5.3", "Every #include is found and every directive is well formed."
)

GROUPS = (language, address_spaces, kernels, atomics, divergence)


def check_source(
    source: str,
    name: str | None = None,
    *,
    language: int = 310,
    include_dirs: Iterable[str | os.PathLike] = (),
    defines: Iterable[str] = (),
) -> list[Finding]:
    """Findings in a Metal source text, in order of position. language: __METAL_VERSION__, such as
    310.
    """
    return _check(
        lambda: preprocess(
            source,
            name=name,
            include_dirs=[*include_dirs, PACKAGE_HEADERS],
            defines=defines,
            metal_version=language,
        ),
        language,
        Wanted([]),
    )


def check_file(
    path: str | os.PathLike,
    *,
    language: int = 310,
    include_dirs: Iterable[str | os.PathLike] = (),
    defines: Iterable[str] = (),
    is_checked: Callable[[str], bool] | None = None,
) -> list[Finding]:
    """Findings in a Metal file and in the user's headers that it includes. is_checked: in which
    files; default: all but torch's, metalops' and the standard library's headers.
    """
    path = os.fspath(path)
    return _check(
        lambda: preprocess(
            path=path,
            include_dirs=[*include_dirs, PACKAGE_HEADERS],
            defines=defines,
            metal_version=language,
        ),
        language,
        is_checked or Wanted([path]),
    )


def _check(read: Callable[[], Preprocessed], language: int, is_checked) -> list[Finding]:
    try:
        preprocessed = read()
    except SyntaxError as error:
        return [
            Finding(
                d.file,
                d.line,
                max(d.column, 1),
                PREPROCESSOR.name,
                f"{d.message} (MSL {PREPROCESSOR.section})",
            )
            for d in error.diagnostics
        ]
    source = Source(preprocessed.text)
    checked = Checked(
        source,
        Program(source, forbid=lambda message, offset: None),
        LineMap(preprocessed.text, preprocessed.name, dict(preprocessed.sources)),
        language,
        is_checked,
    )
    for group in GROUPS:
        group.check(checked)
    return in_order(checked.findings)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Each finding once, by position."""
    return sorted(set(findings), key=lambda f: (f.file, f.line, f.column, f.rule))


__all__ = ["RULES", "Finding", "Rule", "check_file", "check_source"]
