"""Writes out the designators of array elements, `{[0 ... n - 1] = x, [k] = y}`, which g++ does not have.

Lists whose positions are all numbers get their elements in order. Other arrays must be local ones, of which statements
after the declaration set the elements: what `n` is may differ from instance to instance of a template. What is neither stays
as it is, for compilers that know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..analysis.program import Program, declarator_kinds, declared_identifier
from ..source.locations import LineMap
from ..source.parse import Source
from .insertion import Insertion, inserted

_MOST_ELEMENTS = 4096
_DESIGNATORS = ("subscript_designator", "subscript_range_designator")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+[uU]?|[1-9]\d*[uU]?|0[uU]?")
_EFFECT = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)")


def with_elements(program: Program, lines: LineMap) -> Program:
    """Returns the program without such designators: the program itself, if it has none. lines: the map of its text,
    which becomes that of the new program's."""
    found = sorted(_insertions(program.source), key=lambda i: i.offset)
    if not found:
        return program
    # The text of a list has those in it, too.
    outer = [i for i in found if not any(o.offset < i.offset < o.until for o in found)]
    made = Program(Source(inserted(program.source.text, outer, lines)))
    made.left_out = program.left_out
    return with_elements(made, lines) if len(outer) < len(found) else made


def _insertions(source: Source) -> Iterator[Insertion]:
    lists = {}
    for kind in _DESIGNATORS:
        for node in source.find(f"(initializer_pair ({kind}) @d)"):
            outer = node.parent.parent
            if outer.type == "initializer_list" and not outer.has_error:
                lists[outer.start_byte] = outer
    for node in lists.values():
        items = [_item(source, i) for i in node.named_children if i.type != "comment"]
        if None in items:
            continue
        elements = _in_order(items)
        if elements is not None:
            yield Insertion(node.start_byte, f"{{{', '.join(elements)}}}", node.end_byte)
        else:
            yield from _as_statements(source, node, items)


def _item(source: Source, node) -> tuple | None:
    """Returns (first position, last position, value) of an item of a list, as text; "" for the position after the last
    item's; None if more than an element is designated."""
    if node.type != "initializer_pair":
        return "", "", source.text[node.start_byte : node.end_byte]
    designators = node.children_by_field_name("designator")
    if len(designators) != 1 or designators[0].type not in _DESIGNATORS:
        return None
    inside = [c for c in designators[0].named_children if c.type != "comment"]
    value = node.child_by_field_name("value")
    first, last = (source.node_text(inside[i]) for i in (0, -1))
    return first, last, source.text[value.start_byte : value.end_byte]


def _in_order(items: list[tuple]) -> list[str] | None:
    """Returns the elements of an array from its first on; None if some position is no number."""
    elements: dict[int, str] = {}
    at = 0
    for first, last, value in items:
        if first and not (_NUMBER.fullmatch(first) and _NUMBER.fullmatch(last)):
            return None
        low, high = (int(n.rstrip("uU"), 0) for n in (first, last)) if first else (at, at)
        if high >= _MOST_ELEMENTS or (low < high and _EFFECT.search(value)):
            return None
        elements.update(dict.fromkeys(range(low, high + 1), value))
        at = high + 1
    return [elements.get(i, "{}") for i in range(max(elements) + 1)]


def _as_statements(source: Source, node, items: list[tuple]) -> Iterator[Insertion]:
    """Yields the declaration of a local array without its list, and the statements that set its elements."""
    declarator = node.parent.child_by_field_name("declarator")
    declaration = node.parent.parent
    if node.parent.type != "init_declarator" or declaration.type != "declaration":
        return
    specifiers = {source.node_text(c) for c in declaration.named_children}
    size = declarator.child_by_field_name("size") if declarator.type == "array_declarator" else None
    if (
        size is None
        or declarator_kinds(declarator) != ["array"]
        or specifiers & {"static", "constexpr"}
    ):
        return
    if declaration.parent.type not in ("compound_statement", "case_statement"):
        return
    if any(first != last and _EFFECT.search(value) for first, last, value in items):
        return
    name = source.node_text(declared_identifier(declarator))
    for qualifier in declaration.named_children:
        if qualifier.type == "type_qualifier" and source.node_text(qualifier) == "const":
            yield Insertion(qualifier.start_byte, "", qualifier.end_byte)
    yield Insertion(
        source.text.index("=", declarator.end_byte),
        "" if _is_all(items, source.node_text(size)) else "= {}",
        node.end_byte,
    )
    at, statements = "0", []
    for first, last, value in items:
        first, last = first or at, last or at
        if first == last:
            statements.append(f" {name}[{first}] = {value};")
        else:
            statements.append(
                f" for (int msl_position = {first}; msl_position <= {last}; ++msl_position)"
                f" {name}[msl_position] = {value};"
            )
        at = f"({last}) + 1"
    yield Insertion(declaration.end_byte, "".join(statements))


def _is_all(items: list[tuple], size: str) -> bool:
    """Returns true for the one item `[0 ... size - 1] = x`."""
    first, last = items[0][:2]
    return (
        len(items) == 1
        and first == "0"
        and re.sub(r"\s", "", last) == re.sub(r"\s", "", size) + "-1"
    )
