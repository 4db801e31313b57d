"""Copies of generic lambdas whose meaning depends on the address spaces of what they are given.

`[](auto p) { ... }` becomes an object of several lambdas, such as `[](msl_in<91>, device auto* p) { ... }`, of which the
first argument of a call tells the one that it means (call_operators.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ..analysis.program import declared_identifier, parameters_of_lambda
from ..analysis.spaces import Spaces, arguments_of
from ..analysis.types import ATTEMPT, NO_POINTER, Declared
from ..source.tree import is_mutable
from .call_operators import suffix_of, tag_in, tag_of, tagged
from .insertion import Insertion
from .parameter_types import spaces_named

# Initialisers of captures that may do something, which every copy would do once more.
_EFFECTS = "[(call_expression) (assignment_expression) (update_expression)] @e"


class LambdaCopies:
    """kind_of: returns the address space that an argument points to, None if it is no pointer, or "unknown".
    copies_around: returns the copies of the template around a node, or []."""

    def __init__(self, spaces: Spaces, kind_of: Callable, copies_around: Callable):
        self.spaces = spaces
        self.source = spaces.source
        self.calls = spaces.calls
        self._kind_of = kind_of
        self._copies_around = copies_around
        self._waiting: set[int] = set()

    def around(self, node) -> list[Insertion]:
        """Returns the copies of the innermost generic lambda around a node, or called there, that has any, or first of a
        template that calls it. Empty if there are none."""
        while node is not None:
            found = node if node.type == "lambda_expression" else None
            if node.type == "call_expression":
                found = self.calls.lambda_called(node, self.calls.scopes_around(node))
            if found is not None and found.id not in self._waiting:
                self._waiting.add(found.id)
                longer = self._of(found)
                self._waiting.remove(found.id)
                if longer:
                    return longer
            node = node.parent
        return []

    def _of(self, node) -> list[Insertion]:
        parameters = self._parameters(node)
        if not any(is_open for _, _, is_open, _ in parameters) or not self._can_be_copied(node):
            return []
        combinations: dict[tuple, None] = {}
        longer: list[Insertion] = []
        is_passed_on = False
        for call, is_known in self._calls_of(node):
            is_passed_on |= not is_known
            arguments = self._arguments(call)
            if arguments is None or len(arguments) != len(parameters):
                continue
            kinds = tuple(
                self._kind_of(argument) if is_open else None
                for argument, (_, _, is_open, _) in zip(arguments, parameters, strict=True)
            )
            if "unknown" in kinds:
                return self._copies_around(call)
            if any(map(self._is_array_by_reference, arguments, parameters)):
                return []
            combinations.setdefault(kinds)
            if tag_in(self.source, call) is None:
                suffix = self._suffix(parameters, kinds)
                longer += tagged(self.source, call, suffix, is_known)
        if any(node.start_byte <= i.offset < node.end_byte for i in longer):
            return []
        if not combinations:  # nothing calls it
            combinations[(None,) * len(parameters)] = None
        name = f" {ATTEMPT}in" if is_passed_on else ""
        copies = ", ".join(self._copy(node, parameters, kinds, name) for kinds in combinations)
        longer.append(Insertion(node.start_byte, f"msl_several{{{copies}}}", node.end_byte))
        return sorted(longer, key=lambda i: i.offset)

    def _parameters(self, node) -> list[tuple[object, int, bool, Declared]]:
        """Returns (node, start, whether it may be a pointer to any space, type) of each parameter of a lambda."""
        found = []
        for parameter, start, end in parameters_of_lambda(node):
            type_node = parameter.child_by_field_name("type")
            declarator = parameter.child_by_field_name("declarator")
            declared = self.spaces.types.declared(start, type_node, declarator, end)
            type_ = declared.type
            if type_.kind == "reference" and type_.target.space in (None, "thread"):
                type_ = type_.target
            is_open = type_.kind == "value" and type_.name == "auto"
            is_pack = "..." in self.source.masked[start:end]
            found.append((parameter, start, is_open and not is_pack, declared))
        return found

    def _is_array_by_reference(self, argument, parameter) -> bool:
        type_ = self.spaces.type_of(argument)
        is_array = type_ is not None and type_.kind == "array"
        return is_array and parameter[2] and parameter[3].type.kind == "reference"

    def _can_be_copied(self, node) -> bool:
        """Returns true if the copies of a lambda do together what it does: none keeps a state of its own."""
        declarator = node.child_by_field_name("declarator")
        captures = node.child_by_field_name("captures")
        return (
            node.child_by_field_name("template_parameters") is None
            and "..." not in self.source.masked_text(declarator)
            and not is_mutable(node)
            and not any(self.source.find(_EFFECTS, captures))
        )

    def _arguments(self, call) -> list | None:
        arguments = arguments_of(call)
        if arguments is not None and tag_in(self.source, call) is not None:
            return arguments[1:]
        return arguments

    # ---- calls -----------------------------------------------------------------------------------

    def _calls_of(self, node) -> Iterator[tuple[object, bool]]:
        """Yields the calls that may be of a lambda, with true for those that certainly are."""
        direct, is_passed_on = self._direct_calls(node)
        yield from ((call, True) for call in direct)
        if is_passed_on:
            known = {call.start_byte for call in direct}
            for call in self.spaces.object_calls:
                if call.start_byte not in known and self.calls.meaning(call).member is not None:
                    yield call, False

    def _direct_calls(self, node) -> tuple[list, bool]:
        """Returns the calls of a lambda itself, or of the variable that it initialises, and whether it is used otherwise."""
        outer = self._without_parentheses_around(node)
        if outer.parent.type == "call_expression":
            call = outer.parent
            if call.child_by_field_name("function") == outer:
                return [call], False
        if outer.parent.type != "init_declarator":
            return [], True
        name = declared_identifier(outer.parent)
        scopes = self.calls.scopes_around(outer.parent)
        declarations = [
            d
            for d in scopes.declarations
            if name is not None and d.identifier.start_byte == name.start_byte
        ]
        if len(declarations) != 1:
            return [], True
        direct, is_passed_on = [], False
        for use in declarations[0].uses:
            outer = self._without_parentheses_around(use)
            parent = outer.parent
            if parent.type == "call_expression" and parent.child_by_field_name("function") == outer:
                direct.append(parent)
            elif parent.type != "lambda_capture_specifier":
                is_passed_on = True
        return direct, is_passed_on

    @staticmethod
    def _without_parentheses_around(node):
        while node.parent.type == "parenthesized_expression":
            node = node.parent
        return node

    # ---- text ------------------------------------------------------------------------------------

    @staticmethod
    def _suffix(parameters: list, kinds: tuple) -> str:
        return suffix_of(
            [
                (kind or "0") if is_open else "_".join(spaces_named(declared.type)) or "0"
                for (_, _, is_open, declared), kind in zip(parameters, kinds, strict=True)
            ]
        )

    def _copy(self, node, parameters: list, kinds: tuple, name: str) -> str:
        given = node.child_by_field_name("declarator").child_by_field_name("parameters")
        tag = tag_of(self._suffix(parameters, kinds))
        pieces = [self.source.text[node.start_byte : given.start_byte + 1], f"{tag}{name}, "]
        position = given.start_byte + 1
        for (parameter, start, is_open, _), kind in zip(parameters, kinds, strict=True):
            if not is_open:
                continue
            identifier = declared_identifier(parameter.child_by_field_name("declarator"))
            end = parameter.end_byte
            own = "" if identifier is None else self.source.masked_text(identifier)
            before = self.source.masked[start : identifier.start_byte if identifier else end]
            const = " const" if re.search(r"\bconst\b", before) else ""
            reference = f" thread{'&&' if '&&' in before else '&'}" if "&" in before else ""
            type_ = f"{NO_POINTER}auto" if kind is None else f"{kind} auto*"
            pieces += [self.source.text[position:start], f"{type_}{const}{reference} {own}"]
            position = end
        pieces.append(self.source.text[position : node.end_byte])
        lines = re.sub(r"(?m)^[ \t]*#.*$", "", "".join(pieces)).split("\n")
        return " ".join(line.strip() for line in lines)
