"""Words of the language: attributes that Metal does not have, and reserved names."""

from __future__ import annotations

import difflib
import re

from ..analysis.program import declared_identifier
from ..source.parse import ADDRESS_SPACES, STAGES
from ..source.vocabulary import ATTRIBUTES, KEYWORDS
from .checked import Checked
from .rules import rule

UNKNOWN = rule("unknown-attribute", "5.2", "An attribute is one of Metal's or of C++'s.")
RESERVED = rule("reserved-word", "1.4", "No name is a keyword of C++ or of Metal.")

# Names that are declared other than by a declarator.
_NAMED = (
    "[(struct_specifier name: (_) @n) (class_specifier name: (_) @n) (union_specifier name: (_) @n)"
    " (enum_specifier name: (_) @n) (enumerator name: (_) @n) (alias_declaration name: (_) @n)"
    " (namespace_definition name: (_) @n)"
    " (type_parameter_declaration (type_identifier) @n)]"
)
_DECLARED = (
    "[(declaration declarator: (_) @d) (field_declaration declarator: (_) @d)"
    " (parameter_declaration declarator: (_) @d)"
    " (optional_parameter_declaration declarator: (_) @d) (for_range_loop declarator: (_) @d)"
    " (type_definition declarator: (_) @d)]"
)
# Tokens that follow a name and never a word that qualifies a type.
_BEHIND_A_NAME = re.compile(r"\s*(?:[=;,\[.+\-/<>!|^?]|\)(?!\s*\w))")


def check(checked: Checked) -> None:
    """Reports violations of the rules of this group."""
    _attributes(checked)
    _declared_names(checked)
    _blanked_words(checked)


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


def _declared_names(checked: Checked) -> None:
    identifiers = list(checked.source.find(_NAMED))
    identifiers += filter(None, map(declared_identifier, checked.source.find(_DECLARED)))
    identifiers += [
        f.declarator.child_by_field_name("declarator")
        for f in checked.program.functions
        if f.name in KEYWORDS
    ]
    for identifier in identifiers:
        if identifier is None or checked.text(identifier) not in KEYWORDS:
            continue
        before = checked.source.masked[max(0, identifier.start_byte - 99) : identifier.start_byte]
        if not re.search(r"\boperator\s*$", before):  # of a conversion
            _report(checked, identifier, checked.text(identifier))


def _blanked_words(checked: Checked) -> None:
    """Reports address spaces and stages that stand where a name would: the parser does not see them."""
    text, masked = checked.source.text, checked.source.masked
    for word in checked.source.words:
        if word.text not in (*ADDRESS_SPACES, *STAGES) or not checked.wants(word.start):
            continue
        before = checked.source.previous_code(word.start)
        # After parameters the word qualifies a member function: `T get() constant;`
        is_behind_type = before >= 0 and re.search(
            r"[\w>*&]$(?<!\bconst)(?<!\bvolatile)", masked[max(0, before - 9) : before + 1]
        )
        is_function = word.text in STAGES and re.compile(r"\s*\(").match(text, word.end)
        if is_behind_type and (is_function or _BEHIND_A_NAME.match(text, word.end)):
            _report(checked, word.start, word.text)


def _report(checked: Checked, place, name: str) -> None:
    checked.report(
        RESERVED, place, f"{name} is a word of the language; choose another name, such as {name}_"
    )
