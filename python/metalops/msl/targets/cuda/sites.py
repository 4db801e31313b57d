"""Convergence masks for simdgroup operations: the set of lanes that take part in an operation when others have
diverged.

Functions with simdgroup operations get a Site parameter, a mask of the lanes that run them together
(include/msl/cuda/site.h). Where lanes diverge, at an if, a loop, ?:, && or ||, each side gets a Site of its own; where
they reconverge, the previous one applies again. Lanes that leave early (return, break, continue) first go to the end of
the statement at which they diverged, where the others learn that they have left.

Operators, constructors, destructors and conversions cannot take a Site parameter. In a program where some of these have
simdgroup operations, every thread notes its current Site (Site::enter), and they read it from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...analysis.cuts import NotCut
from ...analysis.effects import Effects
from ...analysis.program import Function, Kernel, ProgramError, last_name
from ...analysis.uniformity import Body
from ...analysis.variables import Kind
from ...dialect import names
from ...source.tree import LOOPS, alternative_of, case_statements, is_constexpr_if, walk
from ...source.vocabulary import SYNCHRONISING, THREAD_ATTRIBUTES

SITE = f"{names.ABI}::Site"
_OPERATOR = re.compile(r"operator(?!\(\)$)\W")
_ASSIGNS = re.compile(r"(?<![<>!=])=(?!=)|\{")
_OPERATIONS = {
    "assignment_expression",
    "binary_expression",
    "unary_expression",
    "pointer_expression",
    "update_expression",
}
_CODES = {"continue_statement": 1, "break_statement": 2, "return_statement": 3}


@dataclass
class _Around:
    """A statement that lanes may leave. kind: "if", "loop" (both with a join), "plain loop" or "switch" (without).

    number: of the join's label. codes: the ways of leaving with which lanes arrive at the join.
    """

    kind: str
    number: int = 0
    codes: set[int] = field(default_factory=set)


class Sites:
    def __init__(self, rewritten):
        self.rewritten = rewritten
        self.program = rewritten.program
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.calls = rewritten.calls
        self.effects = Effects(self.program, self.calls)
        is_reached = {
            _place(f): any(self.calls.reaches(i, f) for i in self.program.instances)
            for f in self.program.functions
        }
        self._reached = [f for f in self.program.functions if is_reached[_place(f)]]
        self._used = [f for f in self._reached if self.calls.function_has_simd_operation(f)]
        self._taking = self._find_taking()
        self._without_parameter = {
            place for place, item in self._taking.items() if self._is_called_without_a_word(item)
        }
        # Names of the classes whose objects may run an operation without an explicit call.
        owner = self.calls.lookup.owner
        self._classes = {owner(self._taking[place]) for place in self._without_parameter}
        self._unused = self._find_unused(
            [f for f in self.program.functions if not is_reached[_place(f)]]
        )

    def add(self) -> None:
        kernels = {kernel.function.node.start_byte: kernel for kernel in self.program.kernels}
        for function in self._unused:
            self._take_out(function)
        for item in self._taking.values():
            if isinstance(item, Function):
                kernel = kernels.get(item.node.start_byte)
                if kernel is None or not kernel.unsupported:
                    parameters = item.declarator.child_by_field_name("parameters")
                    _Body(self, item, item.body, parameters, kernel).write()
            else:
                declarator = item.child_by_field_name("declarator")
                parameters = declarator and declarator.child_by_field_name("parameters")
                _Body(self, item, item.child_by_field_name("body"), parameters, None).write()

    def _find_unused(self, functions: list[Function]) -> list[Function]:
        """Returns the functions that no kernel reaches and that call something with a Site parameter: they need not be
        rewritten."""
        called: dict[int, set[str]] = {}
        found: list[Function] = []
        for function in functions:
            calls = [n for n in walk(function.body or function.node) if n.type == "call_expression"]
            called[_place(function)] = {
                last_name(self.source, n.child_by_field_name("function")) for n in calls
            }
            if any(self.takes_site(item) for n in calls for item in self.calls.called(n)):
                found.append(function)
        names = SYNCHRONISING | {f.name for f in found}
        while more := [f for f in functions if f not in found and called[_place(f)] & names]:
            found += more
            names = names | {f.name for f in more}
        return found

    def _take_out(self, function: Function) -> None:
        """Removes the definition of an unused function. The declaration stays if a type may be made from it, as in
        decltype(f<int>)."""
        node = function.body and function.body.parent.child_by_field_name("type")
        has_type = node is not None and "auto" not in self.source.masked_text(node).split()
        if function.in_class or not has_type:
            self.rewritten.remove(function.head, function.node)
        else:
            self.edits.replace(function.body.start_byte, function.body.end_byte, ";")

    @property
    def are_noted(self) -> bool:
        """True if threads note their current Site."""
        return bool(self._without_parameter)

    def _is_called_without_a_word(self, item) -> bool:
        if not isinstance(item, Function):
            return False
        is_constructor = self.calls.lookup.owner(item) == item.name
        is_operator = _OPERATOR.match(item.name) is not None
        return is_constructor or is_operator or item.is_conversion or item.name.startswith("~")

    def meets(self, item) -> bool:
        """Returns true if lanes may synchronise in a function, or in the lambda of this node."""
        return _place(item) in self._taking

    def takes_site(self, item) -> bool:
        """Returns true if a function, or the lambda of this node, has a Site parameter."""
        return self.meets(item) and _place(item) not in self._without_parameter

    def may_meet_without_a_call(self, node) -> bool:
        """Returns true if a node of an expression or a declaration may stand for an operator, a constructor or the like
        with an operation."""
        if not self.are_noted:
            return False
        if node.type in _OPERATIONS:
            operator = node.child_by_field_name("operator")
            return f"operator{self.source.masked_text(operator)}" in self.calls.simd_operators
        if node.type == "subscript_expression":
            return "operator[]" in self.calls.simd_operators
        # Objects of the classes, under any name.
        return node.type in ("identifier", "type_identifier", "field_identifier") and bool(
            self._classes - {None}
        )

    def _find_taking(self) -> dict[int, object]:
        """Returns the functions and lambdas with operations, by offset, those that a call of one of them may mean as
        well, and their callers."""
        found = {_place(f): f for f in self._used}
        calls = [
            (function, self.calls.called(call))
            for function in self._reached
            if function.body is not None
            for call in walk(function.body)
            if call.type == "call_expression"
        ]
        lambdas = [
            (function, node)
            for function in self._reached
            if function.body is not None
            for node in walk(function.body)
            if node.type == "lambda_expression"
        ]
        before = -1
        while before != len(found):
            before = len(found)
            for function, node in lambdas:
                if self._has_operation(node) or _place(node) in found:
                    found[_place(node)] = node
                    found[_place(function)] = function
            for function, called in calls:
                if any(_place(item) in found for item in called):
                    found[_place(function)] = function
                    found.update((_place(item), item) for item in called)
        names = {f.name for f in found.values() if isinstance(f, Function)}
        for function in self.program.functions:
            if function.body is None and function.name in names:
                found[_place(function)] = function
        return found

    def _has_operation(self, node) -> bool:
        return any(
            n.type == "call_expression"
            and (
                self.calls.call_has_simd_operation(n)
                or last_name(self.source, n.child_by_field_name("function")) in SYNCHRONISING
            )
            for n in walk(node)
        )


def _place(item) -> int:
    return item.node.start_byte if isinstance(item, Function) else item.start_byte


class _Body:
    """Rewrites a function or lambda that takes a Site."""

    def __init__(self, sites: Sites, item, body, parameters, kernel: Kernel | None):
        """parameters: their list; None for a lambda without one."""
        self.sites = sites
        self.source = sites.source
        self.edits = sites.edits
        self.calls = sites.calls
        self.item = item
        self.node = body
        self.parameters = parameters
        self.kernel = kernel
        self._count = 0
        self._declared: list[str] = []  # Sites of the whole function
        self._leaves = False
        self._returns = False
        self._around: list[_Around] = []

    def write(self) -> None:
        takes_site, are_noted = self.sites.takes_site(self.item), self.sites.are_noted
        if takes_site:
            self._take_site()
        if self.node is None:
            return
        self.facts = None if are_noted else self._analyse()
        if not takes_site:
            for child in self.node.parent.children:
                if child.type == "field_initializer_list":
                    self._visit(child, f"{SITE}::noted()")
        for child in self.node.children:
            self._visit(child, "msl_site")
        declarations = "" if takes_site else f" {SITE} msl_site = {SITE}::noted();"
        if are_noted:
            declarations += f" const {names.ABI}::Noted msl_noted(msl_site);"
        if self._declared:
            declarations += f" {SITE} {', '.join(self._declared)};"
        if self._leaves:
            declarations += f" {names.ABI}::u32 msl_left = 0;"
        if self._returns and (result := self._result_type()) is not None:
            declarations += f" {result} msl_result;"
        if declarations:
            self.edits.append(self.node.start_byte + 1, declarations)

    def _take_site(self) -> None:
        """Adds the Site parameter: in front of the others, among which there may be defaults and packs; at the end for
        functions that are called like Metal's own operations."""
        if self.parameters is None:
            captures = self.item.child_by_field_name("captures")
            self.edits.append(captures.end_byte, f"({SITE} msl_site)")
            return
        inside = self.source.masked_text(self.parameters)[1:-1].strip()
        if inside == "void":
            self.edits.blank(self.parameters.start_byte + 1, self.parameters.end_byte - 1)
            inside = ""
        comma = ", " if inside else ""
        if isinstance(self.item, Function) and self.item.name in SYNCHRONISING:
            self.edits.append(self.parameters.end_byte - 1, f"{comma}{SITE} msl_site")
        else:
            self.edits.append(self.parameters.start_byte + 1, f"{SITE} msl_site{comma}")

    def _analyse(self) -> Body | None:
        """Returns the uniformity analysis; None if nothing is known: then lanes may diverge everywhere."""
        if not isinstance(self.item, Function):
            return None
        kinds = []
        parameters = [p for p in self.parameters.named_children if p.type != "comment"]
        for position, node in enumerate(parameters):
            differs = True
            if self.kernel is not None and position < len(self.kernel.parameters):
                parameter = self.kernel.parameters[position]
                differs = (
                    parameter.kind == "builtin"
                    and THREAD_ATTRIBUTES[parameter.attribute].differs_in_group
                )
            kinds.append((node, Kind.THREAD if differs else Kind.GROUP))
        effects = self.sites.effects
        has_object = self.item.in_class and not effects.is_static(self.item)
        try:
            return Body(
                self.source,
                self.node,
                self.calls.scopes(self.item.node),
                kinds,
                self._meets_call,
                effects.writes,
                effects.is_pure,
                effects.members_of(self.item) if has_object else frozenset(),
            )
        except NotCut:
            return None

    def _result_type(self) -> str | None:
        if not isinstance(self.item, Function):
            if any(n.type == "return_statement" and n.named_children for n in walk(self.node)):
                raise ProgramError(
                    "lanes leave a lambda early that has a result: make it a function",
                    self.item.start_byte,
                )
            return None
        node = self.node.parent
        while node.type != "function_definition":
            node = node.parent
        type_node = node.child_by_field_name("type")
        declarator = node.child_by_field_name("declarator")
        if type_node is None and not self.item.is_conversion:
            return None  # a constructor or destructor
        if type_node is None or "auto" in self.source.masked_text(type_node).split():
            raise ProgramError(
                "lanes leave a function early whose result has the type 'auto'", node.start_byte
            )
        text = self.edits.text_of(type_node.start_byte, type_node.end_byte)
        while declarator.type in ("pointer_declarator", "reference_declarator"):
            if declarator.type == "reference_declarator":
                raise ProgramError(
                    "lanes leave a function early that returns a reference", node.start_byte
                )
            text += "*"
            declarator = (
                declarator.child_by_field_name("declarator") or declarator.named_children[-1]
            )
        return None if text == "void" else text

    # ---- facts -----------------------------------------------------------------------------------

    def _meets_call(self, call) -> str | None:
        """Classifies a call for Body: lambdas and matrix products are not reported, so that all variables declared in a
        lambda count as varying."""
        if call.type != "call_expression":
            return None
        if self._is_operation(call) or any(map(self.sites.meets, self.calls.called(call))):
            return "simd"
        return None

    def _is_operation(self, call) -> bool:
        name = last_name(self.source, call.child_by_field_name("function"))
        return name in SYNCHRONISING and (
            self.calls.is_operation_call(call) or self._takes_site(call)
        )

    def _takes_site(self, call) -> bool:
        return any(map(self.sites.takes_site, self.calls.called(call)))

    def _meets(self, node) -> bool:
        return any(
            (n.type == "call_expression" and self._meets_call(n))
            or self.sites.may_meet_without_a_call(n)
            for n in walk(node)
        )

    def _enter(self, site: str) -> str:
        """Returns the code for a point of reconvergence."""
        return f" {site}.enter();" if self.sites.are_noted else ""

    def _parts(self, condition) -> bool:
        return self.facts is None or self.facts.parts(condition)

    def _new(self, what: str) -> str:
        self._count += 1
        name = f"msl_{what}_{self._count}"
        self._declared.append(name)
        return name

    def _leaves_statement(self, node) -> bool:
        return (
            self.facts.cuts.leaves(node)
            if self.facts is not None
            else any(n.type in _CODES for n in walk(node))
        )

    def _meets_later(self, node) -> bool:
        """Returns true if lanes may synchronise in this body after a statement: otherwise it does not matter which have
        left it."""
        around = node.parent
        while around is not None and around.id != self.node.id:
            if around.type in LOOPS and self._meets(around):
                return True
            around = around.parent
        return any(
            n.start_byte >= node.end_byte and self._meets(n)
            for n in walk(self.node)
            if n.type == "call_expression" or self.sites.are_noted
        )

    # ---- statements ------------------------------------------------------------------------------

    def _visit(self, node, site: str) -> None:
        waiting = [(node, site)]
        while waiting:
            node, site = waiting.pop()
            waiting += reversed(list(self._parts_of(node, site)))

    def _parts_of(self, node, site: str) -> Iterator[tuple[object, str]]:
        """Yields the nodes to visit in a node, with their Sites; edits the text around them."""
        kind = node.type
        if kind == "if_statement" and not is_constexpr_if(node):
            self._if(node, site)
        elif kind in LOOPS:
            self._loop(node, site)
        elif kind == "switch_statement":
            self._switch(node, site)
        elif kind in _CODES:
            self._leave(node, site)
        elif kind == "conditional_expression" and self._meets_in_arms(node):
            self._choice(node, site)
        elif (
            kind == "binary_expression"
            and self.source.node_text(node.child_by_field_name("operator"))
            in ("&&", "||", "and", "or")
            and self._meets(node.child_by_field_name("right"))
        ):
            self._decision(node, site)
        elif kind == "lambda_expression":
            pass  # a body of its own
        elif kind == "call_expression":
            self._call(node, site)
            yield from ((c, site) for c in node.children)
        else:
            yield from ((c, site) for c in node.children)

    def _call(self, node, site: str) -> None:
        arguments = node.child_by_field_name("arguments")
        has_arguments = bool(self.source.masked_text(arguments)[1:-1].strip())
        if self._is_operation(node):
            comma = ", " if has_arguments else ""
            self.edits.append(arguments.end_byte - 1, f"{comma}{site}")
        elif self._takes_site(node):
            comma = ", " if has_arguments else ""
            self.edits.append(arguments.start_byte + 1, f"{site}{comma}")

    def _condition(self, clause):
        value = clause.child_by_field_name("value") if clause.type == "condition_clause" else clause
        # The grammar parses `a * b < c && d >= e` as a declaration.
        declares = (
            value is not None
            and value.type == "declaration"
            and _ASSIGNS.search(self.source.masked_text(value))
        )
        if value is None or declares or clause.child_by_field_name("initializer"):
            raise ProgramError(
                "a condition that declares a variable, where lanes diverge: declare it before",
                clause.start_byte,
            )
        return value

    def _if(self, node, site: str) -> None:
        clause = node.child_by_field_name("condition")
        consequence, alternative = node.child_by_field_name("consequence"), alternative_of(node)
        leaves = self._leaves_statement(node) and self._meets_later(node)
        if not (self._meets(node) or leaves) or not self._parts(clause):
            for child in (clause, consequence, alternative):
                if child is not None:
                    self._visit(child, site)
            return
        condition = self._condition(clause)
        self._visit(condition, site)
        yes, no = self._new("yes"), self._new("no")
        self.edits.wrap(
            condition.start_byte, condition.end_byte, f"{site}.part((", f"), {yes}, {no})"
        )
        if leaves and alternative is None and self._returns_at_once(consequence):
            # The others continue without them, and need not keep a result, whose type may have no name.
            self._visit(consequence, yes)
            self.edits.wrap(node.start_byte, node.end_byte, "{ ", f" {site} = {no}; }}")
            return
        around = _Around("if", self._count)
        self._around.append(around)
        self._visit(consequence, yes)
        if alternative is not None:
            self._visit(alternative, no)
        self._around.pop()
        if around.codes:
            self._braces(node, f"{site}.join(msl_left);", around)
        elif self.sites.are_noted:
            self.edits.wrap(node.start_byte, node.end_byte, "{ ", f"{self._enter(site)} }}")

    def _returns_at_once(self, statement) -> bool:
        """Returns true if lanes that reach a statement return from the function, and from no enclosing statement with a
        join."""
        if any(around.kind in ("if", "loop", "case") for around in self._around):
            return False
        if statement.type == "compound_statement":
            statements = [c for c in statement.named_children if c.type != "comment"]
            statement = statements[-1] if statements else statement
        return statement.type == "return_statement"

    def _braces(self, node, join: str, around: _Around) -> None:
        label = f" msl_join_{around.number}: {join}"
        leave = "".join(self._leaving(code) for code in sorted(around.codes))
        self.edits.wrap(node.start_byte, node.end_byte, "{ ", f"{label}{leave} }}")

    def _leaving(self, code: int) -> str:
        """Returns the code with which lanes of a code continue after a join."""
        return f" if (msl_left == {code}) {self._go(code)}"

    def _go(self, code: int) -> str:
        for around in reversed(self._around):
            if around.kind in ("if", "loop", "case"):
                around.codes.add(code)
                return f"goto msl_join_{around.number};"
            if code == 2 or (code == 1 and around.kind == "plain loop"):
                return f"{{ msl_left = 0; {'break' if code == 2 else 'continue'}; }}"
        return "return msl_result;" if self._has_result() else "return;"

    def _has_result(self) -> bool:
        return self.kernel is None and self._result_type() is not None

    def _leave(self, node, site: str) -> None:
        values = [c for c in node.named_children if c.type != "comment"]
        for value in values:
            self._visit(value, site)
        code = _CODES[node.type]
        managed = False
        for around in reversed(self._around):
            if around.kind in ("if", "loop", "case"):
                managed = True
                break
            if code == 2 or (code == 1 and around.kind == "plain loop"):
                break
        if not managed:
            return
        self._leaves = True
        go = self._go(code)
        if code == 3:
            self._returns = True
        if code == 3 and values:
            before, after = ("", "") if values[0].type == "initializer_list" else ("(", ")")
            self.edits.replace(node.start_byte, values[0].start_byte, f"{{ msl_result = {before}")
            self.edits.replace(
                values[0].end_byte, node.end_byte, f"{after}; msl_left = {code}; {go} }}"
            )
        else:
            self.edits.replace(node.start_byte, node.end_byte, f"{{ msl_left = {code}; {go} }}")

    def _loop(self, node, site: str) -> None:
        condition = node.child_by_field_name("condition")
        body = node.child_by_field_name("body")
        others = [node.child_by_field_name(f) for f in ("initializer", "update", "right")]
        if not (self._meets(node) or self._leaves_statement(node)):
            return
        parts = (
            node.type == "for_range_loop"
            or (condition is not None and self._parts(condition))
            or self.facts is None
            or self.facts.parts(node)
        )
        if not parts:
            self._around.append(_Around("plain loop"))
            for child in (condition, body, *others):
                if child is not None:
                    self._visit(child, site)
            self._around.pop()
            return
        if node.type == "for_range_loop":
            raise ProgramError(
                "simdgroup operations in a range-based for: write a loop over an index",
                node.start_byte,
            )
        loop, turn = self._new("loop"), self._new("turn")
        number = self._count
        around = _Around("loop", number, {1})
        if others[0] is not None:
            self._visit(others[0], site)
        if condition is not None:
            value = self._condition(condition)
            if value.type == "parenthesized_expression":
                value = value.named_children[0]
            self._visit(value, loop)
            self.edits.wrap(value.start_byte, value.end_byte, f"{loop}.stay((", "))")
        if others[1] is not None:
            self._visit(others[1], loop)
        self._around.append(around)
        self._visit(body, turn)
        self._around.pop()
        self._leaves = True
        self.edits.wrap(
            body.start_byte,
            body.end_byte,
            f"{{ {turn} = {loop}; ",
            f" msl_join_{number}: if ({loop}.leave(msl_left)) break; }}",
        )
        after = self._enter(site)
        after += " if (msl_left == 2) msl_left = 0;" if 2 in around.codes else ""
        if 3 in around.codes:
            after += f" {site}.join(msl_left);{self._leaving(3)}"
        self.edits.wrap(node.start_byte, node.end_byte, f"{{ {loop} = {site}; ", f"{after} }}")

    def _switch(self, node, site: str) -> None:
        clause, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        if not (self._meets(node) or self._leaves_statement(node)):
            return
        self._visit(clause, site)
        if not (self._parts(clause) or self.facts is None or self.facts.parts(node)):
            self._around.append(_Around("switch"))
            self._visit(body, site)
            self._around.pop()
            return
        cases = [c for c in body.named_children if c.type != "comment"]
        if any(c.type != "case_statement" for c in cases):
            raise ProgramError(
                "a switch with statements before its first case, where lanes diverge",
                node.start_byte,
            )
        # A lane is in a case if it has the case's label, or if it falls through from the previous one.
        self._count += 1
        value, inside = f"msl_value_{self._count}", f"msl_inside_{self._count}"
        condition = self._condition(clause)
        self.edits.replace(node.start_byte, condition.start_byte, f"{{ const auto {value} = (")
        self.edits.replace(condition.end_byte, body.start_byte + 1, f"); bool {inside} = false; ")
        self.edits.append(body.end_byte - 1, self._enter(site))
        self.edits.append(body.end_byte, " ")
        labels = [label for c in cases if (label := c.child_by_field_name("value")) is not None]
        texts = [self.edits.text_of(label.start_byte, label.end_byte) for label in labels]
        for case in cases:
            self._case(case, site, value, inside, texts)

    def _case(self, case, site: str, value: str, inside: str, labels: list[str]) -> None:
        label, statements = case.child_by_field_name("value"), case_statements(case)
        colon = next(c for c in case.children if c.type == ":")
        if label is None:
            is_here = "!(" + " || ".join(f"{value} == ({text})" for text in labels or ["0"]) + ")"
            is_here = is_here if labels else "true"
        else:
            is_here = f"{value} == ({self.edits.text_of(label.start_byte, label.end_byte)})"
        yes, no = self._new("yes"), self._new("no")
        self.edits.replace(
            case.start_byte,
            colon.end_byte,
            f"if ({site}.part({inside} || {is_here}, {yes}, {no})) {{ {inside} = true; ",
        )
        around = _Around("case", self._count)
        self._around.append(around)
        for statement in statements:
            self._visit(statement, yes)
        self._around.pop()
        after = " }"
        if around.codes:
            after += f" msl_join_{around.number}: {site}.join(msl_left & 1);"
            if 2 in around.codes:
                after += f" if (msl_left == 2) {{ msl_left = 0; {inside} = false; }}"
            after += "".join(self._leaving(code) for code in sorted(around.codes - {2}))
        self.edits.append(case.end_byte, after)

    # ---- expressions -----------------------------------------------------------------------------

    def _meets_in_arms(self, node) -> bool:
        return any(
            self._meets(node.child_by_field_name(arm)) for arm in ("consequence", "alternative")
        )

    def _choice(self, node, site: str) -> None:
        condition = node.child_by_field_name("condition")
        self._visit(condition, site)
        yes, no = self._new("yes"), self._new("no")
        self.edits.wrap(
            condition.start_byte, condition.end_byte, f"{site}.part((", f"), {yes}, {no})"
        )
        self._visit(node.child_by_field_name("consequence"), yes)
        self._visit(node.child_by_field_name("alternative"), no)
        self._enter_after(node, site)

    def _decision(self, node, site: str) -> None:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        self._visit(left, site)
        yes, no = self._new("yes"), self._new("no")
        self.edits.wrap(left.start_byte, left.end_byte, f"{site}.part((", f"), {yes}, {no})")
        is_and = self.source.node_text(node.child_by_field_name("operator")) in ("&&", "and")
        self._visit(right, yes if is_and else no)
        self._enter_after(node, site)

    def _enter_after(self, node, site: str) -> None:
        if self.sites.are_noted:
            self.edits.wrap(node.start_byte, node.end_byte, f"{site}.after(", ")")
