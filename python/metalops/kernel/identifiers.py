"""Names in Metal text: which ones a user may choose, and which ones a text mentions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..msl.source.vocabulary import HIDDEN_BY_NAMES, KEYWORDS

RESERVED = KEYWORDS | HIDDEN_BY_NAMES

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A number may end in letters (1.0h, 0x1F, 2u), which are not names.
_NO_NAMES = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?<![A-Za-z0-9_])\.?[0-9](?:[eEpP][+-]|[A-Za-z0-9_.'])*""",
    re.DOTALL,
)


def check_identifier(owner: str, role: str, name: object) -> str:
    """Returns ``name`` if Metal code can use it, else raises TypeError or ValueError.

    owner: the subject of the error ("metal_kernel 'blur'"). role: what the name stands for ("input name").
    """
    if not isinstance(name, str):
        raise TypeError(f"{owner}: {role} must be a string, but got {name!r}")
    if not _WORD.fullmatch(name):
        raise ValueError(f"{owner}: {role} {name!r} is not an identifier")
    if name in RESERVED:
        raise ValueError(f"{owner}: {role} {name!r} is a word that Metal reserves")
    if name.startswith("__") or (name[0] == "_" and name[1:2].isupper()):
        raise ValueError(f"{owner}: {role} {name!r} is reserved for the Metal compiler")
    return name


def check_distinct(owner: str, roles: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Raises ValueError if a name occurs twice. roles: pairs of a role ("input names") and its names."""
    seen: dict[str, str] = {}
    for role, names in roles:
        for name in names:
            if name in seen:
                both = role if seen[name] == role else f"{seen[name]} and {role}"
                raise ValueError(f"{owner}: {name!r} occurs twice in {both}")
            seen[name] = role


def check_text(owner: str, role: str, text: object) -> str:
    """Returns ``text`` if it is a string, else raises TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"{owner}: {role} must be a string of Metal code, but got {text!r}")
    return text


def mentioned(text: str) -> frozenset[str]:
    """Returns the identifiers that occur in Metal code, without those in comments and literals."""
    return frozenset(_WORD.findall(without_comments(text)))


def without_comments(text: str) -> str:
    """Returns Metal code with a space for each comment and 0 for each literal, from which its structure can be read."""
    return _NO_NAMES.sub(lambda match: " " if match.group()[0] == "/" else " 0 ", text)
