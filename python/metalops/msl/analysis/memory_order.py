"""Memory dependences: decides whether the order in which a thread accesses shared memory matters.

A thread sees its own accesses in order. Compilers that are told that iterations are independent keep that order, too,
with one exception: accesses through one pointer to elements at a fixed distance are merged into one access. A merged
load happens where the first one was and a merged store where the last one was, past whatever stands between.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ..source.parse import Source
from ..source.tree import LOOPS
from .program import integer_value
from .scopes import Declaration, FunctionScopes

_SPACES = {"device", "threadgroup"}


class MemoryOrder:
    """The accesses of nodes of a function to shared memory, through pointers and references that are declared to point
    to it.

    takes_reference: returns true if a call_expression may write its argument of some number
    (CallGraph.takes_reference).
    """

    def __init__(
        self,
        source: Source,
        scopes: FunctionScopes,
        takes_reference: Callable[[object, int], bool],
        nodes: Iterable,
    ):
        self._source = source
        self._scopes = scopes
        self._takes_reference = takes_reference
        self._nodes = list(nodes)
        self._defined: dict[int, list] = {}  # what _definitions() returned
        self._pointers = [
            d
            for d in scopes.declarations
            if d.kind in ("parameter", "variable") and d.address_spaces & _SPACES
        ]
        self._accesses: dict[int, list[_Access]] = {}  # by the root pointer
        made_of = self._made_of()
        for pointer in self._pointers:
            root = made_of[_key(pointer)]
            found = self._accesses.setdefault(root, [])
            for use in pointer.uses:
                if self._is_within(use):
                    found += self._accesses_of(pointer, use, root)

    def _is_within(self, node) -> bool:
        return any(n.start_byte <= node.start_byte < n.end_byte for n in self._nodes)

    def _around(self, node) -> Iterator:
        """Yields the loops and lambdas among the nodes that enclose a node, innermost first."""
        for around in reversed(self._loops_and_lambdas):
            if around.start_byte <= node.start_byte and node.end_byte <= around.end_byte:
                yield around

    @functools.cached_property
    def _loops_and_lambdas(self) -> list:
        query = f"[{' '.join(f'({kind})' for kind in sorted(LOOPS))} (lambda_expression)] @n"
        return [n for node in self._nodes for n in self._source.find(query, node)]

    def matters(self) -> bool:
        """Returns true if the order matters in which elements are accessed through one pointer, or through others
        derived from it."""
        return any(map(self._is_ordered, self._accesses.values()))

    def matters_between_buffers(self) -> bool:
        """Returns true if the order matters when all pointers to device memory may alias. (Written memory is not read
        as constant memory.)"""
        return self._is_ordered(
            [a for found in self._accesses.values() for a in found if a.is_of_buffer]
        )

    # ---- pointers --------------------------------------------------------------------------------

    def _made_of(self) -> dict[int, int]:
        """Returns the root of each pointer, shared by all pointers that are derived from each other."""
        parent = {_key(p): _key(p) for p in self._pointers}

        def root(key: int) -> int:
            while parent[key] != key:
                key = parent[key]
            return key

        for pointer, other in itertools.permutations(self._pointers, 2):
            values = [pointer.initialiser, *map(_assignment, pointer.uses)]
            if any(
                v is not None and any(v.start_byte <= u.start_byte < v.end_byte for u in other.uses)
                for v in values
            ):
                parent[root(_key(pointer))] = root(_key(other))
        return {key: root(key) for key in parent}

    # ---- accesses --------------------------------------------------------------------------------

    def _accesses_of(self, pointer: Declaration, use, root: int) -> list[_Access]:
        """Returns the memory accesses that a mention of a pointer makes."""
        node, is_address = use, not pointer.is_reference
        way = (self._base(pointer, use),)
        while True:
            around = node.parent
            if around.type == "subscript_expression":
                if around.child_by_field_name("argument") != node:
                    break  # it is an index
                indices = around.child_by_field_name("indices").named_children
                way += tuple(self._index(i, 1) for i in indices)
                is_address = False
            elif around.type == "pointer_expression" and around.children[0].type == "*":
                way += (_Index("*"),)
                is_address = False
            elif around.type == "field_expression":
                is_address = False
            elif is_address and around.type == "binary_expression":
                operator = around.child_by_field_name("operator").type
                if operator not in ("+", "-"):
                    return []  # addresses are compared
                sides = [around.child_by_field_name(side) for side in ("left", "right")]
                way += (self._index(sides[sides[0] == node], 1 if operator == "+" else -1),)
            elif is_address and around.type == "cast_expression":
                way += (_Index(self._text(around.child_by_field_name("type"))),)
            elif around.type != "parenthesized_expression":
                break
            node = around
        is_argument = around.type == "argument_list" and around.parent.type == "call_expression"

        def made(way, end: int, reads: bool, writes: bool) -> list[_Access]:
            is_of_buffer = "device" in pointer.address_spaces
            return [
                _Access(is_write, way, node, end, root, is_of_buffer)
                for is_write, is_made in ((False, reads), (True, writes))
                if is_made
            ]

        if is_address:
            if is_argument:  # the callee is not analysed
                return made(None, around.parent.end_byte, True, not pointer.is_const)
            if around.type == "update_expression":
                return made(None, around.end_byte, True, not pointer.is_const)
            return []
        if is_argument:
            arguments = [a for a in around.named_children if a.type != "comment"]
            writes = self._takes_reference(around.parent, arguments.index(node))
            return made(way, around.parent.end_byte if writes else node.end_byte, True, writes)
        if around.type == "assignment_expression" and around.child_by_field_name("left") == node:
            operator = self._text(around.child_by_field_name("operator"))
            return made(way, around.end_byte, operator != "=", True)
        writes = (
            around.type == "update_expression"
            or (around.type == "pointer_expression" and around.children[0].type == "&")
            or around.type == "call_expression"  # a member function of the element
        )
        return made(way, around.end_byte if writes else node.end_byte, True, writes)

    def _base(self, pointer: Declaration, use) -> _Index:
        """Returns a pointer as the first part of a way."""
        if self._changes(pointer):
            return _Index(f"changing {use.start_byte}")
        return _Index(f"{_key(pointer)}", is_fixed=self._is_fixed(pointer))

    def _index(self, node, sign: int) -> _Index:
        while node.type == "parenthesized_expression" and node.named_child_count == 1:
            node = node.named_children[0]
        rest, number = node, node
        if node.type == "binary_expression":
            rest, number = (node.child_by_field_name(side) for side in ("left", "right"))
        offset = integer_value(self._text(number)) if number.type == "number_literal" else None
        operator = "+" if number is node else self._text(node.child_by_field_name("operator"))
        if offset is None or operator not in ("+", "-"):
            rest, offset = node, 0
        elif number is node:
            rest = None
        elif operator == "-":
            offset = -offset
        is_fixed = True
        for name in self._source.find("(identifier) @n", node):
            declaration = self._scopes.declaration_of(name)
            if declaration is None:
                continue
            if self._changes(declaration):
                return _Index(f"changing {node.start_byte}")
            is_fixed &= self._is_fixed(declaration)
        text = "" if rest is None else self._text(rest)
        return _Index(f"{sign} {text}", sign * offset, is_fixed)

    def _definitions(self, declaration: Declaration) -> list:
        """Returns where a variable changes among the nodes; for a pointer, where the pointer itself changes."""
        key = _key(declaration)
        if key not in self._defined:
            found = declaration.definitions
            if declaration.address_spaces & _SPACES:
                uses = [] if declaration.is_reference else declaration.uses
                found = [n for n in map(_assignment, uses) if n is not None]
            self._defined[key] = [d for d in found if self._is_within(d)]
        return self._defined[key]

    def _changes(self, declaration: Declaration) -> bool:
        """Returns true if a variable changes among the nodes, other than as the counter of a for loop."""
        for definition in self._definitions(declaration):
            loop = definition
            while loop is not None and loop.type != "for_statement":
                loop = loop.parent
            update = loop.child_by_field_name("update") if loop is not None else None
            if update is None or not update.start_byte <= definition.start_byte < update.end_byte:
                return True
        return False

    def _is_fixed(self, declaration: Declaration) -> bool:
        """Returns true if a variable has one value among the nodes."""
        return not self._definitions(declaration) and not any(self._around(declaration.node))

    def _text(self, node) -> str:
        return "".join(self._source.masked_text(node).split())

    # ---- order -----------------------------------------------------------------------------------

    def _is_ordered(self, accesses: list[_Access]) -> bool:
        """Returns true if some access follows a write to possibly the same element, and one of the two may be moved."""
        moved = {*filter(self._may_be_moved, {a.root for a in accesses})}
        writes = [a for a in accesses if a.is_write]
        return any(
            write.node != access.node
            and (write.root in moved or access.root in moved)
            and _may_be_the_same(write.way, access.way)
            and self._may_follow(access, write)
            for write in writes
            for access in accesses
        )

    def _may_be_moved(self, root: int) -> bool:
        """Returns true if several elements may be accessed through the pointers of one root."""
        accesses = self._accesses[root]
        ways = {a.way for a in accesses}
        return None in ways or len(ways) > 1 or any(any(self._around(a.node)) for a in accesses)

    def _may_follow(self, access: _Access, write: _Access) -> bool:
        is_later = access.end > write.end or (
            access.end == write.end
            and (access.is_write or access.node.parent == write.node.parent)  # of one call
        )
        if is_later and not _exclude_each_other(access.node, write.node):
            return True
        return any(
            around.type == "lambda_expression"  # it may be called later
            or around.start_byte <= write.node.start_byte < around.end_byte
            for around in self._around(access.node)
        )


@dataclass(frozen=True)
class _Index:
    """A part of a way to an element. offset: a constant that is added. is_fixed: true if it is loop-invariant."""

    text: str
    offset: int = 0
    is_fixed: bool = True


@dataclass(frozen=True)
class _Access:
    """A load or store. way: the path of expressions from the pointer to the element; None if it is unknown. `node` is
    the whole expression, and the access has happened at `end`. root: the root pointer, see _made_of."""

    is_write: bool
    way: tuple[_Index, ...] | None
    node: object
    end: int
    root: int
    is_of_buffer: bool


def _key(pointer: Declaration) -> int:
    return pointer.identifier.start_byte


def _assignment(use):
    """Returns the node that assigns to, increments or decrements the mentioned variable itself, or None."""
    around = use.parent
    while around.type == "parenthesized_expression":
        use, around = around, around.parent
    is_left = around.type == "assignment_expression" and (around.child_by_field_name("left") == use)
    return around if is_left or around.type == "update_expression" else None


def _exclude_each_other(node, other) -> bool:
    """Returns true if nodes are in different branches of an if, ?: or switch."""
    while not node.parent.start_byte <= other.start_byte < node.parent.end_byte:
        node = node.parent
    around = node.parent
    branch = next(c for c in around.children if c.start_byte <= other.start_byte < c.end_byte)
    if around.type in ("if_statement", "conditional_expression"):
        return around.child_by_field_name("condition") not in (node, branch)
    return (
        node.type == branch.type == "case_statement"
        and node != branch
        and _leaves(min(node, branch, key=lambda case: case.start_byte))
    )


def _leaves(case) -> bool:
    """Returns true if a case of a switch ends with a break or return."""
    last = case.named_children[-1]
    while last.type == "compound_statement" and last.named_children:
        last = last.named_children[-1]
    return last.type in ("break_statement", "return_statement")


def _may_be_the_same(way: tuple | None, other: tuple | None) -> bool:
    """Returns true if two ways may lead to one element."""
    if way is None or other is None or len(way) != len(other):
        return True
    for a, b in zip(way, other, strict=True):
        if a != b:  # distinct elements of one array if only the constants differ
            return a.text != b.text or not all(part.is_fixed for part in way)
    return True
