"""Constants that are a generic lambda's parameter: `[&](auto i) { if constexpr (i) f<i.value>(); }`.

NVRTC does not accept i as a constant if a lambda inside this one has captured it, but accepts another object of its
type.
"""

from __future__ import annotations

from ...analysis.program import declared_identifier
from ...dialect.rewrite import Rewritten
from ...source.tree import is_constexpr_if, walk

_NAMES = ("identifier", "type_identifier")  # the grammar parses some template arguments as types


def name_types_of_constants(rewritten: Rewritten) -> None:
    source = rewritten.program.source
    found: dict[int, tuple[int, str]] = {}
    for node in source.find("(lambda_expression) @l"):
        names = _parameters(source, node)
        for inner in walk(node.child_by_field_name("body")) if names else ():
            if inner.type == "template_argument_list":
                constant = inner
            elif inner.type == "if_statement" and is_constexpr_if(inner):
                constant = inner.child_by_field_name("condition")
            else:
                continue
            for name in walk(constant):
                if name.type in _NAMES and source.node_text(name) in names:
                    found[name.start_byte] = name.end_byte, source.node_text(name)
    for start, (end, name) in found.items():
        if not rewritten.is_removed(start):
            rewritten.edits.replace(start, end, f"decltype({name}){{}}")


def _parameters(source, node) -> set[str]:
    """Returns the names of a lambda's parameters of type auto."""
    declarator = node.child_by_field_name("declarator")
    parameters = declarator and declarator.child_by_field_name("parameters")
    names = set()
    for parameter in parameters.named_children if parameters else ():
        kind = parameter.child_by_field_name("type")
        identifier = parameter.child_by_field_name("declarator")
        if kind is not None and kind.type == "placeholder_type_specifier":
            if identifier is not None and identifier.type == "identifier":
                names.add(source.node_text(declared_identifier(identifier)))
    return names
