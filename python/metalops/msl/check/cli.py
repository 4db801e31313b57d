"""`python -m metalops check`: what Apple's Metal compiler would reject."""

from __future__ import annotations

import argparse
import os
import sys

from ..source import languages
from ..source.errors import CompilerNotFound
from . import apple, check_up, in_order
from .checked import Finding
from .rules import RULES
from .sources import Wanted, metal_files


def main(argv: list[str]) -> int:
    """Checks Metal files, and in folders every .metal file and every header that holds Metal code,
    for what Apple's compiler would reject. The user's own headers that these include are checked
    with them; torch's and metalops' are not, unless they are named. Prints one line a finding;
    exits 1 when there are errors (with --strict, warnings too).
    """
    parser = argparse.ArgumentParser(prog="metalops check", description=main.__doc__)
    parser.add_argument("paths", metavar="PATH", nargs="*")
    parser.add_argument(
        "--language",
        type=languages.argument,
        default=languages.FLOOR,
        metavar="VERSION",
        help=f"the Metal version: {', '.join(languages.LANGUAGES)} "
        f"(default: {languages.name_of(languages.FLOOR)})",
    )
    parser.add_argument("--strict", action="store_true", help="warnings fail the check too")
    parser.add_argument(
        "--rules", action="store_true", help="print the rules and where they come from"
    )
    parser.add_argument("-I", dest="include_dirs", action="append", default=[], metavar="DIR")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]")
    arguments = parser.parse_args(argv)
    if arguments.rules:
        print(rules())
        return 0
    if not arguments.paths:
        parser.error("a PATH is needed")
    try:
        files = metal_files(arguments.paths)
        findings, left_out = _findings(
            files, arguments.language, arguments.include_dirs, arguments.defines
        )
    except (CompilerNotFound, OSError) as error:
        print(f"metalops check: {error}", file=sys.stderr)
        return 2
    for finding in findings:
        print(finding)
    for path, name, reason in left_out:
        print(f"{path}: note: metalops does not run kernel {name} because of {reason}")
    return int(any(f.is_error or arguments.strict for f in findings))


def _findings(
    files: list[str], language: int, include_dirs: list[str], defines: list[str]
) -> tuple[list[Finding], list[tuple[str, str, str]]]:
    """Returns the findings in files, and (file, kernel, reason) for the kernels that this device does not run."""
    wanted = Wanted(files)
    found, left_out = [], []
    for path in files:
        checkup = check_up(path, language, include_dirs, defines, wanted)
        found += checkup.findings
        left_out += [(path, *kernel) for kernel in checkup.left_out]
        if path.endswith(".metal") and apple.is_installed():
            found += apple.check(path, language, include_dirs, defines)
    # Several files may include the same header.
    by_place = {(os.path.realpath(f.file), f.line, f.column, f.rule): f for f in found}
    return in_order(by_place.values()), left_out


def rules() -> str:
    """Returns the rules as text: name, section of the specification, and requirement."""
    width = max(map(len, RULES))
    return "\n".join(
        f"{r.name:{width}}  {r.section:8} {r.sentence}{' (warning)' * r.is_suspicion}"
        for r in sorted(
            RULES.values(), key=lambda r: ([int(n) for n in r.section.split(".")], r.name)
        )
    )
