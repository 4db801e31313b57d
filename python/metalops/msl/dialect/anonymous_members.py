"""Lets members of anonymous structs have types with constructors, as half and vectors do: in Metal they are plain types, and
g++ refuses them there. It checks no member of a dependent type; so a class with such members becomes a class template, and
its name an alias of the one instance of it:

    struct s { union { struct { half d, m; }; half2 dm; }; };
    template <class msl_Any> struct msl_of_s { union { struct { typename dependent<half, msl_Any>::type d, m; }; half2 dm; }; };
    using s = msl_of_s<void>;

Classes in functions, where no template may stand, and classes whose name C++ takes for no alias are left as they are.
"""

from __future__ import annotations

import re

from ..analysis.program import declared_identifier, template_parameters
from ..source.vocabulary import INTEGERS
from . import names

PREFIX = "msl_of_"
_NAMED_TYPES = ("type_identifier", "qualified_identifier", "template_type")
_SPECIFIERS = re.compile(r"(?:typedef|const|static|\s)*$")


def anonymous_members(rewritten) -> None:
    source = rewritten.program.source
    holders: dict[int, tuple] = {}
    for kind in ("struct_specifier", "class_specifier"):
        for node in source.find(f"(field_declaration type: ({kind}) @s)"):
            types = _types_of_members(source, node) if _is_anonymous(node) else []
            holder = _holder(node)
            if types and holder is not None:
                holders.setdefault(holder.start_byte, (holder, []))[1].extend(types)
    for holder, types in holders.values():
        _rewrite(rewritten, holder, types)


def _is_anonymous(node) -> bool:
    parent = node.parent
    return (
        parent.type == "field_declaration"
        and node.child_by_field_name("name") is None
        and node.child_by_field_name("body") is not None
        and parent.child_by_field_name("declarator") is None
    )


def _types_of_members(source, node) -> list:
    """Returns the types of the members of an anonymous struct that may be classes."""
    found = []
    for member in node.child_by_field_name("body").named_children:
        type_node = member.child_by_field_name("type")
        if member.type == "field_declaration" and type_node.type in _NAMED_TYPES:
            if source.node_text(type_node) not in INTEGERS:
                found.append(type_node)
    return found


def _holder(node):
    """Returns the class that the members of an anonymous struct are members of; None if it is in a function."""
    while _is_anonymous(node):
        node = node.parent.parent.parent
    around = node.parent
    while around is not None:
        if around.type in ("compound_statement", "parameter_list", "lambda_expression"):
            return None
        around = around.parent
    return node


def _rewrite(rewritten, holder, types: list) -> None:
    source, edits = rewritten.program.source, rewritten.edits
    name = holder.child_by_field_name("name")
    if holder.parent.type == "template_declaration":
        header = holder.parent.child_by_field_name("parameters")
        if template_parameters(header):
            _make_dependent(edits, types, source.node_text(name))
        return
    declaration = holder.parent
    if declaration.type not in ("type_definition", "declaration", "field_declaration"):
        declaration = holder
    declarators = declaration.children_by_field_name("declarator")
    declared = [source.node_text(declared_identifier(d) or d) for d in declarators]
    specifiers = source.text[declaration.start_byte : holder.start_byte]
    if name is None and not declared or not _SPECIFIERS.match(specifiers):
        return
    own = source.node_text(name) if name is not None else declared[0]
    if name is not None and not _may_be_alias(source, holder, own):
        return
    body = holder.child_by_field_name("body")
    template = f"{PREFIX}{own}"
    if specifiers:
        edits.blank(declaration.start_byte, holder.start_byte)
    edits.insert(holder.start_byte, "template <class msl_Any> ")
    if name is None:
        edits.insert(body.start_byte, f"{template} ")
    else:
        edits.replace(name.start_byte, name.end_byte, template)
        if re.search(rf"\b{own}\b", source.masked_text(body)):
            edits.insert(body.start_byte + 1, f" using {own} = {template};")
    _make_dependent(edits, types, "msl_Any")
    end = declarators[0].start_byte if declarators else source.masked.index(";", holder.end_byte)
    alias = f"using {own} = {template}<void>"
    if not declarators:
        edits.insert(end, f"; {alias}")
        return
    alias = f"{alias}; " if name is not None and own not in declared else ""
    edits.insert(end, f"; {alias}{specifiers}{template}<void> ")


def _may_be_alias(source, holder, name: str) -> bool:
    """Returns false if the program names a class in a way in which it may not name an alias: `struct s`, and where its
    constructors, destructor and members are defined."""
    heads = re.finditer(rf"\b(?:struct|class|union)\s+{name}\b", source.masked)
    if any(not holder.start_byte <= m.start() <= holder.end_byte for m in heads):
        return False
    body = holder.child_by_field_name("body")
    return not (
        re.search(rf"\b{name}\s*\(", source.masked_text(body))
        or re.search(rf"\b{name}\s*::\s*[~\w]+\s*\(", source.masked)
    )


def _make_dependent(edits, types: list, on: str) -> None:
    for node in types:
        edits.wrap(
            node.start_byte,
            node.end_byte,
            f"typename {names.SUPPORT}::dependent<",
            f", {on}>::type",
        )
