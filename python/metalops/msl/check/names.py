"""Words of the language: attributes that Metal does not have, and reserved names."""

from __future__ import annotations

import difflib

from ..analysis.reserved import declared_keywords, erased_names, reserved_name
from ..source.vocabulary import ATTRIBUTES
from .checked import Checked
from .rules import rule

UNKNOWN = rule("unknown-attribute", "5.2", "An attribute is one of Metal's or of C++'s.")
RESERVED = rule("reserved-word", "1.4", "No name is a keyword of C++ or of Metal.")


def check(checked: Checked) -> None:
    """Reports violations of the rules of this group."""
    _attributes(checked)
    _names(checked)


def _attributes(checked: Checked) -> None:
    for attributes in checked.source.attribute_lists:
        for attribute in attributes.attributes:
            before = checked.source.text[attributes.start : attribute.start]
            if attribute.name in ATTRIBUTES or before.rstrip().endswith("::"):
                continue
            near = difflib.get_close_matches(attribute.name, sorted(ATTRIBUTES), 1)
            instead = f"write [[{near[0]}]]" if near else "leave it out"
            checked.report(
                UNKNOWN, attribute.start, f"there is no attribute {attribute.name}; {instead}"
            )


def _names(checked: Checked) -> None:
    found = {*declared_keywords(checked.program), *erased_names(checked.source)}
    for offset, name in sorted(found):
        checked.report(RESERVED, offset, reserved_name(name))
