"""Writes class templates where uses name them by alias templates, `template <typename P> using any = s<P>;`, so that
copies of these classes (class_copies.py) see what the uses give them.
"""

from __future__ import annotations

import re

from ..analysis.program import Program, template_parameters
from ..analysis.types import Types
from .insertion import Insertion


def without_aliases(program: Program, types: Types) -> list[Insertion]:
    """Returns the insertions that take the place of the uses of alias templates that mean a class template of the
    program; of uses in the arguments of others only the outer ones."""
    source = program.source
    aliases = {}
    for node in source.find("(alias_declaration) @a"):
        name = source.masked_text(node.child_by_field_name("name"))
        meant = node.child_by_field_name("type").child_by_field_name("type")
        while meant is not None and meant.type == "qualified_identifier":
            meant = meant.child_by_field_name("name")
        written = _meant(program, types, name, meant)
        if node.parent.type == "template_declaration" and written is not None:
            aliases[name] = (node, meant, written)
    found: list[Insertion] = []
    for node in source.find("(template_type) @t") if aliases else ():
        name = source.masked_text(node.child_by_field_name("name"))
        if name not in aliases:
            continue
        declaration, meant, written = aliases[name]
        header = template_parameters(declaration.parent.child_by_field_name("parameters"))
        names = [source.masked_text(p.identifier) for p in header]
        arguments = node.child_by_field_name("arguments")
        given = [types.in_arguments(a) for a in arguments.named_children]
        if len(given) != len(names):
            continue
        whole = node
        while whole.parent.type == "qualified_identifier" and (
            whole.parent.child_by_field_name("name") == whole
        ):
            whole = whole.parent
        if found and whole.start_byte < found[-1].until:
            continue
        texts = dict(zip(names, given, strict=True))
        pattern = rf"\b(?:{'|'.join(map(re.escape, names))})\b"
        start = meant.child_by_field_name("name").end_byte
        text = source.text[start : meant.end_byte]
        text = re.sub(pattern, lambda m, texts=texts: texts[m.group()], text)
        if "\n" not in text:
            found.append(Insertion(whole.start_byte, written + text, whole.end_byte))
    return found


def _meant(program: Program, types: Types, name: str, meant) -> str | None:
    """Returns the name of the class template that an alias means, or of the library's comparison; None for other aliases,
    and those that cannot be written where they are used."""
    if types.alias_template(name) is None or meant is None or meant.type != "template_type":
        return None
    called = program.source.masked_text(meant.child_by_field_name("name"))
    scopes = [s for s in program.classes if s.name == called]
    if not scopes and called == "is_same":
        return "metal::is_same"
    if len(scopes) != 1 or any(part.startswith("class ") for part in scopes[0].path):
        return None
    path = "".join(f"{part}::" for part in scopes[0].path if part)
    return f"{'::' if path else ''}{path}{called}" if scopes[0].template_headers else None
