"""Unity builds: sources that are compiled together, in one file that includes them. Their common headers are read once,
which is most of the time that a short source takes.

The names in a source that holds nothing but an unnamed namespace are private: two sources of one unit may use the same.
Names in other sources must differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from setuptools.errors import CompileError

from metalops.build.ninja import write_if_changed

_INCLUDE = re.compile(r'^#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"].*\n', re.MULTILINE)
_COMMENT = re.compile(r"^//.*\n", re.MULTILINE)


def _is_unnamed_namespace(text: str) -> bool:
    """Returns true if a source, formatted by clang-format, holds an unnamed namespace and nothing else but includes.
    Other preprocessor lines would affect the sources that follow."""
    first, *others = _COMMENT.sub("", _INCLUDE.sub("", text)).strip().splitlines() or [""]
    if not others:
        return False
    *inner, last = others
    return (first, last) == ("namespace {", "}  // namespace") and not any(
        line.startswith(("#", "namespace", "}  // namespace")) for line in inner
    )


def _headers(source: str, text: str) -> list[str]:
    """Returns the include lines of a source, valid from another folder."""
    lines = []
    for sign, name in _INCLUDE.findall(text):
        beside = os.path.join(os.path.dirname(source), name)
        own = sign == '"' and os.path.isfile(beside)
        lines.append(f'#include "{beside}"\n' if own else f"#include <{name}>\n")
    return lines


def _unit(sources: Sequence[str]) -> str:
    headers: dict[str, None] = {}
    apart, others = [], []
    for source in sources:
        with open(source, encoding="utf-8") as f:
            text = f.read()
        include = f'#include "{source}"\n'
        if _is_unnamed_namespace(text):
            # Within the namespace the headers are not read again.
            headers.update(dict.fromkeys(_headers(source, text)))
            name = re.sub(r"\W", "_", os.path.basename(source))
            apart.append(f"namespace unit_{name} {{\n{include}}}\n")
        else:
            others.append(include)
    return "".join([*headers, *apart, *others])


def write_units(
    sources: Sequence[str], units: Iterable[Sequence[str]], folder: str
) -> dict[str, list[str]]:
    """Generates the file of each unit in `folder`. Returns the files to compile with the sources that each holds; a
    source in no unit holds itself.

    Raises CompileError for a unit of which a source is not among the sources.
    """
    result = {source: [source] for source in sources}
    for number, unit in enumerate(units):
        for source in unit:
            if result.pop(source, None) is None:
                raise CompileError(
                    f"metalops: {source} is in a unit, and not among the sources of its extension."
                )
        path = os.path.join(folder, f"unit_{number}{os.path.splitext(unit[0])[1]}")
        write_if_changed(path, _unit([os.path.abspath(source) for source in unit]))
        result[path] = list(unit)
    return result
