"""Sites of synchronisation: every synchronising call gets a Site as its last argument, and the calls and loops around
simdgroup operations record that they are entered.

Sites are numbered in the order in which they are run in a function. Together with the calls and loops around it, a site
says how far a thread has come, whichever path it took; so diverged lanes reconverge as they do on a GPU (see Path in
msl/abi.h).

Where shuffles may take last values of variables (analysis/last_values.py), the variables are declared to the engine. There
a thread also waits where branches, loops and iterations end for lanes that are at earlier points, so that it does not
change a variable before they have taken its value.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from ...analysis.last_values import LastValues
from ...analysis.program import ProgramError, last_name, name_node, name_of
from ...dialect import names
from ...source.parse import closing_bracket
from ...source.tree import LOOPS, alternative_of
from ...source.vocabulary import SYNCHRONISING

_OPERATORS = {
    "assignment_expression",
    "binary_expression",
    "unary_expression",
    "update_expression",
    "subscript_expression",
}
_LISTS = {"initializer_list", "subscript_argument_list"}
# Code that is not run.
_CONSTANT = {
    "template_argument_list",
    "template_parameter_list",
    "decltype",
    "sizeof_expression",
    "alignof_expression",
    "static_assert_declaration",
    "type_descriptor",
    "requires_clause",
    "noexcept",
}
_NAMES = "[(identifier) (type_identifier) (field_identifier)] @n"
_CONSTRUCTED = "[(declaration) (compound_literal_expression)] @c"
_CALLS = "[(call_expression) (parameter_declaration)] @c"


def add_sites(rewritten) -> list[int]:
    """Numbers the calls and loops; returns their offsets, by number."""
    program = rewritten.program
    source = program.source
    if not program.has_tensors and source.identifiers.isdisjoint(SYNCHRONISING):
        return []
    for function in program.functions:
        if function.name in SYNCHRONISING:
            _take_site(rewritten, function)
    _refuse_unseen_operations(rewritten)
    places = _Places(rewritten)
    for function in sorted(program.functions, key=lambda f: f.node.start_byte):
        if function.body is not None and rewritten.calls.function_has_simd_operation(function):
            places.visit_function(function)
    for node in source.find(_NAMES):
        if node.start_byte not in places.seen and places.is_operation(node) and _is_called(node):
            position = _argument_list(source, node)
            if position is not None:
                places.pass_site(node, position)
    return places.sites


def _refuse_unseen_operations(rewritten) -> None:
    """Rejects simdgroup operations in conversions and destructors, which run where the source does not show it."""
    calls = rewritten.calls
    for function in rewritten.program.functions:
        if function.body is None or not (function.is_conversion or function.name.startswith("~")):
            continue
        if calls.function_has_simd_operation(function) and any(
            calls.reaches(i, function) for i in rewritten.program.instances
        ):
            what = "conversion" if function.is_conversion else "destructor"
            raise ProgramError(
                f"a {what} cannot have simdgroup operations: make it a function with a name",
                function.declarator.start_byte,
            )


class _Places:
    """Visits the code of functions in the order in which it runs."""

    def __init__(self, rewritten):
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.sites: list[int] = []  # offsets, by number
        self.calls = rewritten.calls
        self.seen: set[int] = set()  # offsets of the names of synchronising calls
        self._bodies: set[int] = set()
        self._matters: list[int] = []
        self._last_values = LastValues(rewritten.calls)
        self._shuffled = None  # ShuffledVariables of the function
        self._variables: dict[int, int] = {}  # numbers, by the offset of the identifier

    def is_operation(self, name) -> bool:
        """Returns true if the node of a name is that of an operation that takes a site."""
        return (
            self.source.masked_text(name) in SYNCHRONISING
            and self.calls.scopes_around(name).declaration_of(name) is None
        )

    def visit_function(self, function) -> None:
        if function.body.start_byte in self._bodies:  # a member of a local class is visited twice
            return
        self._shuffled = self._last_values.of(function)
        self._matters = self._places_that_matter(function)
        self._declare_parameters()
        parts = function.body.parent.named_children
        parts = [p for p in parts if p.type == "field_initializer_list" or p == function.body]
        waiting = [iter(parts)]
        while waiting:  # iterative, so that expressions may be of any depth
            child = next(waiting[-1], None)
            if child is None:
                waiting.pop()
            else:
                waiting.append(self._visit(child))

    def _places_that_matter(self, function) -> list[int]:
        """Returns the offsets of operations in a function, and of calls and operators that may reach one."""
        nodes = [n for n in self.source.find(_NAMES, function.node) if self.is_operation(n)]
        nodes += filter(self._may_come_to_an_operation, self.source.find(_CALLS, function.node))
        operators = self.calls.simd_operators
        if operators:
            for operator in self.source.find("(_ operator: _ @o)", function.node):
                if f"operator{self.source.masked_text(operator)}" in operators:
                    nodes.append(operator)
            if "operator[]" in operators:
                nodes += self.source.find("(subscript_expression) @s", function.node)
        if self.calls.classes_with_simd_constructors:
            nodes += filter(self._constructs, self.source.find(_CONSTRUCTED, function.node))
        return sorted([*(n.start_byte for n in nodes), *self._shuffled.declared])

    def _may_come_to_an_operation(self, node) -> bool:
        if node.type == "call_expression":
            return self.calls.call_has_simd_operation(node)
        name = _called_as_parameter(node)
        return name is not None and self.calls.name_has_simd_operation(last_name(self.source, name))

    def pass_site(self, name, position: int) -> None:
        """Adds a site to the argument list at `position` of the call of `name`."""
        masked = self.source.masked
        close = closing_bracket(masked, position)
        if close is None:
            return
        comma = ", " if masked[position + 1 : close - 1].strip() else ""
        number = self._number(name.start_byte)
        variable = self._variable_of(name)
        more = f", 0, {variable}" if variable else ""
        self.edits.append(close - 1, f"{comma}{names.ABI}::Site{{{number}{more}}}")

    def _number(self, offset: int) -> int:
        self.sites.append(offset)
        return len(self.sites) - 1

    def _visit(self, node) -> Iterator:
        """Yields the nodes to visit in a node, and edits the text between them."""
        kind = node.type
        if kind in _CONSTANT or not self._may_matter(node):
            return
        if kind == "compound_statement":
            self._bodies.add(node.start_byte)
        if kind in LOOPS:
            yield from self._visit_loop(node)
        elif kind == "call_expression":
            yield from self._visit_call(node)
        elif kind in _OPERATORS:
            yield from self._visit_operator(node)
        elif kind == "if_statement" and self._shuffled.are_within(node):
            yield from self._visit_diverging_if(node)
        elif kind == "switch_statement" and self._shuffled.are_within(node):
            yield from self._visit_diverging_switch(node)
        elif kind == "declaration":
            yield from self._visit_declaration(node)
            self._finish_declaration(node)
        elif kind == "compound_literal_expression":
            yield from node.named_children
            if self._constructs(node):
                self._enter(node, node.start_byte)
        elif kind == "parameter_declaration" and _called_as_parameter(node) is not None:
            yield from self._visit_parameter(node)
        else:
            yield from node.named_children
        if self._shuffled.are_chosen_by(node):
            wait = f"({names.SUPPORT}::Reconverge({self._number(node.start_byte)}), "
            self.edits.wrap(node.start_byte, node.end_byte, wait, ")")

    def _may_matter(self, node) -> bool:
        at = bisect.bisect_left(self._matters, node.start_byte)
        return at < len(self._matters) and self._matters[at] < node.end_byte

    # ---- last values -----------------------------------------------------------------------------

    def _variable_of(self, name) -> int:
        """Returns the number of the variable that a shuffle may take last values of; 0 if there is none."""
        if self._shuffled is None or name.start_byte not in self._shuffled.variables:
            return 0
        identifier = self._shuffled.variables[name.start_byte].identifier
        return self._variables.setdefault(identifier.start_byte, len(self._variables) + 1)

    def _declared(self, variable) -> str:
        """Returns the text that declares a variable to the engine."""
        identifier = variable.identifier
        number = self._variables.setdefault(identifier.start_byte, len(self._variables) + 1)
        clear = ""
        if variable.kind == "variable" and variable.initialiser is None:
            clear = f" {names.SUPPORT}::clear({variable.name});"
        return (
            f"{clear} {names.SUPPORT}::Declared msl_declared_{number}({number}, {variable.name});"
        )

    def _declare_parameters(self) -> None:
        for variable in self._shuffled.declared.values():
            if variable.kind == "parameter":
                body = variable.scope.child_by_field_name("body")
                self.edits.append(body.start_byte + 1, self._declared(variable))

    def _finish_declaration(self, node) -> None:
        for variable in self._shuffled.declared.values():
            if variable.node.start_byte == node.start_byte:
                self.edits.append(node.end_byte, self._declared(variable))

    def _reconverge(self, node) -> str:
        """Returns a call that waits for lanes that are at earlier points."""
        return f"{names.SUPPORT}::reconverge({self._number(node.start_byte)})"

    def _reconverge_after(self, statement) -> None:
        wait = f" {self._reconverge(statement)}; }}"
        self.edits.wrap(statement.start_byte, statement.end_byte, "{ ", wait)

    def _visit_diverging_if(self, node) -> Iterator:
        alternative = alternative_of(node)
        for child in node.named_children:
            if child == node.child_by_field_name("alternative"):
                before = f"{{ {self._reconverge(alternative)}; "
                yield alternative
                self.edits.wrap(alternative.start_byte, alternative.end_byte, before, " }")
            else:
                yield child
        self._reconverge_after(node)

    def _visit_diverging_switch(self, node) -> Iterator:
        for child in node.named_children:
            if child != node.child_by_field_name("body"):
                yield child
                continue
            for case in child.named_children:
                if case.type == "case_statement":
                    colon = next(c for c in case.children if c.type == ":")
                    self.edits.append(colon.end_byte, f" {self._reconverge(case)};")
                yield case
        self._reconverge_after(node)

    # ---- calls -----------------------------------------------------------------------------------

    def _visit_call(self, node) -> Iterator:
        callee = node.child_by_field_name("function")
        arguments = node.child_by_field_name("arguments")
        operands = [*arguments.named_children]
        if callee.type == "field_expression":
            operands.insert(0, callee.child_by_field_name("argument"))
        is_entered = self.calls.call_has_simd_operation(node)
        found = yield from self._visit_operands(operands)
        self._finish_call(node, name_node(callee), arguments, found, is_entered)

    def _visit_parameter(self, node) -> Iterator:
        """Visits `T v(f(x));`, which the parser reads as the declaration of a function."""
        name = _called_as_parameter(node)
        parameters = node.child_by_field_name("declarator").child_by_field_name("parameters")
        found = yield from self._visit_operands(parameters.named_children)
        is_entered = self._may_come_to_an_operation(node)
        self._finish_call(node, name, parameters, found, is_entered)

    def _finish_call(self, node, name, arguments, found: list, is_entered: bool) -> None:
        if is_entered or len(found) > 1:
            self._count(found)
        if self.is_operation(name):
            self.seen.add(name.start_byte)
            self.pass_site(name, arguments.start_byte)
        if is_entered or len(found) > 1:
            self._enter(node, name.start_byte)

    def _visit_declaration(self, node) -> Iterator:
        """Visits a declaration: arguments of constructors are evaluated in the compiler's order, and a constructor may
        have operations."""
        is_entered = self._constructs(node)
        for child in node.named_children:
            operands = _constructor_operands(child)
            if operands is None:
                yield child
                continue
            found = yield from self._visit_operands(operands)
            if is_entered or len(found) > 1:
                self._count(found)
                is_entered = True
        if not is_entered:
            return
        if node.parent.type not in ("compound_statement", "case_statement"):
            raise ProgramError(
                "simdgroup operations to construct this variable: declare it before",
                node.start_byte,
            )
        number = self._number(node.start_byte)
        name = f"msl_inside_{number}"
        self.edits.insert(node.start_byte, f"{names.SUPPORT}::Inside {name}({number}); ")
        self.edits.append(node.end_byte, f" {name}.leave();")

    def _constructs(self, node) -> bool:
        """Returns true if objects of the type of a node are made by a constructor with simdgroup operations."""
        classes = self.calls.classes_with_simd_constructors
        return bool(classes) and (
            self.calls.class_named(node.child_by_field_name("type")) in classes
        )

    def _visit_operator(self, node) -> Iterator:
        """Visits an operator, which may be a function of the program, and becomes one for some types."""
        operator = node.child_by_field_name("operator")
        text = "[]" if operator is None else self.source.masked_text(operator)
        operands = node.named_children
        if node.type == "assignment_expression":  # the right operand is evaluated first
            operands = operands[::-1]
        is_function = f"operator{text}" in self.calls.simd_operators
        found = yield from self._visit_operands(operands)
        has_order = node.type == "assignment_expression" or text in ("&&", "||")
        if is_function or (len(found) > 1 and not has_order):
            self._count(found)
            self._enter(node, node.start_byte)

    def _visit_operands(self, operands) -> Iterator:
        """Visits operands; returns those with simdgroup operations, whose order is the compiler's."""
        found = []
        for operand in operands:
            before = len(self.sites)
            yield operand
            if len(self.sites) > before and operand.type not in _LISTS:
                found.append(operand)
        return found

    def _count(self, operands) -> None:
        for operand in operands:
            self.edits.wrap(
                operand.start_byte, operand.end_byte, f"({names.SUPPORT}::Operand(), ", ")"
            )

    def _enter(self, node, offset: int) -> None:
        before = f"({names.SUPPORT}::Call({self._number(offset)}), "
        self.edits.wrap(node.start_byte, node.end_byte, before, ")")

    # ---- loops -----------------------------------------------------------------------------------

    def _visit_loop(self, node) -> Iterator:
        """Counts the iterations of a loop with simdgroup operations."""
        fields = {
            field: node.child_by_field_name(field)
            for field in ("initializer", "condition", "update", "right", "body")
        }
        for field in ("initializer", "right"):
            if fields[field] is not None:
                yield fields[field]
        number = self._number(node.start_byte)
        inside = (
            ("body", "condition")
            if node.type == "do_statement"
            else ("condition", "body", "update")
        )
        diverges = self._shuffled.are_within(node) and self._shuffled.diverges(node)
        wait = ""  # at the end of an iteration
        for field in inside:
            if diverges and field == ("condition" if node.type == "do_statement" else "update"):
                wait = f"{self._reconverge(node)}, "
            if fields[field] is not None:
                yield fields[field]
        if len(self.sites) == number + 1:
            self.sites.pop()
            return
        self.edits.wrap(
            node.start_byte, node.end_byte, f"{{ {names.SUPPORT}::Loop msl_loop({number}); ", " }"
        )
        _COUNT[node.type](self, node, wait, **fields)
        if diverges:
            self._reconverge_after(node)

    def _count_for(self, node, wait, update, body, **_) -> None:
        if update is not None:
            before = f"{wait}(void)("
            self.edits.wrap(update.start_byte, update.end_byte, before, "), msl_loop.next()")
        else:
            close = self.source.previous_code(body.start_byte)
            self.edits.append(close, f" {wait}msl_loop.next()")

    def _count_while(self, node, wait, condition, **_) -> None:
        self.edits.replace(node.start_byte, condition.start_byte, "for ")
        self.edits.append(condition.start_byte + 1, "; ")
        self.edits.append(condition.end_byte - 1, f"; {wait}msl_loop.next()")

    def _count_do(self, node, wait, condition, **_) -> None:
        before = f"({wait}msl_loop.next(static_cast<bool>"
        self.edits.wrap(condition.start_byte, condition.end_byte, before, "))")

    def _count_range(self, node, wait, body, **_) -> None:
        count = f"{wait}msl_loop.next();"
        if body.type == "compound_statement":
            self.edits.append(body.start_byte + 1, f" {count}")
        else:
            self.edits.wrap(body.start_byte, body.end_byte, f"{{ {count} ", " }")


_COUNT = {
    "for_statement": _Places._count_for,
    "while_statement": _Places._count_while,
    "do_statement": _Places._count_do,
    "for_range_loop": _Places._count_range,
}


def _take_site(rewritten, function) -> None:
    """Adds a Site parameter to the program's own functions of such a name: every call passes one."""
    source = rewritten.program.source
    parameters = function.declarator.child_by_field_name("parameters")
    inside = source.masked_text(parameters)[1:-1].strip()
    if inside == "void":
        rewritten.edits.blank(parameters.start_byte + 1, parameters.end_byte - 1)
    comma = ", " if inside and inside != "void" else ""
    is_declared_elsewhere = "::" in source.masked_text(name_of(function.declarator))
    default = "" if is_declared_elsewhere or function.is_specialisation else " = {}"
    rewritten.edits.append(parameters.end_byte - 1, f"{comma}{names.ABI}::Site{default}")


def _constructor_operands(declarator) -> list | None:
    """Returns the operands in the parentheses of `v(a, b)`; None for other declarators."""
    if declarator.type == "function_declarator":
        return declarator.child_by_field_name("parameters").named_children
    value = declarator.child_by_field_name("value")
    if declarator.type == "init_declarator" and value is not None and value.type == "argument_list":
        return value.named_children
    return None


def _called_as_parameter(node):
    """Returns the name of the callee in a parameter_declaration that is a call, as in `T v(f(x));`; None for others."""
    declarator = node.child_by_field_name("declarator")
    if declarator is None or declarator.type != "abstract_function_declarator":
        return None
    name = node.child_by_field_name("type")
    if name is not None and name.type == "template_type":
        name = name.child_by_field_name("name")
    name = name_node(name)
    return name if name is not None and name.type == "type_identifier" else None


def _argument_list(source, name) -> int | None:
    """Returns where the arguments of a call begin, after template arguments if there are any."""
    position = source.next_code(name.end_byte)
    if source.masked[position : position + 1] == "<":
        node = name
        while node is not None and node.type != "call_expression":
            if node.type in ("compound_statement", "argument_list"):
                return None
            node = node.parent
        if node is None:
            return None
        position = node.child_by_field_name("arguments").start_byte
    return position if source.masked[position : position + 1] == "(" else None


def _is_called(node) -> bool:
    """Returns true if a name is called, and not declared (a function or a variable of that name)."""
    name = node
    while node.parent is not None and name == name_node(node.parent):
        node = node.parent
    return node.parent is None or node.parent.type not in (
        "function_declarator",
        "init_declarator",
        "declaration",
    )
