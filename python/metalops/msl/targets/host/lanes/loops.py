"""The forms of a program's kernels that run as vector lanes, added to its edits."""

from __future__ import annotations

from ....analysis.program import Instance, Kernel
from ....source.parse import Source
from ....source.tree import LOOPS, walk
from .analysis import Values
from .form import Form
from .reasons import NoLanes


def _is_worth_it(source: Source, kernel: Kernel) -> bool:
    """Returns true if a kernel loops, or returns under a condition of several parts, of which g++ makes no vector code."""
    return any(
        n.type in LOOPS
        or (
            n.type == "if_statement"
            and "||" in source.masked_text(n)
            and "return" in source.masked_text(n)
        )
        for n in walk(kernel.function.body)
    )


class LaneLoops:
    """The forms of a program's kernels. reasons: why a kernel does not run as vector lanes, by its number."""

    def __init__(self, rewritten):
        self._rewritten = rewritten
        self.reasons: dict[int, str] = {}
        self._forms: dict[int, Form] = {}
        program = rewritten.program
        by_kernel: dict[int, list[Instance]] = {}
        for instance in program.instances:
            by_kernel.setdefault(instance.kernel.number, []).append(instance)
        for number, instances in by_kernel.items():
            kernel = instances[0].kernel
            if kernel.unsupported or rewritten.calls.synchronises(instances[0]):
                continue
            if not _is_worth_it(rewritten.program.source, kernel):
                continue
            try:
                form = self._form(kernel, instances)
                text = form.text()
            except NoLanes as reason:
                self.reasons[number] = str(reason)
                continue
            rewritten.edits.append(kernel.function.node.end_byte, text)
            self._forms[number] = form

    def _form(self, kernel: Kernel, instances: list[Instance]) -> Form:
        calls = self._rewritten.calls
        if any(map(calls.depends_on_order, instances)):
            raise NoLanes("the order of a thread's accesses to memory")
        scopes = calls.scopes(kernel.function.node)
        values = Values(self._rewritten.program.source, scopes, kernel, calls)
        return Form(values, self._rewritten.edits, kernel)

    def form(self, kernel: Kernel) -> Form | None:
        """Returns the form in which threads of a kernel run together; None if they run one by one."""
        return self._forms.get(kernel.number)

    def explain(self, instances: list[Instance]) -> tuple[dict[str, int], dict[str, str]]:
        """Returns by kernel: how many of its threads run together, and why none do."""
        taken, refused = {}, {}
        for instance in instances:
            number = instance.kernel.number
            if number in self._forms:
                taken[instance.name] = self._forms[number].width
            elif number in self.reasons:
                refused[instance.name] = self.reasons[number]
        return taken, refused
