"""Loops that each simdgroup runs by itself (include/msl/host/one_simdgroup.h)."""

from __future__ import annotations

from collections.abc import Iterator

from ....analysis.cuts import NotCut
from ....analysis.program import name_node
from ....analysis.simdgroups import SimdgroupLoop, SimdgroupLoops, Split
from ....analysis.variables import Kind, Variable
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.vocabulary import SIMDGROUP_NUMBER
from .calls import GroupCalls
from .context import FunctionContext
from .context_arrays import ContextArrays
from .loop_statements import LoopStatements
from .masks import Masks
from .parameters import Parameters
from .rewriter import Rewriter
from .work_items import WorkItemLoops

_S = names.SUPPORT


class SimdgroupLoopStatements:
    """Emits loops twice where that is faster: as run by one complete simdgroup after the other, with what is uniform in a
    simdgroup as plain variables, and for all other threads together."""

    def __init__(
        self,
        context: FunctionContext,
        rewriter: Rewriter,
        parameters: Parameters,
        masks: Masks,
        arrays: ContextArrays,
        work_items: WorkItemLoops,
        group_calls: GroupCalls,
        loops: LoopStatements,
    ):
        self._body = context.body
        self._kinds = context.kinds
        self._rewriter = rewriter
        self._parameters = parameters
        self._masks = masks
        self._arrays = arrays
        self._work_items = work_items
        self._group_calls = group_calls
        self._loops = loops
        self._new = context.new
        self._here: SimdgroupLoop | None = None  # the loop that is being emitted
        self._is_within = False  # true while a loop is emitted, in either form
        self._emitted: list[SimdgroupLoop] = []
        sync, shuffled = context.sync, context.shuffled
        self._analysis = SimdgroupLoops(
            context.source,
            context.body,
            sync.meets,
            sync.called_name,
            context.call_graph.callees,
            self._begins_uniform,
            lambda call: (
                name_node(call.child_by_field_name("function")).start_byte in shuffled.variables
            ),
        )

    def uniform_values(self) -> list[str]:
        """Returns the names of the values that are uniform in a simdgroup, in the loops that were emitted."""
        found = {v for loop in self._emitted for v in loop.uniform}
        return [v.name for v in sorted(found, key=lambda v: v.identifier.start_byte)]

    def split_at(self, statement) -> Split | None:
        return None if self._here is None else self._here.splits.get(statement.id)

    def emit(self, node, out: Mapped) -> bool:
        """Emits a loop that is cut, or returns false."""
        found = None if self._is_within else self._analysis.of(node)
        if found is None:
            return False
        self._here, self._is_within = found, True
        shifts, body = Mapped(), Mapped()
        used = len(self._group_calls.uses)
        self._parameters.is_of_simdgroup = True
        try:
            self._emit_shifts(found, shifts)
            with self._analysis.in_effect(found), self._masks.simdgroup():
                found.takes_turns = self._loops.can_take_turns(node)
                if found.takes_turns:
                    self._emit_turns(found, shifts, body)
                else:
                    self._emit_whole(found, body)
        except NotCut:  # what a mask of all threads can do, one of a simdgroup need not be able to
            del self._group_calls.uses[used:]
            self._is_within = False
            return False
        finally:
            self._here, self._parameters.is_of_simdgroup = None, False
        self._emitted.append(found)
        rest = self._new("rest")
        out.add("{ ")
        for variable in found.kept:
            name = variable.name
            out.add(f"const auto msl_kept_{name} = {name}; ")
            if found.takes_turns:
                out.add(f"{_S}::Lanes<{_S}::decayed_t<decltype({name})>> msl_lanes_{name}(msl_g); ")
        out.add(shifts)
        out.add(
            f"const {_S}::Mask {rest} = {_S}::each_simdgroup(msl_g, {self._masks.active}, "
            f"[&](const {names.ABI}::u32 msl_first) MSL_LANE_LOOP {{ return {self._condition(found)}; }}"
        )
        out.add(body)
        out.add(f");\nif ({rest}.any()) {{\n")
        self._restore(found, out)
        with self._masks.under(rest):
            self._loops.emit(node, out)
        self._is_within = False
        out.add("} }\n")
        return True

    def _begins_uniform(self, parameter: Variable) -> bool:
        position = self._parameters.position_of(parameter)
        kind = self._kinds[position]
        if kind is Kind.AGAIN:
            return self._parameters.attribute(position) == SIMDGROUP_NUMBER
        return kind is Kind.GROUP

    def _emit_shifts(self, found: SimdgroupLoop, out: Mapped) -> None:
        """Emits, for pointers that differ among lanes, functions that return by how many elements."""
        for variable, terms in list(found.shifted.items()):
            text, value = Mapped(), Mapped("return ")
            for number, term in enumerate(terms):
                value.add(" + (" if number else "(")
                value.add(self._rewriter.expression(term))
                value.add(")")
            value.add(";")
            used = set().union(*map(self._body.variables.used_in, terms))
            if self._work_items.emit_lambda(terms, used, [], value, text) != "Numbered":
                del found.shifted[variable]  # it takes more than a thread's index
                continue
            out.add(f"const auto msl_shift_{variable.name} = ")
            out.add(text)
            out.add(";\n")

    def _condition(self, found: SimdgroupLoop) -> str:
        """Returns the condition under which a simdgroup runs the loop by itself."""
        parts = [
            f"{_S}::is_uniform({_S}::at(msl_lanes_{v.name}), msl_first)"
            for v in self._loaded(found)
        ] + [
            f"{_S}::is_shifted({_S}::at(msl_lanes_{v.name}), msl_first, msl_shift_{v.name})"
            for v in found.shifted
        ]
        return " && ".join(["(void(msl_first), true)", *parts])

    def _loaded(self, found: SimdgroupLoop) -> Iterator[Variable]:
        """Yields the uniform variables of which each thread has a copy before the loop."""
        for variable in sorted(found.uniform, key=lambda v: v.identifier.start_byte):
            if variable not in found.rematerialised and not found.holds(variable):
                yield variable

    def _restore(self, found: SimdgroupLoop, out: Mapped) -> None:
        for variable in found.kept:
            out.add(f"{variable.name} = msl_kept_{variable.name}; ")
        out.add("\n")

    def _emit_whole(self, found: SimdgroupLoop, out: Mapped) -> None:
        """Emits a function in which a simdgroup runs the whole loop."""
        self._begin(found, out)
        self._restore(found, out)
        self._load(found, list(self._loaded(found)), out)
        self._loops.emit(found.node, out)
        self._give_all(found, out)
        out.add("}")

    def _emit_turns(self, found: SimdgroupLoop, before: Mapped, out: Mapped) -> None:
        """Emits the functions of a loop whose iterations simdgroups run by turns. Between them, the first thread's copy of
        a variable is that of the simdgroup."""
        initializer = found.node.child_by_field_name("initializer")
        declared = []
        if initializer is not None and initializer.type == "declaration":
            declared = self._body.variables.declared_by(initializer)
        for variable in declared:
            self._arrays.declare(variable, before)
        loaded = [*self._loaded(found), *found.kept]
        changed = [v for v in loaded if found.changes(v)]
        self._begin(found, out)
        for variable in found.kept:
            out.add(f"msl_lanes_{variable.name}[msl_t.slot] = {variable.name};\n")
        if initializer is not None:
            self._load(found, loaded, out)
            out.add(self._rewriter.statement(initializer))
            out.add(";\n" if not declared else "\n")
            self._store(found, [*changed, *declared], out)
        out.add("}")
        self._begin(found, out)
        self._load(found, [*loaded, *declared], out)
        out.add("bool msl_goes_on = false;\n")
        self._loops.emit_turn(found.node, out)
        self._store(found, [*changed, *declared], out)
        out.add("return msl_goes_on;\n}")
        self._begin(found, out)
        for variable in found.kept:
            out.add(f"{variable.name} = msl_lanes_{variable.name}[msl_t.slot];\n")
        self._load(found, [v for v in self._loaded(found) if found.changes(v)], out)
        self._give_all(found, out)
        out.add("}")

    def _begin(self, found: SimdgroupLoop, out: Mapped) -> None:
        """Emits the beginning of a function for a simdgroup, with the variables that are rematerialised elsewhere."""
        out.add(
            f", [&](const {_S}::WholeSimdgroup msl_mask) MSL_LANE_LOOP {{\n"
            f"const {_S}::Numbered msl_t = {_S}::first_of(msl_mask); (void)msl_t;\n"
        )
        for variable in sorted(found.rematerialised, key=lambda v: v.identifier.start_byte):
            if found.holds(variable):
                continue
            if variable.is_parameter:
                position = self._parameters.position_of(variable)
                out.add(self._parameters.rematerialised(position))
            else:
                out.add(self._rewriter.statement(variable.declaration))
            out.add(f" (void){variable.name};\n")

    def _load(self, found: SimdgroupLoop, loaded: list[Variable], out: Mapped) -> None:
        for variable in loaded:
            name = variable.name
            out.add(f"auto {name} = {_S}::at(msl_lanes_{name})[msl_t.slot]; (void){name};\n")
        for variable in found.shifted:
            name = variable.name
            out.add(
                f"auto {name} = {_S}::at(msl_lanes_{name})[msl_t.slot] - msl_shift_{name}(msl_t); "
                f"(void){name};\n"
            )

    def _store(self, found: SimdgroupLoop, changed: list[Variable], out: Mapped) -> None:
        for variable in changed:
            out.add(f"msl_lanes_{variable.name}[msl_t.slot] = {variable.name};\n")
        for variable in filter(found.changes, found.shifted):
            name = variable.name
            out.add(f"msl_lanes_{name}[msl_t.slot] = {name} + msl_shift_{name}(msl_t);\n")

    def _give_all(self, found: SimdgroupLoop, out: Mapped) -> None:
        """Emits a loop that gives the variables' last values to all threads of the simdgroup."""
        changed = [v for v in self._loaded(found) if found.changes(v)]
        shifted = [v for v in found.shifted if found.changes(v)]
        if not changed and not shifted:
            return
        captures, body = ["&"], []
        for variable in (*changed, *shifted):
            name = variable.name
            captures += [f"msl_at_{name} = {_S}::at(msl_lanes_{name})", f"msl_copy_{name} = {name}"]
            shift = f" + msl_shift_{name}(msl_t)" if variable in found.shifted else ""
            body.append(f"msl_at_{name}[msl_t.slot] = msl_copy_{name}{shift};")
        out.add(
            f"{_S}::each<true>(msl_g, msl_mask, [{', '.join(captures)}](const {_S}::Numbered msl_t) "
            f"MSL_LANE_LOOP {{ {' '.join(body)} }});\n"
        )
