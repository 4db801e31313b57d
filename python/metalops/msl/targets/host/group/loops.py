"""Kernels that synchronise, as functions that run all threads of a threadgroup (include/msl/host/group.h): work-item
loops with region splitting, as in pocl.

Every function in which threads synchronise has a second form, `NAME_in_group`. Its arguments are the group's threads, a
mask of those that take part, and each argument for all of them: uniform ones as they are, varying ones in a Pack.
analysis/uniformity.py decides what is cut, and what is uniform. A Form (form.py) emits the C++ of one function and
holds the parts that do: regions.py splits statements into regions, work_items.py writes the loops that run them,
context_arrays.py the privatised variables, lowering.py the expressions in which threads synchronise, masks.py and
predication.py the threads that are active, closures.py lambdas in which threads synchronise. They share a
FunctionContext (context.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....analysis.cuts import NotCut
from ....analysis.effects import Effects
from ....analysis.last_values import LastValues
from ....analysis.program import Function, Kernel, parameters_of
from ....analysis.variables import Kind
from ....source.tree import walk
from ....source.vocabulary import THREAD_ATTRIBUTES
from .context import Again
from .form import Form
from .synchronisation import Synchronisation


@dataclass
class Explanation:
    """How a kernel runs as a group loop. cuts: (offset, name) of the calls that synchronise. of_simdgroups: values that are
    uniform in a simdgroup, in loops that simdgroups run by themselves."""

    cuts: list[tuple[int, str]]
    of_simdgroups: list[str]
    uniform_values: list[str]
    rematerialised: list[str]
    privatised: list[str]


class GroupLoops:
    """The group forms of a program's functions, added to its edits as kernels ask for them."""

    def __init__(self, rewritten, sites: list[int], builtins: dict[str, str]):
        """builtins: a thread's indices and positions, by attribute, in terms of `msl_t`."""
        self.program = rewritten.program
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.builtins = builtins
        self.reasons: dict[int, str] = {}  # why a kernel has no group loop, by its number
        self.calls = rewritten.calls
        self._forms: dict[tuple, Form | str] = {}
        self._again: dict[Again, int] = {}  # values that callees rematerialise, numbered
        self._added: set[tuple] = set()
        self._kernels: dict[int, Form | None] = {}
        self.has_closures = False  # true if some form calls an object that may be a closure
        self.sync = Synchronisation(self.source, self.calls, sites)
        self.effects = Effects(self.program, self.calls)
        self.last_values = LastValues(self.calls)

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
        form = self._kernels[kernel.number]
        body = form.body
        kinds = {kind: [v.name for v in body.variables.all if v.kind is kind] for kind in Kind}
        cuts = [n for n in walk(body.body) if n.type == "call_expression" and self.sync.meets(n)]
        return Explanation(
            [(n.start_byte, self.sync.called_name(n)) for n in cuts],
            form.simdgroup_loops.uniform_values(),
            *(kinds[kind] for kind in (Kind.GROUP, Kind.AGAIN, Kind.THREAD)),
        )

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
        self.sync.check_recursion(kernel.function)
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
