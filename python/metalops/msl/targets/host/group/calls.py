"""Calls that synchronise: all threads of a mask make them together."""

from __future__ import annotations

from ....analysis.program import (
    Function,
    declarator_kinds,
    declared_identifier,
    name_node,
    parameters_of,
)
from ....analysis.uniformity import Kind, NotCut
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import walk, without_parentheses
from ....source.vocabulary import BARRIER, THREAD_ATTRIBUTES
from .context import Again
from .lanes import Lanes
from .parameters import TYPES_OF_BUILTINS

_S = names.SUPPORT
# Operations of a simdgroup without a result.
_VOID = {
    "simdgroup_load",
    "simdgroup_store",
    "simdgroup_multiply",
    "simdgroup_multiply_accumulate",
}


def name_in_group(name: str) -> str:
    return "msl_call_in_group" if name == "operator()" else f"{name}_in_group"


def _is_through_pointer(call) -> bool:
    """Returns true for `p->operator()(...)`, which the grammar parses as `p(...)`."""
    return any(c.type == "->" for n in call.children if n.type == "ERROR" for c in n.children)


def _is_own(function) -> bool:
    """Returns true if the callee is the object's own operator(): the grammar parses `this->operator()(...)` as
    `this(...)`, and `operator()(...)` as a call of the result of a call."""
    if function.type == "call_expression":
        return function.child_by_field_name("function").text == b"operator"
    return function.type == "this"


class Calls(Lanes):
    # ---- calls that synchronise ------------------------------------------------------------------

    def _lower(self, node, out: Mapped) -> list[tuple[int, int, str]]:
        """Writes the calls in an expression that synchronise; returns the text to substitute for each."""
        if not self.body.meets(node):
            return []
        kind = node.type
        if kind == "lambda_expression":
            name = self.context.new("closure")
            self._closure(node, name, out)
            return [(node.start_byte, node.end_byte, name)]
        if kind == "conditional_expression" and any(
            self.body.meets(node.child_by_field_name(arm)) for arm in ("consequence", "alternative")
        ):
            return [(node.start_byte, node.end_byte, self._chosen(node, out))]
        if (
            kind == "binary_expression"
            and self.source.node_text(node.child_by_field_name("operator"))
            in ("&&", "||", "and", "or")
            and self.body.meets(node.child_by_field_name("right"))
        ):
            return [(node.start_byte, node.end_byte, self._decided(node, out))]
        replaced = []
        for child in node.named_children:
            replaced += self._lower(child, out)
        if kind == "binary_expression" and self.sync.meets(node):
            return [(node.start_byte, node.end_byte, self._product(node, replaced, out))]
        if kind == "call_expression" and (meeting := self.sync.meets(node)):
            inside = [r for r in replaced if node.start_byte <= r[0] and r[1] <= node.end_byte]
            text = self._call(node, meeting, inside, out)
            return [(node.start_byte, node.end_byte, text)]
        return replaced

    def _value(self, node, replaced, out: Mapped, as_address: bool = False) -> str:
        """Evaluates an expression for each thread; returns the name of the Lanes with the values."""
        name = self.context.new("lanes")
        body = Mapped("return ")
        if as_address:
            body.add("&(")
        body.add(self.rewriter.expression(node, replaced))
        body.add(");" if as_address else ";")
        out.add(
            f"const auto {name} = {_S}::evaluate<{self._independent([node])}>(msl_g, {self.masks.active}, "
        )
        self._lambda([node], self.body.used_in(node), [t for _, _, t in replaced], body, out)
        out.add(");\n")
        return name

    def _chosen(self, node, out: Mapped) -> str:
        """Writes `a ? b : c`, with a call that synchronises in b or c."""
        condition = node.child_by_field_name("condition")
        arms = [node.child_by_field_name(arm) for arm in ("consequence", "alternative")]
        replaced = self._lower(condition, out)
        name = self.context.new("value")
        out.add(f"{_S}::Lanes<{_S}::decayed_t<decltype(")
        out.add(self.rewriter.expression(node))
        out.add(f")>> msl_lanes_{name}(msl_g); auto& {name} = msl_lanes_{name}[0]; (void){name};\n")
        yes, no = self._part(condition, replaced, out)
        for mask, arm in ((yes, arms[0]), (no, arms[1])):
            self._branch(mask, lambda out, arm=arm: self._assign(name, arm, out), out)
        return name

    def _decided(self, node, out: Mapped) -> str:
        """Writes `a && b` or `a || b`, with a call that synchronises in b."""
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        replaced = self._lower(left, out)
        name = self.context.new("value")
        out.add(
            f"{_S}::Lanes<bool> msl_lanes_{name}(msl_g); auto& {name} = msl_lanes_{name}[0]; "
            f"(void){name};\n"
        )
        yes, no = self._part(left, replaced, out)
        is_and = self.source.node_text(node.child_by_field_name("operator")) in ("&&", "and")
        others, known = (no, "false") if is_and else (yes, "true")
        out.add(
            f"{_S}::each<true>(msl_g, {others}, [&](const {_S}::Numbered msl_t) MSL_LANE_LOOP "
            f"{{ msl_lanes_{name}[msl_t.slot] = {known}; }});\n"
        )
        self._branch(yes if is_and else no, lambda out: self._assign(name, right, out), out)
        return name

    def _assign(self, name: str, node, out: Mapped) -> None:
        replaced = self._lower(node, out)
        body = Mapped(f"msl_lanes_{name}[msl_t.slot] = ")
        body.add(self.rewriter.expression(node, replaced))
        body.add(";")
        self._each([node], self.body.used_in(node), [t for _, _, t in replaced], body, out)

    def _part(self, condition, replaced, out: Mapped) -> tuple[str, str]:
        """Splits the mask in two by a condition; returns the names of both."""
        yes, no = self.context.new("yes"), self.context.new("no")
        out.add(f"{_S}::Mask {yes}(msl_g), {no}(msl_g); ")
        self._part_into(condition, replaced, yes, no, out)
        return yes, no

    def _part_into(self, condition, replaced, yes: str, no: str, out: Mapped) -> None:
        out.add(
            f"{_S}::part<{self._independent([condition])}>(msl_g, {self.masks.active}, {yes}, {no}, "
        )
        body = Mapped("return static_cast<bool>(")
        body.add(self.rewriter.expression(condition, replaced))
        body.add(");")
        used = self.body.used_in(condition)
        self._lambda([condition], used, [t for _, _, t in replaced], body, out)
        out.add(");\n")

    def _branch(self, mask: str, write, out: Mapped) -> None:
        """Writes the code that the threads of a mask run by themselves."""
        out.add(f"if ({mask}.any()) {{\n")
        with self.masks.under(mask):
            write(out)
        out.add("}\n")

    def _call(self, node, meeting: str, replaced, out: Mapped) -> str:
        self._check_barrier(node)
        if meeting == "barrier":
            if self.sync.called_name(node) == BARRIER:
                site = self.sync.site_of(node)
                out.add(f"{_S}::barrier(msl_g, {self.masks.active}, {site});\n")
            return "(void)0"
        function = without_parentheses(node.child_by_field_name("function"))
        arguments = node.child_by_field_name("arguments").named_children
        calls, count = self.call_graph, len(arguments)
        own = calls.lookup.taking(calls.callees(node), (count, count))
        lambdas = [c for c in calls.called(node) if not isinstance(c, Function)]
        closure = self._closure_called(function, replaced)
        is_any_object = bool(lambdas) and closure is None and not _is_own(function)
        if any(f.name not in ("operator()", self.sync.called_name(node)) for f in own):
            raise NotCut(f"a call of what '{self.sync.called_name(node)}' points to")
        is_odd = any(count > len(parameters_of(self.source, f)) for f in own)
        if is_odd or (meeting == "function" and not own and not lambdas):
            raise NotCut(f"a call of '{self.sync.called_name(node)}' that is not understood")
        kinds, again, packed, passed = [], [], [], []
        for position, argument in enumerate(arguments):
            mine = [r for r in replaced if argument.start_byte <= r[0] < argument.end_byte]
            computed = None if lambdas else self._passed_on(argument, position, own)
            again.append(computed)
            if computed is not None:
                kinds.append(Kind.AGAIN)
                packed.append("0")
                passed.append(self.source.node_text(argument))
                continue
            kind, accessor, one = self._argument(node, position, argument, mine, own, out)
            kinds.append(kind)
            packed.append(accessor)
            passed.append(one)
        forms = [self.groups.form(candidate, tuple(kinds), tuple(again)) for candidate in own]
        self.uses += forms
        tags = self.groups.tags(kinds, again)
        if own:  # defaulted arguments are uniform
            tags_of = {len(parameters_of(self.source, c)) for c in own}
            if len(tags_of) != 1:
                raise NotCut(f"functions '{own[0].name}' with different defaults")
            tags = ", ".join([*([tags] if tags else []), *["0"] * (tags_of.pop() - len(kinds))])
        is_object = is_any_object or any(f.name == "operator()" for f in own)
        is_object = is_object and not _is_own(function)
        if is_object and _is_through_pointer(node):
            raise NotCut("a member function of what a pointer points to")
        if closure is not None:
            objects, callee = [], Mapped(f"{closure}.in_group")
        else:
            objects = self._objects(function, is_object, own, replaced, out)
            callee = Mapped() if is_any_object else self._callee(function, is_object)
        if is_any_object:
            self.groups.has_closures = True
            callee.add(f"{_S}::call_object")
        if meeting == "simd":
            returns = self.sync.called_name(node) not in _VOID
        else:
            returns = any(form.result is not None for form in forms)
            returns = returns or any(map(self._gives_value, lambdas))
        name = self.context.new("value")
        call = ", ".join(
            [
                *([self.rewriter.expression(function).text] if is_any_object else []),
                f"{_S}::Kinds<{tags}>()",
                "msl_g",
                self.masks.active,
                f"{_S}::pack({', '.join(packed)})",
                *objects,
                *passed,
            ]
        )
        if not returns:
            out.add(callee)
            out.add(f"({call});\n")
            return "(void)0"
        out.add(f"const auto msl_lanes_{name} = ")
        out.add(callee)
        out.add(f"({call}); auto& {name} = msl_lanes_{name}[0]; (void){name};\n")
        return name

    def _closure_called(self, function, replaced) -> str | None:
        """Returns the name of the closure that is called, if it is certain, else None."""
        if function.type == "lambda_expression":
            return next(text for start, _, text in replaced if start == function.start_byte)
        variable = self.body.of.get(function.start_byte) if function.type == "identifier" else None
        if variable is None or variable.declared.lambda_expression not in self.body.closures:
            return None
        return variable.name

    def _check_barrier(self, call) -> None:
        """Raises NotCut if a barrier is meant for a part of the group: such simdgroups may wait at different barriers.
        If a condition merely might vary, it is checked at run time that all threads are there."""
        if self.call_graph.surely_has_barrier(call):
            if any(map(self._is_of_position, self.masks.conditions)):
                raise NotCut("a threadgroup_barrier for a part of the threadgroup")

    def _is_of_position(self, node) -> bool:
        """Returns true if a value depends on the thread's position in the grid, and otherwise only on values known
        before the launch."""
        found = False
        for n in walk(node):
            if n.type in ("call_expression", "subscript_expression", "pointer_expression"):
                return False
            variable = self.body.of.get(n.start_byte) if n.type == "identifier" else None
            if variable is None or variable.is_of_group:
                continue
            if not variable.is_parameter:
                if variable.value is None or not self._is_of_position(variable.value):
                    return False
                found = True
            elif self.kernel is None or self.body.closure_around(variable.identifier) is not None:
                return False
            else:
                parameter = self.kernel.parameters[self.parameters.position_of(variable)]
                if parameter.kind != "builtin" or variable.definitions:
                    return False
                found |= THREAD_ATTRIBUTES[parameter.attribute].differs_in_group
        return found

    def _objects(self, function, is_object: bool, own, replaced, out: Mapped) -> list[str]:
        """Returns the objects whose member function is called, if it is one."""
        kinds = {f.in_class and not self.effects.is_static(f) for f in own}
        if kinds == {True, False}:
            raise NotCut(f"'{own[0].name}' is a member function and another one")
        if kinds != {True} and not is_object:
            return []
        if function.type != "field_expression" and not is_object:
            return ["msl_objects"]
        target = function if is_object else function.child_by_field_name("argument")
        inner = without_parentheses(target)
        variable = self.body.of.get(inner.start_byte) if inner.type == "identifier" else None
        if function.type == "field_expression" and function.children[1].type == "->":
            raise NotCut("a member function of what a pointer points to")
        if variable is not None and variable.kind is Kind.THREAD:
            return [f"{_S}::at(msl_lanes_{variable.name})"]
        if self.body.is_same(target):
            return [f"{_S}::same({self._name_same(target, out)})"]
        if any(function.start_byte <= at < function.end_byte for at, _, _ in replaced):
            raise NotCut("a member function of what another one returns")
        return [f"{_S}::referred({self._value(target, [], out, as_address=True)})"]

    def _callee(self, function, is_object: bool) -> Mapped:
        text = Mapped()
        if _is_own(function):
            text.add(name_in_group("operator()"))
            return text
        if is_object:
            text.add("(")
            text.add(self.rewriter.expression(function))
            text.add(f").{name_in_group('operator()')}")
            return text
        leaf = name_node(function)
        if function.start_byte < leaf.start_byte:
            text.add(self.rewriter.copy(function.start_byte, leaf.start_byte))
        text.add(name_in_group(self.source.node_text(leaf)))
        if leaf.end_byte < function.end_byte:
            text.add(self.rewriter.copy(leaf.end_byte, function.end_byte))
        return text

    def _name_same(self, node, out: Mapped) -> str:
        """Evaluates a uniform expression; returns its name."""
        name = self.context.new("same")
        out.add(f"auto&& {name} = ")
        out.add(self.rewriter.expression(node))
        out.add(";\n")
        return name

    def _passed_on(self, argument, position: int, own) -> Again | None:
        """Returns an argument that the callee's loops rematerialise, a thread's index or position, or None."""
        inner = without_parentheses(argument)
        field = ""
        if inner.type == "field_expression" and inner.children[1].type == ".":
            field = "." + self.source.node_text(inner.child_by_field_name("field"))
            inner = inner.child_by_field_name("argument")
        variable = self.body.of.get(inner.start_byte) if inner.type == "identifier" else None
        if variable is None or variable.kind is not Kind.AGAIN or not variable.is_parameter:
            return None
        here = self.parameters.position_of(variable)
        if not own or not TYPES_OF_BUILTINS.fullmatch(self.parameters.type_of(here)):
            return None
        for function in own:
            node = parameters_of(self.source, function)[position][0]
            declarator = node.child_by_field_name("declarator")
            if declared_identifier(declarator) is None or declarator_kinds(declarator):
                return None
        text = (
            f"static_cast<{self.parameters.type_of(here)}>({self.parameters.value_of(here)}){field}"
        )
        return Again(text, None if field else self.parameters.attribute(here))

    def _argument(self, call, position: int, argument, replaced, own, out: Mapped):
        """Returns how the argument varies, its text in the pack, and its text as one thread's value."""
        by_reference = any(
            position < len(p := parameters_of(self.source, f))
            and declarator_kinds(p[position][0].child_by_field_name("declarator"))[:1]
            == ["reference"]
            for f in own
        ) or (not own and self.effects.writes(call, position))
        inner = without_parentheses(argument)
        variable = self.body.of.get(inner.start_byte) if inner.type == "identifier" else None
        if inner.type == "lambda_expression" and replaced:
            return Kind.GROUP, f"{_S}::same({replaced[0][2]})", replaced[0][2]
        if not replaced and self.body.is_same(argument):
            name = self._name_same(argument, out)
            return Kind.GROUP, f"{_S}::same({name})", name
        kept = self._kept(argument, replaced, out)
        if kept is not None:
            return Kind.THREAD, *kept
        is_written = self.effects.writes(call, position)
        if is_written and not self.effects.surely_writes(call, position):
            by_reference, is_written = True, False
        if is_written or (
            by_reference
            and inner.type
            in ("identifier", "subscript_expression", "field_expression", "pointer_expression")
        ):
            if variable is None or variable.kind is not Kind.AGAIN:
                pointers = self._value(argument, replaced, out, as_address=True)
                return Kind.THREAD, f"{_S}::referred({pointers})", f"*{pointers}[0]"
        name = self._value(argument, replaced, out)
        return Kind.THREAD, f"{_S}::at({name})", f"{name}[0]"

    def _product(self, node, replaced, out: Mapped) -> str:
        """Writes `a * b` of simdgroup matrices."""
        accessors, ones = [], []
        for side in (node.child_by_field_name("left"), node.child_by_field_name("right")):
            mine = [r for r in replaced if side.start_byte <= r[0] < side.end_byte]
            accessor, one = self._operand(side, mine, out)
            accessors.append(accessor)
            ones.append(one)
        name = self.context.new("value")
        out.add(
            f"{_S}::Lanes<{_S}::decayed_t<decltype({ones[0]} * {ones[1]})>> msl_lanes_{name}(msl_g); "
            f"auto& {name} = msl_lanes_{name}[0]; (void){name}; "
            f"{names.PROGRAM}::metal::simdgroup_multiply_in_group({_S}::Kinds<>(), msl_g, {self.masks.active}, "
            f"{_S}::pack({_S}::at(msl_lanes_{name}), {', '.join(accessors)}), {name}, {', '.join(ones)});\n"
        )
        return name

    def _operand(self, node, replaced, out: Mapped) -> tuple[str, str]:
        """Returns the text in a pack for a varying value, and for the value of one thread."""
        kept = self._kept(node, replaced, out)
        if kept is not None:
            return kept
        name = self._value(node, replaced, out)
        return f"{_S}::at({name})", f"{name}[0]"

    def _kept(self, node, replaced, out: Mapped) -> tuple[str, str] | None:
        """Returns the same texts for a value that is privatised already, else None."""
        inner = without_parentheses(node)
        variable = self.body.of.get(inner.start_byte) if inner.type == "identifier" else None
        if variable is not None and variable.kind is Kind.THREAD and not variable.is_array:
            if not variable.is_reference or variable.is_parameter:
                return f"{_S}::at(msl_lanes_{variable.name})", variable.name
        if not replaced and self._is_one_element(inner):
            name = self.context.new("element")
            out.add(f"auto* const {name} = &")
            out.add(self.rewriter.expression(inner))
            out.add(";\n")
            return name, f"{name}[0]"
        if len(replaced) == 1 and (inner.start_byte, inner.end_byte) == replaced[0][:2]:
            name = replaced[0][2]
            return f"{_S}::at(msl_lanes_{name})", name
        return None

    def _is_one_element(self, node) -> bool:
        """Returns true for an element with uniform indices of an array whose copies are stored element by element (see
        is_spread)."""
        indices = []
        while node.type == "subscript_expression":
            indices.append(node.child_by_field_name("indices"))
            node = node.child_by_field_name("argument")
        variable = self.body.of.get(node.start_byte) if node.type == "identifier" else None
        return (
            variable is not None
            and self.body.is_spread(variable)
            and len(indices) == len(variable.declared.kinds)
            and all(map(self.body.is_same, indices))
        )
