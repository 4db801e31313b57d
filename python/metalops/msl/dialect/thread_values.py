"""Thread values at program scope: `const uint here [[thread_position_in_grid]];`, which all functions may use (Metal
Shading Language Specification, section 5.2.3).

A parameter takes the place of the variable, in the kernels and in all functions on the way to its uses: so every engine
and every analysis sees a value of a thread, and no variable that threads share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..analysis.calls import CallGraph
from ..analysis.program import (
    Function,
    Program,
    ProgramError,
    declared_identifier,
    parameter_ranges,
)
from ..source.locations import LineMap
from ..source.parse import Source, blanked
from ..source.vocabulary import THREAD_ATTRIBUTES
from .insertion import Insertion

_PREFIX = "program_scope_"
_NAMES = "[(identifier) (qualified_identifier)] @n"


@dataclass(eq=False)
class _Value:
    """A variable at program scope. kernels, functions: those that use it or call such a function; functions are told by
    their names, since the source does not always say which of one name is called."""

    node: object
    head: int
    name: str
    type: str
    attribute: str
    uses: list = field(default_factory=list)
    kernels: set[Function] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)

    @property
    def parameter(self) -> str:
        return _PREFIX + self.name


def with_parameters(
    program: Program, lines: LineMap, forbid: Callable[[str, int], None] | None = None
) -> Program:
    """Returns the program with parameters in place of such variables: the program itself, if it has none. lines: the map
    of its text, which becomes that of the new program's. forbid: see Program.

    Raises ProgramError for a use where there can be no parameter.
    """
    values = list(_values(program))
    if not values:
        return program
    text, insertions = _Parameters(program, values).run()
    made = Program(Source(lines.insert([(i.offset, i.text) for i in insertions], text)), forbid)
    made.left_out = program.left_out
    return made


def _values(program: Program) -> Iterator[_Value]:
    source = program.source
    for node, _, head in program.declarations:
        declarators = node.children_by_field_name("declarator")
        if not declarators:
            continue
        ends = [d.start_byte for d in declarators[1:]] + [source.next_code(node.end_byte)]
        leading = source.attributes_in(head, declarators[0].start_byte)
        for declarator, end in zip(declarators, ends, strict=True):
            attributes = [*source.attributes_in(declarator.start_byte, end), *leading]
            attribute = next((a.name for a in attributes if a.name in THREAD_ATTRIBUTES), None)
            if attribute is None:
                continue
            type_text = source.node_text(node.child_by_field_name("type"))
            name = source.node_text(declared_identifier(declarator))
            yield _Value(node, head, name, type_text, attribute)


class _Parameters:
    def __init__(self, program: Program, values: list[_Value]):
        self.program = program
        self.source = program.source
        self.values = values
        self.graph = CallGraph(program)
        self.kernels = {kernel.function for kernel in program.kernels}
        self.insertions: list[tuple[int, int, str]] = []  # (offset, order, text)
        self.captured: set[tuple[int, str]] = set()  # by lambdas
        self.ranges = [(v.head, v.node.end_byte) for v in values]

    def run(self) -> tuple[str, list[Insertion]]:
        """Returns the text without the variables, and what is inserted into it, in order."""
        for value in self.values:
            self._find_uses(value)
        calls = [*self.source.find("(call_expression) @c")]
        for value in self.values:
            self._find_users(value, calls)
        for order, value in enumerate(self.values):
            self._insert(value, calls, order)
        found = [Insertion(at, text) for at, _, text in sorted(self.insertions)]
        return blanked(self.source.text, self.ranges), found

    def _find_uses(self, value: _Value) -> None:
        for node in self.source.find(_NAMES):
            if node.parent.type == "qualified_identifier" or not (
                self.source.masked_text(node).endswith(value.name)
            ):
                continue
            if value.node.start_byte <= node.start_byte < value.node.end_byte:
                continue
            if value.node not in self.graph.lookup.variables_meant(node):
                continue
            function = self._function_around(node)
            if node.type == "identifier" and function is not None:
                scopes, place = self.graph.scopes_around(node), self.graph.lookup.place(function)
                if node not in scopes.free or self.graph.lookup.field(place, value.name):
                    continue
            if function is None:
                self._refuse(value, node.start_byte, "outside of functions")
            value.uses.append(node)
            self._add(value, function)

    def _add(self, value: _Value, function: Function) -> bool:
        """Records a function that needs the value. Returns true if it is a new one."""
        if function in self.kernels:
            value.kernels.add(function)
            return False
        special = function.is_conversion or function.name.startswith(("operator", "~"))
        if special or self.graph.lookup.owner(function) == function.name:
            self._refuse(value, function.declarator.start_byte, "in operators and constructors")
        is_new = function.name not in value.functions
        value.functions.add(function.name)
        return is_new

    @staticmethod
    def _refuse(value: _Value, offset: int, where: str) -> None:
        raise ProgramError(
            f"'{value.name}' [[{value.attribute}]] at program scope is not supported {where}: make it a parameter of "
            "the kernel",
            offset,
        )

    def _find_users(self, value: _Value, calls: list) -> None:
        changed = bool(value.functions)
        while changed:
            changed = False
            for call in calls:
                if self._calls(call, value):
                    function = self._function_around(call)
                    if function is None:
                        self._refuse(value, call.start_byte, "outside of functions")
                    changed |= self._add(value, function)

    def _calls(self, call, value: _Value) -> bool:
        """Returns true if a call_expression may call a function that needs the value."""
        functions = self.graph.functions_called(call) or ()
        return any(function.name in value.functions for function in functions)

    def _function_around(self, node) -> Function | None:
        while node is not None:
            if node.type == "function_definition":
                function = self.graph.function_of(node)
                if function is not None:
                    return function
            node = node.parent
        return None

    def _insert(self, value: _Value, calls: list, order: int) -> None:
        for node in value.uses:
            last = node
            while last.type == "qualified_identifier":
                last = last.child_by_field_name("name")
            if last.start_byte > node.start_byte:
                self.ranges.append((node.start_byte, last.start_byte))
            self.insertions.append((last.start_byte, 1, _PREFIX))
            self._capture(node, value)
        for function in self.program.functions:
            if function in value.kernels:
                text = f"{value.type} {value.parameter} [[{value.attribute}]]"
            elif function.name in value.functions and function not in self.kernels:
                text = f"{value.type} {value.parameter}"
            else:
                continue
            self._prepend(function.declarator.child_by_field_name("parameters"), text, order)
        for instance in self.program.instances:
            kernel = instance.kernel.function
            own = kernel.declarator.child_by_field_name("parameters")
            if kernel in value.kernels and instance.signature not in (None, own):
                self._prepend(instance.signature, value.type, order)
        for call in calls:
            if self._calls(call, value):
                self._prepend(call.child_by_field_name("arguments"), value.parameter, order)
                self._capture(call, value)

    def _capture(self, node, value: _Value) -> None:
        """Lets the lambdas around a use capture the value."""
        while node is not None and node.type != "function_definition":
            if node.type == "lambda_expression":
                captures = node.child_by_field_name("captures")
                first = captures.children[1]
                key = (captures.start_byte + 1, value.parameter)
                if first.type != "lambda_default_capture" and key not in self.captured:
                    self.captured.add(key)
                    comma = "" if first.type == "]" and not self._has_insertion(key[0]) else ", "
                    self.insertions.append((key[0], -len(self.captured), value.parameter + comma))
            node = node.parent

    def _prepend(self, parameters, text: str, order: int) -> None:
        """Inserts a first parameter or argument."""
        inside = [p for p in parameter_ranges(parameters) if p[0].type != "comment"]
        is_void = [p for p in inside if self.source.masked_text(p[0]).strip() == "void"]
        if is_void:
            self.ranges.append((is_void[0][0].start_byte, is_void[0][0].end_byte))
            inside = []
        # All but the last of several values precede another one.
        at = parameters.start_byte + 1
        comma = ", " if inside or self._has_insertion(at) else ""
        self.insertions.append((at, -1 - order, text + comma))

    def _has_insertion(self, offset: int) -> bool:
        return any(at == offset for at, _, _ in self.insertions)
