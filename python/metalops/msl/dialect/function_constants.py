"""Turns function constants into variables of the library, or into constants if their values are compiled in.

Program-scope constants computed from them are variables, too, recomputed whenever the function constants have been
given values (metalops_bind does it).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..analysis.program import (
    FunctionConstant,
    declarator_kinds,
    declared_identifier,
    integer_value,
    last_name,
)
from ..source.parse import closing_bracket
from . import names

_NAMES = "[(identifier) (qualified_identifier)] @n"
_IS_DEFINED = re.compile(r"\b(?:metal\s*::\s*)?is_function_constant_defined\s*\(")


@dataclass
class Derived:
    """Program-scope constants of one declaration that are computed from function constants."""

    path: tuple[str, ...]
    number: int


class FunctionConstants:
    """Rewrites function constants. Runs after expressions were rewritten, because it copies their text."""

    def __init__(self, rewritten, compiled_in: bool):
        self.rewritten = rewritten
        self.compiled_in = compiled_in
        self.program = rewritten.program
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.dependent: set[int] = set()  # offsets of declarations

    def run(self) -> None:
        self._is_defined()
        for node, path, head in self.program.declarations:
            attributes = self.source.attributes_in(head, self.source.next_code(node.end_byte))
            index = next((a for a in attributes if a.name == "function_constant"), None)
            if index is not None:
                self._function_constant(node, path, head, index.arguments or "0")
            elif self.dependent:
                self._derived_constants(node, path, head)

    def _is_defined(self) -> None:
        if any(f.name == "is_function_constant_defined" for f in self.program.functions):
            return  # the program's own
        if "is_function_constant_defined" not in self.source.words_at:
            return
        for match in _IS_DEFINED.finditer(self.source.masked):
            close = closing_bracket(self.source.masked, match.end() - 1)
            if close is not None:
                argument = self.source.masked[match.end() : close - 1].strip()
                *scope, name = re.split(r"\s*::\s*", argument)
                flag = "::".join([*scope, f"msl_is_defined_{name}"])
                self.edits.replace(match.start(), close, f"({flag} != 0)")

    def _function_constant(self, node, path, head: int, index: str) -> None:
        pieces = []
        for declarator in node.children_by_field_name("declarator"):
            name = self.source.node_text(declared_identifier(declarator))
            own = index if integer_value(index) is not None else f"msl_index_of_{name}"
            self.program.function_constants.append(FunctionConstant(name, path, own))
            self.dependent.add(node.start_byte)
            kind = self._type(node)
            if self.compiled_in:
                value = f"{names.SUPPORT}::function_constant<({index})>"
                pieces.append(
                    f"static constexpr {kind} {name} = {value}::template get<{kind}>(); "
                    f"static constexpr {names.ABI}::u8 msl_is_defined_{name} = {value}::is_defined;"
                )
            else:
                pieces.append(
                    f"static {kind} {name}; static {names.ABI}::u8 msl_is_defined_{name};"
                )
                if own != index:  # an expression, which means something where it stands
                    pieces.append(f"static constexpr int {own} = int({index});")
        self._replace(node, head, " ".join(pieces))

    def _derived_constants(self, node, path, head: int) -> None:
        constants = [self._derived(d) for d in node.children_by_field_name("declarator")]
        if not constants or None in constants:
            return
        self.dependent.add(node.start_byte)
        if self.compiled_in:
            values = ", ".join(f"{name} = {value}" for name, value in constants)
            text = f"static constexpr {self._type(node)} {values};"
            self._replace(node, head, text.replace("\n", " "))
            return
        number = len(self.rewritten.derived)
        self.rewritten.derived.append(Derived(path, number))
        declared = ", ".join(name for name, _ in constants)
        computed = " ".join(f"{name} = {value};" for name, value in constants)
        text = (
            f"static {self._type(node)} {declared}; "
            f"static void msl_derive_{number}() {{ {computed} }}"
        )
        self._replace(node, head, text.replace("\n", " "))

    def _derived(self, declarator) -> tuple[str, str] | None:
        """Returns the name and value of a scalar or vector that depends on function constants, or None."""
        value = declarator.child_by_field_name("value")
        identifier = declared_identifier(declarator)
        if value is None or identifier is None or declarator_kinds(declarator):
            return None
        if not any(map(self._is_dependent, self.source.find(_NAMES, value))):
            return None
        text = self.edits.text_of(value.start_byte, value.end_byte)
        return self.source.node_text(identifier), text

    def _is_dependent(self, name) -> bool:
        if name.parent.type == "qualified_identifier":
            return False  # not the whole name
        if last_name(self.source, name) == "is_function_constant_defined":
            return True
        meant = self.rewritten.calls.lookup.variables_meant(name)
        return any(node.start_byte in self.dependent for node in meant)

    def _type(self, node) -> str:
        type_node = node.child_by_field_name("type")
        return self.edits.text_of(type_node.start_byte, type_node.end_byte)

    def _replace(self, node, head: int, text: str) -> None:
        """Replaces a declaration and the address space before it with `text`."""
        words = self.source.words_in(head, node.start_byte)
        start = words[0].start if words else node.start_byte
        self.edits.replace(start, node.end_byte, text)
