"""Writes the launch code: for every kernel of the library its argument table and its engines, then the library table
itself. The text follows the rewritten program.

Engines: `loop` for kernels whose threads never synchronise, `group` for synchronising ones that group/loops.py can cut,
`thread` for all. A further engine is a further function here and a further pointer in the table.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping

from ...analysis import uses
from ...analysis.program import (
    Function,
    FunctionConstant,
    Instance,
    Kernel,
    Parameter,
    integer_value,
)
from ...dialect import names
from ...dialect.assembly import Piece, in_namespaces, parameter_types
from ...dialect.rewrite import Rewritten
from ...source.locations import LineMap
from ...source.parse import string_value
from ...source.vocabulary import THREAD_ATTRIBUTES
from . import flavours
from .group.calls import name_in_group
from .group.loops import GroupLoops
from .lanes.form import Form, name_in_lanes
from .lanes.loops import LaneLoops
from .threadgroup import size_block

_ABI = names.ABI
_SUPPORT = names.SUPPORT
_INTERNAL = names.INTERNAL
_KINDS = {
    "buffer": "kBuffer",
    "threadgroup": "kThreadgroup",
    "builtin": "kBuiltin",
    "texture": "kTexture",
    "sampler": "kSampler",
}


def _divide_up(size: str, by: str) -> str:
    return f"{_SUPPORT}::divide_up({_SUPPORT}::volume({size}), {by})"


# A thread's indices and positions: in a loop over rows of the grid, in such a loop split at threadgroups, and alone.
_ROW_BUILTINS = {
    "thread_position_in_grid": "msl_x, msl_row.y, msl_row.z",
    "threads_per_grid": "msl_launch->grid[0], msl_launch->grid[1], msl_launch->grid[2]",
    "grid_size": "msl_launch->grid[0], msl_launch->grid[1], msl_launch->grid[2]",
    "grid_origin": "0",
    "dispatch_threads_per_threadgroup": (
        "msl_launch->group[0], msl_launch->group[1], msl_launch->group[2]"
    ),
    "threadgroups_per_grid": "msl_launch->groups[0], msl_launch->groups[1], msl_launch->groups[2]",
    "threads_per_simdgroup": f"{_ABI}::kSimdWidth",
    "thread_execution_width": f"{_ABI}::kSimdWidth",
    "dispatch_simdgroups_per_threadgroup": _divide_up("msl_launch->group", f"{_ABI}::kSimdWidth"),
    "dispatch_quadgroups_per_threadgroup": _divide_up("msl_launch->group", "4"),
}


def _group_builtins(group: str, size: str, position: str, index: str) -> dict[str, str]:
    return {
        "threads_per_threadgroup": f"{size}[0], {size}[1], {size}[2]",
        "threadgroup_position_in_grid": f"{group}[0], {group}[1], {group}[2]",
        "thread_position_in_threadgroup": position,
        "thread_index_in_threadgroup": index,
        "thread_index_in_simdgroup": f"({index}) & {_SUPPORT}::kSimdMask",
        "simdgroup_index_in_threadgroup": f"({index}) / {_ABI}::kSimdWidth",
        "simdgroups_per_threadgroup": _divide_up(size, f"{_ABI}::kSimdWidth"),
        "thread_index_in_quadgroup": f"({index}) & 3",
        "quadgroup_index_in_threadgroup": f"({index}) / 4",
        "quadgroups_per_threadgroup": _divide_up(size, "4"),
    }


_LOOP_BUILTINS = {
    **_ROW_BUILTINS,
    **_group_builtins(
        "msl_row.group",
        "msl_row.size",
        "msl_x - msl_row.origin, msl_row.local_y, msl_row.local_z",
        "msl_row.index + msl_x - msl_row.origin",
    ),
}
_THREAD_BUILTINS = {
    **_ROW_BUILTINS,
    **_group_builtins(
        "msl_group.position",
        "msl_group.size",
        "msl_thread->position[0], msl_thread->position[1], msl_thread->position[2]",
        "msl_thread->index",
    ),
    "thread_position_in_grid": ", ".join(
        f"msl_group.position[{i}] * msl_launch->group[{i}] + msl_thread->position[{i}]"
        for i in range(3)
    ),
}


# These values in a loop over the threads of a group, where the thread is `msl_t`.
GROUP_BUILTINS = {
    **_ROW_BUILTINS,
    **_group_builtins(
        "msl_group.position", "msl_group.size", "msl_t.x, msl_t.y, msl_t.z", "msl_t.index"
    ),
    "thread_position_in_grid": ", ".join(
        f"msl_group.position[{i}] * msl_launch->group[{i}] + msl_t.{axis}"
        for i, axis in enumerate("xyz")
    ),
}


class Thunks:
    def __init__(
        self,
        rewritten: Rewritten,
        sites: list[int],
        lines: LineMap,
        recorded: Callable[[str], str],
        groups: GroupLoops | None,
        described: bool = False,
        lanes: LaneLoops | None = None,
        fibers: bool = True,
        only: Collection[str] = (),
    ):
        """described: true if the table only describes the kernels. Their functions are there for the compiler to check,
        and as nothing refers to them, it generates no code for them. fibers: true if the threads of kernels that have a
        group loop can also run on fibers. only: the names of the kernels to launch (none: all)."""
        self.groups = groups
        self._lanes = lanes
        self._fibers = fibers
        self.program = program = rewritten.program
        self.source = program.source
        self.rewritten = rewritten
        self.sites = sites
        self.edits = rewritten.edits
        self.lines = lines
        self._recorded = recorded
        self.instances = [
            i
            for i in program.instances
            if not i.kernel.unsupported and (not only or i.name in only)
        ]
        self._described = described
        self._left_alone = flavours.left_alone({i.name for i in self.instances})
        self._placed: dict[int, set[str]] = {}
        self._noted: dict[int, int] = {}  # by instance, how many of its arguments are noted
        self._uses = uses.Uses(rewritten.calls)
        # By kernel: the conditions under which it uses arguments, by their positions; "" for none.
        self._conditions: dict[int, dict[int, str]] = {}
        self._with_conditions: list[int] = []  # the numbers of instances
        self.names = [
            f"{names.PROGRAM}::{'::'.join([*_named(i.path), ''])}" for i in self.instances
        ]

    def engines(self) -> dict[str, tuple[str, str | None]]:
        """Returns by kernel: the engine that runs it, and why a group loop cannot."""
        found = {}
        for instance in self.instances:
            if not self.rewritten.calls.synchronises(instance):
                found[instance.name] = ("loop", None)
            elif self.groups is None:
                found[instance.name] = ("fiber", None)
            elif self.groups.has(instance.kernel):
                found[instance.name] = ("group", None)
            else:
                found[instance.name] = ("fiber", self.groups.reasons[instance.kernel.number])
        return found

    def pieces(self, left_out: Mapping[str, int], language: int) -> Iterator[Piece]:
        """Yields the launch code. left_out: kernels that the table lists with their parts, to be compiled later."""
        for kernel in self.program.kernels:
            if not kernel.unsupported and self._needs_facts(kernel):
                yield self._facts(kernel)
        for kernel in self.program.kernels:
            if not kernel.unsupported:
                yield from self._used(kernel)
        for number, instance in enumerate(self.instances):
            yield self._instance(number, instance)
        yield Piece(self._library(left_out, language), None)

    # ---- facts that depend on template arguments -------------------------------------------------

    def _needs_facts(self, kernel: Kernel) -> bool:
        return (
            bool(kernel.threadgroup_variables)
            or (kernel.max_threads is not None and integer_value(kernel.max_threads) is None)
            or any(
                p.index is not None and integer_value(p.index) is None for p in kernel.parameters
            )
        )

    def _facts(self, kernel: Kernel) -> Piece:
        """Returns a function whose return type holds the threadgroup memory, thread limit and buffer indices."""
        function = kernel.function
        headers = self._headers(kernel)
        parameters = function.declarator.child_by_field_name("parameters")
        body = [f"constexpr {_ABI}::u32 msl_threads = {kernel.max_threads or 1024};"]
        body.append(f"constexpr {_ABI}::u32 msl_static = [] {{ {_ABI}::u32 msl_used = 0;")
        for variable in kernel.threadgroup_variables:
            body.append(size_block(self.rewritten, kernel, variable))
        body.append("return msl_used; }();")
        indices = "".join(
            f", int({p.index if p.index is not None else -1})" for p in kernel.parameters
        )
        body.append(f"return {_SUPPORT}::facts<msl_static, msl_threads{indices}>();")
        text = (
            f"{headers} constexpr auto msl_facts_{kernel.number}"
            f"{self.edits.text_of(parameters.start_byte, parameters.end_byte)} {{\n"
            + "\n".join(body)
            + "\n}"
        )
        return Piece(in_namespaces(function.path, text), function.declarator.start_byte)

    def _headers(self, kernel: Kernel) -> str:
        """Returns the template headers of a kernel, for another function."""
        return " ".join(
            "template " + self.edits.text_of(h.start_byte, h.end_byte)
            for h in kernel.function.template_headers
            if h.named_children
        )

    # ---- which arguments are used ----------------------------------------------------------------

    def _used(self, kernel: Kernel) -> Iterator[Piece]:
        """Yields a function whose return type tells which arguments a kernel uses, once the function constants are known, if
        that depends on anything."""
        conditions: dict[int, str] = {}
        needed: dict[int, object] = {}
        for position, p in enumerate(kernel.parameters):
            found = self._uses.of(kernel, p.name) if self._may_be_unused(kernel, p) else None
            if found is not None:
                conditions[position] = " || ".join(map(self._condition, found))
                needed |= {n.start_byte: n for use in found for c in use for n in c.locals}
        self._conditions[kernel.number] = conditions
        if not any(conditions.values()):
            return
        function = kernel.function
        headers = self._headers(kernel)
        parameters = function.declarator.child_by_field_name("parameters")
        body = [self.edits.text_of(start, node.end_byte) for start, node in sorted(needed.items())]
        conditional = [text for text in conditions.values() if text]
        body += [f"msl_used[{i}] = {text};" for i, text in enumerate(conditional)]
        text = (
            f"{headers} constexpr auto msl_uses_{kernel.number}"
            f"{self.edits.text_of(parameters.start_byte, parameters.end_byte)} {{\n"
            "struct Uses { static void find(bool* msl_used) {\n"
            + "\n".join(body)
            + "\n} };\nreturn Uses();\n}"
        )
        yield Piece(in_namespaces(function.path, text), function.declarator.start_byte)

    def _may_be_unused(self, kernel: Kernel, parameter: Parameter) -> bool:
        """Returns true for the arguments that may be left unbound if they are not used: references that are made of what is
        bound need something."""
        if parameter.switch is not None or parameter.kind == "builtin":
            return False
        is_read = "const" in re.findall(r"\w+", parameter.type) or "constant" in parameter.type
        return not parameter.is_reference or (is_read and not self._is_placed(kernel, parameter))

    def _condition(self, use: uses.Use) -> str:
        parts = [
            f"{'' if literal.is_true else '!'}"
            f"({self.edits.text_of(literal.node.start_byte, literal.node.end_byte)})"
            for literal in use
        ]
        return f"({' && '.join(parts)})"

    # ---- one kernel ------------------------------------------------------------------------------

    def _instance(self, number: int, instance: Instance) -> Piece:
        kernel = instance.kernel
        expression = self.edits.text_of(*instance.expression)
        grouped = bool(kernel.threadgroup_variables)
        if instance.signature is None:
            signature = f"decltype(&{expression})"
        else:
            types = parameter_types(self.rewritten, instance.signature)
            if grouped:
                types.append(f"{_ABI}::Group&")
            signature = f"void (*)({', '.join(types)})"
        lines = [f"typedef {_SUPPORT}::signature<{signature}> msl_types_{number};"]
        count = len(kernel.parameters) + grouped
        if self._needs_facts(kernel):
            values = ", ".join(
                f"{_SUPPORT}::made_up<msl_types_{number}::parameter<{i}>>()" for i in range(count)
            )
            lines.append(
                f"typedef decltype({self._facts_name(instance, expression)}({values})) "
                f"msl_facts_of_{number};"
            )
        if any(self._conditions[kernel.number].values()):
            lines.append(self._uses_of(number, instance, expression, count))
        lines.append(self._argument_table(number, instance))
        lines += filter(None, [self._argument_notes(number, kernel)])
        synchronises = self.rewritten.calls.synchronises(instance)
        if not synchronises:
            lines.append(self._loop(number, instance, expression))
        if self.has_group(instance):
            lines.append(self._group(number, instance, expression))
        if self._has_thread(instance):
            lines.append(self._thread(number, instance, expression, synchronises))
        return Piece(in_namespaces(instance.path, "\n".join(lines)), instance.offset)

    def _uses_of(self, number: int, instance: Instance, expression: str, count: int) -> str:
        """Returns the declarations of which arguments an instance uses. metalops_bind finds out."""
        self._with_conditions.append(number)
        values = ", ".join(
            f"{_SUPPORT}::made_up<msl_types_{number}::parameter<{i}>>()" for i in range(count)
        )
        name = self._renamed(instance, expression, f"msl_uses_{instance.kernel.number}")
        conditional = sum(map(bool, self._conditions[instance.kernel.number].values()))
        return (
            f"typedef decltype({name}({values})) msl_uses_of_{number};\n"
            f"static bool msl_used_{number}[{conditional}];"
        )

    def has_group(self, instance: Instance) -> bool:
        return (
            self.groups is not None
            and self.rewritten.calls.synchronises(instance)
            and self.groups.has(instance.kernel)
        )

    def _has_thread(self, instance: Instance) -> bool:
        """Returns true if the function for one thread is emitted: for a group loop, which does without, only if that is
        asked for, since it takes the compiler as long again. Tables of functions need it at once, because their entries
        belong to one library."""
        return self._fibers or self._has_tables or not self.has_group(instance)

    def _needs_separate_buffers(self, instance: Instance) -> bool:
        """Returns true if the loop over the grid is declared independent, and is so only if buffers do not alias.
        (Group loops make no such promise: slices of one workspace are passed to many of them.)"""
        calls = self.rewritten.calls
        return (
            not calls.synchronises(instance)
            and not calls.depends_on_order(instance)
            and calls.mixes_buffers(instance)
        )

    def _facts_name(self, instance: Instance, expression: str) -> str:
        return self._renamed(instance, expression, f"msl_facts_{instance.kernel.number}")

    @staticmethod
    def _renamed(instance: Instance, expression: str, name: str) -> str:
        """Returns the expression that names a kernel, for another function with the same parameters."""
        pattern = rf"\b{re.escape(instance.kernel.function.name)}\b(?=\s*(?:<|$))"
        replaced, count = re.subn(pattern, name, expression, count=1)
        return replaced if count else name

    def _index(self, number: int, position: int, parameter: Parameter) -> str:
        value = integer_value(parameter.index or "")
        if value is not None:
            return str(value)
        return f"msl_facts_of_{number}::indices[{position}]"

    def _argument_table(self, number: int, instance: Instance) -> str:
        rows = []
        conditions = self._conditions[instance.kernel.number]
        conditional = 0
        for position, p in enumerate(instance.kernel.parameters):
            kind = _KINDS[p.kind]
            parameter = f"msl_types_{number}::parameter<{position}>"
            is_builtin = p.kind == "builtin"
            index = "-1" if is_builtin else self._index(number, position, p)
            size = "0" if is_builtin else f"{_SUPPORT}::element_bytes<{parameter}>"
            writable = "0"
            if p.kind == "buffer" and "constant" not in p.type.split():
                writable = f"{_SUPPORT}::is_writable<{parameter}>"
            variation = THREAD_ATTRIBUTES[p.attribute].variation if is_builtin else "kNone"
            described = "nullptr" if position not in conditions else f"&{_SUPPORT}::kUnused"
            if conditions.get(position):
                described = f"&msl_used_{number}[{conditional}]"
                conditional += 1
            if p.kind == "buffer" and self.program.has_tensors:
                described += f", {_SUPPORT}::tensor_argument<{parameter}>"
            elif p.kind == "texture":
                facts = f"{_INTERNAL}::texture_argument_of<{parameter}>"
                writable = f"{facts}.access >= {_ABI}::TextureAccess::kWrite"
                described += f", nullptr, &{facts}"
            rows.append(
                f"{{{json.dumps(p.name or '')}, {json.dumps(p.attribute)}, {json.dumps(p.type)}, "
                f"{_ABI}::ArgumentKind::{kind}, {index}, {size}, {writable}, "
                f"{_ABI}::Variation::{variation}, {described}}}"
            )
        if not rows:
            return f"static constexpr const {_ABI}::Argument* msl_arguments_{number} = nullptr;"
        joined = ",\n  ".join(rows)
        return f"static constexpr {_ABI}::Argument msl_arguments_{number}[] = {{\n  {joined}}};"

    def _buffers(self, number: int, kernel: Kernel) -> tuple[list[str], dict[int, str]]:
        """Returns declarations of the buffer, texture and sampler arguments, and how the call passes each."""
        lines = []
        passed = {}
        for position, p in enumerate(kernel.parameters):
            if p.kind in ("texture", "sampler"):
                index = self._index(number, position, p)
                made = (
                    f"texture_of<msl_types_{number}::parameter<{position}>>"
                    f"(msl_launch->textures + {index})"
                    if p.kind == "texture"
                    else f"sampler_of(msl_launch->samplers[{index}])"
                )
                passed[position] = f"msl_argument_{position}"
                lines.append(f"const auto msl_argument_{position} = {_INTERNAL}::{made};")
            if p.kind != "buffer":
                continue
            holder = "buffer_argument" if p.switch is None else "optional_argument"
            if self._is_placed(kernel, p):
                holder = "placed_argument"
            lines.append(
                f"const {_SUPPORT}::{holder}<msl_types_{number}::parameter<{position}>> "
                f"msl_argument_{position}(msl_launch, {self._index(number, position, p)});"
            )
            passed[position] = f"msl_argument_{position}.get()"
        return lines, passed

    def _is_placed(self, kernel: Kernel, parameter: Parameter) -> bool:
        if kernel.number not in self._placed:
            body = self.source.masked_text(kernel.function.body)
            self._placed[kernel.number] = set(
                re.findall(r"(?<!&)&\s*([A-Za-z_]\w*)\b(?!\s*\.)", body)
            )
        is_open = parameter.is_reference and any(
            name in self._open_ended for name in re.findall(r"\w+", parameter.type)
        )
        return is_open or parameter.name in self._placed[kernel.number]

    @functools.cached_property
    def _open_ended(self) -> set[str]:
        """The names of classes whose last member, or its last member, is an array of one element or of no size: the
        buffer may hold more of them."""
        arrays, found, last = set(), set(), {}
        for node in self.source.find("(type_definition declarator: (array_declarator) @a)"):
            if _is_open_array(self.source, node):
                arrays.add(self.source.masked_text(node.child_by_field_name("declarator")))
        for scope in self.program.classes:
            body = scope.specifier.child_by_field_name("body")
            members = [n for n in body.named_children if n.type == "field_declaration"]
            declarators = members[-1].children_by_field_name("declarator") if members else ()
            if not declarators:
                continue
            name = scope.name.split("<")[0].strip()
            if declarators[-1].type == "array_declarator":
                if _is_open_array(self.source, declarators[-1]):
                    found.add(name)
            elif (type_node := members[-1].child_by_field_name("type")) is not None:
                of_type = re.findall(r"\w+", self.source.masked_text(type_node).split("<")[0])
                last[name] = of_type[-1] if of_type else ""
        found |= {name for name, type_ in last.items() if type_ in arrays}
        while more := {n for n, type_ in last.items() if type_ in found and n not in found}:
            found |= more
        return found

    def _builtin(
        self, number: int, position: int, parameter: Parameter, table: dict[str, str]
    ) -> str:
        value = table[parameter.attribute]
        return f"{_SUPPORT}::builtin<msl_types_{number}::parameter<{position}>>::make({value})"

    def _loop(self, number: int, instance: Instance, expression: str) -> str:
        kernel = instance.kernel
        lines, passed = self._buffers(number, kernel)
        in_group = any(
            p.kind == "builtin" and p.attribute not in _ROW_BUILTINS for p in kernel.parameters
        )
        values = [
            passed[i] if i in passed else self._builtin(number, i, p, _LOOP_BUILTINS)
            for i, p in enumerate(kernel.parameters)
        ]
        independent = (
            "" if self.rewritten.calls.depends_on_order(instance) else "MSL_INDEPENDENT\n    "
        )
        rows = "group_rows" if in_group else "rows"
        body = "\n  ".join(lines)
        form = self._lanes.form(kernel) if self._lanes is not None else None
        call = f"({', '.join(values)})"
        if form is None:
            threads = (
                f"{independent}for ({_ABI}::u32 msl_x = msl_row.first; "
                f"msl_x < msl_row.last; ++msl_x) {{\n      {expression}{call};\n    }}"
            )
        else:
            in_lanes = self._renamed(instance, expression, name_in_lanes(kernel.function.name))
            body += f"\n  const bool msl_takes_lanes = {self._takes_lanes(number, kernel, form)};"
            threads = (
                f"for ({_ABI}::u32 msl_x = msl_row.first, msl_until; msl_x < msl_row.last;) {{\n"
                "      msl_until = msl_row.last;\n"
                f"      if (msl_takes_lanes && msl_until - msl_x >= {form.width}) {{\n"
                f"        if ({in_lanes}{call}) {{ msl_x += {form.width}; continue; }}\n"
                f"        msl_until = msl_x + {form.width};\n      }}\n"
                f"      {independent}for (; msl_x < msl_until; ++msl_x) {{\n"
                f"        {expression}{call};\n      }}\n    }}"
            )
        return (
            f"{self._effort(instance.name)}(msl_loop_{number}) {{\n  {body}\n"
            f"  for ({_SUPPORT}::{rows} msl_row(msl_launch, msl_begin, msl_end); "
            f"msl_row.next();) {{\n    {threads}\n  }}\n}}"
        )

    def _takes_lanes(self, number: int, kernel: Kernel, form: Form) -> str:
        """Returns the condition for threads of a launch to run together."""
        buffers = {
            position: f"int({self._index(number, position, p)})"
            for position, p in enumerate(kernel.parameters)
            if p.kind == "buffer"
        }
        written = ", ".join(buffers[position] for position in form.positions)
        return (
            f"{_SUPPORT}::are_apart(msl_launch, {{{written}}}, {{{', '.join(buffers.values())}}})"
        )

    def _effort(self, name: str) -> str:
        if name in self._left_alone:
            return "MSL_COLD_LOOP"
        return "MSL_LOOP" if flavours.is_rare(name) else "MSL_HOT_LOOP"

    def _group(self, number: int, instance: Instance, expression: str) -> str:
        kernel = instance.kernel
        lines, passed = self._buffers(number, kernel)
        values = [
            f"{_SUPPORT}::Kinds<>()",
            "msl_g",
            f"{_SUPPORT}::Everyone()",
            f"{_SUPPORT}::pack()",
        ]
        for position, p in enumerate(kernel.parameters):
            if position in passed:
                values.append(passed[position])
            elif p.kind == "threadgroup":
                values.append(self._threadgroup_argument(number, position, p))
            elif not THREAD_ATTRIBUTES[p.attribute].differs_in_group:
                values.append(self._builtin(number, position, p, GROUP_BUILTINS))
        if kernel.threadgroup_variables:
            values.append("msl_group")
        name = self._renamed(instance, expression, name_in_group(kernel.function.name))
        body = "\n  ".join(
            [
                f"{_ABI}::Group& msl_group = *msl_threadgroup;",
                f"const {_SUPPORT}::Threads msl_g(msl_launch, msl_threadgroup, msl_scratch);",
                *lines,
            ]
        )
        return (
            f"static void msl_group_{number}(const {_ABI}::Launch* msl_launch, "
            f"{_ABI}::Group* msl_threadgroup, {_ABI}::Scratch* msl_scratch) {{\n  {body}\n"
            f"  {name}({', '.join(values)});\n}}"
        )

    def _threadgroup_argument(self, number: int, position: int, parameter: Parameter) -> str:
        return (
            f"{_SUPPORT}::threadgroup_argument<msl_types_{number}::parameter<{position}>>"
            f"::get(&msl_group, {self._index(number, position, parameter)})"
        )

    def _thread(self, number: int, instance: Instance, expression: str, synchronises: bool) -> str:
        head = (
            f"static void msl_thread_{number}(const {_ABI}::Launch* msl_launch, "
            f"const {_ABI}::Thread* msl_thread) {{\n  "
        )
        if not synchronises:
            return (
                f"MSL_COLD {head}const {_ABI}::u64 msl_at = "
                f"{_SUPPORT}::flat_position(msl_launch, msl_thread);\n"
                f"  msl_loop_{number}(msl_launch, msl_at, msl_at + 1);\n}}"
            )
        kernel = instance.kernel
        lines, passed = self._buffers(number, kernel)
        values = []
        for position, p in enumerate(kernel.parameters):
            if position in passed:
                values.append(passed[position])
            elif p.kind == "threadgroup":
                values.append(self._threadgroup_argument(number, position, p))
            else:
                values.append(self._builtin(number, position, p, _THREAD_BUILTINS))
        if kernel.threadgroup_variables:
            values.append("msl_group")
        body = "\n  ".join(
            [f"{_ABI}::Group& msl_group = *msl_thread->group;", "(void)msl_group;", *lines]
        )
        return f"{head}{body}\n  {expression}({', '.join(values)});\n}}"

    # ---- tables of functions, and arguments that a function constant switches on -----------------

    @functools.cached_property
    def _has_tables(self) -> bool:
        return "visible_function_table" in self.source.identifiers

    def _argument_notes(self, number: int, kernel: Kernel) -> str:
        """Returns the declaration of the notes of a kernel's arguments; empty if there is nothing to note."""
        rows = []
        for position, p in enumerate(kernel.parameters):
            table = is_on = "nullptr"
            if p.kind == "buffer" and self._has_tables:
                table = f"{_SUPPORT}::table_type<msl_types_{number}::parameter<{position}>>"
            if p.switch is not None:
                is_on = f"&{p.switch}"
            if (table, is_on) != ("nullptr", "nullptr"):
                name = json.dumps(self.instances[number].name)
                rows.append(f"  {{{name}, {position}, {table}, {is_on}}}")
        if not rows:
            return ""
        self._noted[number] = len(rows)
        joined = ",\n".join(rows)
        return f"static constexpr {_ABI}::ArgumentNote msl_notes_{number}[] = {{\n{joined}}};"

    def _notes(self) -> list[str]:
        return [
            f"  {self.names[number]}msl_notes_{number}[{row}],"
            for number, count in self._noted.items()
            for row in range(count)
        ]

    def _visible(self) -> list[str]:
        """Returns the table's lines of the visible functions that can be called through a table: a function that
        synchronises threads takes part in the code of its callers."""
        if not self._has_tables:
            return []
        functions: dict[str, list[Function]] = {}
        for function in self.program.functions:
            if function.body is not None and any(a.name == "visible" for a in function.attributes):
                functions.setdefault(function.name, []).append(function)
        lines = []
        for name, (function, *others) in functions.items():
            if others or function.template_headers:
                continue
            if self.rewritten.calls.has_operation(function):
                continue
            host_name = next((a for a in function.attributes if a.name == "host_name"), None)
            shown = string_value(host_name.arguments or "") if host_name else name
            called = _qualified(function.path, name)
            lines.append(
                f"  {{{json.dumps(shown)}, reinterpret_cast<const void*>(&{called}), "
                f"&{_SUPPORT}::function_type<decltype({called})>}},"
            )
        return lines

    # ---- the library -----------------------------------------------------------------------------

    def _entries(self, number: int, instance: Instance) -> tuple[str, str, str]:
        """Returns the functions of the engines: loop, group, thread."""
        if self._described:
            return "nullptr", "nullptr", "nullptr"
        scope = self.names[number]
        synchronises = self.rewritten.calls.synchronises(instance)
        loop = "nullptr" if synchronises else f"{scope}msl_loop_{number}"
        group = f"{scope}msl_group_{number}" if self.has_group(instance) else "nullptr"
        thread = f"{scope}msl_thread_{number}" if self._has_thread(instance) else "nullptr"
        return loop, group, thread

    def _library(self, left_out: Mapping[str, int], language: int) -> str:
        kernels = []
        for number, instance in enumerate(self.instances):
            kernel = instance.kernel
            scope = self.names[number]
            loop, group, thread = self._entries(number, instance)
            if self._needs_facts(kernel):
                facts = f"{scope}msl_facts_of_{number}"
                static_bytes, threads = f"{facts}::static_bytes", f"{facts}::max_threads"
            else:
                static_bytes, threads = "0", str(integer_value(kernel.max_threads or "1024"))
            kernels.append(
                f"  {{{json.dumps(instance.name)}, {scope}msl_arguments_{number}, "
                f"{len(kernel.parameters)}, "
                f"{static_bytes}, {threads}, {int(self._needs_separate_buffers(instance))}, "
                f"{int(bool(self._conditions[kernel.number]))}, "
                f"{loop}, {group}, {thread}}},"
            )
        constants = [
            f'  {{"{c.name}", {_index_of(c)}, sizeof({_qualified(c.path, c.name)}), '
            f"(void*)&{_qualified(c.path, c.name)}, "
            f"&{_qualified(c.path, 'msl_is_defined_' + c.name)}}},"
            for c in self.program.function_constants
        ]
        sites = []
        for offset in self.sites:
            position = self.lines.position(offset)
            file = json.dumps(self._recorded(position.file))
            sites.append(f"  {{{file}, {position.line}, {position.column}}},")
        derive = " ".join(
            f"{_qualified(d.path, f'msl_derive_{d.number}')}();" for d in self.rewritten.derived
        )
        derive += "".join(
            f" {self.names[n]}msl_uses_of_{n}::find({self.names[n]}msl_used_{n});"
            for n in self._with_conditions
        )
        absent = [
            f"  {{{json.dumps(name)}, {json.dumps(reason)}}},"
            for name, reason in self.program.skipped()
        ]
        later = [f"  {{{json.dumps(name)}, {part}}}," for name, part in left_out.items()]
        empty = "  {},"
        return f"""
const ::msl::abi::Runtime* msl_runtime;
namespace {{
constexpr ::msl::abi::Kernel msl_kernels[] = {{
{chr(10).join(kernels) or empty}
}};
const ::msl::abi::FunctionConstant msl_constants[] = {{
{chr(10).join(constants) or empty}
}};
constexpr ::msl::abi::SourceLocation msl_sites[] = {{
{chr(10).join(sites) or empty}
}};
constexpr ::msl::abi::LeftOut msl_left_out[] = {{
{chr(10).join(later) or empty}
}};
constexpr ::msl::abi::Absent msl_absent[] = {{
{chr(10).join([*absent, empty])}
}};
const ::msl::abi::VisibleFunction msl_visible[] = {{
{chr(10).join([*self._visible(), empty])}
}};
constexpr ::msl::abi::ArgumentNote msl_notes[] = {{
{chr(10).join([*self._notes(), empty])}
}};
}}
#ifndef METALOPS_BUILD
#define METALOPS_BUILD ""
#endif
extern "C" {{
__attribute__((visibility("default"))) extern const ::msl::abi::Library metalops_library;
const ::msl::abi::Library metalops_library = {{
  ::msl::abi::kAbiVersion, ::msl::msl_support::kCpuFeatures, METALOPS_BUILD,
  msl_kernels, {len(kernels)}, msl_constants, {len(constants)}, msl_sites, {len(sites)},
  {language}, msl_left_out, {len(later)}}};
__attribute__((visibility("default"))) extern const ::msl::abi::Notes metalops_notes;
const ::msl::abi::Notes metalops_notes = {{msl_absent, msl_visible, msl_notes}};
__attribute__((visibility("default"))) void metalops_bind(const ::msl::abi::Runtime* runtime) {{
  msl_runtime = runtime;
  {derive}
}}
}}
"""


def _named(path: tuple[str, ...]) -> list[str]:
    return [p for p in path if p]


def _index_of(constant: FunctionConstant) -> str:
    is_number = integer_value(constant.index) is not None
    return constant.index if is_number else _qualified(constant.path, constant.index)


def _qualified(path: tuple[str, ...], name: str) -> str:
    return "::".join([names.PROGRAM, *_named(path), name])


def _is_open_array(source, declarator) -> bool:
    size = declarator.child_by_field_name("size")
    return size is None or integer_value(source.masked_text(size)) in (0, 1)
