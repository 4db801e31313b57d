"""Writes the function that runs adjacent threads of a kernel together."""

from __future__ import annotations

from ....analysis.program import Kernel
from ....analysis.scopes import Declaration
from ....dialect import names
from ....dialect.edits import Edits, Mapped
from ....source.tree import statements_of, walk
from .analysis import LANE, SCALARS, Values, key
from .reasons import NoLanes

_S = names.SUPPORT


class Form:
    """The text of a kernel's form for `width` threads. positions: the numbers of the parameters of the buffers that it
    writes. is_short: true if its loops have few iterations."""

    def __init__(self, values: Values, edits: Edits, kernel: Kernel):
        self._values = values
        self.positions = values.accesses.positions
        self.is_short = values.is_short
        self._edits = edits
        self._kernel = kernel
        self._arrays: dict[int, Declaration] = {}  # varying variables that are kept in arrays
        self._takes_all_contiguous = True
        self.width = 64
        self._out = Mapped()
        self._block(values.statements)
        if not self._arrays:
            raise NoLanes("no value that lives across a loop")
        if not self._takes_all_contiguous:
            self.width = 16

    def text(self) -> Mapped:
        function = self._kernel.function
        whole = Mapped()
        headers = " ".join(
            "template " + self._edits.text_of(h.start_byte, h.end_byte)
            for h in function.template_headers
            if h.named_children
        )
        parameters = function.declarator.child_by_field_name("parameters")
        whole.add(
            f"\n{headers} inline __attribute__((always_inline)) bool {name_in_lanes(function.name)}"
        )
        whole.add(Mapped(*self._edits.apply(parameters.start_byte, parameters.end_byte)))
        whole.add(f" {{\nconstexpr {names.ABI}::u32 msl_width = {self.width};\n")
        for parameter in self._lane_parameters():
            whole.add(f"const auto msl_first_{parameter} = {parameter};\n")
        self._guard(whole)
        whole.add(self._out)
        whole.add("return true;\n}\n")
        return whole

    def _lane_parameters(self) -> list[str]:
        return [p.name for p in self._kernel.parameters if p.attribute == LANE]

    def _guard(self, out: Mapped) -> None:
        guards = self._values.guards
        if not guards:
            return
        out.add("{ unsigned msl_ended = 0;\n")
        out.add("MSL_INDEPENDENT for (unsigned msl_lane = 0; msl_lane < msl_width; ++msl_lane) { ")
        out.add(self._builtins("msl_lane"))
        out.add("unsigned msl_ends = 0; do {\n")
        for node in guards:
            if node.type == "if_statement":
                out.add("if (")
                condition = node.child_by_field_name("condition")
                out.add(self._copy(condition))
                out.add(") { msl_ends = 1; break; }\n")
            else:
                out.add(self._statement(node))
        out.add("} while (0); msl_ended |= msl_ends; }\nif (msl_ended) return false; }\n")

    def _builtins(self, lane: str) -> str:
        return "".join(
            f"const auto {n} = {_S}::next_thread(msl_first_{n}, {lane}); (void){n}; "
            for n in self._lane_parameters()
        )

    # ---- statements --------------------------------------------------------------------------------

    def _block(self, statements: list) -> None:
        run: list = []
        for node in statements:
            if self._values.loops_in(node):
                self._run(run)
                run = []
                self._structured(node)
            elif self._is_uniform_declaration(node):
                self._run(run)
                run = []
                self._out.add(self._statement(node))
                self._out.add("\n")
            elif node.type in (
                "declaration",
                "expression_statement",
                "if_statement",
                "compound_statement",
            ):
                run.append(node)
            elif node.type != "comment":
                raise NoLanes(f"a statement ({node.type})")
        self._run(run)

    def _structured(self, node) -> None:
        if node.type == "for_statement":
            body = node.child_by_field_name("body")
            self._out.add(Mapped(*self._edits.apply(node.start_byte, body.start_byte)))
            node = body
        self._out.add("{\n")
        self._block(statements_of(node))
        self._out.add("}\n")

    def _declared_by(self, node) -> list[Declaration]:
        return [d for d in self._values.scopes.declarations if d.node == node]

    def _is_uniform_declaration(self, node) -> bool:
        declared = self._declared_by(node) if node.type == "declaration" else []
        return bool(declared) and all(key(d) in self._values.uniform for d in declared)

    def _run(self, run: list) -> None:
        if not run:
            return
        start, end = run[0].start_byte, run[-1].end_byte
        mine: list[Declaration] = []
        for declaration in self._values.scopes.declarations:
            if declaration.kind != "variable" or not start <= key(declaration) < end:
                continue
            if any(not start <= u.start_byte < end for u in declaration.uses):
                self._keep(declaration)
                mine.append(declaration)
        used = [
            d
            for d in self._arrays.values()
            if d not in mine and any(start <= u.start_byte < end for u in d.uses)
        ]
        straight = self._straight(run)
        if straight:
            self._probe(straight, run, used)
            self._out.add("if (msl_straight) {\n")
            self._lane_loop(run, used, mine, straight)
            self._out.add("} else {\n")
            self._lane_loop(run, used, mine, [], "MSL_RARE_LANES")
            self._out.add("}\n}\n")
        else:
            self._lane_loop(run, used, mine, [])

    def _keep(self, declaration: Declaration) -> None:
        type_ = self._values.text(declaration.type_node)
        of_template = self._values.scopes.declaration_of(declaration.type_node)
        if type_ not in SCALARS and of_template is None:
            raise NoLanes(f"'{declaration.name}', which lives across a loop and is no scalar")
        if declaration.is_address_taken:
            raise NoLanes(f"the address of '{declaration.name}'")
        written = self._edits.text_of(
            declaration.type_node.start_byte, declaration.type_node.end_byte
        )
        self._arrays[key(declaration)] = declaration
        self._out.add(f"{written} {self._array(declaration)}[msl_width];\n")

    def _array(self, declaration: Declaration) -> str:
        return f"msl_{key(declaration)}_{declaration.name}"

    def _lane_loop(self, run, used, mine, straight, before="MSL_INDEPENDENT") -> None:
        out = self._out
        out.add(f"{before} for (unsigned msl_lane = 0; msl_lane < msl_width; ++msl_lane) {{ ")
        out.add(self._builtins("msl_lane"))
        for d in used:
            out.add(f"auto {d.name} = {self._array(d)}[msl_lane]; ")
        replaced = [
            (n.start_byte, n.end_byte, f"msl_at[{i}] + msl_lane") for i, n in enumerate(straight)
        ]
        for node in run:
            here = [r for r in replaced if node.start_byte <= r[0] < node.end_byte]
            out.add(self._statement(node, here))
            out.add("\n")
        for d in [*used, *mine]:
            if d in mine or d.definitions or any(map(self._values._is_passed, d.uses)):
                out.add(f"{self._array(d)}[msl_lane] = {d.name}; ")
        out.add("}\n")

    def _straight(self, run: list) -> list:
        """Returns the indices in statements that grow by one from thread to thread."""
        start = run[0].start_byte
        found = []
        for node in run:
            for access in walk(node):
                if access.type != "subscript_expression":
                    continue
                pointer = access.child_by_field_name("argument")
                declaration = self._values.scopes.declaration_of(pointer)
                indices = access.child_by_field_name("indices").named_children
                if declaration is None or not declaration.is_pointer or len(indices) != 1:
                    continue
                index = indices[0]
                if self._values.grows(index) and self._is_known(index, run, start):
                    found.append(index)
                elif self._values.is_uniform(index):
                    continue
                elif any(n.type == "for_statement" for n in self._around(access)):
                    if access.parent.type == "assignment_expression" and (
                        access.parent.child_by_field_name("left") == access
                    ):
                        raise NoLanes("stores in a loop that are not contiguous")
                    self._takes_all_contiguous = False
        return found

    @staticmethod
    def _around(node):
        while node.parent is not None:
            node = node.parent
            yield node

    def _is_known(self, index, run, start: int) -> bool:
        """Returns true if the index can be computed before the lane loop: its variables are declared outside of the
        run, or by a statement of it."""
        for name in walk(index):
            declaration = self._values.scopes.declaration_of(name)
            if declaration is None or declaration.kind != "variable":
                continue
            if key(declaration) < start:
                continue
            if declaration.node not in run or len(self._declared_by(declaration.node)) != 1:
                return False
            if not self._is_known(declaration.initialiser, run, start):
                return False
        return True

    def _probe(self, straight, run, used) -> None:
        """Emits the indices of the first thread, and whether those of the last thread are as many elements further."""
        needed: list = []
        for index in straight:
            self._collect(index, run, needed)
        count = len(straight)
        out = self._out
        out.add(
            f"{{ const auto msl_probe = [&](unsigned msl_lane, {names.ABI}::u64* msl_at) "
            "__attribute__((always_inline)) { "
        )
        out.add(self._builtins("msl_lane"))
        mentioned = {
            key(d)
            for node in [*straight, *needed]
            for n in walk(node)
            if (d := self._values.scopes.declaration_of(n)) is not None
        }
        for d in used:
            if key(d) in mentioned:
                out.add(f"const auto {d.name} = {self._array(d)}[msl_lane]; ")
        for node in sorted(needed, key=lambda n: n.start_byte):
            out.add(self._statement(node))
        for i, index in enumerate(straight):
            out.add(f"msl_at[{i}] = static_cast<{names.ABI}::u64>(")
            out.add(self._copy(index))
            out.add("); ")
        same = " && ".join(f"msl_end[{i}] - msl_at[{i}] == msl_width - 1" for i in range(count))
        out.add(
            f"}}; {names.ABI}::u64 msl_at[{count}], msl_end[{count}]; msl_probe(0, msl_at); "
            f"msl_probe(msl_width - 1, msl_end); const bool msl_straight = {same};\n"
        )

    def _collect(self, node, run, needed: list) -> None:
        for name in walk(node):
            declaration = self._values.scopes.declaration_of(name)
            if (
                declaration is not None
                and declaration.node in run
                and declaration.node not in needed
            ):
                needed.append(declaration.node)
                self._collect(declaration.initialiser, run, needed)

    def _copy(self, node) -> Mapped:
        return Mapped(*self._edits.apply(node.start_byte, node.end_byte))

    def _statement(self, node, replaced=()) -> Mapped:
        start = self._values.source.previous_code(node.start_byte) + 1
        return Mapped(*self._edits.apply(start, node.end_byte, replaced))


def name_in_lanes(name: str) -> str:
    return f"{name}_in_lanes"
