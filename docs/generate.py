"""What pages of docs/ say of the installed package: `python docs/generate.py` writes it into them, and a test compares.

It stands between two comments, so that a page reads the same in the repository as on the site:

    <!-- BEGIN python -m metalops ARGUMENTS -->        what the command prints, which is Markdown
    <!-- BEGIN text python -m metalops ARGUMENTS -->   the same as a block of text
    <!-- BEGIN operators MODULE -->                    the functions of a module of metalops.ops, in a table
    <!-- BEGIN rules -->                               the rules of csrc/validation, in a table
    <!-- BEGIN versions -->                            the numbers of `coverage`, a column for each version of torch
    <!-- END -->

An installation has one version of torch, so it renews one column of the last.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
import re
from collections import Counter
from pathlib import Path

import metalops
import torch
from metalops.__main__ import main
from metalops._cli.coverage import STATUSES
from metalops._torch import versions

DOCS = Path(__file__).parent
_PART = re.compile(r"<!-- BEGIN (?P<what>[^\n]+) -->\n(?P<text>.*?)<!-- END -->\n", re.DOTALL)


def pages() -> list[Path]:
    """Those that have such parts."""
    return [p for p in sorted(DOCS.rglob("*.md")) if _PART.search(p.read_text(encoding="utf-8"))]


def current(text: str) -> str:
    """A page with its parts as they are now."""
    return _PART.sub(
        lambda m: f"<!-- BEGIN {m['what']} -->\n{_part(m['what'], m['text'])}<!-- END -->\n", text
    )


def columns(text: str) -> str:
    """The parts of a page that have a column for each version, with that of the installed torch as it is now."""
    return "".join(
        _part(m["what"], m["text"]) for m in _PART.finditer(text) if m["what"] == "versions"
    )


def _part(what: str, before: str) -> str:
    kind, *rest = what.split()
    if kind == "versions":
        return f"\n{_by_version(before)}\n\n"
    if kind == "rules":
        return f"\n{_rules()}\n\n"
    if kind == "operators":
        return f"\n{_operators(*rest)}\n\n"
    if kind == "text":
        return f"\n```text\n{_printed(rest[3:])}\n```\n\n"
    return f"\n{_printed(rest[2:])}\n\n"


def _printed(arguments: list[str]) -> str:
    """By `python -m metalops ARGUMENTS`, in lines as long as a terminal's."""
    printed = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(printed):
            try:
                status = main(arguments)
            except SystemExit as stopped:  # argparse, after --help
                status = stopped.code
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
    if status:
        raise RuntimeError(f"python -m metalops {' '.join(arguments)} ended with status {status}")
    return printed.getvalue().strip()


def _by_version(before: str) -> str:
    """The numbers of overloads by status, in a table whose other columns are those of `before`."""
    rows = [[x.strip() for x in line.strip("|").split("|")] for line in before.split("\n") if line]
    statuses = [row[0] for row in rows[2:]]
    known = {
        title.removeprefix("torch "): dict(zip(statuses, column[1:], strict=True))
        for title, *column in zip(*rows, strict=True)
    }
    installed = versions.minor(torch.__version__)
    counts = Counter(entry.status for entry in metalops.coverage())
    known[installed] = {status: counts[status] for status in STATUSES}
    lines = [
        "| | " + " | ".join(f"torch {version}" for version in versions.SUPPORTED) + " |",
        "|---" * (len(versions.SUPPORTED) + 1) + "|",
    ]
    for status in STATUSES:
        numbers = (str(known.get(version, {}).get(status, "")) for version in versions.SUPPORTED)
        lines.append(f"| {status} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def functions(module_name: str) -> list[str]:
    """The names that a module of metalops.ops adds to it, but for in-place forms."""
    module = importlib.import_module(f"metalops.ops.{module_name}")
    return [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
        and name in metalops.ops.__all__
        and not name.endswith("_")
    ]


def _operators(module_name: str) -> str:
    rows = ["| operator | |", "|---|---|"]
    for name in functions(module_name):
        function = getattr(metalops.ops, name)
        parameters = ", ".join(inspect.signature(function).parameters)
        first = inspect.getdoc(function).split("\n\n")[0].replace("\n", " ").replace("``", "`")
        first = re.sub(r":\w+:(?=`)", "", first)
        rows.append(f"| `{name}({parameters})` | {first.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def rules() -> dict[str, tuple[str, bool, str, str]]:
    """Name -> (severity, whether it is always on, sentence, source), as csrc/validation/rules.cpp has it."""
    text = (DOCS.parent / "csrc" / "validation" / "rules.cpp").read_text(encoding="utf-8")
    rows = re.findall(
        r'\{Rule::k\w+, "([\w-]+)", k(Error|Warning), Kind::k\w+, k(Always|IfEnabled), "([^"]*)", "([^"]*)"\}',
        re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*"', "", text)),
    )
    return {name: (severity.lower(), on == "Always", *texts) for name, severity, on, *texts in rows}


def _rules() -> str:
    rows = ["| rule | | | source |", "|---|---|---|---|"]
    for name, (severity, is_always_on, sentence, source) in rules().items():
        when = severity if is_always_on else f"{severity} if asked for"
        rows.append(f"| `{name}` | {when} | {sentence} | {source} |")
    return "\n".join(rows)


if __name__ == "__main__":
    for path in pages():
        path.write_text(current(path.read_text(encoding="utf-8")), encoding="utf-8")
