"""What the gallery contains."""

from __future__ import annotations

import re
from pathlib import Path

GALLERY = Path(__file__).parent / "gallery"


def names_in(name: str) -> list[str]:
    """The names of the tests in a file of the gallery."""
    return re.findall(r"^TEST\((\w+)\)", (GALLERY / f"{name}.mm").read_text(), re.MULTILINE)


def rules_in(name: str) -> dict[str, int]:
    """The cases of a file that breaks rules, and the numbers of the lines that do."""
    lines = (GALLERY / f"{name}.mm").read_text().splitlines()
    cases: dict[str, int] = {}
    case = ""
    for number, line in enumerate(lines, 1):
        if begin := re.match(r"(?:WRONG|RIGHT)\((\w+)\)", line):
            case = begin[1]
        if re.search(r"// wrong$", line):
            cases[case] = number
    return cases
