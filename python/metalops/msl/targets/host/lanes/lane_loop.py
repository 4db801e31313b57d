"""Writes one loop over the lanes, in which each does its part of a few statements."""

from __future__ import annotations

from ....analysis.scopes import Declaration
from ....dialect import names
from ....source.tree import LOOPS, walk
from .analysis import SCALARS, VECTORS, inside, key
from .masks import ALIVE, Begin, Branch, End, Enter, Masks, Statement, nodes_of
from .predicated import Predicated
from .reasons import NoLanes

_S = names.SUPPORT


class LaneLoop:
    """form: the Form that it is part of. opened: the number of blocks that write() leaves open, for what only some lane still does."""

    def __init__(self, form, masks: Masks, parts: list, tells_any: bool):
        self._form = form
        self._values = form.values
        self._masks = masks
        self._parts = parts
        self._nodes = [node for part in parts for node in nodes_of(part)]
        self._begins = any(isinstance(p, Begin) for p in parts)
        self._ends = any(isinstance(p, End) for p in parts)
        self._leaves = any(isinstance(p, Statement) and self._values.leaves(p.node) for p in parts)
        self._returns = any(n.type == "return_statement" for s in self._nodes for n in walk(s))
        self._tells_any = tells_any or self._begins or self._ends or self._leaves
        self._number = form.number()
        self.opened = 0
        self._mine, self._used = self._variables()

    def write(self) -> None:
        out = self._form.out
        for part in self._parts:
            if isinstance(part, Enter):
                out.add(f"unsigned {part.loop.live}[msl_width];\n")
            elif isinstance(part, Branch):
                for name in (part.then, *([part.other] if part.has_other else [])):
                    out.add(f"unsigned {name}[msl_width], {name}_any = 0;\n")
        if self._tells_any:
            out.add(f"unsigned msl_any_{self._number} = 0;\n")
        straight = self._straight()
        if not straight:
            self._loop([])
        elif self._values.has_stored(self._nodes):
            self._probe(straight)
            out.add("if (msl_straight) {\n")
            self._loop(straight)
            out.add("} else {\n")
            self._loop([], "MSL_RARE_LANES")
            out.add("}\n}\n")
        else:
            self._probe(straight)
            out.add("if (!msl_straight) return false;\n")
            self._loop(straight)
            out.add("}\n")
        if self._ends:
            out.add(f"if (!msl_any_{self._number}) break;\n")
        elif self._tells_any:
            out.add(f"if (msl_any_{self._number}) {{\n")
            self.opened = 1

    # ---- variables -----------------------------------------------------------------------------------

    def _is_here(self, node) -> bool:
        return any(inside(node, n) for n in self._nodes)

    def _variables(self) -> tuple[list[Declaration], list[Declaration]]:
        """Returns the variables that are declared here and used elsewhere, and those that are only used here."""
        mine = []
        for declaration in self._values.variables:
            if self._is_here(declaration.identifier) and not all(
                map(self._is_here, declaration.uses)
            ):
                self._keep(declaration)
                mine.append(declaration)
        used = [
            d
            for d in self._form.arrays.values()
            if d not in mine and any(map(self._is_here, d.uses))
        ]
        declared = [d for n in self._nodes for d in self._values.declared_by(n)]
        found = [d.name for d in (*used, *declared)]
        for name in found:
            if found.count(name) > 1:
                raise NoLanes(f"two variables named '{name}'")
        return mine, used

    def _keep(self, declaration: Declaration) -> None:
        type_ = self._values.text(declaration.type_node)
        of_template = self._values.scopes.declaration_of(declaration.type_node)
        if type_ not in SCALARS and type_ not in VECTORS and of_template is None:
            raise NoLanes(
                f"'{declaration.name}', which lives across a loop and is no number or vector"
            )
        if declaration.is_address_taken:
            raise NoLanes(f"the address of '{declaration.name}'")
        written = self._form.edits.text_of(
            declaration.type_node.start_byte, declaration.type_node.end_byte
        )
        self._form.arrays[key(declaration)] = declaration
        self._form.out.add(f"{_S}::LaneValues<{written}, msl_width> {_array(declaration)};\n")

    # ---- the loop ------------------------------------------------------------------------------------

    def _loop(self, straight: list, before: str = "MSL_INDEPENDENT") -> None:
        out, loop = self._form.out, self._masks.loop
        out.add(f"{before} for (unsigned msl_lane = 0; msl_lane < msl_width; ++msl_lane) {{ ")
        out.add(self._form.builtins("msl_lane"))
        for d in self._used:
            out.add(f"auto {d.name} = {_array(d)}.get(msl_lane); ")
        replaced = [
            (n.start_byte, n.end_byte, f"msl_at[{i}] + msl_lane{self._times_step(n, i)}")
            for i, n in enumerate(straight)
        ]
        has_live = loop is not None and (self._begins or self._ends or self._leaves)
        alive = f" & {ALIVE}[msl_lane]" if self._values.returns else ""
        if has_live:
            out.add(f"unsigned msl_live = {loop.live}[msl_lane]{alive}; ")
        if self._returns:
            out.add(f"unsigned msl_lane_alive = {ALIVE}[msl_lane]; ")
        if self._leaves or self._begins:
            out.add("unsigned msl_gone = 0; ")
        mask = self._mask(alive)
        written = Predicated(self._values, self._form.edits, replaced, loop is not None)
        for part in self._parts:
            self._part(part, written, mask)
        out.add(written.out)
        self._leave_masks(has_live, mask)
        for d in [*self._used, *self._mine]:
            if d in self._mine or any(map(self._is_here, d.definitions)):
                out.add(f"{_array(d)}.set(msl_lane, {d.name}); ")
        out.add("}\n")

    def _mask(self, alive: str) -> str | None:
        """Writes the variable that tells if a lane takes part. Returns its name, or None if all lanes do."""
        arrays = [f"{name}[msl_lane]" for name in self._masks.arrays]
        if self._begins or self._ends:
            value = "msl_live"
        elif arrays or alive:
            value = f"{' & '.join(arrays) or '1u'}{alive}"
        elif self._leaves or self._tells_any:
            value = "1u"
        else:
            return None
        self._form.out.add(f"unsigned msl_mask = {value};\n")
        return "msl_mask"

    def _part(self, part, written: Predicated, mask: str | None) -> None:
        out = written.out
        if isinstance(part, Statement):
            written.statement(part.node, mask)
        elif isinstance(part, Enter):
            out.add(f"{part.loop.live}[msl_lane] = {mask or '1u'};\n")
        elif isinstance(part, Begin):
            if part.condition is not None:
                holds = written.condition(part.condition, mask)
                out.add(f"msl_mask = msl_live = {holds};\n")
        elif isinstance(part, End):
            out.add("msl_mask = msl_live;\n")
            if part.update is not None:
                written.statement(part.update, mask)
            if part.condition is not None:
                out.add(f"msl_live = {written.condition(part.condition, mask)};\n")
        else:
            holds = written.condition(part.condition, mask or "1u")
            out.add(f"{part.then}[msl_lane] = {holds}; {part.then}_any |= {holds};\n")
            if part.has_other:
                other = f"{mask or '1u'} & ({holds} ^ 1u)"
                out.add(f"{part.other}[msl_lane] = {other}; {part.other}_any |= {other};\n")

    def _leave_masks(self, has_live: bool, mask: str | None) -> None:
        """Writes the masks that the lane has left to their arrays."""
        out, loop = self._form.out, self._masks.loop
        if has_live:
            out.add(f"{loop.live}[msl_lane] = msl_live; ")
        if self._returns:
            out.add(f"{ALIVE}[msl_lane] = msl_lane_alive; ")
        if loop is not None and not loop.is_single:
            if self._begins:
                out.add(f"{loop.turn}[msl_lane] = msl_live & ~msl_gone; ")
            elif self._leaves:
                out.add(f"{loop.turn}[msl_lane] &= ~msl_gone; ")
        if self._tells_any:
            out.add(f"msl_any_{self._number} |= {'msl_live' if self._ends else mask}; ")

    # ---- indices -------------------------------------------------------------------------------------

    def _straight(self) -> list:
        """Returns the indices in statements that grow by a fixed number from thread to thread."""
        found = []
        for access in (a for node in self._nodes for a in walk(node)):
            if access.type != "subscript_expression":
                continue
            pointer = access.child_by_field_name("argument")
            declaration = self._values.scopes.declaration_of(pointer)
            indices = access.child_by_field_name("indices").named_children
            if declaration is None or not declaration.is_pointer or len(indices) != 1:
                continue
            index = indices[0]
            step = self._values.step(index)
            if step is not None and self._is_known(index):
                found.append(index)
            if step == 1 or self._values.is_uniform(index):
                continue
            if any(n.type in LOOPS for n in _around(access)):
                self._form.takes_all_contiguous = False
        return found

    def _times_step(self, index, number: int) -> str:
        return "" if self._values.grows(index) else f" * (msl_next[{number}] - msl_at[{number}])"

    def _is_known(self, index) -> bool:
        """Returns true if the index can be computed before the lane loop: its variables are declared outside of it, or
        by a statement of it."""
        for name in walk(index):
            declaration = self._values.scopes.declaration_of(name)
            if declaration is None or declaration.kind != "variable":
                continue
            if not self._is_here(declaration.node):
                continue
            if declaration.node not in self._nodes or (
                len(self._values.declared_by(declaration.node)) != 1
            ):
                return False
            if not self._is_known(declaration.initialiser):
                return False
        return True

    def _probe(self, straight: list) -> None:
        """Writes the indices of the first thread, and whether those of the last thread are as far from them as if none wraps
        in between: the first and the last one then are on a line, and so are all."""
        needed: list = []
        for index in straight:
            self._collect(index, needed)
        count = len(straight)
        out = self._form.out
        out.add(
            f"{{ const auto msl_probe = [&](unsigned msl_lane, {names.ABI}::u64* msl_at) "
            "__attribute__((always_inline)) { "
        )
        out.add(self._form.builtins("msl_lane"))
        mentioned = {
            key(d)
            for node in [*straight, *needed]
            for n in walk(node)
            if (d := self._values.scopes.declaration_of(n)) is not None
        }
        for d in self._used:
            if key(d) in mentioned:
                out.add(f"const auto {d.name} = {_array(d)}.get(msl_lane); ")
        for node in sorted(needed, key=lambda n: n.start_byte):
            out.add(self._form.text_of(node))
        for i, index in enumerate(straight):
            out.add(f"msl_at[{i}] = static_cast<{names.ABI}::u64>(")
            out.add(self._form.copy(index))
            out.add("); ")
        has_steps = not all(map(self._values.grows, straight))
        same = " && ".join(
            f"msl_end[{i}] - msl_at[{i}] == (msl_width - 1){self._times_step(n, i)}"
            for i, n in enumerate(straight)
        )
        out.add(
            f"}}; {names.ABI}::u64 msl_at[{count}], msl_next[{count}], msl_end[{count}]; "
            f"msl_probe(0, msl_at); {'msl_probe(1, msl_next); ' if has_steps else ''}"
            f"msl_probe(msl_width - 1, msl_end); const bool msl_straight = {same};\n"
        )

    def _collect(self, node, needed: list) -> None:
        for name in walk(node):
            declaration = self._values.scopes.declaration_of(name)
            if (
                declaration is not None
                and declaration.node in self._nodes
                and declaration.node not in needed
            ):
                needed.append(declaration.node)
                self._collect(declaration.initialiser, needed)


def _array(declaration: Declaration) -> str:
    return f"msl_{key(declaration)}_{declaration.name}"


def _around(node):
    while node.parent is not None:
        node = node.parent
        yield node
