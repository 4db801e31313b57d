"""Kernels that synchronise, as functions that run all threads of a threadgroup (include/msl/host/group.h): work-item
loops with region splitting, as in pocl.

Every function in which threads synchronise has a second form, `NAME_in_group`. Its arguments are the group's threads, a
mask of those that take part, and each argument for all of them: uniform ones as they are, varying ones in a Pack.
analysis/uniformity.py decides what is cut, and what is uniform; form.py and its base classes write the C++: lanes.py
the work-item loops, calls.py the calls that synchronise, flow.py statements, closures.py lambdas in which threads
synchronise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....analysis.effects import Effects
from ....analysis.matrix_products import MatrixProducts
from ....analysis.program import Function, Kernel, last_name, name_node, parameters_of
from ....analysis.uniformity import Kind, NotCut
from ....source.tree import walk
from ....source.vocabulary import BARRIER, SYNCHRONISING, THREAD_ATTRIBUTES, THREAD_NUMBERS
from .form import Form
from .lanes import Again

_BARRIERS = {BARRIER, "simdgroup_barrier"}
# Other operations of a simdgroup only need the lane, and some functions only the current thread.
_SIMD = (SYNCHRONISING - _BARRIERS) | {"simdgroup_load", "simdgroup_store"} | THREAD_NUMBERS


@dataclass
class Explanation:
    """How a kernel runs as a group loop. cuts: (offset, name) of the calls that synchronise."""

    cuts: list[tuple[int, str]]
    same_for_the_group: list[str]
    computed_again: list[str]
    kept_for_each_thread: list[str]


class GroupLoops:
    """The group forms of a program's functions, added to its edits as kernels ask for them."""

    def __init__(self, rewritten, sites: list[int], builtins: dict[str, str]):
        """builtins: a thread's indices and positions, by attribute, in terms of `msl_t`."""
        self.program = rewritten.program
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.builtins = builtins
        self._sites = {offset: number for number, offset in enumerate(sites)}
        self.reasons: dict[int, str] = {}  # why a kernel has no group loop, by its number
        self.calls = rewritten.calls
        self._visited: set[int] = set()  # functions that are not recursive
        self._meets: dict[tuple[int, int], str | None] = {}
        self._forms: dict[tuple, Form | str] = {}
        self._again: dict[Again, int] = {}  # values that callees rematerialise, numbered
        self._added: set[tuple] = set()
        self._kernels: dict[int, Form | None] = {}
        self.has_closures = False  # true if some form calls an object that may be a closure
        self._products = MatrixProducts(self.calls)
        self.effects = Effects(self.program, self.calls)

    def has(self, kernel: Kernel) -> bool:
        """Returns true if the kernel can run as a group loop; adds its group form to the edits."""
        if kernel.number not in self._kernels:
            try:
                form = self._kernel_form(kernel)
                self._add(form)
                self._kernels[kernel.number] = form
            except NotCut as reason:
                self.reasons[kernel.number] = str(reason)
                self._kernels[kernel.number] = None
            except RecursionError:
                self.reasons[kernel.number] = "expressions or calls that are nested too deeply"
                self._kernels[kernel.number] = None
        return self._kernels[kernel.number] is not None

    def explain(self, kernel: Kernel) -> Explanation:
        """Returns how a kernel with a group loop is cut, and how its variables are kept."""
        body = self._kernels[kernel.number].body
        kinds = {kind: [v.name for v in body.variables if v.kind is kind] for kind in Kind}
        cuts = [n for n in walk(body.body) if n.type == "call_expression" and self.meets(n)]
        return Explanation(
            [(n.start_byte, self.called_name(n)) for n in cuts],
            *(kinds[kind] for kind in (Kind.GROUP, Kind.AGAIN, Kind.THREAD)),
        )

    # ---- functions that synchronise --------------------------------------------------------------

    def called_name(self, call) -> str:
        return last_name(self.source, call.child_by_field_name("function"))

    def meets(self, call) -> str | None:
        """ "barrier", "simd" or "function" for a call that synchronises; "lambda" for a lambda_expression in which
        threads do; "product" for a binary_expression that multiplies matrices; else None."""
        key = (call.start_byte, call.end_byte)
        if key not in self._meets:
            self._meets[key] = self._find_meeting(call)
        return self._meets[key]

    def _find_meeting(self, call) -> str | None:
        if call.type == "lambda_expression":
            meets = self.calls.lambda_synchronises(call) or any(
                n.type == "call_expression" and self.meets(n) for n in walk(call)
            )
            return "lambda" if meets else None
        if call.type == "binary_expression":
            return "product" if self._products.is_one(call) else None
        name = self.called_name(call)
        if self.calls.is_operation_call(call):
            if name in _BARRIERS:
                return "barrier"
            return "simd" if name in _SIMD else None
        return "function" if self.calls.call_synchronises(call) else None

    def site_of(self, call) -> int:
        """Returns the number of a barrier's call among the sites of the program."""
        return self._sites[name_node(call.child_by_field_name("function")).start_byte]

    # ---- synchronisation without a call by name --------------------------------------------------

    def check_hidden(self, function: Function) -> None:
        """Raises NotCut if an operator or a constructor may synchronise."""
        operators = {name[8:] for name in self.calls.simd_operators}
        types = self.calls.classes_with_simd_constructors
        for node in walk(function.body):
            if types and node.type in ("type_identifier", "template_type"):
                name = self.source.node_text(node).split("<")[0].strip()
                if name in types:
                    raise NotCut(f"threads may meet in the class '{name}'")
            if operators and node.type in (
                "binary_expression",
                "unary_expression",
                "assignment_expression",
                "update_expression",
            ):
                operator = self.source.node_text(node.child_by_field_name("operator"))
                if operator in operators:
                    raise NotCut(f"threads may meet in 'operator{operator}'")
            if "[]" in operators and node.type == "subscript_expression":
                raise NotCut("threads may meet in 'operator[]'")
            if node.type == "call_expression" and self._products.is_hidden(node):
                raise NotCut(f"threads may meet in a product in '{self.called_name(node)}'")

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
            if node.type == "call_expression" and len(callees := self.calls.callees(node)) == 1:
                self._visit_callees(callees[0], (*around, key))
        self._visited.add(key)

    # ---- forms -----------------------------------------------------------------------------------

    def form(
        self, function: Function, kinds: tuple[Kind, ...], again: tuple[Again | None, ...]
    ) -> Form:
        """Returns the group form of a function for arguments of these kinds. again: in their positions, those that each
        loop rematerialises. Raises NotCut."""
        # Defaulted arguments are uniform.
        missing = len(parameters_of(self.source, function)) - len(kinds)
        kinds = (*kinds, *[Kind.GROUP] * missing)
        again = (*again, *[None] * missing)
        key = (function.node.start_byte, kinds, again)
        found = self._forms.get(key)
        if found is None:
            before = set(self._forms)
            try:
                # Registered before it is written: a call in it may seem to mean itself.
                found = self._forms[key] = Form(self, function, kinds, again, key)
                found.write()
            except NotCut as reason:
                for other in set(self._forms) - before:  # they may call it
                    del self._forms[other]
                self._forms[key] = str(reason)
                raise
        if isinstance(found, str):
            raise NotCut(found)
        return found

    def tags(self, kinds: Sequence[Kind], again: Sequence[Again | None]) -> str:
        """Returns the tags that distinguish the forms of a function: 0 for a uniform argument, 1 for a varying one, and
        a number for each value that is rematerialised."""
        return ", ".join(
            str(2 + self._again.setdefault(argument, len(self._again)))
            if kind is Kind.AGAIN
            else str(int(kind is Kind.THREAD))
            for kind, argument in zip(kinds, again, strict=True)
        )

    def _kernel_form(self, kernel: Kernel) -> Form:
        self.check_recursion(kernel.function)
        kinds = []
        for parameter in kernel.parameters:
            differs = (
                parameter.kind == "builtin"
                and THREAD_ATTRIBUTES[parameter.attribute].differs_in_group
            )
            kinds.append(Kind.AGAIN if differs else Kind.GROUP)
        again = [None] * len(kinds)
        form = Form(self, kernel.function, kinds, again, ("kernel", kernel.number), kernel)
        form.write()
        return form

    def _add(self, form: Form) -> None:
        if form.key in self._added:
            return
        self._added.add(form.key)
        for used in form.uses:
            self._add(used)
        self.edits.append(form.function.node.end_byte, form.text)


def _is_of_template(function: Function) -> bool:
    node = function.body
    while node is not None and node.type != "template_declaration":
        node = node.parent
    return node is not None
