"""Writes the function that runs adjacent threads of a kernel together."""

from __future__ import annotations

from ....analysis.program import Kernel
from ....analysis.scopes import Declaration
from ....dialect import names
from ....dialect.edits import Edits, Mapped
from ....source.tree import alternative_of, statements_of
from .analysis import LANE, Values
from .lane_loop import LaneLoop
from .masks import ALIVE, Begin, Branch, End, Enter, Loop, Masks, Statement
from .reasons import NoLanes

_S = names.SUPPORT
_STATEMENTS = {
    "declaration",
    "expression_statement",
    "if_statement",
    "compound_statement",
    "switch_statement",
    "break_statement",
    "continue_statement",
    "return_statement",
}


class Form:
    """The text of a kernel's form for `width` threads. positions: the numbers of the parameters of the buffers that it
    writes."""

    def __init__(self, values: Values, edits: Edits, kernel: Kernel):
        self.values = values
        self.positions = values.accesses.positions
        self.edits = edits
        self._kernel = kernel
        self.arrays: dict[int, Declaration] = {}  # varying variables that are kept in arrays
        self.takes_all_contiguous = True
        self.width = 64
        self.out = Mapped()
        self._counted = 0
        if values.returns:
            self.width = 32
            self.out.add(_array_of_ones(ALIVE))
        self._block(values.statements, Masks())
        if not self.arrays and any(map(values.loops_in, values.statements)):
            raise NoLanes("no value that lives across a loop")
        if not self.takes_all_contiguous:
            self.width = 16

    def text(self) -> Mapped:
        function = self._kernel.function
        whole = Mapped()
        headers = " ".join(
            "template " + self.edits.text_of(h.start_byte, h.end_byte)
            for h in function.template_headers
            if h.named_children
        )
        parameters = function.declarator.child_by_field_name("parameters")
        whole.add(
            f"\n{headers} inline __attribute__((always_inline)) bool {name_in_lanes(function.name)}"
        )
        whole.add(Mapped(*self.edits.apply(parameters.start_byte, parameters.end_byte)))
        whole.add(f" {{\nconstexpr {names.ABI}::u32 msl_width = {self.width};\n")
        for length in self.values.rows.lengths:
            whole.add(f"if (static_cast<{names.ABI}::u64>(")
            whole.add(self.copy(length))
            whole.add(f") > ({names.ABI}::u64(1) << 32) / msl_width) return false;\n")
        for parameter in self._lane_parameters():
            whole.add(f"const auto msl_first_{parameter} = {parameter};\n")
        self._guard(whole)
        whole.add(self.out)
        whole.add("return true;\n}\n")
        return whole

    def copy(self, node) -> Mapped:
        return Mapped(*self.edits.apply(node.start_byte, node.end_byte))

    def text_of(self, node) -> Mapped:
        """Returns the text of a statement with what stands before it."""
        start = self.values.source.previous_code(node.start_byte) + 1
        return Mapped(*self.edits.apply(start, node.end_byte))

    def number(self) -> int:
        self._counted += 1
        return self._counted

    def _lane_parameters(self) -> list[str]:
        return [p.name for p in self._kernel.parameters if p.attribute == LANE]

    def _guard(self, out: Mapped) -> None:
        guards = self.values.guards
        if not guards:
            return
        out.add("{ unsigned msl_ended = 0;\n")
        out.add("MSL_INDEPENDENT for (unsigned msl_lane = 0; msl_lane < msl_width; ++msl_lane) { ")
        out.add(self.builtins("msl_lane"))
        out.add("unsigned msl_ends = 0; do {\n")
        for node in guards:
            if node.type == "if_statement":
                out.add("if (")
                condition = node.child_by_field_name("condition")
                out.add(self.copy(condition))
                out.add(") { msl_ends = 1; break; }\n")
            else:
                out.add(self.text_of(node))
        out.add("} while (0); msl_ended |= msl_ends; }\nif (msl_ended) return false; }\n")

    def builtins(self, lane: str) -> str:
        return "".join(
            f"const auto {n} = {_S}::next_thread(msl_first_{n}, {lane}); (void){n}; "
            for n in self._lane_parameters()
        )

    # ---- statements --------------------------------------------------------------------------------

    def _block(self, statements: list, masks: Masks, run=()) -> None:
        """Writes statements one after the other. run: parts of a lane loop that come first.

        Where lanes may leave, the rest stands in `if (any lane is left)`: what is uniform in it, a load for example, is
        done only if a thread does it.
        """
        run, opened = list(run), 0
        for node in statements:
            if self.values.loops_in(node):
                opened += self._structured(node, masks, run)
                run = []
                if self.values.leaves(node):
                    opened += self._lane_loop([], masks, tells_any=True)
            elif self.values.is_uniform_declaration(node):
                opened += self._lane_loop(run, masks)
                run = []
                self.out.add(self.text_of(node))
                self.out.add("\n")
            elif node.type in _STATEMENTS:
                run.append(Statement(node))
            elif node.type != "comment":
                raise NoLanes(f"a statement ({node.type})")
        opened += self._lane_loop(run, masks)
        self.out.add("}\n" * opened)

    def _structured(self, node, masks: Masks, run: list) -> int:
        """Writes a statement with loops inside, after a run that stands before it. Returns the number of blocks that
        stay open."""
        if node.type == "if_statement":
            return self._if(node, masks, run)
        if node.type == "compound_statement":
            opened = self._lane_loop(run, masks)
            self.out.add("{\n")
            self._block(statements_of(node), masks)
            self.out.add("}\n")
            return opened
        if self.values.is_divergent(node):
            return self._divergent(node, masks, run)
        opened = self._lane_loop(run, masks)
        body = node.child_by_field_name("body")
        self.out.add(Mapped(*self.edits.apply(node.start_byte, body.start_byte)))
        self.out.add("{\n")
        self._block(statements_of(body), masks)
        self.out.add("}\n")
        return opened

    def _if(self, node, masks: Masks, run: list) -> int:
        clause = node.child_by_field_name("condition")
        condition = clause.child_by_field_name("value")
        if clause.named_child_count != 1 or condition.type == "declaration":
            raise NoLanes("a condition that declares a variable")
        then, other = node.child_by_field_name("consequence"), alternative_of(node)
        if self.values.is_uniform(condition):
            opened = self._lane_loop(run, masks)
            heads = ["if (", self.copy(condition), ") {\n"], ["} else {\n"]
            inner = masks, masks
        else:
            branch = Branch(condition, self.number(), other is not None)
            opened = self._lane_loop([*run, branch], masks)
            heads = [f"if ({branch.then}_any) {{\n"], [f"}} if ({branch.other}_any) {{\n"]
            turn = () if masks.loop is None else (masks.loop.turn,)
            inner = [Masks((*turn, name), masks.loop) for name in (branch.then, branch.other)]
        for statement, head, within in zip((then, other), heads, inner, strict=True):
            if statement is not None:
                for text in head:
                    self.out.add(text)
                self._block(statements_of(statement), within)
        self.out.add("}\n")
        return opened

    def _divergent(self, node, masks: Masks, run: list) -> int:
        """Writes a loop that lanes leave one by one: it ends when no lane is left."""
        self.width = min(self.width, 32)
        initializer, condition, update, body = (
            node.child_by_field_name(n) for n in ("initializer", "condition", "update", "body")
        )
        if node.type == "while_statement":
            if condition.named_child_count != 1:
                raise NoLanes("a condition that declares a variable")
            condition = condition.child_by_field_name("value")
        statements = statements_of(body)
        is_single = not any(
            self.values.loops_in(s) or self.values.is_uniform_declaration(s) for s in statements
        )
        loop = Loop(self.number(), is_single)
        counts, before = self.values.counts(node), []
        if initializer is not None and not counts:
            before.append(Statement(initializer))
        opened = self._lane_loop([*run, *before, Enter(loop)], masks)
        self.out.add("for (")
        self.out.add(self.text_of(initializer) if counts else ";")
        is_head = node.type != "do_statement" and condition is not None
        if is_head and self.values.is_uniform(condition):
            self.out.add(self.copy(condition))
            condition = None
        self.out.add(";")
        if counts:
            self.out.add(self.copy(update))
            update = None
        self.out.add(") {\n")
        begin = Begin(loop, condition if is_head else None)
        end = End(loop, update, None if is_head else condition)
        if is_single:
            self._lane_loop([begin, *map(Statement, statements), end], Masks((), loop))
        else:
            self.out.add(f"unsigned {loop.turn}[msl_width];\n")
            self._block(statements, Masks((loop.turn,), loop), [begin])
            self._lane_loop([end], Masks((), loop))
        self.out.add("}\n")
        return opened

    def _lane_loop(self, run: list, masks: Masks, tells_any: bool = False) -> int:
        """Writes a lane loop. Returns the number of blocks that it opens for what follows."""
        if not run and not tells_any:
            return 0
        loop = LaneLoop(self, masks, run, tells_any)
        loop.write()
        return loop.opened


def _array_of_ones(name: str) -> str:
    return f"unsigned {name}[msl_width]; for (unsigned& msl_one : {name}) msl_one = 1;\n"


def name_in_lanes(name: str) -> str:
    return f"{name}_in_lanes"
