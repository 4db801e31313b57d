"""Rules about tokens that reach outside of Metal, as confinement.py finds them. No build accepts them."""

from __future__ import annotations

from ..analysis import confinement
from .checked import Checked
from .rules import rule

_RULES = {
    "asm": rule("asm", "1.5.4", "There is no inline assembly."),
    "linkage": rule(
        "linkage", "1.5.4", 'There is no language linkage but extern "C" and extern "C++".'
    ),
    "attribute": rule(
        "compiler-attribute",
        "5.2",
        "Of compilers' attributes there are those for inlining, layout and diagnostics.",
    ),
    "builtin": rule(
        "compiler-builtin", "6", "Of compilers' builtins there are those that compute."
    ),
    "name": rule("generated-name", "1.4", "No name begins with msl_ or MSL_, or belongs to msl."),
    "spelling": rule(
        "spelling",
        "1.4",
        "Tokens are those of Metal: no raw strings, digraphs, _Pragma, and no directives but those of the preprocessor.",
    ),
}


def check(checked: Checked) -> None:
    """Reports violations of the rules of this group."""
    for breach in confinement.breaches(checked.source.text):
        checked.report(_RULES[breach.kind], breach.offset, breach.message)
