"""Loops that each simdgroup can run by itself, and what is uniform in a simdgroup there.

In a loop in which no thread waits for, or exchanges values with, another simdgroup, the simdgroups may run one after the
other. Then not only what is uniform in the threadgroup exists once, but also results of operations such as simd_sum, the
number of the simdgroup, and what follows from them. A variable counts from an assignment of such a value on, if the
assignment stands beside its declaration: `sum = simd_sum(sum);`.

That a variable is uniform when the loop begins is guessed here, and checked when the kernel runs.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..source.parse import Source
from ..source.tree import LOOPS, is_constexpr_if, walk, without_parentheses
from .rematerialised import CONVERSIONS
from .uniformity import Body
from .variables import USES_MATRICES, Kind, Variable

# Operations whose result is the same for all active lanes, if their arguments after the first are.
_GIVE_THE_SAME = frozenset(
    f"simd_{name}"
    for name in (
        "active_threads_mask", "all", "and", "any", "ballot", "broadcast", "broadcast_first", "max",
        "min", "or", "product", "shuffle", "sum", "xor",
    )
)  # fmt: skip
_ENDS = {"return_statement", "goto_statement", "labeled_statement"}
_PASSED_THROUGH = {
    "comma_expression", "compound_statement", "declaration", "else_clause", "expression_statement",
    "init_declarator", "pointer_declarator",
}  # fmt: skip
_OFFSETS = {
    "binary_expression", "cast_expression", "identifier", "number_literal", "parenthesized_expression",
    "primitive_type", "sized_type_specifier", "type_descriptor", "type_identifier",
}  # fmt: skip


@dataclass
class Split:
    """An assignment from which on a variable is another one. statement: the whole. variable: as the program has it. before:
    what it is until then. uses: the offsets of its uses from then on."""

    statement: object
    variable: Variable
    before: Variable
    after: Variable
    uses: list[int]


@dataclass
class SimdgroupLoop:
    """uniform: the variables that are uniform in a simdgroup, and not in the threadgroup. splits: by the node id of the
    statement. shifted: pointers that differ among lanes by the sum of some expressions. kept: variables of the
    threadgroup that the loop changes. more: the node ids of statements that are cut besides. rematerialised: the uniform
    variables that are rematerialised elsewhere. takes_turns: true if the simdgroups run its iterations by turns."""

    node: object
    uniform: set[Variable]
    splits: dict[int, Split] = field(default_factory=dict)
    shifted: dict[Variable, list] = field(default_factory=dict)
    kept: list[Variable] = field(default_factory=list)
    more: frozenset[int] = frozenset()
    rematerialised: frozenset[Variable] = frozenset()
    takes_turns: bool = False

    def holds(self, variable: Variable) -> bool:
        """Returns true if a variable is declared in the loop."""
        return self.node.start_byte <= variable.identifier.start_byte < self.node.end_byte

    def changes(self, variable: Variable) -> bool:
        return any(
            self.node.start_byte <= c.start_byte < self.node.end_byte for c in variable.changes
        )


class SimdgroupLoops:
    """The loops of one function that simdgroups can run by themselves.

    meets: as of Body. name_of: returns the name of what a call_expression calls. callees: returns the functions of the program
    that it may mean. begins_uniform: returns true for a parameter that the lanes of a simdgroup get with the same value.
    takes_last: returns true for a shuffle that may take last values of inactive lanes.
    """

    def __init__(
        self,
        source: Source,
        body: Body,
        meets: Callable,
        name_of: Callable,
        callees: Callable,
        begins_uniform: Callable,
        takes_last: Callable,
    ):
        self._source = source
        self._body = body
        self._variables = body.variables
        self._meets = meets
        self._name_of = name_of
        self._callees = callees
        self._begins_uniform = begins_uniform
        self._takes_last = takes_last
        self._are_free: dict[int, bool] = {}  # functions without atomic operations

    def of(self, loop) -> SimdgroupLoop | None:
        """Returns how simdgroups run a loop that is cut, or None where they cannot or it would be no faster."""
        if not self._is_apart(loop):
            return None
        splits = self._find_splits(loop)
        while True:
            found = self._solve(loop, splits)
            useless = [
                s for s in splits if s.after not in found.uniform or s.before in found.uniform
            ]
            if not useless:
                break
            splits = [s for s in splits if s not in useless]
        with self.in_effect(found):
            self._find_shifted(found)
            found.more = self._find_more(found)
            is_uniform = self._is_uniform_loop(loop)
        found.rematerialised = frozenset(v for v in found.uniform if v.kind is Kind.AGAIN)
        found.kept = [
            v
            for v in self._used(loop)
            if v.kind is Kind.GROUP and not (v.is_of_group or found.holds(v)) and found.changes(v)
        ]
        pays = (is_uniform and not self._is_uniform_loop(loop)) or found.shifted
        return found if pays or any(self._saves(found, v) for v in found.uniform) else None

    @contextlib.contextmanager
    def in_effect(self, found: SimdgroupLoop) -> Iterator[None]:
        """Makes what is uniform in a simdgroup count as uniform."""
        splits = list(found.splits.values())
        kinds = {v: v.kind for v in (*found.uniform, *found.shifted)}
        changes = [(s.before, s.before.changes) for s in splits]
        for split in splits:
            start = split.statement.start_byte
            split.before.changes = [c for c in split.before.changes if c.start_byte < start]
            for use in split.uses:
                self._variables.of[use] = split.after
        for variable in found.uniform:
            variable.kind = Kind.GROUP
        for variable in found.shifted:
            variable.kind = Kind.SHIFTED
        uniformity, cuts = self._body.uniformity, self._body.cuts
        before = uniformity.gives_same, cuts.more
        uniformity.gives_same, cuts.more = self._gives_same, found.more
        try:
            yield
        finally:
            uniformity.gives_same, cuts.more = before
            for variable, kind in kinds.items():
                variable.kind = kind
            for split, (variable, were) in zip(reversed(splits), reversed(changes), strict=True):
                variable.changes = were
                for use in split.uses:
                    self._variables.of[use] = variable

    def _gives_same(self, call) -> bool:
        if self._meets(call) != "simd" or self._name_of(call) not in _GIVE_THE_SAME:
            return False
        if self._callees(call):
            return False
        node = call
        while not node.type.endswith("statement") and node.type != "declaration":
            around = node.parent
            if around.type == "conditional_expression" and (
                around.child_by_field_name("condition") != node
            ):
                return False
            if around.type == "binary_expression" and around.child_by_field_name("right") == node:
                operator = self._source.node_text(around.child_by_field_name("operator"))
                if operator in ("&&", "||", "and", "or"):
                    return False
            node = around
        return True

    def _is_apart(self, loop) -> bool:
        """Returns true if the threads of a simdgroup can run a loop without those of others, and have operations in it."""
        if self._body.cuts.closure_around(loop) is not None:
            return False
        text = self._source.masked_text(loop)
        if USES_MATRICES.search(text) or "atomic" in text:
            return False
        has_operation = False
        for n in walk(loop):
            if n.type in _ENDS or (n.type == "switch_statement" and self._body.cuts.is_cut(n)):
                return False
            if n.type in ("lambda_expression", "binary_expression") and self._meets(n):
                return False
            if n.type == "call_expression":
                meeting, name = self._meets(n), self._name_of(n)
                if meeting == "simd":
                    if not name.startswith(("simd_", "quad_")) or self._takes_last(n):
                        return False
                    has_operation = True
                elif meeting is not None and name != "simdgroup_barrier":
                    return False
                elif not all(map(self._is_free, self._callees(n))):
                    return False
        return has_operation

    def _is_free(self, function) -> bool:
        """Returns true if a function has no atomic operations."""
        key = function.node.start_byte
        if key not in self._are_free:
            self._are_free[key] = True  # while it is looked at
            self._are_free[key] = function.body is None or (
                "atomic" not in self._source.masked_text(function.body)
                and all(
                    all(map(self._is_free, self._callees(n)))
                    for n in walk(function.body)
                    if n.type == "call_expression"
                )
            )
        return self._are_free[key]

    def _is_uniform_loop(self, loop) -> bool:
        condition = loop.child_by_field_name("condition")
        parts = self._body.parts
        return not parts(loop) and (condition is None or not parts(condition))

    def _used(self, loop) -> list[Variable]:
        """Returns the variables that a loop uses, also in values that are rematerialised there, in order."""
        found, waiting = set(), [loop]
        while waiting:
            for variable in self._variables.used_in(waiting.pop()) - found:
                found.add(variable)
                if variable.kind is Kind.AGAIN and not variable.is_parameter:
                    waiting.append(variable.declaration)
        return sorted(found, key=lambda v: v.identifier.start_byte)

    def _may_be_uniform(self, variable: Variable) -> bool:
        if variable.kind not in (Kind.THREAD, Kind.AGAIN) or variable.is_of_group:
            return False
        if variable.is_array or variable.is_reference or variable.is_exposed:
            return False
        if variable.conditions is None or variable in self._variables.held:
            return False
        if USES_MATRICES.search(variable.type_in(self._source)):
            return False
        return (
            variable.declared.lambda_expression is None
            and variable.declared.kind in ("variable", "parameter")
            and self._body.cuts.closure_around(variable.identifier) is None
        )

    # ---- assignments that make a variable another one

    def _find_splits(self, loop) -> list[Split]:
        found = []
        for statement in walk(loop):
            if statement.type != "expression_statement" or not statement.named_children:
                continue
            node = statement.named_children[0]
            if node.type != "assignment_expression":
                continue
            target, value = node.child_by_field_name("left"), node.child_by_field_name("right")
            if self._source.node_text(node.child_by_field_name("operator")) != "=":
                continue
            variable = self._variables.variable_named(target)
            if variable is None or variable.kind is not Kind.THREAD:
                continue
            if not self._may_be_uniform(variable) or variable.is_parameter:
                continue
            block = statement.parent
            if block.type != "compound_statement" or variable.declaration.parent.id != block.id:
                continue
            if not any(n.type == "call_expression" and self._gives_same(n) for n in walk(value)):
                continue
            if any(self._is_in_lambda(use, block) for use in variable.declared.uses):
                continue
            uses = [u for u in variable.uses if u >= statement.end_byte]
            declared = copy.copy(variable.declared)
            declared.identifier = target
            declared.uses = [u for u in declared.uses if u.start_byte >= statement.end_byte]
            after = Variable(
                declared,
                value=value,
                is_parameter=False,
                is_of_group=False,
                conditions=variable.conditions,
                kind=Kind.THREAD,
                definitions=variable.definitions,
                changes=[c for c in variable.changes if c.start_byte >= statement.end_byte],
            )
            found.append(Split(statement, variable, variable, after, [target.start_byte, *uses]))
        return found

    @staticmethod
    def _is_in_lambda(node, block) -> bool:
        while node is not None and node.id != block.id:
            if node.type == "lambda_expression":
                return True
            node = node.parent
        return False

    # ---- uniform variables

    def _solve(self, loop, splits: list[Split]) -> SimdgroupLoop:
        """Returns the largest set of variables that are uniform if all the others in it are."""
        found = SimdgroupLoop(loop, set(), {s.statement.id: s for s in splits})
        latest: dict[Variable, Variable] = {}
        for split in splits:
            split.before = latest.get(split.variable, split.variable)
            latest[split.variable] = split.after
        found.uniform = {v for v in self._used(loop) if self._may_be_uniform(v)}
        found.uniform |= {s.after for s in splits}
        made = {s.after: s for s in splits}
        changed = True
        while changed:
            with self.in_effect(found):
                varying = {v for v in found.uniform if not self._is_uniform(found, v, made.get(v))}
            found.uniform -= varying
            changed = bool(varying)
        return found

    def _is_uniform(self, found: SimdgroupLoop, variable: Variable, split: Split | None) -> bool:
        is_same = self._body.is_same
        if split is not None or found.holds(variable):
            where = self._around(found.node, split.statement if split else variable.identifier)
            if where is None or (variable.value is None and not variable.changes):
                return False
            if variable.value is not None and not is_same(variable.value):
                return False
            if split is None and any(
                v.kind is Kind.THREAD for v in self._variables.declared_by(variable.declaration)
            ):
                return False
        else:
            where = []
            if not self._seems_uniform_before(found, variable):
                return False
        for change in variable.changes:
            if not (found.node.start_byte <= change.start_byte < found.node.end_byte):
                continue
            around = self._around(found.node, change)
            if around is None or not self._gives_uniform(change):
                return False
            around = around[len(where) :]
            own = variable.declaration.parent
            if own.type == "for_statement" and self._is_update(own, change):
                # Threads that have left the loop do not see the update.
                condition = own.child_by_field_name("condition")
                around = [c for c in around if c.id not in (own.id, condition and condition.id)]
            if any(map(self._body.parts, around)):
                return False
        return True

    def _is_update(self, loop, change) -> bool:
        update = loop.child_by_field_name("update")
        return update is not None and update.start_byte <= change.start_byte < update.end_byte

    def _gives_uniform(self, change) -> bool:
        """Returns true if an assignment to a variable, or to a member, has a uniform value."""
        target = change.child_by_field_name("left") or change.child_by_field_name("argument")
        while target.type == "field_expression" and target.children[1].type != "->":
            target = target.child_by_field_name("argument")
        value = change.child_by_field_name("right")
        return target.type == "identifier" and (value is None or self._body.is_same(value))

    def _seems_uniform_before(self, found: SimdgroupLoop, variable: Variable) -> bool:
        """Returns true if a variable that is declared before the loop seems uniform when it begins."""
        if variable.is_parameter and not self._begins_uniform(variable):
            return False
        begins = [c for c in variable.changes if c.start_byte < found.node.start_byte]
        if variable.value is None and not (variable.is_parameter or begins):
            return False
        if variable.value is not None and not self._body.is_same(variable.value):
            return False
        declared = None
        if not variable.is_parameter:
            declared = self._around(self._body.body, variable.identifier)
        for change in begins:
            around = self._around(self._body.body, change)
            if around is None or not self._gives_uniform(change):
                return False
            if any(map(self._body.parts, around[len(declared or ()) :])):
                return False
        return True

    def _around(self, loop, node) -> list | None:
        """Returns the conditions around an assignment or a declarator in a loop (or a function's body), and the loops, outer
        ones first; None where it is no statement of its own, or in one that cannot be cut."""
        found = []
        while node.id != loop.id:
            around = node.parent
            if around.type == "if_statement":
                if around.child_by_field_name("condition") == node:
                    return None
                if not is_constexpr_if(around):
                    found.append(around.child_by_field_name("condition"))
            elif around.type in LOOPS and around.type != "for_range_loop":
                condition = around.child_by_field_name("condition")
                if condition == node or not self._body.cuts.is_cut(around):
                    return None
                if around.child_by_field_name("initializer") != node:
                    found += [around, *([condition] if condition is not None else [])]
            elif around.type not in _PASSED_THROUGH:
                return None
            node = around
        return found[::-1]

    def _find_more(self, found: SimdgroupLoop) -> frozenset[int]:
        """Returns the statements that must be cut because uniform variables change in them."""
        more = set()
        for variable in found.uniform:
            for node in variable.changes:
                if not (found.node.start_byte <= node.start_byte < found.node.end_byte):
                    continue
                while node.id != found.node.id:
                    if node.type in ("if_statement", "compound_statement"):
                        more.add(node.id)
                    node = node.parent
        return frozenset(more)

    # ---- pointers

    def _find_shifted(self, found: SimdgroupLoop) -> None:
        for variable in self._used(found.node):
            if variable.kind is not Kind.THREAD or found.holds(variable):
                continue
            if variable.declared.kinds != ["pointer"] or not self._may_be_uniform(variable):
                continue
            if variable.is_parameter and not self._begins_uniform(variable):
                continue
            terms = self._shift(found, variable)
            if terms and self._moves_uniformly(found, variable):
                found.shifted[variable] = terms

    def _moves_uniformly(self, found: SimdgroupLoop, variable: Variable) -> bool:
        for change in variable.changes:
            if found.node.start_byte <= change.start_byte < found.node.end_byte:
                around = self._around(found.node, change)
                if around is None or any(map(self._body.parts, around)):
                    return False
                if not self._adds(change) or not self._gives_uniform(change):
                    return False
        return True

    def _adds(self, change) -> bool:
        """Returns true for `p += e`, `p -= e`, `++p` and `--p`."""
        if change.type == "update_expression":
            return True
        operator = self._source.node_text(change.child_by_field_name("operator"))
        return operator in ("+=", "-=")

    def _shift(self, found: SimdgroupLoop, variable: Variable) -> list | None:
        """Returns the terms that differ among the lanes in the sums that a pointer consists of; None if it seems to be
        something else."""
        values = [] if variable.value is None else [variable.value]
        for change in variable.changes:
            if change.start_byte < found.node.start_byte:
                value = change.child_by_field_name("right")
                if self._around(self._body.body, change) is None or value is None:
                    return None
                if not (self._adds(change) or self._is_assignment(change)):
                    return None
                values.append(value)
        terms = []
        while values:
            value = without_parentheses(values.pop())
            if self._body.is_same(value) or self._variables.variable_named(value) is variable:
                continue
            if value.type == "binary_expression":
                operator = self._source.node_text(value.child_by_field_name("operator"))
                if operator == "+":
                    values += [
                        value.child_by_field_name("left"),
                        value.child_by_field_name("right"),
                    ]
                    continue
            if not self._can_be_computed_again(found, value):
                return None
            terms.append(value)
        return terms

    def _is_assignment(self, change) -> bool:
        return self._source.node_text(change.child_by_field_name("operator")) == "="

    def _can_be_computed_again(self, found: SimdgroupLoop, value) -> bool:
        """Returns true if an expression of rematerialised values and constants means the same at the loop."""
        for n in walk(value):
            if n.is_named and n.type not in _OFFSETS:
                return False
            if n.type != "identifier":
                continue
            variable = self._variables.of.get(n.start_byte)
            name = self._source.node_text(n)
            if any(
                v is not variable
                and v.name == name
                and v.declared.scope is not None
                and v.declared.scope.start_byte <= found.node.start_byte < v.declared.scope.end_byte
                for v in self._variables.all
            ):
                return False  # another variable hides it
            if variable is None or variable.is_of_group:
                continue
            if variable.kind not in (Kind.AGAIN, Kind.GROUP) or variable.changes:
                return False
            scope = variable.declared.scope
            if not variable.is_parameter and not (
                scope.start_byte <= found.node.start_byte < scope.end_byte
            ):
                return False
        return True

    # ---- what it is good for

    def _saves(self, found: SimdgroupLoop, variable: Variable) -> bool:
        """Returns true if a uniform variable has values that take long to compute."""
        values = [variable.value] if variable.value is not None else []
        values += [c.child_by_field_name("right") for c in variable.changes]
        return any(
            value is not None
            and found.node.start_byte <= value.start_byte < found.node.end_byte
            and any(
                (n.type == "call_expression" and not self._meets(n) and not self._is_cheap(n))
                or (n.type == "binary_expression" and n.children[1].type == "/")
                for n in walk(value)
            )
            for value in values
        )

    def _is_cheap(self, call) -> bool:
        return (
            CONVERSIONS.match(self._source.masked_text(call.child_by_field_name("function")))
            is not None
        )
