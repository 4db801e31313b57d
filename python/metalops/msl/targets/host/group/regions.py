"""Region splitting: statements are split at synchronisation points into regions, which work-item loops run."""

from __future__ import annotations

from ....analysis.cuts import NotCut
from ....analysis.simdgroups import Split
from ....analysis.variables import Kind, Variable
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import LOOPS, statements_of, without_parentheses
from .branch_statements import BranchStatements
from .classification import Classification
from .closure_uses import ClosureUses
from .closures import Closures
from .context import FunctionContext
from .loop_statements import LoopStatements
from .lowering import Lowering
from .masks import Masks
from .rewriter import Rewriter
from .simdgroup_loops import SimdgroupLoopStatements
from .work_items import WorkItemLoops

_S = names.SUPPORT


class Regions:
    """Emits the statements of functions and closures, split into regions."""

    def __init__(
        self,
        context: FunctionContext,
        rewriter: Rewriter,
        masks: Masks,
        work_items: WorkItemLoops,
        closure_uses: ClosureUses,
        lowering: Lowering,
        closures: Closures,
        statements: Classification,
        loops: LoopStatements,
        branches: BranchStatements,
        simdgroup_loops: SimdgroupLoopStatements,
    ):
        self._body = context.body
        self._new = context.new
        self._shuffled = context.shuffled
        self._sync = context.sync
        self._rewriter = rewriter
        self._masks = masks
        self._work_items = work_items
        self._closure_uses = closure_uses
        self._lowering = lowering
        self._closures = closures
        self._statements = statements
        self._loops = loops
        self._branches = branches
        self._simdgroup_loops = simdgroup_loops

    def emit_body(self, body, returns: list[tuple], out: Mapped) -> None:
        """Emits the body of a function or of a closure. returns: the conditions around its return statements."""
        if any(any(map(self._body.parts, conditions)) for conditions in returns):
            out.add(f"{_S}::Mask msl_m0(msl_g, msl_mask);\n")
            with self._masks.under("msl_m0"):
                self.emit_block(statements_of(body), out)
        else:
            self.emit_block(statements_of(body), out)
        self._masks.end(out)

    def emit_block(self, statements: list, out: Mapped) -> None:
        """Emits the statements of a block that is cut."""
        run: list[tuple[object, list]] = []
        for position, node in enumerate(statements):
            split = self._simdgroup_loops.split_at(node)
            if split is not None:
                self._work_items.emit_region(run, out)
                self._emit_split(split, statements[position + 1 :], out)
                return
            self._declare_shuffled(node, out)
            closure = self._closure_uses.declared(node)
            if closure is not None:
                self._work_items.emit_region(run, out)
                self._closures.emit(closure.value, closure.name, out)
            elif self._statements.is_uniform(node):
                if (
                    self._statements.reads_memory(node)
                    or self._statements.changes(node)
                    or self._statements.hides(node, run)
                ):
                    self._work_items.emit_region(run, out)
                self._emit_uniform(node, out)
            elif self._statements.runs_whole(node):
                run.append((node, []))
            else:
                self._work_items.emit_region(run, out)
                more = self._emit_cut(node, out)
                if more is not None:
                    run.append(more)
                if self._masks.depth and self._body.cuts.leaves(node):
                    if position + 1 < len(statements):
                        self._work_items.emit_region(run, out)
                        out.add(f"if ({self._masks.active}.any()) {{\n")
                        self.emit_block(statements[position + 1 :], out)
                        out.add("}\n")
                    break
                if node.type in ("return_statement", "break_statement", "continue_statement"):
                    break
        self._work_items.emit_region(run, out)

    def _declare_shuffled(self, node, out: Mapped) -> None:
        if node.type != "declaration" or not self._shuffled.declared:
            return
        for variable in self._body.variables.declared_by(node):
            if variable.identifier.start_byte in self._shuffled.declared:
                self._masks.declare(variable.identifier, self._new("having"), out)

    def _emit_uniform(self, node, out: Mapped) -> None:
        replaced = self._lowering.lower_uniform(node, out)
        out.add(self._rewriter.statement(node, replaced))
        out.add("\n")

    def _emit_split(self, split: Split, rest: list, out: Mapped) -> None:
        """Emits an assignment from which on a variable is uniform, and the rest of its block."""
        replaced = self._lowering.lower_uniform(split.after.value, out)
        name, value = split.after.name, self._new("same")
        out.add(f"{_S}::decayed_t<decltype({name})> {value}; {value} = ")
        out.add(self._rewriter.expression(split.after.value, replaced))
        out.add(f";\n{{ auto {name} = {value}; (void){name};\n")
        self.emit_block(rest, out)
        out.add("}\n")

    def _emit_cut(self, node, out: Mapped):
        """Emits a statement that is cut; returns the rest of it that is to be run thread by thread, if any."""
        kind = node.type
        if kind == "compound_statement":
            out.add("{\n")
            self.emit_block(statements_of(node), out)
            out.add("}\n")
        elif kind == "expression_statement":
            return self._emit_expression(node, out)
        elif kind == "declaration":
            variable = self._cooperative(node)
            if variable is None:
                return node, self._lowering.lower(node, out)
            self._lowering.declare(variable.value, variable.name, out)
        elif kind == "if_statement":
            self._branches.emit_if(node, out)
        elif kind in LOOPS:
            if not self._simdgroup_loops.emit(node, out):
                self._loops.emit(node, out)
        elif kind == "switch_statement":
            self._branches.emit_switch(node, out)
        elif kind == "return_statement":
            self._emit_return(node, out)
        elif kind in ("break_statement", "continue_statement"):
            self._masks.leave_target(kind, out)
        else:
            raise NotCut(f"threads synchronise in a {kind.replace('_', ' ')}")
        return None

    def _cooperative(self, node) -> Variable | None:
        """Returns the variable that a declaration initialises with a new cooperative tensor, if it is its only one."""
        variables = self._body.variables.declared_by(node)
        if len(variables) != 1 or variables[0].kind is not Kind.THREAD:
            return None
        variable = variables[0]
        value = variable.value
        if value is None or value.type != "call_expression" or variable.is_reference:
            return None
        if node.child_by_field_name("type").type != "placeholder_type_specifier":
            return None
        return variable if self._sync.meets(value) == "tensor" else None

    def _emit_expression(self, node, out: Mapped):
        expression = node.named_children[0]
        if expression.type == "comma_expression":
            raise NotCut("threads synchronise beside a comma")
        replaced = self._lowering.lower(expression, out)
        inner = without_parentheses(expression)
        if inner.type == "cast_expression":  # (void)f(x)
            inner = inner.child_by_field_name("value")
        if len(replaced) == 1 and (inner.start_byte, inner.end_byte) == replaced[0][:2]:
            return None
        return node, replaced

    def _emit_return(self, node, out: Mapped) -> None:
        values = [c for c in node.named_children if c.type != "comment"]
        if values and self._masks.result is Kind.THREAD:
            replaced = self._lowering.lower(values[0], out)
            is_list = values[0].type == "initializer_list"
            result = f"{_S}::decayed_t<decltype(msl_result[0])>"
            body = Mapped(f"{_S}::put(msl_at_result[msl_t.slot], {result}")
            body.add("" if is_list else "(")
            body.add(self._rewriter.expression(values[0], replaced))
            body.add(");" if is_list else "));")
            self._work_items.each(
                [values[0]],
                self._body.variables.used_in(values[0]),
                [t for _, _, t in replaced],
                body,
                out,
            )
        elif values:
            self._lowering.lower(values[0], out)
        self._masks.leave(out)
