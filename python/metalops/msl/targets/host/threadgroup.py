"""Threadgroup variables of a kernel: references into the memory of the running group.

The kernel gets the group as a hidden last parameter. The size of its variables is an emitted constant expression,
because their types may depend on template arguments.
"""

from __future__ import annotations

import re

from ...analysis.program import (
    Kernel,
    ProgramError,
    check_initializer,
    declarator_kinds,
    declared_identifier,
)
from ...dialect import names

_NAME = re.compile(r"[A-Za-z_]\w*")


def rewrite_variables(rewritten, kernel: Kernel) -> None:
    """Turns each declaration of threadgroup variables into one of references."""
    by_declaration: dict[int, list] = {}
    for variable in kernel.threadgroup_variables:
        by_declaration.setdefault(variable.declaration.start_byte, []).append(variable)
    for variables in by_declaration.values():
        declaration = variables[0].declaration
        declarators = declaration.children_by_field_name("declarator")
        if len(declarators) != len(variables):
            raise ProgramError(
                "pointers and variables in threadgroup memory need declarations of their own",
                declaration.start_byte,
            )
        pieces = []
        for variable in variables:
            check_initializer(rewritten.program.source, variable.declarator)
            alias = f"msl_threadgroup_{variable.number}"
            name = rewritten.program.source.node_text(variable.identifier)
            pieces.append(
                f"{_typedef(rewritten.edits, variable, alias)} {alias}& {name} = "
                f"{names.THREADGROUP_VARIABLE}<{alias}>(msl_group, {variable.number});"
            )
        start = min(declaration.start_byte, variables[0].space_word.start)
        rewritten.edits.replace(start, declaration.end_byte, " ".join(pieces))


def _typedef(edits, variable, alias: str) -> str:
    """Returns `typedef T alias[N];` for a threadgroup variable."""
    type_node = variable.declaration.child_by_field_name("type")
    identifier, declarator = variable.identifier, variable.declarator
    if declarator.type == "init_declarator":
        declarator = declarator.child_by_field_name("declarator")
    base = edits.text_of(type_node.start_byte, type_node.end_byte)
    before = edits.text_of(declarator.start_byte, identifier.start_byte)
    after = edits.text_of(identifier.end_byte, declarator.end_byte)
    return f"typedef {base} {before}{alias}{after};".replace("\n", " ")


def size_block(rewritten, kernel: Kernel, variable) -> str:
    """Returns a block that adds one variable to msl_used, with the local declarations its type mentions.

    The conditions of `if constexpr` around the variable are kept: a discarded branch needs no memory.
    """
    source, edits = rewritten.program.source, rewritten.edits
    alias = f"msl_threadgroup_{variable.number}"
    text = (
        f"{_typedef(edits, variable, alias)} "
        f"msl_used = {names.SUPPORT}::place(msl_used, sizeof({alias}));"
    )
    needed = set(_NAME.findall(text))
    node = variable.declaration
    body = kernel.function.body
    while node.start_byte != body.start_byte or node.type != body.type:
        before = node.prev_named_sibling if node.parent.type != "if_statement" else None
        while before is not None:
            declared = _constants_and_types(source, before)
            if declared is not None and (not declared or declared & needed):
                declaration = edits.text_of(before.start_byte, before.end_byte)
                needed |= set(_NAME.findall(declaration))
                text = f"{declaration}\n{text}"
            before = before.prev_named_sibling
        parent = node.parent
        if parent.type == "if_statement" and any(c.type == "constexpr" for c in parent.children):
            clause = parent.child_by_field_name("condition")
            condition = edits.text_of(clause.start_byte, clause.end_byte)
            if parent.child_by_field_name("consequence") != node:
                condition = f"(!{condition})"
            needed |= set(_NAME.findall(condition))
            text = f"if constexpr {condition} {{ {text} }}"
        node = parent
    return "{ " + text + " }"


def _constants_and_types(source, node) -> set[str] | None:
    """Returns the names that a statement declares as constants or types.

    Empty for using-directives, which are always needed; None for other statements.
    """
    kind = node.type
    if kind == "using_declaration":
        return set()
    if kind == "alias_declaration":
        return {source.node_text(node.child_by_field_name("name"))}
    if kind == "type_definition":
        declarators = node.children_by_field_name("declarator")
        return {source.node_text(d).split("[")[0].strip("*& ") for d in declarators}
    if kind in ("struct_specifier", "class_specifier", "enum_specifier"):
        name = node.child_by_field_name("name")
        return {source.node_text(name)} if name else set()
    if kind != "declaration":
        return None
    declarators = node.children_by_field_name("declarator")
    qualifiers = [source.node_text(c) for c in node.children if c.type == "type_qualifier"]
    words = source.words_in(source.previous_code(node.start_byte) + 1, declarators[0].start_byte)
    constant = {"const", "constexpr"} & set(qualifiers) or any(w.text == "constant" for w in words)
    if not constant or any(
        declarator_kinds(d, True) & {"pointer", "reference"} for d in declarators
    ):
        return None
    return {source.node_text(i) for i in map(declared_identifier, declarators) if i is not None}
