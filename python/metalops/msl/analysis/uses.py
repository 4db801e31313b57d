"""Finds the arguments of kernels that a kernel uses only under conditions that its function constants and template
arguments decide, or never: Metal calls an argument used, or active, if a use is left when these are known."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from ..source.tree import alternative_of, may_be_deep, statements_of, walk, without_parentheses
from .calls import CallGraph
from .program import Function, Kernel, declarator_kinds, name_node, parameters_of
from .scopes import Declaration, FunctionScopes

# Nodes around a use that are followed, and ways to use an argument; one with more counts as used.
_MOST_AROUND = 200
_MOST_USES = 16
_PARTS_OF_CONSTANTS = {
    "parenthesized_expression",
    "binary_expression",
    "unary_expression",
    "conditional_expression",
    "cast_expression",
    "call_expression",
    "argument_list",
    "qualified_identifier",
    "identifier",
    "number_literal",
    "char_literal",
    "true",
    "false",
    "sizeof_expression",
    "template_function",
    "template_argument_list",
    "template_type",
    "type_descriptor",
    "type_identifier",
    "primitive_type",
    "placeholder_type_specifier",
    "auto",
    "sized_type_specifier",
    "namespace_identifier",
    "comment",
}
_NAMES = ("identifier", "type_identifier", "namespace_identifier")
_TEMPLATE_CASTS = {"reinterpret_cast", "static_cast", "const_cast"}


class Literal(NamedTuple):
    """A condition of a use: an expression that the function constants and template arguments decide, and the value that
    it must have. locals: the declarations in the function that the expression needs, in order."""

    node: object
    is_true: bool
    locals: tuple


# The conditions of a use, all of which must hold. A list of them: one must hold.
Use = tuple[Literal, ...]


class _MayBeUsed(Exception):
    """Raised for an argument that a kernel may use whatever the constants are."""


class Uses:
    """The uses of arguments of the kernels of a program."""

    def __init__(self, calls: CallGraph):
        self._calls = calls
        self._source = calls.source
        self._of_parameters: dict[tuple, list[Use] | None] = {}
        # By kernel: what a name means in the conditions of its uses.
        self.local_names: dict[Function, dict[str, int]] = {}

    def of(self, kernel: Kernel, name: str | None) -> list[Use] | None:
        """Returns the uses of a parameter of a kernel, none if it is never used; None if one may happen whatever the
        constants are."""
        if name is None:
            return []
        scopes = self._calls.scopes_around(kernel.function.body)
        for declaration in scopes.declarations:
            if declaration.kind == "parameter" and declaration.name == name:
                try:
                    found = _InFunction(self, kernel.function, kernel.function).uses(declaration)
                except _MayBeUsed:
                    return None
                return self._without_repetitions(found)
        return None

    def _without_repetitions(self, found: list[Use]) -> list[Use] | None:
        """Returns uses without conditions that do not matter: `a && b || !a && b` is `b`. None if none matters."""
        sets = [{(self._text(c.node), c.is_true): c for c in use} for use in found]
        pairs = list(itertools.permutations(sets, 2))
        while pairs:
            one, other = pairs.pop()
            differing = one.keys() - other.keys()
            opposite = {(text, not is_true) for text, is_true in differing}
            if not differing:
                sets = [s for s in sets if s is not other]  # it implies the first
            elif len(differing) == 1 and opposite <= other.keys():
                del other[opposite.pop()]
            else:
                continue
            pairs = list(itertools.permutations(sets, 2))
        return None if {} in sets else [tuple(use.values()) for use in sets]

    def _text(self, node) -> str:
        return " ".join(self._source.masked_text(node).split())

    def of_parameter(self, function: Function, index: int, kernel: Function) -> list[Use]:
        """Returns the uses of a parameter of a function that a kernel calls, under conditions that mean the same in the
        kernel. Raises _MayBeUsed."""
        key = (function, index, kernel.path)
        if key not in self._of_parameters:
            self._of_parameters[key] = None  # for a function that calls itself
            self._of_parameters[key] = self._find(function, index, kernel)
        found = self._of_parameters[key]
        if found is None:
            raise _MayBeUsed
        return found

    def _find(self, function: Function, index: int, kernel: Function) -> list[Use] | None:
        parameters = parameters_of(self._source, function)
        if function.body is None or index >= len(parameters):
            return None
        node, start, end = parameters[index]
        if "reference" in declarator_kinds(node.child_by_field_name("declarator")):
            return None
        inside = _InFunction(self, function, kernel)
        try:
            for declaration in inside.scopes.declarations:
                if declaration.kind == "parameter" and (
                    start <= declaration.identifier.start_byte < end
                ):
                    return inside.uses(declaration)
        except _MayBeUsed:
            return None
        return []  # it has no name


class _InFunction:
    """The uses of a kernel's arguments in a function: the kernel itself, or another that it calls."""

    def __init__(self, program: Uses, function: Function, kernel: Function):
        self._program = program
        self._calls: CallGraph = program._calls
        self._source = self._calls.source
        self._body = function.body
        self._kernel = kernel
        self._is_kernel = function is kernel
        # Names of the program mean the same in the kernel.
        self._knows_names = (
            kernel.path[: len(function.path)] == function.path
            and self._calls.lookup.owner(function) is None
        )
        self.scopes: FunctionScopes = self._calls.scopes_around(self._body)
        self._followed: set[int] = set()
        self._around: dict[int, Use] = {}  # the conditions around nodes, by their ids
        self._local_names = program.local_names.setdefault(function, {})

    def uses(self, declaration: Declaration, is_pointer: bool = False) -> list[Use]:
        """Returns the uses of a parameter, or of a pointer that is computed from it. is_pointer: true for a pointer whose
        declaration does not say so."""
        is_pointer |= declaration.is_pointer
        found: dict[tuple, Use] = {}
        for name in declaration.uses:
            conditions, further = self._conditions(name), self._further(name, is_pointer)
            for use in further:
                joined = (*conditions, *use)
                found[tuple((c.node.start_byte, c.is_true) for c in joined)] = joined
        if len(found) > _MOST_USES:
            raise _MayBeUsed
        return list(found.values())

    # ---- what is done with the pointer -----------------------------------------------------------

    def _further(self, name, is_pointer: bool) -> list[Use]:
        """Returns the uses of what an expression computes from a pointer: one without conditions where the pointer itself
        is used, none where nothing is done with it."""
        node, parent = name, name.parent
        while self._computes_pointer(node, parent):
            node, parent = parent, parent.parent
        kind = parent.type
        if kind == "init_declarator" and parent.child_by_field_name("value") == node:
            return self._kept_in(parent.child_by_field_name("declarator"))
        if kind == "assignment_expression" and parent.parent.type == "expression_statement":
            left = parent.child_by_field_name("left")
            if left == node:
                return [] if left == name and is_pointer else [()]
            if left.type == "identifier":
                return self._of_variable(self.scopes.declaration_of(left))
        if kind == "update_expression" and node == name and is_pointer:
            return [] if parent.parent.type == "expression_statement" else [()]
        if kind == "argument_list":
            return self._passed(parent, node)
        if kind == "cast_expression" and parent.parent.type == "expression_statement":
            is_void = self._source.masked_text(parent.child_by_field_name("type")).strip() == "void"
            return [] if is_void else [()]
        return [()]

    def _computes_pointer(self, node, parent) -> bool:
        """Returns true if an expression computes another pointer from one, and does nothing else with it."""
        kind = parent.type
        if kind == "parenthesized_expression":
            return True
        if kind == "binary_expression":
            return parent.child_by_field_name("operator").type in ("+", "-")
        if kind == "conditional_expression":
            return parent.child_by_field_name("condition") != node
        if kind == "cast_expression":
            return "*" in self._source.masked_text(parent.child_by_field_name("type"))
        if kind == "argument_list" and parent.named_child_count == 1:
            return self._is_cast(parent.parent)
        if kind == "call_expression":
            return self._is_cast(parent)
        return False

    def _is_cast(self, call) -> bool:
        called = call.child_by_field_name("function")
        if called is None or called.type != "template_function":
            return False
        is_cast = self._source.masked_text(name_node(called)) in _TEMPLATE_CASTS
        return is_cast and "*" in self._source.masked_text(called)

    def _kept_in(self, declarator) -> list[Use]:
        kinds = declarator_kinds(declarator)
        for declaration in self.scopes.declarations:
            if declaration.declarator is not None and declaration.declarator == declarator:
                is_auto = not kinds and "auto" in declaration.type.split()
                return self._of_variable(declaration, is_auto)
        return [()]

    def _of_variable(self, declaration: Declaration | None, is_pointer: bool = False) -> list[Use]:
        if declaration is None or declaration.kind not in ("variable", "parameter"):
            return [()]
        if not (is_pointer or declaration.kinds == ["pointer"]):
            return [()]
        start = declaration.identifier.start_byte
        if start in self._followed:
            return []  # it gets a value that is computed from its own, whose uses are being found
        self._followed.add(start)
        found = self.uses(declaration, is_pointer)
        self._followed.remove(start)
        return found

    def _passed(self, list_, argument) -> list[Use]:
        """Returns the uses of an argument of a call."""
        call = list_.parent
        if call.type != "call_expression":
            return [()]
        meaning = self._calls.meaning(call)
        if meaning.member is not None or not meaning.functions:
            return [()]
        arguments = [c for c in list_.named_children if c.type != "comment"]
        index = arguments.index(argument)
        return [
            use
            for function in meaning.functions
            for use in self._program.of_parameter(function, index, self._kernel)
        ]

    # ---- conditions ------------------------------------------------------------------------------

    def _conditions(self, name) -> Use:
        """Returns the conditions around a use that the constants decide."""
        node, steps = name, []
        while node.start_byte != self._body.start_byte or node.type != "compound_statement":
            parent = node.parent
            if node.id in self._around or parent is None or len(steps) == _MOST_AROUND:
                break
            steps.append((node, parent))
            node = parent
        # Terms of a long sum have the same nodes around them, which take long to find.
        found = self._around.get(node.id, ())
        for node, parent in reversed(steps):
            found = self._around[node.id] = (*self._of_parent(node, parent), *found)
        return found

    def _of_parent(self, node, parent) -> list[Literal]:
        kind = parent.type
        condition = parent.child_by_field_name("condition")
        if kind in ("if_statement", "conditional_expression"):
            if parent.child_by_field_name("consequence") == node:
                return self._decided(condition, True)
            if parent.child_by_field_name("alternative") == node:
                return self._decided(condition, False)
        elif kind in ("for_statement", "while_statement"):
            is_inside = parent.child_by_field_name("body") == node
            return self._decided(condition, True) if is_inside and condition is not None else []
        elif kind == "binary_expression" and parent.child_by_field_name("right") == node:
            operator = parent.child_by_field_name("operator").type
            if operator in ("&&", "||", "and", "or"):
                left = parent.child_by_field_name("left")
                return self._decided(left, operator in ("&&", "and"))
        elif kind == "compound_statement":
            return [c for s in parent.named_children for c in self._left_before(s, node)]
        return []

    def _left_before(self, statement, node) -> list[Literal]:
        """Returns what is decided about a statement if one before it in its block does not return."""
        if statement.type != "if_statement" or statement.end_byte > node.start_byte:
            return []
        last = statements_of(statement.child_by_field_name("consequence"))[-1:]
        if alternative_of(statement) is not None or not last or last[0].type != "return_statement":
            return []
        return self._decided(statement.child_by_field_name("condition"), False)

    def _decided(self, condition, is_true: bool) -> list[Literal]:
        """Returns what the constants decide of an expression that must be true, or false."""
        if may_be_deep(condition):
            return []
        if condition.type == "condition_clause":
            if condition.child_by_field_name("initializer") is not None:
                return []
            condition = condition.child_by_field_name("value")
        node = without_parentheses(condition)
        if node.type == "unary_expression" and node.child_by_field_name("operator").type == "!":
            return self._decided(node.child_by_field_name("argument"), not is_true)
        if node.type == "binary_expression":
            operators = ("&&", "and") if is_true else ("||", "or")
            if node.child_by_field_name("operator").type in operators:
                sides = (node.child_by_field_name(side) for side in ("left", "right"))
                return [c for side in sides for c in self._decided(side, is_true)]
        needed: dict[int, object] = {}
        if not self._is_constant(node, needed):
            return []
        return [Literal(node, is_true, tuple(needed[start] for start in sorted(needed)))]

    def _is_constant(self, node, needed: dict[int, object]) -> bool:
        """Returns true if the constants decide an expression. Adds the declarations that it needs, by their offsets."""
        for part in walk(node):
            if not part.is_named:
                continue
            if part.type not in _PARTS_OF_CONSTANTS:
                return False
            if part.type == "call_expression" and not self._is_constant_call(part):
                return False
            if part.type in _NAMES and not self._is_constant_name(part, needed):
                return False
        return True

    def _is_constant_call(self, call) -> bool:
        called = name_node(call.child_by_field_name("function"))
        if self._source.masked_text(called) == "is_function_constant_defined":
            return True
        meaning = self._calls.meaning(call)
        return (
            meaning.member is None
            and bool(meaning.functions)
            and not any(map(self._calls.has_operation, meaning.functions))
        )

    def _is_constant_name(self, name, needed: dict[int, object]) -> bool:
        declaration = self.scopes.declaration_of(name)
        if declaration is None:
            return self._knows_names and self._is_constant_of_program(name)
        if not self._is_kernel:
            return False
        if declaration.kind in ("type", "constant"):
            node = declaration.node
            if node.type not in ("alias_declaration", "type_definition"):
                return True  # a template parameter
            values = [node.child_by_field_name("type")]
        elif declaration.kind == "variable":
            node = declaration.node
            if node.type != "declaration" or declaration.address_spaces:
                return False
            declared = [d for d in self.scopes.declarations if d.node == node]
            values = [d.initialiser for d in declared]
            if None in values or any(d.kinds or not d.is_const for d in declared):
                return False
            values.append(node.child_by_field_name("type"))
        else:
            return False
        if node.start_byte in needed:
            return True
        if not all(self._is_constant(value, needed) for value in values):
            return False
        names = [d.name for d in self.scopes.declarations if d.node == node]
        if any(self._local_names.setdefault(n, node.start_byte) != node.start_byte for n in names):
            return False  # another of this name is in use
        needed[node.start_byte] = node
        return True

    def _is_constant_of_program(self, name) -> bool:
        """Returns true if a name of the program is none of a built-in value of the thread."""
        source = self._source
        for node in self._calls.lookup.variables.get(source.masked_text(name), ()):
            attributes = source.attributes_in(node.start_byte, source.next_code(node.end_byte))
            if any(a.name != "function_constant" for a in attributes):
                return False
        return True
