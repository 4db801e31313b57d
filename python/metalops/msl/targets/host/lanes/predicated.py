"""Writes the statements of one lane: as they are, or so that they change something only if the lane takes part.

What has no effect but on variables is computed by all lanes, and those that do not take part keep the old values: a
compiler makes vector code of that. Loads, stores and calls that may change something are run only by lanes that take
part.
"""

from __future__ import annotations

from ....analysis.scopes import Declaration
from ....dialect import names
from ....dialect.edits import Edits, Mapped
from ....source.tree import alternative_of, statements_of, walk
from .analysis import Values, inside
from .reasons import NoLanes

_S = names.SUPPORT
_EFFECTS = ("assignment_expression", "update_expression")
_LOADS = ("subscript_expression", "pointer_expression", "lambda_expression")


class Predicated:
    """out: where the text goes. replaced: (start, end, text) of what is replaced in it."""

    def __init__(self, values: Values, edits: Edits, replaced: list, has_loop: bool):
        self._values = values
        self._edits = edits
        self._replaced = replaced
        self._has_loop = has_loop
        self._masks = 0
        self.out = Mapped()

    def statement(self, node, mask: str | None) -> None:
        """Writes a statement for lanes whose variable `mask` is 1; for all lanes without one."""
        if mask is None:
            self._text(node)
        elif node.type == "compound_statement":
            self.out.add("{\n")
            for inner in statements_of(node):
                self.statement(inner, mask)
            self.out.add("}\n")
        elif node.type == "if_statement":
            self._if(node, mask)
        elif node.type in ("break_statement", "continue_statement", "return_statement"):
            self._leave(node, mask)
        elif node.type == "declaration":
            self._declaration(node, mask)
        elif node.type == "switch_statement":
            if self._values.leaves(node):
                raise NoLanes("a switch that continues a loop or returns")
            self._only_if(node, mask)
        else:
            self._expression(node, mask)

    def condition(self, node, mask: str) -> str:
        """Returns the name of a variable that is 1 for lanes of a mask for which a condition holds."""
        self._masks += 1
        name = f"msl_mask_{self._masks}"
        value = self._copy(node)
        if self.is_safe(node):
            self.out.add(f"unsigned {name} = {_S}::holds_too({mask}, static_cast<bool>(")
            self.out.add(value)
            self.out.add("));\n")
        else:
            self.out.add(f"unsigned {name} = 0; if ({mask}) {name} = static_cast<bool>(")
            self.out.add(value)
            self.out.add(");\n")
        return name

    def is_safe(self, node) -> bool:
        """Returns true if lanes that do not take part may compute something, too: it has no effect and reads no memory."""
        return not any(n.type in _EFFECTS for n in walk(node)) and not _reads_memory(node)

    # ---- text ----------------------------------------------------------------------------------------

    def _copy(self, node) -> Mapped:
        here = [r for r in self._replaced if node.start_byte <= r[0] < node.end_byte]
        return Mapped(*self._edits.apply(node.start_byte, node.end_byte, here))

    def _text(self, node) -> None:
        here = [r for r in self._replaced if node.start_byte <= r[0] < node.end_byte]
        start = self._values.source.previous_code(node.start_byte) + 1
        if node.type.endswith("_expression"):
            start = node.start_byte
        self.out.add(Mapped(*self._edits.apply(start, node.end_byte, here)))
        self.out.add(";\n" if node.type.endswith("_expression") else "\n")

    def _only_if(self, node, mask: str) -> None:
        self.out.add(f"if ({mask}) {{\n")
        self._text(node)
        self.out.add("}\n")

    # ---- statements ----------------------------------------------------------------------------------

    def _if(self, node, mask: str) -> None:
        leaves = self._values.leaves(node)
        clause = node.child_by_field_name("condition")
        value = clause.child_by_field_name("value")
        if clause.named_child_count != 1 or value.type == "declaration":
            if leaves:
                raise NoLanes("a condition that declares a variable")
            self._only_if(node, mask)
            return
        other = alternative_of(node)
        self.out.add("{\n")
        holds = self.condition(value, mask)
        if other is not None:
            self.out.add(f"unsigned {holds}_not = {mask} & ({holds} ^ 1u);\n")
        self.statement(node.child_by_field_name("consequence"), holds)
        if other is not None:
            self.statement(other, f"{holds}_not")
        self.out.add("}\n")
        if leaves:
            self.out.add(f"{mask} &= ~msl_gone;\n")

    def _leave(self, node, mask: str) -> None:
        out = f"msl_gone |= {mask}; "
        if node.type != "continue_statement" and self._has_loop:
            out += f"msl_live &= ~{mask}; "
        if node.type == "return_statement":
            out += f"msl_lane_alive &= ~{mask}; "
        self.out.add(f"{out}{mask} = 0;\n")

    def _declaration(self, node, mask: str) -> None:
        if self.is_safe(node):
            self._text(node)
            return
        for declaration in self._values.declared_by(node):
            self._declare(declaration, mask)

    def _declare(self, declaration: Declaration, mask: str) -> None:
        value, name = declaration.initialiser, declaration.name
        if any(n.type in _EFFECTS for n in walk(declaration.node)):
            raise NoLanes(f"'{name}', whose value changes other variables")
        type_ = self._values.text(declaration.type_node)
        if declaration.kinds or type_ == "auto":
            raise NoLanes(f"'{name}', which is read from memory where threads diverge")
        written = self._edits.text_of(
            declaration.type_node.start_byte, declaration.type_node.end_byte
        )
        if value is None:
            self.out.add(f"{written} {name};\n")
            return
        is_list = value.type in ("argument_list", "initializer_list", "parameter_declaration")
        self.out.add(f"{written} {name} = {written}(); if ({mask}) {name} = ")
        self.out.add(written if is_list else "(")
        self.out.add(self._copy(value))
        self.out.add(";\n" if is_list else ");\n")

    def _expression(self, node, mask: str) -> None:
        changed = self._changed(node)
        if changed is None or _reads_memory(node):
            self._only_if(node, mask)
            return
        self.out.add("{ ")
        for name in changed:
            self.out.add(f"const auto msl_old_{name} = {name}; ")
        self._text(node)
        for name in changed:
            self.out.add(f"{name} = {_S}::chosen({mask}, {name}, msl_old_{name}); ")
        self.out.add("}\n")

    def _changed(self, node) -> list[str] | None:
        """Returns the names of the variables that an expression changes; None if it may change anything else."""
        found, known = [], set()
        for declaration in self._values.variables:
            here = [d.start_byte for d in declaration.definitions if inside(d, node)]
            if here and declaration.kinds:
                return None
            if here:
                found.append(declaration.name)
                known.update(here)
        effects = [n.start_byte for n in walk(node) if n.type in _EFFECTS]
        return found if known.issuperset(effects) else None


def _reads_memory(node) -> bool:
    return any(
        n.type in _LOADS
        or (n.type == "field_expression" and n.child_by_field_name("operator").type != ".")
        for n in walk(node)
    )
