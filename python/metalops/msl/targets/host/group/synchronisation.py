"""The calls and expressions of a program in which threads synchronise."""

from __future__ import annotations

import functools
import re

from ....analysis.calls import CallGraph
from ....analysis.cuts import NotCut
from ....analysis.matrix_products import MatrixProducts
from ....analysis.program import Function, last_name, name_node
from ....source.parse import Source
from ....source.tree import walk
from ....source.vocabulary import BARRIER, SYNCHRONISING, THREAD_NUMBERS

_BARRIERS = {BARRIER, "simdgroup_barrier"}
# Other operations of a simdgroup only need the lane, and some functions only the current thread.
_HIDDEN_TENSORS = (
    re.compile(r"\bcooperative_tensor(?:_\w+_t)?\b"),
    re.compile(r"(?<!typedef )\bdecltype\s*\([^;{}]*\)\s*\w+\s*[;,\[]"),
    re.compile(r"\bconvolution2d\b"),  # its operations have no form for a group
)
_SIMD = (SYNCHRONISING - _BARRIERS) | {"simdgroup_load", "simdgroup_store"} | THREAD_NUMBERS


class Synchronisation:
    """Finds where threads synchronise, and rejects functions in which that is not certain."""

    def __init__(self, source: Source, calls: CallGraph, sites: list[int]):
        """sites: the offsets of the barriers' names, in the order of their numbers."""
        self._source = source
        self._calls = calls
        self._products = MatrixProducts(calls)
        self._sites = {offset: number for number, offset in enumerate(sites)}
        self._visited: set[int] = set()  # functions that are not recursive
        self._meets: dict[tuple[int, int], str | None] = {}

    def called_name(self, call) -> str:
        return last_name(self._source, call.child_by_field_name("function"))

    def meets(self, call) -> str | None:
        """ "barrier", "simd", "tensor" or "function" for a call that synchronises; "lambda" for a lambda_expression in which
        threads do; "product" for a binary_expression that multiplies matrices; else None."""
        key = (call.start_byte, call.end_byte)
        if key not in self._meets:
            self._meets[key] = self._find_meeting(call)
        return self._meets[key]

    def _find_meeting(self, call) -> str | None:
        if call.type == "lambda_expression":
            meets = self._calls.lambda_synchronises(call) or any(
                n.type == "call_expression" and self.meets(n) for n in walk(call)
            )
            return "lambda" if meets else None
        if call.type == "binary_expression":
            return "product" if self._products.is_one(call) else None
        name = self.called_name(call)
        if self._calls.is_operation_call(call):
            if name in _BARRIERS:
                return "barrier"
            return "simd" if name in _SIMD else None
        if self._calls.is_tensor_operation(call) and not self._calls.callees(call):
            return "tensor"
        return "function" if self._calls.call_synchronises(call) else None

    def site_of(self, call) -> int:
        """Returns the number of a barrier's call among the sites of the program."""
        return self._sites[name_node(call.child_by_field_name("function")).start_byte]

    def check_hidden(self, function: Function) -> None:
        """Raises NotCut if an operator or a constructor may synchronise."""
        if self._tensors_are_hidden:
            raise NotCut("cooperative tensors that their operation's functions do not create")
        operators = {name[8:] for name in self._calls.simd_operators}
        types = self._calls.classes_with_simd_constructors
        for node in walk(function.body):
            if types and node.type in ("type_identifier", "template_type"):
                name = self._source.node_text(node).split("<")[0].strip()
                if name in types:
                    raise NotCut(f"threads may meet in the class '{name}'")
            if operators and node.type in (
                "binary_expression",
                "unary_expression",
                "assignment_expression",
                "update_expression",
            ):
                operator = self._source.node_text(node.child_by_field_name("operator"))
                if operator in operators:
                    raise NotCut(f"threads may meet in 'operator{operator}'")
            if "[]" in operators and node.type == "subscript_expression":
                raise NotCut("threads may meet in 'operator[]'")
            if node.type == "call_expression" and self._products.is_hidden(node):
                raise NotCut(f"threads may meet in a product in '{self.called_name(node)}'")

    @functools.cached_property
    def _tensors_are_hidden(self) -> bool:
        """True if the program may create cooperative tensors, which know their thread, by their constructors."""
        return self._calls.program.has_tensors and any(
            pattern.search(self._source.masked) for pattern in _HIDDEN_TENSORS
        )

    def check_recursion(self, function: Function) -> None:
        """Raises NotCut if a function is certainly recursive: only a fiber's stack may overflow. An instance of a
        template may call other instances."""
        self._visit_callees(function, ())

    def _visit_callees(self, function: Function, around: tuple[int, ...]) -> None:
        key = function.node.start_byte
        if key in around:
            if _is_of_template(function):
                return
            raise NotCut(f"'{function.name}' calls itself")
        if key in self._visited:
            return
        for node in walk(function.body):
            if node.type == "call_expression" and len(callees := self._calls.callees(node)) == 1:
                self._visit_callees(callees[0], (*around, key))
        self._visited.add(key)


def _is_of_template(function: Function) -> bool:
    node = function.body
    while node is not None and node.type != "template_declaration":
        node = node.parent
    return node is not None
