"""Operands and arguments of a program that may be outside of thread memory.

A function that takes an object by value and one that takes a reference to thread memory mean the same in C++ as in Metal,
unless an argument lies elsewhere. So they need no names of their own, which those of operators cannot get.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from ..analysis.lookup import Lookup
from ..analysis.program import Function, declared_identifier, name_node
from ..analysis.spaces import Spaces, arguments_of, decayed, plain_name
from ..analysis.types import Type

# By the type of node: the fields of its operands.
_OPERATIONS = {
    "binary_expression": ("left", "right"),
    "assignment_expression": ("left", "right"),
    "unary_expression": ("argument",),
    "pointer_expression": ("argument",),
    "update_expression": ("argument",),
}
_QUERY = "[" + " ".join(f"({kind})" for kind in (*_OPERATIONS, "fold_expression")) + "] @n"
_NAMING = (
    "template_function",
    "template_method",
    "qualified_identifier",
    "dependent_name",
    "field_expression",
    "parenthesized_expression",
)
_SYMBOL = re.compile(r"operator\s*([^\w\s()\[\]]{1,3})$")
# Expressions that are values, or objects whose place that of a part tells.
_PARTS = {
    "parenthesized_expression": lambda n: n.named_children[-1:],
    "comma_expression": lambda n: n.named_children[-1:],
    "conditional_expression": lambda n: [
        n.child_by_field_name("consequence"),
        n.child_by_field_name("alternative"),
    ],
    "assignment_expression": lambda n: [n.child_by_field_name("left")],
    "update_expression": lambda n: n.named_children,
}


class Operands:
    """The operands of a program's operators."""

    def __init__(self, spaces: Spaces, lookup: Lookup, functions: list[Function]):
        self.source = spaces.source
        self.spaces = spaces
        self.lookup = lookup
        self.functions = functions

    def may_be_elsewhere(self, one: Function, other: Function, index: int, target: Type) -> bool:
        """Returns true if two functions may both take the arguments of some call, or operation, of which that for a
        parameter could be an object outside of thread memory. target: what the parameter of one of them refers to."""
        return any(
            arguments is None
            or (
                index < len(arguments)
                and self._may_bind(arguments[index], target)
                and not any(self._takes_no_numbers(f, arguments) for f in (one, other))
            )
            for arguments in self._arguments(one, other)
        )

    def may_be_const(self, one: Function, other: Function, index: int) -> bool:
        """Returns true if some call that may mean one of two functions could give a parameter what is const outside of
        constant memory, or points to it."""
        if self._is_const_written(one.name):
            return True
        for arguments in self._arguments(one, other):
            if arguments is None:
                return True
            argument = arguments[index] if index < len(arguments) else None
            type_ = self.spaces.type_of(argument)
            if type_ is not None and type_.kind in ("pointer", "array"):
                type_ = decayed(type_).target
            if type_ is None:
                return True
            if type_.space == "constant":
                continue
            is_told = self._is_of_kernel(argument) and type_.name != "auto"
            if type_.is_const or (type_.is_open and not is_told):
                return True
        return False

    def _is_const_written(self, name: str) -> bool:
        """Returns true if template arguments are written for a function, of which one may be const."""
        types = self.spaces.types
        for offset in self.source.words_at.get(name, ()):
            use = self.source.leaf_at(offset).parent
            if use is None or use.type not in ("template_function", "template_method"):
                continue
            for argument in use.child_by_field_name("arguments").named_children:
                if argument.type == "type_descriptor":
                    type_ = types.described(argument).type
                    is_open = type_.is_open and not types.is_template_parameter(type_.name)
                    if type_.is_const or is_open:
                        return True
        return False

    def _is_of_kernel(self, node) -> bool:
        """Returns true if a node is in a kernel, whose parameters of templates are no const types."""
        function = self.spaces.calls.function_around(node)
        return function is not None and function.stage == "kernel"

    def _arguments(self, one: Function, other: Function) -> Iterator[list | None]:
        """Yields the arguments of each use that may mean one of two functions; None for one that is not known."""
        if _SYMBOL.match(one.name):
            yield from self._operations(one)
        elif re.fullmatch(r"\w+", one.name) and one.name != self.lookup.owner(one):
            yield from self._calls(one, other)
        else:
            yield None

    def _operations(self, function: Function) -> Iterator[list | None]:
        """Yields the operands that an operator's parameters stand for; None for others than those of an operation."""
        symbol = _SYMBOL.match(function.name)[1]
        written = re.findall(rf"\boperator\s*{re.escape(symbol)}(?=[\s(])", self.source.text)
        if len(written) != sum(f.name == function.name for f in self.functions):
            yield None  # called by its name
        first = 0 if self.lookup.owner(function) is None else 1
        parameters = len(self.spaces.types.parameters(function.declarator))
        for operands in self._uses.get(symbol, ()):
            if operands is None:
                yield None
            elif len(operands) == parameters + first:
                yield operands[first:]

    def _calls(self, one: Function, other: Function) -> Iterator[list | None]:
        """Yields the arguments of calls that may mean one of two functions; None for a pack, and uses that are no calls."""
        for node in self._named.get(one.name, ()):
            call = node.parent
            while call.type in _NAMING:
                call = call.parent
            if call.type == "using_declaration":
                continue
            callee = call.child_by_field_name("function")
            if call.type != "call_expression" or not (
                callee.start_byte <= node.start_byte < callee.end_byte
            ):
                yield None
                continue
            called = self.spaces.calls.functions_called(call)
            if called and not (one in called and other in called):
                continue
            arguments = arguments_of(call)
            if arguments is None or self.lookup.taking(
                [one, other], self.lookup.arguments(call.child_by_field_name("arguments"))
            ):
                yield arguments

    @functools.cached_property
    def _named(self) -> dict[str, list]:
        """The nodes of each function's name but where it is declared, or names a variable."""
        names = {f.name for f in self.functions}
        declaring = self.spaces.calls.declaring
        found: dict[str, list] = {}
        for node in self.source.find("[(identifier) (field_identifier)] @n"):
            name = self.source.masked_text(node)
            if name not in names or node.start_byte in declaring:
                continue
            parent = node.parent
            if parent.type.endswith("_declarator") or parent.type == "field_declaration":
                continue
            if parent.type.endswith("declaration") and parent.type != "using_declaration":
                continue
            if node.type == "identifier" and parent.type != "qualified_identifier":
                if self.spaces.calls.scopes_around(node).declaration_of(node) is not None:
                    continue
            found.setdefault(name, []).append(node)
        return found

    def _takes_no_numbers(self, function: Function, arguments: list) -> bool:
        """Returns true if an argument is a number where a function takes objects of a class template."""
        names = self.spaces.types.type_parameters(function)
        for argument, (_, _, declared) in zip(
            arguments, self.spaces.types.parameters(function.declarator), strict=False
        ):
            type_ = declared.type.target if declared.type.kind == "reference" else declared.type
            name, _, given = type_.name.partition("<")
            if name.strip() in self.spaces.types.classes and not names.isdisjoint(
                re.findall(r"\w+", given)
            ):
                actual = self.spaces.type_of(argument)
                if argument.type == "number_literal":
                    return True
                if actual is not None and _is_number(actual):
                    return True
        return False

    def _is_called_by_name(self, symbol: str, name: str) -> bool:
        written = re.findall(rf"\boperator\s*{re.escape(symbol)}(?=[\s(])", self.source.text)
        return len(written) != sum(f.name == name for f in self.functions)

    @functools.cached_property
    def _uses(self) -> dict[str, list]:
        """The operands of each operation, by symbol; None for those of a pack."""
        found: dict[str, list] = {}
        for node in self.source.find(_QUERY):
            if node.type == "fold_expression":
                symbols = {c.type for c in node.children if not c.is_named} - {"(", ")", "..."}
                for symbol in symbols:
                    found.setdefault(symbol, []).append(None)
                continue
            operands = [node.child_by_field_name(f) for f in _OPERATIONS[node.type]]
            symbol = node.child_by_field_name("operator")
            if symbol is not None and None not in operands:
                found.setdefault(self.source.node_text(symbol), []).append(operands)
        return found

    def _may_bind(self, operand, target: Type) -> bool:
        actual = self.spaces.type_of(operand)
        if actual is None:
            return self._is_elsewhere(operand)
        if actual.kind != "value" or actual.space in (None, "thread"):
            return False
        # A number converts to an object of a class in a temporary, wherever it is.
        is_class = target.name.split("<")[0].strip() in self.spaces.types.classes
        return not (is_class and _is_number(actual))

    def _is_elsewhere(self, node) -> bool:
        """Returns true if an expression whose type is not known may be an object outside of thread memory."""
        if node.type in _PARTS:
            return any(map(self._may_be_object_elsewhere, _PARTS[node.type](node)))
        if node.type == "call_expression":
            return self._returns_a_place(node)
        if node.type == "field_expression":
            if self._are_numbers.get(self.source.masked_text(node.child_by_field_name("field"))):
                return False
            if self.source.node_text(node.child_by_field_name("operator")) == "->":
                return True
            return self._may_be_object_elsewhere(node.child_by_field_name("argument"))
        if node.type == "binary_expression":
            symbol = self.source.node_text(node.child_by_field_name("operator"))
            return f"operator{symbol}" in self._returning_places
        if node.type == "identifier":
            declaration = self.spaces.calls.scopes_around(node).declaration_of(node)
            if declaration is None or declaration.declarator is None:
                return True
            start, end = declaration.declarator.start_byte, declaration.declarator.end_byte
            value = declaration.initialiser
            end = value.start_byte if value is not None and value.start_byte < end else end
            return "&" in self.source.masked[start:end]
        return node.type not in ("cast_expression", "compound_literal_expression")

    @functools.cached_property
    def _are_numbers(self) -> dict[str, bool]:
        """By name: whether all members of that name, of any class, are numbers."""
        found: dict[str, bool] = {}
        types = self.spaces.types
        for node in self.source.find("(field_declaration) @f"):
            start = self.source.previous_code(node.start_byte) + 1
            for declarator in node.children_by_field_name("declarator"):
                name = declared_identifier(declarator)
                if name is not None:
                    type_node = node.child_by_field_name("type")
                    type_ = types.declared(start, type_node, declarator, node.end_byte).type
                    text = self.source.masked_text(name)
                    found[text] = found.get(text, True) and _is_number(type_)
        return found

    def _may_be_object_elsewhere(self, node) -> bool:
        actual = self.spaces.type_of(node)
        if actual is None:
            return self._is_elsewhere(node)
        return actual.kind == "value" and actual.space not in (None, "thread")

    def _returns_a_place(self, call) -> bool:
        """Returns true if what is called may return a reference to memory other than that of a thread."""
        called = call.child_by_field_name("function")
        name = self.source.masked_text(name_node(called))
        candidates = self.spaces.calls.functions_called(call)
        if candidates:
            return any(map(self._is_returning_a_place, candidates))
        return not self._returning_places.isdisjoint((name, "operator()"))

    @functools.cached_property
    def _returning_places(self) -> set[str]:
        return {f.name for f in self.functions if self._is_returning_a_place(f)}

    def _is_returning_a_place(self, function: Function) -> bool:
        result = self.spaces.types.result(function)
        if result is None:
            return function.name != self.lookup.owner(function) and not function.is_conversion
        return result.kind == "reference" and result.target.space not in (None, "thread")


def _is_number(type_: Type) -> bool:
    """Returns true for a builtin scalar, vector or matrix."""
    packed = type_.name.removeprefix("metal::").removeprefix("packed_")
    return plain_name(type_._replace(name=packed)) is not None
