"""Calls that synchronise: all threads of a mask make them together."""

from __future__ import annotations

from contextlib import nullcontext

from ....analysis.cuts import NotCut
from ....analysis.program import (
    Function,
    declarator_kinds,
    declared_identifier,
    name_node,
    parameters_of,
)
from ....analysis.variables import Kind
from ....dialect import names
from ....dialect.edits import Mapped
from ....source.tree import without_parentheses
from ....source.vocabulary import BARRIER
from .barriers import BarrierChecks
from .closure_uses import ClosureUses
from .context import Again, FunctionContext
from .masks import Masks
from .operands import Operands
from .parameters import TYPES_OF_BUILTINS, Parameters
from .rewriter import Rewriter
from .work_items import WorkItemLoops

_S = names.SUPPORT

# Operations of a simdgroup without a result.
_VOID = {
    "simdgroup_load",
    "simdgroup_store",
    "simdgroup_multiply",
    "simdgroup_multiply_accumulate",
}


# How the names of results begin that are the same for a whole simdgroup, and of which there is one.
ONCE = "msl_once_"


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


def _is_of_this(function) -> bool:
    """Returns true for the name of the object's own member in `this->f(...)`."""
    if function.type != "field_expression":
        return False
    is_plain = function.child_by_field_name("field").type == "field_identifier"
    return is_plain and function.child_by_field_name("argument").type == "this"


class GroupCalls:
    """Emits calls that synchronise. uses: the group forms that they call."""

    def __init__(
        self,
        context: FunctionContext,
        rewriter: Rewriter,
        parameters: Parameters,
        masks: Masks,
        work_items: WorkItemLoops,
        operands: Operands,
        closure_uses: ClosureUses,
        barriers: BarrierChecks,
        groups,
    ):
        self._sync = context.sync
        self._call_graph = context.call_graph
        self._source = context.source
        self._new = context.new
        self._effects = context.effects
        self._body = context.body
        self._in_class = context.function.in_class
        self._shuffled = context.shuffled
        self._rewriter = rewriter
        self._parameters = parameters
        self._masks = masks
        self._work_items = work_items
        self._operands = operands
        self._closure_uses = closure_uses
        self._barriers = barriers
        self._groups = groups
        self.uses: list = []

    def emit(self, node, meeting: str, replaced, out: Mapped, declared: str | None = None) -> str:
        """Emits a call; returns the text to substitute for it. declared: the variable that takes its result, if that is
        its only use."""
        self._barriers.check(node)
        if meeting == "barrier":
            if self._sync.called_name(node) == BARRIER:
                site = self._sync.site_of(node)
                out.add(f"{_S}::barrier(msl_g, {self._masks.active}, {site});\n")
            return "(void)0"
        function = without_parentheses(node.child_by_field_name("function"))
        arguments = node.child_by_field_name("arguments").named_children
        calls, count = self._call_graph, len(arguments)
        own = calls.lookup.taking(calls.callees(node), (count, count))
        lambdas = [c for c in calls.called(node) if not isinstance(c, Function)]
        closure = self._closure_uses.called(function, replaced)
        is_any_object = bool(lambdas) and closure is None and not _is_own(function)
        if any(f.name not in ("operator()", self._sync.called_name(node)) for f in own):
            raise NotCut(f"a call of what '{self._sync.called_name(node)}' points to")
        is_odd = any(count > len(parameters_of(self._source, f)) for f in own)
        is_odd |= meeting == "function" and calls.is_tensor_operation(node)
        if is_odd or (meeting == "function" and not own and not lambdas):
            raise NotCut(f"a call of '{self._sync.called_name(node)}' that is not understood")
        if meeting == "tensor":
            self._check_tensor_operation(function)
        shuffled = self._shuffled.variables.get(name_node(function).start_byte)
        having = None if shuffled is None else self._masks.having(shuffled.identifier)
        if having == self._masks.active:
            having = None  # all that have the variable take part
        kinds, again, packed, passed = [], [], [], []
        for position, argument in enumerate(arguments):
            mine = [r for r in replaced if argument.start_byte <= r[0] < argument.end_byte]
            computed = None if lambdas else self._passed_on(argument, position, own)
            again.append(computed)
            if computed is not None:
                kinds.append(Kind.AGAIN)
                packed.append("0")
                passed.append(self._source.node_text(argument))
                continue
            with self._masks.under(having) if having and position == 0 else nullcontext():
                kind, accessor, one = self._operands.argument(
                    node, position, argument, mine, own, out
                )
            kinds.append(kind)
            packed.append(accessor)
            passed.append(one)
        forms = [self._groups.form(candidate, tuple(kinds), tuple(again)) for candidate in own]
        self.uses += forms
        tags = self._groups.tags(kinds, again)
        if own:  # defaulted arguments are uniform
            tags_of = {len(parameters_of(self._source, c)) for c in own}
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
            self.note_closure()
            callee.add(f"{_S}::call_object")
        if meeting == "tensor":
            returns = self._sync.called_name(node).startswith("get_")
        elif meeting == "simd":
            returns = self._sync.called_name(node) not in _VOID
        else:
            returns = any(form.result is not None for form in forms)
            returns = returns or any(map(self._closure_uses.gives_value, lambdas))
        is_once = meeting == "simd" and self._body.is_same(node)
        name = declared or self._new("once" if is_once else "value")
        call = ", ".join(
            [
                *([self._rewriter.expression(function).text] if is_any_object else []),
                f"{_S}::Kinds<{tags}>()",
                "msl_g",
                f"{_S}::shuffling({self._masks.active}, {having})"
                if having
                else (f"{_S}::once({self._masks.active})" if is_once else self._masks.active),
                f"{_S}::pack({', '.join(packed)})",
                *objects,
                *passed,
            ]
        )
        if not returns:
            out.add(callee)
            out.add(f"({call});\n")
            return "(void)0"
        if is_once:
            out.add(f"const auto {name} = ")
            out.add(callee)
            out.add(f"({call});\n")
            return name
        out.add(f"const auto msl_lanes_{name} = ")
        out.add(callee)
        out.add(f"({call}); auto& {name} = msl_lanes_{name}[0]; (void){name};\n")
        return name

    def _check_tensor_operation(self, function) -> None:
        """Raises NotCut if the operation whose member function is called is not a variable, or in a class: operations of
        classes are not shown to be right yet."""
        if self._in_class:
            raise NotCut("an operation on tensors in a member function")
        if function.type != "field_expression":
            return
        target = without_parentheses(function.child_by_field_name("argument"))
        if self._body.variables.variable_named(target) is None or function.children[1].type == "->":
            raise NotCut("an operation on tensors that is not a variable")

    def emit_product(self, node, replaced, out: Mapped) -> str:
        """Emits `a * b` of simdgroup matrices."""
        accessors, ones = [], []
        for side in (node.child_by_field_name("left"), node.child_by_field_name("right")):
            mine = [r for r in replaced if side.start_byte <= r[0] < side.end_byte]
            accessor, one = self._operands.operand(side, mine, out)
            accessors.append(accessor)
            ones.append(one)
        name = self._new("value")
        out.add(
            f"{_S}::Lanes<{_S}::decayed_t<decltype({ones[0]} * {ones[1]})>> msl_lanes_{name}(msl_g); "
            f"auto& {name} = msl_lanes_{name}[0]; (void){name}; "
            f"{names.PROGRAM}::metal::simdgroup_multiply_in_group({_S}::Kinds<>(), msl_g, {self._masks.active}, "
            f"{_S}::pack({_S}::at(msl_lanes_{name}), {', '.join(accessors)}), {name}, {', '.join(ones)});\n"
        )
        return name

    def _objects(self, function, is_object: bool, own, replaced, out: Mapped) -> list[str]:
        """Returns the objects whose member function is called, if it is one."""
        kinds = {f.in_class and not self._effects.is_static(f) for f in own}
        if kinds == {True, False}:
            raise NotCut(f"'{own[0].name}' is a member function and another one")
        if kinds != {True} and not is_object:
            return []
        if not is_object and (function.type != "field_expression" or _is_of_this(function)):
            return ["msl_objects"]
        target = function if is_object else function.child_by_field_name("argument")
        inner = without_parentheses(target)
        variable = self._body.variables.variable_named(inner)
        if function.type == "field_expression" and function.children[1].type == "->":
            raise NotCut("a member function of what a pointer points to")
        if variable is not None and variable.kind is Kind.THREAD:
            return [f"{_S}::at(msl_lanes_{variable.name})"]
        if self._body.is_same(target):
            return [f"{_S}::same({self._operands.name_uniform(target, out)})"]
        if any(function.start_byte <= at < function.end_byte for at, _, _ in replaced):
            raise NotCut("a member function of what another one returns")
        return [f"{_S}::referred({self._work_items.evaluate(target, [], out, as_address=True)})"]

    def _callee(self, function, is_object: bool) -> Mapped:
        text = Mapped()
        if _is_own(function):
            text.add(name_in_group("operator()"))
            return text
        if is_object:
            text.add("(")
            text.add(self._rewriter.expression(function))
            text.add(f").{name_in_group('operator()')}")
            return text
        leaf = name_node(function)
        if function.start_byte < leaf.start_byte and not _is_of_this(function):
            text.add(self._rewriter.copy(function.start_byte, leaf.start_byte))
        text.add(name_in_group(self._source.node_text(leaf)))
        if leaf.end_byte < function.end_byte:
            text.add(self._rewriter.copy(leaf.end_byte, function.end_byte))
        return text

    def _passed_on(self, argument, position: int, own) -> Again | None:
        """Returns an argument that the callee's loops rematerialise, a thread's index or position, or None."""
        inner = without_parentheses(argument)
        field = ""
        if inner.type == "field_expression" and inner.children[1].type == ".":
            field = "." + self._source.node_text(inner.child_by_field_name("field"))
            inner = inner.child_by_field_name("argument")
        variable = self._body.variables.variable_named(inner)
        if variable is None or variable.kind is not Kind.AGAIN or not variable.is_parameter:
            return None
        here = self._parameters.position_of(variable)
        if not own or not TYPES_OF_BUILTINS.fullmatch(self._parameters.type_of(here)):
            return None
        for function in own:
            node = parameters_of(self._source, function)[position][0]
            declarator = node.child_by_field_name("declarator")
            if declared_identifier(declarator) is None or declarator_kinds(declarator):
                return None
        text = f"static_cast<{self._parameters.type_of(here)}>({self._parameters.value_of(here)}){field}"
        return Again(text, None if field else self._parameters.attribute(here))

    def note_closure(self) -> None:
        """Records that the form calls an object that may be a closure."""
        self._groups.has_closures = True
