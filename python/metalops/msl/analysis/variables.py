"""The variables of a function that a threadgroup runs together: their declarations, definitions and uses."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..source.parse import Source
from ..source.tree import captures_by_value, walk, without_parentheses
from .control import Control
from .cuts import Cuts, NotCut
from .program import declarator_kinds, parameters_of_lambda, takes_reference
from .scopes import Declaration, FunctionScopes

# `T v(a, b);` is parsed as a function, and its arguments as parameter types.
NAMES = {"identifier", "type_identifier"}
# Types and functions whose values depend on the lane.
USES_MATRICES = re.compile(r"\bsimdgroup_(?:matrix|\w+8x8)|diagonal_simdgroup_matrix")


class Kind(enum.Enum):
    """How a variable is kept. GROUP: uniform, kept once. AGAIN: rematerialised in every work-item loop that uses it.
    THREAD: varying, privatised (one copy for each thread). SHIFTED: a pointer, kept once but for an offset that each
    work-item loop adds."""

    GROUP = "group"
    AGAIN = "again"
    THREAD = "thread"
    SHIFTED = "shifted"


@dataclass(eq=False)
class Variable:
    """A variable or parameter of a function.

    value: its initialiser. is_of_group: true for a constant expression, a closure, or memory that the threads share.
    conditions: control dependences, the conditions around its declaration; None inside a statement that runs as a
    whole. definitions: the expressions that are assigned to it, each with the conditions around; None where they are
    not known. changes: the assignments to it or to a part of it, wherever they stand. is_exposed: true if something else
    may change it.
    """

    declared: Declaration
    value: object | None
    is_parameter: bool
    is_of_group: bool
    conditions: tuple | None
    kind: Kind
    definitions: list[tuple[object | None, tuple | None]] = field(default_factory=list)
    changes: list = field(default_factory=list)
    is_exposed: bool = False

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def identifier(self):
        return self.declared.identifier

    @property
    def declaration(self):
        """The whole declaration, or a parameter."""
        return self.declared.node

    @property
    def declarator(self):
        return self.declared.declarator

    @property
    def is_reference(self) -> bool:
        return self.declared.kinds[:1] == ["reference"]

    @property
    def is_array(self) -> bool:
        return "array" in self.declared.kinds

    def type_in(self, source: Source) -> str:
        """Returns its type as it is written."""
        node = self.declaration.child_by_field_name("type")
        return "" if node is None else source.masked_text(node)

    @property
    def uses(self) -> list[int]:
        return [node.start_byte for node in self.declared.uses]

    @property
    def last_use(self) -> int:
        return max(self.uses, default=self.identifier.start_byte)


class Variables:
    """The variables of one function. meets, writes: as of Body. parameters: the kinds of the function's parameters.

    all: every one. of: by the offset of an identifier. held: those that lambdas refer to which are passed to calls that
    synchronise: these must keep their address.
    """

    def __init__(
        self,
        source: Source,
        body,
        scopes: FunctionScopes,
        parameters: list[tuple[object, Kind]],
        cuts: Cuts,
        control: Control,
        meets: Callable,
        writes: Callable,
    ):
        self._source = source
        self._body = body
        self._cuts = cuts
        self._control = control
        self._meets = meets
        self._writes = writes
        self.all: list[Variable] = []
        self.of: dict[int, Variable] = {}
        self._declared: dict[int, list[Variable]] = {}  # by the offset of a declaration
        kinds = {node.start_byte: kind for node, kind in parameters}
        for closure in cuts.closures:
            kinds |= {node.start_byte: Kind.THREAD for node, _, _ in parameters_of_lambda(closure)}
        self._declare(scopes, kinds)
        self._find_definitions()
        self.held = self._find_held()

    def _declare(self, scopes: FunctionScopes, kinds: dict[int, Kind]) -> None:
        """Collects the variables. kinds: of the function's parameters, by the offset of the parameter."""
        for declaration in scopes.declarations:
            if declaration.kind in ("type", "constant"):
                continue
            node = declaration.node
            specifiers = {
                self._source.node_text(c)
                for c in node.children
                if c.type in ("type_qualifier", "storage_class_specifier")
            }
            if "volatile" in specifiers:
                raise NotCut("a volatile variable")
            kind = kinds.get(node.start_byte) if declaration.kind == "parameter" else None
            is_variable = declaration.kind == "variable" and node.type == "declaration"
            value = declaration.lambda_expression
            is_closure = value is not None and self._meets(value)
            variable = Variable(
                declaration,
                value=declaration.initialiser if node.type == "declaration" else None,
                is_parameter=kind is not None,
                is_of_group=bool({"constexpr", "static"} & specifiers)
                or is_closure
                or (
                    "threadgroup" in declaration.address_spaces
                    and not {"pointer", "reference"} & set(declaration.kinds)
                )
                or (kind is Kind.GROUP and self._is_shared_reference(declaration)),
                conditions=() if kind is not None else self._control.of_declaration(node),
                kind=kind or Kind.GROUP,
            )
            if variable.value is not None:
                variable.definitions.append((variable.value, variable.conditions))
            if not (variable.is_parameter or is_variable):
                variable.definitions.append((None, None))
                variable.is_exposed = True
            self.all.append(variable)
            self._declared.setdefault(node.start_byte, []).append(variable)
            self.of[declaration.identifier.start_byte] = variable
            for use in declaration.uses:
                self.of[use.start_byte] = variable
        for variable in self.all:
            if variable.value is not None and variable.is_reference:
                self._changed_somehow(variable.value)

    def _is_shared_reference(self, parameter: Declaration) -> bool:
        """Returns true if a uniform parameter is a reference to memory that the threads share and may write."""
        node = parameter.node
        start = self._source.previous_code(node.start_byte) + 1
        return parameter.kinds[:1] == ["reference"] and (
            "threadgroup" in parameter.address_spaces
            or takes_reference(self._source, (node, start, node.end_byte))
        )

    def declared_by(self, declaration) -> list[Variable]:
        return self._declared.get(declaration.start_byte, [])

    def variable_named(self, node) -> Variable | None:
        """Returns the variable that an expression consists of, or None."""
        return self.of.get(node.start_byte) if node.type == "identifier" else None

    def used_in(self, node) -> set[Variable]:
        """Returns the variables that are mentioned in a node."""
        return {
            self.of[n.start_byte] for n in walk(node) if n.type in NAMES and n.start_byte in self.of
        }

    def captured_by(self, node) -> set[Variable]:
        """Returns the variables that a lambda_expression (or another node) mentions and does not declare itself."""
        return {
            v
            for v in self.used_in(node)
            if not node.start_byte <= v.identifier.start_byte < node.end_byte
        }

    def copied_by(self, node) -> set[Variable]:
        """Returns the variables that a lambda_expression captures by value."""
        return {
            v
            for v in self.captured_by(node)
            if captures_by_value(self._source, node, v.name) and not v.is_of_group
        }

    def base(self, node) -> Variable | None:
        """Returns the variable that an assignment to `node` changes, or None."""
        node = without_parentheses(node)
        while node.type in ("subscript_expression", "field_expression"):
            if node.type == "field_expression" and node.children[1].type == "->":
                return None
            node = without_parentheses(node.child_by_field_name("argument"))
        return self.variable_named(node)

    def _find_definitions(self) -> None:
        """Collects the definitions of the variables, other than their initialisers."""
        for node in walk(self._body):
            kind = node.type
            if kind in ("assignment_expression", "update_expression"):
                self._define(node)
            elif kind == "pointer_expression" and node.children[0].type == "&":
                self._changed_somehow(node.child_by_field_name("argument"))
            elif kind == "call_expression":
                self._passed(node)

    def _define(self, node) -> None:
        target = node.child_by_field_name("left") or node.child_by_field_name("argument")
        variable = self.base(target)
        if variable is None:
            return
        through_pointer = any(n.type == "subscript_expression" for n in walk(target))
        if through_pointer and not variable.is_array and not variable.is_parameter:
            kinds = declarator_kinds(variable.declarator)
            if "pointer" in kinds:
                return  # the pointee changes, not the pointer
        if through_pointer and variable.is_parameter:
            kinds = declarator_kinds(variable.declarator)
            if {"pointer", "array"} & set(kinds):
                return
        variable.changes.append(node)
        value = node.child_by_field_name("right") or target
        conditions = self._control.of_definition(node)
        if conditions is not None and (
            self._cuts.closure_around(node) != self._cuts.closure_around(variable.identifier)
        ):
            conditions = None
        variable.definitions.append((value if conditions is not None else None, conditions))
        if conditions is not None and node.type == "assignment_expression":
            operator = self._source.node_text(node.child_by_field_name("operator"))
            if operator != "=" or target.type != "identifier":
                variable.definitions.append((target, conditions))

    def _changed_somehow(self, node) -> None:
        variable = self.base(node) if node is not None else None
        if variable is not None and not variable.is_of_group:
            kinds = declarator_kinds(variable.declarator) if variable.declarator else []
            if node.type == "subscript_expression" and "pointer" in kinds[:1]:
                return  # an address within the pointee
            if kinds[:1] == ["array"] and variable.is_parameter:
                return
            variable.definitions.append((None, None))
            variable.is_exposed = True

    def _passed(self, call) -> None:
        """Records arguments that the callee may change, and objects whose member functions are called."""
        function = call.child_by_field_name("function")
        if function.type == "field_expression":
            self._changed_somehow(function.child_by_field_name("argument"))
        arguments = call.child_by_field_name("arguments").named_children
        for position, argument in enumerate(arguments):
            if self._writes(call, position):
                self._changed_somehow(without_parentheses(argument))

    def may_change(self, variable: Variable) -> bool:
        """Returns true if a variable may have other values than its initial one."""
        if variable.is_reference or variable.is_array:
            return True
        if variable.is_parameter:
            return bool(variable.definitions)
        return variable.value is None or len(variable.definitions) != 1

    def changes_within(self, variable: Variable, start: int, end: int) -> bool:
        return any(
            value is None or start <= value.start_byte < end
            for value, _ in variable.definitions
            if value is not variable.value
        )

    def _find_held(self) -> set[Variable]:
        """Returns the variables that lambdas refer to which are passed to calls that synchronise: these must keep their
        address."""
        found = set()
        for call in walk(self._body):
            if call.type != "call_expression" or not self._meets(call):
                continue
            arguments = call.child_by_field_name("arguments")
            lambdas = [n for n in walk(arguments) if n.type == "lambda_expression"]
            lambdas += [
                v.value for v in self.used_in(arguments) if v.declared.lambda_expression is not None
            ]
            for node in lambdas:
                if not self._meets(node):
                    found |= self.captured_by(node) - self.copied_by(node)
        return found
