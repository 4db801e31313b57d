"""Where a thread is when it meets others: every synchronising call gets a Site as its last argument,
and the calls and loops around simdgroup operations note that they are entered.

Sites are numbered in the order in which the places of a function are run. Together with the calls
and loops around it, a site says how far a thread has come, whatever way it took; so lanes that
diverged meet again as they do on a GPU (see Path in msl/abi.h).
"""

from __future__ import annotations

import re

from . import names
from .calls import SYNCHRONISING, CallGraph
from .parse import closing_bracket
from .program import name_of

_NAMES = re.compile(r"\b(?:" + "|".join(sorted(SYNCHRONISING)) + r")\b")
_LOOPS = {"for_statement", "while_statement", "do_statement", "for_range_loop"}
_NAMES_IN = {
    "field_expression",
    "template_function",
    "template_method",
    "qualified_identifier",
    "dependent_name",
}
_OPERATORS = {
    "assignment_expression",
    "binary_expression",
    "unary_expression",
    "update_expression",
    "subscript_expression",
}
_LISTS = {"initializer_list", "subscript_argument_list"}
# What is not run.
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


def add_sites(rewritten, calls: CallGraph) -> None:
    """Numbers the calls and loops; rewritten.sites lists them."""
    program = rewritten.program
    source = program.source
    for function in program.functions:
        if function.name in SYNCHRONISING:
            _take_site(rewritten, function)
    places = _Places(rewritten, calls)
    for function in sorted(program.functions, key=lambda f: f.node.start_byte):
        if function.body is not None and function.name in calls.simd_names:
            places.visit_function(function)
    for match in _NAMES.finditer(source.masked):
        if match.start() in places.seen or not _is_called(source.leaf_at(match.start())):
            continue
        position = _argument_list(source, match)
        if position is not None:
            places.pass_site(match.start(), position)


class _Places:
    """Visits what functions run, in the order in which they run it."""

    def __init__(self, rewritten, calls: CallGraph):
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.sites = rewritten.sites
        self.calls = calls
        self.seen: set[int] = set()  # where synchronising calls have their names
        self._bodies: set[int] = set()
        functions = SYNCHRONISING | {n for n in calls.simd_names if n.isidentifier()}
        self._has_operators = any(re.fullmatch(r"operator\W\W?", n) for n in calls.simd_names)
        self._words = re.compile(r"\b(?:" + "|".join(sorted(functions)) + r")\b")

    def visit_function(self, function) -> None:
        if function.body.start_byte not in self._bodies:  # a member of a local class is met twice
            self._visit(function.body)

    def pass_site(self, name: int, position: int) -> None:
        """Adds a site to the argument list at `position` of the call of what is named at `name`."""
        masked = self.source.masked
        close = closing_bracket(masked, position)
        if close is None:
            return
        comma = ", " if masked[position + 1 : close - 1].strip() else ""
        self.edits.append(close - 1, f"{comma}{names.ABI}::Site{{{self._number(name)}}}")

    def _number(self, offset: int) -> int:
        self.sites.append(offset)
        return len(self.sites) - 1

    def _visit(self, node) -> None:
        kind = node.type
        if kind in _CONSTANT or not self._may_matter(node):
            return
        if kind == "compound_statement":
            self._bodies.add(node.start_byte)
        if kind in _LOOPS:
            self._visit_loop(node)
        elif kind == "call_expression":
            self._visit_call(node)
        elif kind in _OPERATORS:
            self._visit_operator(node)
        else:
            self._visit_children(node)

    def _may_matter(self, node) -> bool:
        if self._has_operators:
            return True
        return self._words.search(self.source.masked, node.start_byte, node.end_byte) is not None

    def _visit_children(self, node) -> None:
        for child in node.named_children:
            self._visit(child)

    # ---- calls -----------------------------------------------------------------------------------

    def _visit_call(self, node) -> None:
        callee = node.child_by_field_name("function")
        arguments = node.child_by_field_name("arguments")
        leaf = callee
        while leaf.type in _NAMES_IN:
            field = leaf.child_by_field_name("field") or leaf.child_by_field_name("name")
            leaf = field or leaf.named_children[-1]
        name = self.source.masked_text(leaf).strip()
        operands = [*arguments.named_children]
        if callee.type == "field_expression":
            operands.insert(0, callee.child_by_field_name("argument"))
        is_inside = self._visit_operands(operands, name in self.calls.simd_names)
        if name in SYNCHRONISING:
            self.seen.add(leaf.start_byte)
            self.pass_site(leaf.start_byte, arguments.start_byte)
        if is_inside:
            self._enter(node, leaf.start_byte)

    def _visit_operator(self, node) -> None:
        """An operator may be a function of the program, and becomes one for some types."""
        operator = node.child_by_field_name("operator")
        text = "[]" if operator is None else self.source.masked_text(operator)
        operands = node.named_children
        if node.type == "assignment_expression":  # the right operand is evaluated first
            operands = operands[::-1]
        is_function = f"operator{text}" in self.calls.simd_names
        if not is_function and (node.type == "assignment_expression" or text in ("&&", "||")):
            for operand in operands:
                self._visit(operand)
        elif self._visit_operands(operands, is_function):
            self._enter(node, node.start_byte)

    def _visit_operands(self, operands, is_function: bool) -> bool:
        """Whether what has these operands is something to be in: a function with simdgroup operations, or several
        operands with such, whose order is the compiler's."""
        found = []
        for operand in operands:
            before = len(self.sites)
            self._visit(operand)
            if len(self.sites) > before and operand.type not in _LISTS:
                found.append(operand)
        if not is_function and len(found) < 2:
            return False
        for operand in found:
            self.edits.wrap(
                operand.start_byte, operand.end_byte, f"({names.SUPPORT}::Operand(), ", ")"
            )
        return True

    def _enter(self, node, offset: int) -> None:
        before = f"({names.SUPPORT}::Call({self._number(offset)}), "
        self.edits.wrap(node.start_byte, node.end_byte, before, ")")

    # ---- loops -----------------------------------------------------------------------------------

    def _visit_loop(self, node) -> None:
        """Counts the iterations of a loop with simdgroup operations."""
        fields = {
            field: node.child_by_field_name(field)
            for field in ("initializer", "condition", "update", "right", "body")
        }
        for field in ("initializer", "right"):
            if fields[field] is not None:
                self._visit(fields[field])
        number = self._number(node.start_byte)
        inside = (
            ("body", "condition")
            if node.type == "do_statement"
            else ("condition", "body", "update")
        )
        for field in inside:
            if fields[field] is not None:
                self._visit(fields[field])
        if len(self.sites) == number + 1:
            self.sites.pop()
            return
        self.edits.wrap(
            node.start_byte, node.end_byte, f"{{ {names.SUPPORT}::Loop msl_loop({number}); ", " }"
        )
        _COUNT[node.type](self, node, **fields)

    def _count_for(self, node, update, body, **_) -> None:
        if update is not None:
            self.edits.wrap(update.start_byte, update.end_byte, "(void)(", "), msl_loop.next()")
        else:
            close = self.source.previous_code(body.start_byte)
            self.edits.append(close, " msl_loop.next()")

    def _count_while(self, node, condition, **_) -> None:
        self.edits.replace(node.start_byte, condition.start_byte, "for ")
        self.edits.append(condition.start_byte + 1, "; ")
        self.edits.append(condition.end_byte - 1, "; msl_loop.next()")

    def _count_do(self, node, condition, **_) -> None:
        self.edits.wrap(
            condition.start_byte, condition.end_byte, "(msl_loop.next(static_cast<bool>", "))"
        )

    def _count_range(self, node, body, **_) -> None:
        if body.type == "compound_statement":
            self.edits.append(body.start_byte + 1, " msl_loop.next();")
        else:
            self.edits.wrap(body.start_byte, body.end_byte, "{ msl_loop.next(); ", " }")


_COUNT = {
    "for_statement": _Places._count_for,
    "while_statement": _Places._count_while,
    "do_statement": _Places._count_do,
    "for_range_loop": _Places._count_range,
}


def _take_site(rewritten, function) -> None:
    """The program's own functions of such a name take a Site too: every call passes one."""
    source = rewritten.program.source
    parameters = function.declarator.child_by_field_name("parameters")
    inside = source.masked_text(parameters)[1:-1].strip()
    if inside == "void":
        rewritten.edits.blank(parameters.start_byte + 1, parameters.end_byte - 1)
    comma = ", " if inside and inside != "void" else ""
    is_declared_elsewhere = "::" in source.masked_text(name_of(function.declarator))
    default = "" if is_declared_elsewhere or function.is_specialisation else " = {}"
    rewritten.edits.append(parameters.end_byte - 1, f"{comma}{names.ABI}::Site{default}")


def _argument_list(source, match) -> int | None:
    """Where the arguments of a call begin, behind template arguments if there are any."""
    position = source.next_code(match.end())
    if source.masked[position : position + 1] == "<":
        node = source.leaf_at(match.start())
        while node is not None and node.type != "call_expression":
            if node.type in ("compound_statement", "argument_list"):
                return None
            node = node.parent
        if node is None:
            return None
        position = node.child_by_field_name("arguments").start_byte
    return position if source.masked[position : position + 1] == "(" else None


def _is_called(node) -> bool:
    """Whether a name is called, and not declared (a function or a variable of that name)."""
    while node.parent is not None and node.parent.type in (
        "qualified_identifier",
        "template_function",
        "field_expression",
    ):
        node = node.parent
    return node.parent is None or node.parent.type not in (
        "function_declarator",
        "init_declarator",
        "declaration",
    )
