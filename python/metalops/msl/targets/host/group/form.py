"""The group form of a function, which all threads of a group run together."""

from __future__ import annotations

from ....analysis.cuts import NotCut
from ....analysis.program import Function, Kernel, name_of
from ....analysis.variables import Kind
from ....dialect.edits import Mapped
from ....source.tree import walk
from .barriers import BarrierChecks
from .branch_statements import BranchStatements
from .calls import GroupCalls
from .classification import Classification
from .closure_uses import ClosureUses
from .closures import Closures
from .context import FunctionContext
from .context_arrays import ContextArrays
from .loop_statements import LoopStatements
from .lowering import Lowering
from .masks import Masks
from .operands import Operands
from .parameters import Parameters
from .predication import Predication
from .regions import Regions
from .rewriter import Rewriter
from .signature import Signature
from .simdgroup_loops import SimdgroupLoopStatements
from .work_items import WorkItemLoops


class Form:
    """A function, for given kinds of its parameters, whose group form is emitted: the parts, and what they emit.

    uses: the forms that it calls. result: how its result varies; None if there is none.
    """

    def __init__(self, groups, function: Function, kinds, again, key, kernel: Kernel | None = None):
        """kinds: of the parameters. again: for each parameter that loops rematerialise its value, for others None."""
        self._check(groups, function, kernel)
        context = FunctionContext.of(groups, function, kinds, again, kernel)
        self.key = key
        self.function = function
        self.body = context.body
        self.text = Mapped()
        rewriter = Rewriter(context)
        parameters = Parameters(context, rewriter, groups.builtins)
        arrays = ContextArrays(context, rewriter)
        self._signature = Signature(context, rewriter, parameters, arrays, groups.tags)
        self.result = self._signature.result
        if self.result is Kind.THREAD:
            leave = "return msl_result;\n"
        else:
            leave = "return;\n" if kernel is not None else "return {};\n"
        masks = Masks(self.result, leave)
        work_items = WorkItemLoops(context, rewriter, parameters, masks, arrays)
        predication = Predication(context, rewriter, parameters, masks, work_items)
        operands = Operands(context, rewriter, work_items)
        closure_uses = ClosureUses(context)
        barriers = BarrierChecks(context, parameters, masks)
        group_calls = GroupCalls(
            context,
            rewriter,
            parameters,
            masks,
            work_items,
            operands,
            closure_uses,
            barriers,
            groups,
        )
        lowering = Lowering(
            context, rewriter, work_items, predication, group_calls, self._emit_closure
        )
        self._closures = closures = Closures(
            context,
            rewriter,
            masks,
            arrays,
            work_items,
            closure_uses,
            group_calls,
            lowering,
            self._emit_body,
        )
        statements = Classification(context, rewriter)
        loops = LoopStatements(
            context,
            rewriter,
            masks,
            work_items,
            predication,
            lowering,
            statements,
            self._emit_block,
        )
        branches = BranchStatements(
            context, rewriter, masks, work_items, predication, lowering, self._emit_block
        )
        self.simdgroup_loops = SimdgroupLoopStatements(
            context, rewriter, parameters, masks, arrays, work_items, group_calls, loops
        )
        self._regions = Regions(
            context,
            rewriter,
            masks,
            work_items,
            closure_uses,
            lowering,
            closures,
            statements,
            loops,
            branches,
            self.simdgroup_loops,
        )
        self.uses = group_calls.uses
        closure_uses.check()

    @staticmethod
    def _check(groups, function: Function, kernel: Kernel | None) -> None:
        source = groups.source
        groups.sync.check_hidden(function)
        if "::" in source.masked_text(name_of(function.declarator)):
            raise NotCut(f"the member function '{function.name}' is defined outside of its class")
        if function.name.startswith("operator") and function.name != "operator()":
            raise NotCut(f"'{function.name}' synchronises")
        if function.is_specialisation and kernel is None:
            raise NotCut(f"'{function.name}' has an explicit specialisation")
        for node in walk(function.body):
            if node.type in ("goto_statement", "labeled_statement"):
                raise NotCut("goto")
            if node.type == "subscript_expression" and node.parent.type == "assignment_expression":
                base = node.child_by_field_name("argument")
                callee = (
                    base.child_by_field_name("function") if base.type == "call_expression" else None
                )
                if callee is not None and callee.type == "primitive_type":
                    raise NotCut("a reference to an array")  # it is parsed as an assignment

    def write(self) -> None:
        """Emits the group form. Raises NotCut."""
        self._signature.emit_head(self.text)
        self._signature.take_parameters(self.text)
        self._regions.emit_body(self.function.body, self.body.control.returns, self.text)
        self.text.add("}\n")

    # Statements contain expressions, closures and other statements: these calls close the circle of the parts.

    def _emit_closure(self, node, name: str, out: Mapped) -> None:
        self._closures.emit(node, name, out)

    def _emit_body(self, body, returns: list[tuple], out: Mapped) -> None:
        self._regions.emit_body(body, returns, out)

    def _emit_block(self, statements: list, out: Mapped) -> None:
        self._regions.emit_block(statements, out)
