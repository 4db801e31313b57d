"""The gallery of wrong kernels: reading the files of gallery/.

A case is one file, gallery/NAME.metal, that holds a wrong kernel, and its corrected twin when
CORRECTED is defined. Comments say the rest:

    // mode: address                     the sanitizer that finds it: address, thread, or both
    // compiler: gnu                     only where g++ has it and clang has not
    // language: 4.1                     the Metal version, where it is not the default
    // layout: scramble                  where elements of cooperative tensors are, likewise (METALOPS_COOPERATIVE_LAYOUT)
    // launch: kernel(floats(33), threads=33, group_size=32)
    ...
      out[i] = in[i + 1];
    //         ^~~~~~~~~ heap-buffer-overflow

The launch is a Python expression over what run_gallery.py offers. The marker stands below the line
that the report has to name, under the columns that are right (compilers differ in what they point
at: the whole expression, or its operator).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "gallery"
_MARKER = re.compile(r"^\s*//\s*(\^~*)\s+([\w-]+)\s*$")


@dataclass(frozen=True)
class Expected:
    kind: str
    line: int
    columns: range


@dataclass(frozen=True)
class Case:
    name: str
    source: str
    modes: tuple[str, ...]
    launch: str
    expected: tuple[Expected, ...]
    compiler: str  # "gnu", or "" for all
    language: str  # "" for the default
    layout: str  # likewise

    @property
    def twin(self) -> str:
        """The corrected kernel's source; lines count from where they do in the wrong one's."""
        return "#define CORRECTED\n#line 1\n" + self.source


def _field(name: str, source: str, default: str | None = None) -> str:
    # Goes on over lines that begin with "//  ".
    match = re.search(rf"^// {name}: (.*(?:\n//   .*)*)", source, re.MULTILINE)
    if match is None and default is not None:
        return default
    assert match, f"a case says '// {name}: ...'"
    return re.sub(r"\n//\s*", " ", match.group(1)).strip()


def read(path: Path) -> Case:
    source = path.read_text()
    expected = []
    for number, line in enumerate(source.splitlines(), 1):
        marker = _MARKER.match(line)
        if marker:
            columns = range(marker.start(1) + 1, marker.end(1) + 1)
            expected.append(Expected(marker.group(2), number - 1, columns))
    assert expected, f"{path.name} has no marker"
    modes = tuple(re.split(r"[,\s]+", _field("mode", source)))
    fields = [_field(name, source, "") for name in ("compiler", "language", "layout")]
    return Case(path.stem, source, modes, _field("launch", source), tuple(expected), *fields)


def cases(mode: str) -> list[Case]:
    """The cases that a sanitizer finds, by name."""
    found = [read(path) for path in sorted(FOLDER.glob("*.metal"))]
    return [case for case in found if mode in case.modes]
