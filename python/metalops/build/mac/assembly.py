"""Assembly in Mach-O's dialect, as far as build scripts write it: files that embed data (`.incbin`). Imports nothing of
metalops."""

from __future__ import annotations

import re

# A Mach-O section has a segment, too.
_SECTION = re.compile(r"^([ \t]*)\.section[ \t]+(__\w+)[ \t]*,[ \t]*(\w+).*$", re.MULTILINE)
_NAMED = re.compile(
    r"^[ \t]*(?:\.(?:globl|global|private_extern|weak_definition|extern)[ \t]+)?_(\w+)[ \t]*(?::|$)",
    re.MULTILINE,
)
_ONLY_OF_MACS = re.compile(r"^[ \t]*\.(?:subsections_via_symbols|build_version\b.*)$", re.MULTILINE)


def is_of_mac(text: str) -> bool:
    return _SECTION.search(text) is not None


def for_linux(text: str) -> str:
    """Returns the assembly for ELF: sections without segments, and names as C has them, without an underscore in front."""

    def section(match: re.Match) -> str:
        indent, segment, name = match.groups()
        if (segment, name) == ("__TEXT", "__text"):
            return f"{indent}.text"
        group, flags = (".data", "aw") if segment == "__DATA" else (".rodata", "a")
        return f'{indent}.section {group}.{name},"{flags}"'

    names = sorted(set(_NAMED.findall(text)), key=len, reverse=True)
    result = _ONLY_OF_MACS.sub("", _SECTION.sub(section, text)).replace(
        ".private_extern", ".hidden"
    )
    if names:
        result = re.sub(rf"(?<![\w./\"])_({'|'.join(map(re.escape, names))})\b", r"\1", result)
    return result
