"""Divergence analysis: finds barriers that not all threads of a threadgroup reach, and operations on tensors that not
all threads of their scope reach, as far as the source shows it.

Values are uniform (the same in all threads of a group, or of a simdgroup for its operations), may vary, or vary for
certain. Sources are the attributes of the kernel's parameters, from which values propagate through variables.
Parameters of other functions count as uniform: only kernels know.
"""

from __future__ import annotations

import re
from collections import Counter

from ..analysis.program import declared_identifier, integer_value, name_node
from ..analysis.scopes import Declaration
from ..source.tree import NESTED, inner_first, may_be_deep
from ..source.vocabulary import THREAD_ATTRIBUTES
from .checked import Checked, descendants
from .rules import rule

DIVERGENT = rule(
    "divergent-barrier", "6.9.1", "All threads of a threadgroup reach a threadgroup_barrier."
)
SUSPECT = rule(
    "maybe-divergent-barrier",
    "6.9.1",
    "All threads of a threadgroup reach a threadgroup_barrier: its condition should be uniform.",
    is_suspicion=True,
)

TENSORS = rule(
    "divergent-tensor-operation",
    "2.20",
    "All threads of its scope reach an operation on tensors: run, reductions, load and store of cooperative tensors.",
)
SUSPECT_TENSORS = rule(
    "maybe-divergent-tensor-operation",
    "2.20",
    "All threads of its scope reach an operation on tensors: its condition should be uniform.",
    is_suspicion=True,
)

_UNIFORM, _MAY, _VARIES = 0, 1, 2
_OPERATIONS = {"run", "load", "store"}
_OF_THREAD = re.compile(r"\bexecution_threads?\b")
_OF_GROUP = re.compile(r"\bexecution_simdgroups\s*<(?!\s*1\s*>)")
_OPERATION_TYPE = re.compile(r"\b(?:matmul2d|convolution2d)\s*<|\bcooperative_tensor")
_LOOPS = ("for_statement", "while_statement", "do_statement", "for_range_loop")
_CONDITIONALS = ("if_statement", "switch_statement", *_LOOPS)


def check(checked: Checked) -> None:
    """Reports violations of the rules of this group."""
    for kernel in checked.program.kernels:
        if checked.wants(kernel.function.node.start_byte):
            _Kernel(checked, kernel).barriers()
            if checked.program.has_tensors:
                _Kernel(checked, kernel).tensors("threadgroup")
                _Kernel(checked, kernel, of_simdgroup=True).tensors("simdgroup")


def _contains(outer, inner) -> bool:
    return outer.start_byte <= inner.start_byte < outer.end_byte


def _without_parentheses(node):
    """Returns the expression in parentheses or in the condition of a statement."""
    while node is not None and node.type in ("parenthesized_expression", "condition_clause"):
        named = [c for c in node.named_children if c.type != "comment"]
        node = named[-1] if named else None
    return node


def _is_shared(declaration: Declaration) -> bool:
    """Returns true if a variable is in threadgroup memory: all threads read the same value there, whichever of them
    wrote it."""
    is_own = {"pointer", "reference"} & set(declaration.kinds)
    return "threadgroup" in declaration.address_spaces and not is_own


class _Kernel:
    """The varying values in a kernel. of_simdgroup: varying within a simdgroup instead of a threadgroup."""

    def __init__(self, checked: Checked, kernel, of_simdgroup: bool = False):
        self.checked = checked
        self.of_simdgroup = of_simdgroup
        self.kernel = kernel
        self.source = checked.source
        self.scopes = checked.calls.scopes_around(kernel.function.body)
        self.values: dict[Declaration, int] = {}
        self.in_grid: set[Declaration] = set()
        self.positions: set[Declaration] = set()
        self._varying_summands: dict[str, int] = {}
        self._inner: dict[int, int] = {}  # values within the expression whose value is computed
        declared = {d.identifier.start_byte: d for d in self.scopes.declarations}
        for parameter in kernel.parameters:
            if parameter.kind == "builtin" and parameter.name:
                identifier = declared_identifier(parameter.node.child_by_field_name("declarator"))
                declaration = declared[identifier.start_byte]
                if THREAD_ATTRIBUTES[parameter.attribute].differs_in_group and not (
                    of_simdgroup and parameter.attribute == "simdgroup_index_in_threadgroup"
                ):
                    self.values[declaration] = _VARIES
                if parameter.attribute == "thread_position_in_grid":
                    self.in_grid.add(declaration)
                if THREAD_ATTRIBUTES[parameter.attribute].is_position:
                    self.positions.add(declaration)
        self.axes = self._axes(kernel)

    def _axes(self, kernel) -> set[str]:
        """Returns the axes along which threadgroups have threads, as far as the kernel shows: x, and those along which it
        asks for a position or a size in the threadgroup. Threadgroups of one row are the most common."""
        names = {
            p.name
            for p in kernel.parameters
            if p.kind == "builtin"
            and p.attribute
            in (
                "thread_position_in_threadgroup",
                "threads_per_threadgroup",
                "dispatch_threads_per_threadgroup",
            )
        }
        text = self.source.masked_text(kernel.function.body)
        used = (
            re.findall(
                rf"\b(?:{'|'.join(sorted(filter(None, names)))})\s*(\.\s*\w+|[^.\w\s]|$)", text
            )
            if names
            else []
        )
        axes = {"x", "r"}
        for what in used:
            axes |= set(what[1:].strip()) if what.startswith(".") else set("xyzrgb")
        return axes

    def barriers(self) -> None:
        self._reached(self._is_barrier, "group", DIVERGENT, SUSPECT)

    def tensors(self, scope: str) -> None:
        """Checks the operations of a scope: "threadgroup" or "simdgroup"."""
        self._reached(lambda call: self._scope_of(call) == scope, scope, TENSORS, SUSPECT_TENSORS)

    def _reached(self, is_meant, scope: str, certain, suspect) -> None:
        if not self.values:
            return
        body = self.kernel.function.body
        calls = [n for n in descendants(body) if n.type == "call_expression" and is_meant(n)]
        if not calls:
            return
        self._follow_variables()
        reasons = self._exits(body)
        for call in calls:
            self._operation(call, reasons, scope, certain, suspect)

    def _scope_of(self, call) -> str | None:
        """Returns the scope of an operation on tensors, "simdgroup" if the program does not name it here; None for
        other calls."""
        callee = call.child_by_field_name("function")
        name = name_node(callee)
        if callee.type != "field_expression":
            is_reduction = self.source.masked_text(name) in ("reduce_rows", "reduce_columns")
            return "simdgroup" if is_reduction else None
        if self.source.masked_text(name) not in _OPERATIONS:
            return None
        text = self._type_text(callee.child_by_field_name("argument"))
        if _OF_THREAD.search(text) or not _OPERATION_TYPE.search(text):
            return None
        return "threadgroup" if _OF_GROUP.search(text) else "simdgroup"

    def _type_text(self, node) -> str:
        """Returns the text of the type of an operation's or a cooperative tensor's variable; for a cooperative tensor,
        with the type of the operation that it comes from."""
        declaration = self.scopes.declaration_of(node) if node.type == "identifier" else None
        if declaration is None:
            return ""
        value = declaration.initialiser
        if value is None or value.type != "call_expression":
            return declaration.type
        text = f"{declaration.type} {self.source.masked_text(value)}"
        callee = value.child_by_field_name("function")
        if callee.type == "field_expression":
            text += " " + self._type_text(callee.child_by_field_name("argument"))
        return text

    def _is_barrier(self, call) -> bool:
        called = name_node(call.child_by_field_name("function"))
        return called.type == "identifier" and self.checked.calls.surely_has_barrier(call)

    def _operation(self, call, exits, scope: str, certain, suspect) -> None:
        worst, why = _UNIFORM, None
        node, child = call.parent, call
        while node is not None and node.start_byte >= self.kernel.function.body.start_byte:
            if node.type == "lambda_expression":
                return
            if node.type in _CONDITIONALS and child.type not in (
                "condition_clause",
                "init_statement",
            ):
                condition = self._condition(node)
                value = self._value(condition) if not self._is_counted(node) else _UNIFORM
                if value and value >= worst:  # the outermost one says most
                    worst, why = value, condition
            node, child = node.parent, node
        for leave, around, condition, value in exits:
            is_behind = leave.start_byte < call.start_byte or leave.type == "break_statement"
            is_inside = _contains(around, call) and not _contains(condition.parent, call)
            if is_behind and is_inside and value > worst:
                worst, why = value, condition
        if why is None:
            return
        name = self.checked.text(call.child_by_field_name("function"))
        _, line = self.checked.lines.place(why.start_byte)
        text = self.checked.text(why)
        if worst == _VARIES:
            self.checked.report(
                certain,
                call,
                f"not all threads of the {scope} reach this {name}, because {text} at line {line} "
                "differs among them; "
                "move it to where all threads come",
            )
        else:
            what = "barrier" if certain is DIVERGENT else "operation"
            self.checked.report(
                suspect,
                call,
                f"perhaps not all threads of the {scope} reach this {name}: {text} at line {line} "
                "may differ among them; "
                f"make the condition the same for the whole {scope}, or move the {what} out",
            )

    # ---- conditions ------------------------------------------------------------------------------

    @staticmethod
    def _condition(node):
        if node.type == "for_range_loop":
            return None
        return node.child_by_field_name("condition")

    def _is_counted(self, loop) -> bool:
        """Returns true for `for (i = a + x; i < b + x; i += c)`, which has as many iterations for all threads, whatever
        x is, if a, b and c are uniform."""
        if loop.type != "for_statement":
            return False
        condition = _without_parentheses(loop.child_by_field_name("condition"))
        update = loop.child_by_field_name("update")
        if condition is None or update is None or condition.type != "binary_expression":
            return False
        operator = self.source.node_text(condition.child_by_field_name("operator"))
        left, right = (condition.child_by_field_name(side) for side in ("left", "right"))
        if operator not in ("<", "<=", ">", ">=", "!=") or left.type != "identifier":
            return False
        counter = self.scopes.declaration_of(left)
        if counter is None or counter.initialiser is None or not _contains(loop, counter.node):
            return False
        if update.type == "assignment_expression":
            step = self.source.node_text(update.child_by_field_name("operator"))
            if step not in ("+=", "-=") or self._value(update.child_by_field_name("right")):
                return False
        elif update.type != "update_expression":
            return False
        if any(not _contains(update, d) for d in counter.definitions):
            return False
        start, end = Counter(self._summands(counter.initialiser)), Counter(self._summands(right))
        rest = (start - end) + (end - start)
        return not any(self._varying_summands.get(text, _UNIFORM) for text in rest)

    def _summands(self, node, depth: int = 0) -> list[str]:
        """Returns the summands of a sum, with the names of variables that have one value replaced by it."""
        waiting, found = [node], []
        while waiting:
            node = _without_parentheses(waiting.pop())
            if node.type == "binary_expression":
                if self.source.node_text(node.child_by_field_name("operator")) == "+":
                    waiting += [node.child_by_field_name(side) for side in ("left", "right")]
                    continue
            value = self._only_value(node) if depth < 8 else None
            if value is not None:
                found += self._summands(value, depth + 1)
                continue
            text = self.source.masked_text(node)
            self._varying_summands[text] = max(
                self._value(node), self._varying_summands.get(text, _UNIFORM)
            )
            found.append(text)
        return found

    def _only_value(self, node):
        """Returns the initialiser of a variable that nothing assigns to, or None."""
        declaration = self.scopes.declaration_of(node) if node.type == "identifier" else None
        if declaration is None or declaration.kind != "variable" or declaration.definitions:
            return None
        value = declaration.initialiser
        return None if value is None or value.type.endswith("_list") else value

    def _exits(self, body) -> list[tuple]:
        """Returns (statement, what it leaves, condition, value) of returns, breaks and continues under a condition that
        may vary."""
        found = []
        for node in descendants(body):
            if node.type not in ("return_statement", "break_statement", "continue_statement"):
                continue
            worst, why, scope = _UNIFORM, None, body
            parent, child = node.parent, node
            while parent is not None and parent.start_byte >= body.start_byte:
                if parent.type == "lambda_expression":
                    worst = _UNIFORM
                    break
                if (
                    parent.type in ("if_statement", "switch_statement")
                    and child.type != "condition_clause"
                ):
                    if parent.type == "switch_statement" and node.type == "break_statement":
                        worst = _UNIFORM
                        break
                    condition = parent.child_by_field_name("condition")
                    value = self._value(condition)
                    if node.type == "return_statement" and self._is_bound_of_position(condition):
                        value = _VARIES
                    if value > worst:
                        worst, why = value, condition
                if parent.type in _LOOPS and node.type != "return_statement":
                    scope = parent
                    break
                parent, child = parent.parent, parent
            if worst and why is not None:
                found.append((node, scope, why, worst))
        return found

    def _is_bound_of_position(self, condition) -> bool:
        """Returns true if a condition compares a thread's position with a literal or with an element of a buffer, as in
        `if (i >= n) return;`: in some grids of some sizes threads diverge there."""
        condition = _without_parentheses(condition)
        if condition is None:
            return False
        if condition.type == "unary_expression":
            return self._is_bound_of_position(condition.child_by_field_name("argument"))
        if condition.type != "binary_expression":
            return False
        sides = [condition.child_by_field_name(side) for side in ("left", "right")]
        operator = self.source.node_text(condition.child_by_field_name("operator"))
        if operator in ("&&", "||"):
            check_all = all if operator == "&&" else any
            return check_all(map(self._is_bound_of_position, sides))
        if operator not in ("<", "<=", ">", ">=", "==", "!="):
            return False
        positions = [side for side in sides if self._value(side) == _VARIES]
        limits = [side for side in sides if self._is_fixed(side)]
        return len(positions) == len(limits) == 1

    def _is_fixed(self, node) -> bool:
        """Returns true if an expression is a number, or an element of a buffer or constant that is the same for all
        threads."""
        node = _without_parentheses(node)
        if node.type in ("number_literal", "char_literal", "true", "false"):
            return True
        buffers = {p.name for p in self.kernel.parameters if p.kind == "buffer"}
        names = [n for n in descendants(node) if n.type == "identifier"]
        return (
            bool(names)
            and not self._value(node)
            and all(self.source.masked_text(n) in buffers for n in names)
        )

    # ---- values ----------------------------------------------------------------------------------

    def _follow_variables(self) -> None:
        """Propagates values through variables up to a fixed point."""
        for _ in range(8):
            before = dict(self.values)
            for declaration in self.scopes.declarations:
                if declaration.kind == "variable" and declaration.initialiser is not None:
                    self._assign(declaration, declaration.initialiser, declaration.node, False)
                for definition in declaration.definitions:
                    self._assign(
                        declaration, definition.child_by_field_name("right"), definition, True
                    )
            if self.values == before:
                return

    def _assign(self, declaration: Declaration, value, node, is_again: bool) -> None:
        # An assignment to a reference into threadgroup memory writes there.
        is_element = is_again and "reference" in declaration.kinds
        if _is_shared(declaration) or (is_element and "threadgroup" in declaration.address_spaces):
            return
        new = self._value(value) if value is not None else _UNIFORM
        if is_again:  # the value depends on the position in the program
            new = min(new, _MAY)
            if self._is_under_difference(node):
                new = _MAY
        self.values[declaration] = max(self.values.get(declaration, _UNIFORM), new)
        if value is not None and new == _VARIES and self._mentions_grid(value):
            self.in_grid.add(declaration)

    def _is_under_difference(self, node) -> bool:
        parent, child = node.parent, node
        start = self.kernel.function.body.start_byte
        while parent is not None and parent.start_byte >= start:
            if parent.type in _CONDITIONALS and child.type not in (
                "condition_clause",
                "init_statement",
            ):
                condition = self._condition(parent)
                if (
                    condition is not None
                    and child.start_byte != condition.start_byte
                    and self._value(condition)
                ):
                    return True
            parent, child = parent.parent, parent
        return False

    def _mentions_grid(self, node) -> bool:
        return any(
            n.type == "identifier" and self.scopes.declaration_of(n) in self.in_grid
            for n in descendants(node)
        )

    def _value(self, node) -> int:
        if node is None:
            return _UNIFORM
        if not self._inner and may_be_deep(node):
            for inner in inner_first(node, NESTED):
                self._inner[inner.id] = self._find_value(inner)
            found = self._inner[node.id]
            self._inner.clear()
            return found
        return self._inner[node.id] if node.id in self._inner else self._find_value(node)

    def _find_value(self, node) -> int:
        kind = node.type
        if kind == "identifier":
            return self.values.get(self.scopes.meanings.get(node.start_byte), _UNIFORM)
        if kind in ("parenthesized_expression", "condition_clause"):
            named = [c for c in node.named_children if c.type not in ("comment", "init_statement")]
            return self._value(named[-1]) if named else _UNIFORM
        if kind == "field_expression":
            argument = node.child_by_field_name("argument")
            axes = set(self.source.masked_text(node.child_by_field_name("field")))
            if (
                argument.type == "identifier"
                and self.scopes.declaration_of(argument) in self.positions
                and axes.isdisjoint(self.axes)
            ):
                return _UNIFORM
            return self._value(argument)
        if kind == "binary_expression":
            return self._binary(node)
        if kind in ("unary_expression", "cast_expression"):
            return self._value(
                node.child_by_field_name("argument") or node.child_by_field_name("value")
            )
        if kind == "call_expression":
            return self._call(node)
        return _MAY if any(self._value(c) for c in node.named_children) else _UNIFORM

    def _call(self, node) -> int:
        called = node.child_by_field_name("function")
        arguments = node.child_by_field_name("arguments")
        named = arguments.named_children
        if called.type == "primitive_type" or re.fullmatch(
            r"(?:u?int|u?short|u?char|u?long|size_t)", self.source.masked_text(called)
        ):
            return self._value(named[0]) if len(named) == 1 else _MAY
        if not any(self._value(a) for a in named) or self._returns_shared(node, named):
            return _UNIFORM
        return _MAY

    def _returns_shared(self, call, arguments) -> bool:
        """Returns true if a call synchronises, and returns an element of threadgroup memory that is the same one for all
        threads, as functions that reduce over a threadgroup do."""
        if not self.checked.calls.surely_has_barrier(call):
            return False
        functions = self.checked.calls.functions_called(call)
        return bool(functions) and all(self._is_of_group(f, arguments) for f in functions)

    def _is_of_group(self, function, arguments) -> bool:
        if function.body is None:
            return False
        scopes = self.checked.calls.scopes_around(function.body)
        parameters = [d for d in scopes.declarations if d.kind == "parameter"]
        results = [n for n in descendants(function.body) if n.type == "return_statement"]
        for result in results:
            value = (
                _without_parentheses(result.named_children[0]) if result.named_children else None
            )
            element = value
            if value is not None and value.type == "subscript_expression":
                element = value.child_by_field_name("argument")
                index = value.child_by_field_name("indices")
                if index is None or integer_value(self.source.masked_text(index)[1:-1]) is None:
                    return False
            elif value is not None and value.type == "pointer_expression":
                element = value.child_by_field_name("argument")
            if element is None or element.type != "identifier":
                return False
            declaration = scopes.declaration_of(element)
            if declaration not in parameters or "threadgroup" not in declaration.address_spaces:
                return False
            number = parameters.index(declaration)
            if number >= len(arguments) or self._value(arguments[number]):
                return False
        return bool(results)

    def _is_number_of_simdgroup(self, operator: str, right) -> bool:
        """Returns true if an operation computes a simdgroup's index from a thread's, in one-dimensional groups."""
        number = integer_value(self.source.masked_text(right))
        if number is None:
            return False
        return (operator == "/" and number > 0 and number % 32 == 0) or (
            operator == ">>" and number >= 5
        )

    def _binary(self, node) -> int:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        one, other = self._value(left), self._value(right)
        if not one and not other:
            return _UNIFORM
        operator = self.source.node_text(node.child_by_field_name("operator"))
        if self.of_simdgroup and self._is_number_of_simdgroup(operator, right):
            return _UNIFORM
        if operator in ("&&", "||"):
            return max(one, other)
        if _UNIFORM not in (one, other) or _MAY in (one, other):
            return _MAY
        if operator in ("+", "-", "*"):
            return _VARIES
        if operator in ("==", "!="):
            return _MAY if self._mentions_grid(node) else _VARIES
        if operator in ("<", "<=", ">", ">="):
            limit = right if one else left
            is_constant = limit.type == "number_literal" and not self._mentions_grid(node)
            return _VARIES if is_constant else _MAY
        return _MAY
