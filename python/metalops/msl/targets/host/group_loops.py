"""Kernels that synchronise, as functions that run all threads of a threadgroup (include/msl/group.h).

Of every function in which threads meet there is a second form, `NAME_in_group`, that is given the group's threads, a
mask of those that take part, and each argument for all of them: as it is where it is the same for the whole group, else
in a Pack. regions.py says what is cut, and what is the same; here is how that is written in C++.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...dialect import names
from ...dialect.edits import Mapped
from ...program import (
    Function,
    Kernel,
    declarator_kinds,
    declared_identifier,
    last_name,
    name_node,
    name_of,
    parameter_ranges,
)
from ...regions import (
    LOOPS,
    USES_MATRICES,
    Body,
    Kind,
    NotCut,
    Variable,
    alternative_of,
    case_statements,
    condition_of,
    is_constexpr_if,
    statements_of,
    walk,
    without_parentheses,
)
from ...vocabulary import SYNCHRONISING, THREAD_ATTRIBUTES

_S = names.SUPPORT
_BARRIERS = {"threadgroup_barrier", "simdgroup_barrier"}
# Other operations of a simdgroup only need to know their lane.
_SIMD = (SYNCHRONISING - _BARRIERS) | {"simdgroup_load", "simdgroup_store"}
_VOID = {
    "simdgroup_load",
    "simdgroup_store",
    "simdgroup_multiply",
    "simdgroup_multiply_accumulate",
}
# Functions of the standard library that write to an argument.
_WRITERS = {"sincos": {1}, "modf": {1}, "frexp": {1}, "fract": {1}}
_INTEGERS = re.compile(
    r"(?:const\s+)?(?:auto|unsigned|(?:unsigned\s+)?(?:int|short|long)|u(?:int|short|long)|size_t"
    r"|u?int(?:16|32|64)_t)$"
)
_STATEMENTS_OF_TYPES = {
    "alias_declaration",
    "type_definition",
    "using_declaration",
    "static_assert_declaration",
    "struct_specifier",
    "class_specifier",
    "enum_specifier",
    "namespace_alias_definition",
}


def name_in_group(name: str) -> str:
    return "msl_call_in_group" if name == "operator()" else f"{name}_in_group"


@dataclass
class Explanation:
    """How a kernel runs as a group loop. cuts: (offset, name) of the calls in which threads meet."""

    cuts: list[tuple[int, str]]
    same_for_the_group: list[str]
    computed_again: list[str]
    kept_for_each_thread: list[str]


class GroupLoops:
    """The second forms of a program's functions, added to its edits as kernels ask for them."""

    def __init__(self, rewritten, builtins: dict[str, str]):
        """builtins: what a thread knows about itself, by attribute, in terms of `msl_t`."""
        self.program = rewritten.program
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.builtins = builtins
        self.reasons: dict[int, str] = {}  # why a kernel has no group loop, by its number
        self.calls = rewritten.calls
        self._visited: set[int] = set()  # functions that do not come to themselves
        self._meets: dict[tuple[int, int], str | None] = {}
        self._forms: dict[tuple, _Form | str] = {}
        self._added: set[tuple] = set()
        self._kernels: dict[int, _Form | None] = {}
        self._keeps: dict[int, bool] = {}

    def has(self, kernel: Kernel) -> bool:
        """Whether the kernel can run as a group loop; its second form is added to the edits."""
        if kernel.number not in self._kernels:
            try:
                form = self._kernel_form(kernel)
                self._add(form)
                self._kernels[kernel.number] = form
            except NotCut as reason:
                self.reasons[kernel.number] = str(reason)
                self._kernels[kernel.number] = None
            except RecursionError:
                self.reasons[kernel.number] = "expressions or calls that are nested too deeply"
                self._kernels[kernel.number] = None
        return self._kernels[kernel.number] is not None

    def explain(self, kernel: Kernel) -> Explanation:
        """How a kernel that has a group loop is cut, and how its variables are kept."""
        body = self._kernels[kernel.number].body
        kinds = {kind: [v.name for v in body.variables if v.kind is kind] for kind in Kind}
        cuts = [n for n in walk(body.body) if n.type == "call_expression" and self.meets(n)]
        return Explanation(
            [(n.start_byte, self.called_name(n)) for n in cuts],
            *(kinds[kind] for kind in (Kind.GROUP, Kind.AGAIN, Kind.THREAD)),
        )

    # ---- which functions meet --------------------------------------------------------------------

    def called_name(self, call) -> str:
        return last_name(self.source, call.child_by_field_name("function"))

    def meets(self, call) -> str | None:
        """ "barrier", "simd" or "function" where threads meet in a call."""
        key = (call.start_byte, call.end_byte)
        if key not in self._meets:
            self._meets[key] = self._find_meeting(call)
        return self._meets[key]

    def _find_meeting(self, call) -> str | None:
        name = self.called_name(call)
        if self.calls.is_operation_call(call):
            if name in _BARRIERS:
                return "barrier"
            return "simd" if name in _SIMD else None
        return "function" if self.calls.call_synchronises(call) else None

    def writes(self, call, position: int) -> bool:
        """Whether a call may change its argument."""
        functions = self.calls.callees(call)
        if not functions:
            name = self.called_name(call)
            if name in ("simdgroup_load", "simdgroup_multiply", "simdgroup_multiply_accumulate"):
                return position == 0
            return position in _WRITERS.get(name, ())
        for function in functions:
            parameters = _parameters_of(self.source, function)
            if position < len(parameters) and self.takes_reference(parameters[position]):
                return True
        return False

    def is_static(self, function: Function) -> bool:
        """Whether a member function has no object."""
        return "static" in {
            self.source.node_text(c)
            for c in function.body.parent.children
            if c.type == "storage_class_specifier"
        }

    def members_of(self, function: Function) -> frozenset[str]:
        """Names of the members of a member function's object: variables and functions, not static ones."""
        scope = function.body.parent
        while scope.type not in ("class_specifier", "struct_specifier", "union_specifier"):
            scope = scope.parent
        return frozenset(self._members(scope, 0))

    def _members(self, scope, depth: int) -> Iterator[str]:
        for node in scope.child_by_field_name("body").named_children:
            if node.type == "template_declaration":
                node = node.named_children[-1]
            if node.type not in ("field_declaration", "function_definition", "declaration"):
                continue
            specifiers = {
                self.source.node_text(c)
                for c in node.children
                if c.type in ("storage_class_specifier", "type_qualifier")
            }
            if not specifiers & {"static", "constexpr"}:
                for declarator in node.children_by_field_name("declarator"):
                    identifier = declared_identifier(declarator)
                    if identifier is not None:
                        yield self.source.node_text(identifier)
        for base in scope.children:
            if base.type == "base_class_clause" and depth < 8:
                for name in base.named_children:
                    text = self.source.node_text(name).split("<")[0].split("::")[-1].strip()
                    for other in self.program.classes:
                        if other.name.split("<")[0].strip() == text:
                            yield from self._members(other.specifier, depth + 1)

    def takes_reference(self, parameter) -> bool:
        """Whether a parameter is a reference to what may be changed."""
        node, start, end = parameter
        kinds = declarator_kinds(node.child_by_field_name("declarator"))
        if kinds[:1] != ["reference"]:
            return False
        words = {w.text for w in self.source.words_in(start, end)}
        qualifiers = {self.source.node_text(c) for c in node.children if c.type == "type_qualifier"}
        return "const" not in qualifiers and "constant" not in words

    def is_pure(self, call) -> bool:
        """Whether a call changes nothing and gives the same result whoever calls it."""
        name = self.called_name(call)
        if "atomic" in name or USES_MATRICES.search(name):
            return False
        function = call.child_by_field_name("function")
        functions = self.calls.callees(call)
        if not functions:
            return function.type != "field_expression" or name in ("size", "length")
        return all(self._is_pure_function(f, set()) for f in functions)

    def _is_pure_function(self, function: Function, seen: set[int]) -> bool:
        key = function.node.start_byte
        if function.in_class or key in seen or self.calls.function_synchronises(function):
            return False
        for node in walk(function.body):
            if node.type in ("assignment_expression", "update_expression"):
                target = node.child_by_field_name("left") or node.child_by_field_name("argument")
                if any(
                    n.type in ("subscript_expression", "pointer_expression", "this")
                    or (n.type == "field_expression" and n.children[1].type == "->")
                    for n in walk(target)
                ):
                    return False
            if node.type == "call_expression":
                name = self.called_name(node)
                if "atomic" in name:
                    return False
                for callee in self.calls.callees(node):
                    if not self._is_pure_function(callee, {*seen, key}):
                        return False
        return not any(self.takes_reference(p) for p in _parameters_of(self.source, function))

    def keeps_private_memory(self, function: Function) -> bool:
        """Whether a function, or one that it calls, has memory of its own at addresses that it computes."""
        key = function.node.start_byte
        if key not in self._keeps:
            self._keeps[key] = False  # while it is found out
            self._keeps[key] = any(
                self.is_computed_access(node, None)
                or (
                    node.type == "call_expression"
                    and any(map(self.keeps_private_memory, self.calls.callees(node)))
                )
                for node in walk(function.body)
            )
        return self._keeps[key]

    def is_computed_access(self, node, body: Body | None) -> bool:
        """Whether vector lanes that run this together might share private memory. body: whose variables are known."""
        kind = node.type
        if kind == "array_declarator":
            return node.parent.type in ("declaration", "init_declarator", "field_declaration")
        if kind == "for_range_loop":
            return True
        if kind == "subscript_expression":
            base = node.child_by_field_name("argument")
            indices = node.child_by_field_name("indices")
            if indices is not None and all(
                n.type == "number_literal" for n in indices.named_children
            ):
                base_leaf = without_parentheses(base)
                if base_leaf.type == "identifier":
                    return False
        elif kind == "pointer_expression" and node.children[0].type == "*":
            base = node.child_by_field_name("argument")
        else:
            return False
        while base.type in (
            "parenthesized_expression",
            "binary_expression",
            "subscript_expression",
            "field_expression",
        ):
            if base.type == "parenthesized_expression":
                base = base.named_children[0]
            else:
                base = base.child_by_field_name("left") or base.child_by_field_name("argument")
        if base.type != "identifier":
            return base.type not in ("cast_expression",)
        if body is None:
            return not self._points_to_shared(base)
        variable = body.of.get(base.start_byte)
        if variable is None:
            return False  # a constant of the program
        return not self._is_shared(variable)

    def _is_shared(self, variable: Variable) -> bool:
        if variable.is_of_group:
            return True
        kinds = declarator_kinds(variable.declarator) if variable.declarator is not None else []
        start = self.source.previous_code(variable.declaration.start_byte) + 1
        words = {w.text for w in self.source.words_in(start, variable.identifier.start_byte)}
        if words & {"device", "constant", "threadgroup"}:
            return True
        return variable.kind is Kind.THREAD and variable.conditions is not None and bool(kinds)

    def _points_to_shared(self, identifier) -> bool:
        """The same for a name in a function that is not looked at closely: a pointer whose declaration names the
        address space, and no other of that name."""
        function = identifier.parent
        while function is not None and function.type != "function_definition":
            function = function.parent
        if function is None:
            return True
        name = self.source.node_text(identifier)
        found = False
        for node in walk(function):
            if node.type not in ("parameter_declaration", "declaration"):
                continue
            start = self.source.previous_code(node.start_byte) + 1
            for declarator in node.children_by_field_name("declarator"):
                declared = declared_identifier(declarator)
                if declared is None or self.source.node_text(declared) != name:
                    continue
                words = {w.text for w in self.source.words_in(start, declared.start_byte)}
                if not words & {"device", "constant", "threadgroup"}:
                    return False
                found = True
        return found

    # ---- where threads meet without a call by name -----------------------------------------------

    def check_hidden(self, function: Function) -> None:
        """Raises NotCut where threads may meet in an operator or a constructor."""
        operators = {name[8:] for name in self.calls.simd_operators}
        types = self.calls.classes_with_simd_constructors
        for node in walk(function.body):
            if types and node.type in ("type_identifier", "template_type"):
                name = self.source.node_text(node).split("<")[0].strip()
                if name in types:
                    raise NotCut(f"threads may meet in the class '{name}'")
            if operators and node.type in (
                "binary_expression",
                "unary_expression",
                "assignment_expression",
                "update_expression",
            ):
                operator = self.source.node_text(node.child_by_field_name("operator"))
                if operator in operators:
                    raise NotCut(f"threads may meet in 'operator{operator}'")
            if "[]" in operators and node.type == "subscript_expression":
                raise NotCut("threads may meet in 'operator[]'")

    def check_recursion(self, function: Function) -> None:
        """Raises NotCut where a function surely comes to itself: only a fiber's stack may overflow."""
        self._visit_callees(function, ())

    def _visit_callees(self, function: Function, around: tuple[int, ...]) -> None:
        key = function.node.start_byte
        if key in around:
            raise NotCut(f"'{function.name}' calls itself")
        if key in self._visited:
            return
        for node in walk(function.body):
            if node.type == "call_expression" and len(callees := self.calls.callees(node)) == 1:
                self._visit_callees(callees[0], (*around, key))
        self._visited.add(key)

    # ---- forms -----------------------------------------------------------------------------------

    def form(self, function: Function, kinds: tuple[Kind, ...]) -> _Form:
        """The second form of a function for arguments of these kinds. Raises NotCut."""
        key = (function.node.start_byte, kinds)
        found = self._forms.get(key)
        if found is None:
            before = set(self._forms)
            try:
                # Known before it is written: a call in it may seem to mean itself.
                found = self._forms[key] = _Form(self, function, kinds, key)
                found.write()
            except NotCut as reason:
                for other in set(self._forms) - before:  # they may call it
                    del self._forms[other]
                self._forms[key] = str(reason)
                raise
        if isinstance(found, str):
            raise NotCut(found)
        return found

    def _kernel_form(self, kernel: Kernel) -> _Form:
        self.check_recursion(kernel.function)
        kinds = []
        for parameter in kernel.parameters:
            differs = (
                parameter.kind == "builtin"
                and THREAD_ATTRIBUTES[parameter.attribute].differs_in_group
            )
            kinds.append(Kind.AGAIN if differs else Kind.GROUP)
        form = _Form(self, kernel.function, tuple(kinds), ("kernel", kernel.number), kernel)
        form.write()
        return form

    def _add(self, form: _Form) -> None:
        if form.key in self._added:
            return
        self._added.add(form.key)
        for used in form.uses:
            self._add(used)
        self.edits.append(form.function.node.end_byte, form.text)


def _parameters_of(source, function: Function) -> list:
    parameters = function.declarator.child_by_field_name("parameters")
    return [p for p in parameter_ranges(parameters) if source.masked_text(p[0]).strip() != "void"]


class _Form:
    """One function's second form, for given kinds of its parameters."""

    def __init__(
        self, groups: GroupLoops, function: Function, kinds, key, kernel: Kernel | None = None
    ):
        self.groups = groups
        self.source = groups.source
        self.edits = groups.edits
        self.function = function
        self.key = key
        self.kernel = kernel
        self.uses: list[_Form] = []
        self.text = Mapped()
        self.has_barrier = False
        self._count = 0
        self._masks: list[str] = []  # those that threads can leave, the outermost first
        self._targets: list[tuple[str, int, int]] = []  # what break and continue are about
        self._renamed: list[tuple[int, int, str]] = []
        self._check()
        self.has_object = function.in_class and not groups.is_static(function)
        self.members = groups.members_of(function) if self.has_object else frozenset()
        self.parameters = _parameters_of(self.source, function)
        self.kinds = (*kinds, *[Kind.GROUP] * (len(self.parameters) - len(kinds)))
        nodes = [p[0] for p in self.parameters]
        self.body = Body(
            self.source,
            function.body,
            groups.calls.scopes(function.node),
            list(zip(nodes, self.kinds, strict=True)),
            groups.meets,
            groups.writes,
            groups.is_pure,
            self.members,
        )
        if any(
            n.type == "binary_expression"
            and self.source.node_text(n.child_by_field_name("operator")) == "*"
            and self.body.multiplies_matrices(n)
            for n in walk(function.body)
        ):
            raise NotCut("the operator * of simdgroup matrices")
        self._renamed = [
            (n.start_byte, n.end_byte, f"msl_self.{self.source.node_text(n)}")
            for n in walk(function.body)
            if self._names_member(n)
        ] + [
            (n.start_byte, n.end_byte, "(&msl_self)")
            for n in walk(function.body)
            if self.members and n.type == "this"
        ]
        # In a function of a thread it would have another value.
        self._renamed += [
            (n.start_byte, n.end_byte, f'"{function.name}"')
            for n in walk(function.body)
            if n.type == "identifier" and self.source.node_text(n) in ("__func__", "__FUNCTION__")
        ]
        self.result = self._find_result()

    def _names_member(self, node) -> bool:
        """Whether an identifier stands for a member of the object."""
        if node.type != "identifier" or node.start_byte in self.body.of:
            return False
        if self.source.node_text(node) not in self.members:
            return False
        parent = node.parent
        if parent.type == "qualified_identifier":
            return False
        return parent.type != "template_function" or parent.parent.type != "qualified_identifier"

    def _check(self) -> None:
        function = self.function
        self.groups.check_hidden(function)
        if "::" in self.source.masked_text(name_of(function.declarator)):
            raise NotCut(f"the member function '{function.name}' is defined outside of its class")
        if function.name.startswith("operator") and function.name != "operator()":
            raise NotCut(f"'{function.name}' synchronises")
        if function.is_specialisation and self.kernel is None:
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
                    raise NotCut("a reference to an array")  # which is parsed as an assignment
            if node.type == "lambda_expression" and any(
                n.type == "call_expression" and self.groups.meets(n) for n in walk(node)
            ):
                raise NotCut("a lambda in which threads meet")

    # ---- results ---------------------------------------------------------------------------------

    def _find_result(self) -> Kind | None:
        """None where it returns nothing."""
        returned = self.function.declarator.parent
        type_node = self._definition().child_by_field_name("type")
        if self.kernel is not None or (
            type_node is not None
            and self.source.masked_text(type_node) == "void"
            and returned.type != "pointer_declarator"
        ):
            return None
        return Kind.THREAD

    def _definition(self):
        node = self.function.body.parent
        while node.type != "function_definition":
            node = node.parent
        return node

    def _result_type(self) -> str:
        definition = self._definition()
        type_node = definition.child_by_field_name("type")
        declarator = definition.child_by_field_name("declarator")
        stars = ""
        while declarator.type in ("pointer_declarator", "reference_declarator"):
            if declarator.type == "reference_declarator":
                raise NotCut("a function that returns a reference")
            stars += "*"
            declarator = (
                declarator.child_by_field_name("declarator") or declarator.named_children[-1]
            )
        trailing = next((c for c in declarator.children if c.type == "trailing_return_type"), None)
        text = self.edits.apply(type_node.start_byte, type_node.end_byte, without="fibers")[0]
        if trailing is not None:
            inner = trailing.named_children[0]
            return self.edits.apply(inner.start_byte, inner.end_byte, without="fibers")[0]
        if re.search(r"\bauto\b", text):
            raise NotCut("a function whose result has the type 'auto'")
        return text + stars

    # ---- text ------------------------------------------------------------------------------------

    def _copy(self, start: int, end: int, replaced=()) -> Mapped:
        members = [
            (a, b, text)
            for a, b, text in self._renamed
            if start <= a < end and not any(x <= a < y for x, y, _ in replaced)
        ]
        return Mapped(*self.edits.apply(start, end, [*replaced, *members], without="fibers"))

    def _of(self, node, replaced=()) -> Mapped:
        return self._copy(node.start_byte, node.end_byte, replaced)

    def _statement(self, node, replaced=()) -> Mapped:
        """With the address space that may stand before the node."""
        return self._copy(self.source.previous_code(node.start_byte) + 1, node.end_byte, replaced)

    def _new(self, what: str) -> str:
        self._count += 1
        return f"msl_{what}_{self._count}"

    @property
    def _mask(self) -> str:
        return self._masks[-1] if self._masks else "msl_mask"

    def write(self) -> None:
        function = self.function
        text = self.text
        for line in self._template_headers():
            text.add(line)
        result = "void"
        if self.result is Kind.THREAD:
            result = f"{_S}::Lanes<{_S}::decayed_t<{self._result_type()}>>"
        tags = ", ".join(
            "1" if k is Kind.THREAD else "0"
            for k in ([] if self.kernel is not None else self.kinds)
        )
        static = "static " if function.in_class else ""
        text.add(
            f" {static}inline {result} {name_in_group(function.name)}({_S}::Kinds<{tags}>, "
            f"const {_S}::Threads& msl_g, const msl_M& msl_mask, const msl_P& msl_pack"
        )
        if self.has_object:
            text.add(", const msl_O msl_objects")
        for (node, start, end), kind in zip(self.parameters, self.kinds, strict=True):
            if kind is not Kind.AGAIN or self.kernel is None:
                text.add(", ")
                renamed = ()
                if (name := self._copied(node, start, end)) is not None:
                    renamed = [(name.start_byte, name.end_byte, self._given(name))]
                text.add(self._copy(start, end, renamed))
        if self.kernel is not None and self.kernel.threadgroup_variables:
            text.add(f", {names.ABI}::Group& msl_group")
        text.add(") {\n")
        if self.kernel is None or not self.kernel.threadgroup_variables:
            text.add(f"{names.ABI}::Group& msl_group = *msl_g.group; ")
        if self.has_object:
            text.add("auto& msl_self = msl_objects[0]; (void)msl_self;\n")
        text.add(
            f"const {names.ABI}::Launch* const msl_launch = msl_g.launch; "
            f"const {_S}::Lane msl_t{{}}; (void)msl_group, (void)msl_launch, (void)msl_t;\n"
        )
        if self.result is Kind.THREAD:
            text.add(f"{_S}::Lanes<{_S}::decayed_t<{self._result_type()}>> msl_result(msl_g);\n")
        self._take_parameters(text)
        if self._some_return_early():
            self._masks.append("msl_m0")
            text.add(f"{_S}::Mask msl_m0(msl_g, msl_mask);\n")
        self._block(statements_of(function.body), text)
        if self.result is Kind.THREAD:
            text.add("return msl_result;\n")
        text.add("}\n")

    def _copied(self, node, start: int, end: int):
        """The name of a parameter that is a reference to what does not change, and is read once: a compiler would
        otherwise have to read it after every store. None for others.
        """
        declarator = node.child_by_field_name("declarator")
        identifier = declared_identifier(declarator)
        if identifier is None or declarator_kinds(declarator) != ["reference"]:
            return None
        if self.groups.takes_reference((node, start, end)):
            return None
        name = self.source.node_text(identifier)
        body = self.source.masked_text(self.function.body)
        if re.search(rf"(?<!&)&\s*{name}\b(?!\s*\.)", body):
            return None
        return identifier

    def _given(self, identifier) -> str:
        return f"msl_given_{self.source.node_text(identifier)}"

    def _template_headers(self) -> list[str]:
        headers = [h for h in self.function.template_headers if h.named_children]
        if self.function.in_class:  # those of the class are around it
            headers = headers[-1:] if self._is_template_itself() else []
        more = "class msl_M, class msl_P" + (", class msl_O" if self.has_object else "")
        if not headers:
            return [f" template <{more}>"]
        lines = []
        for header in headers:
            inside = self.edits.apply(header.start_byte, header.end_byte, without="fibers")[0]
            if "..." in inside:
                raise NotCut("a template with a parameter pack")
            lines.append(f" template {inside}")
        lines[-1] = lines[-1].rstrip().removesuffix(">") + f", {more}>"
        return lines

    def _is_template_itself(self) -> bool:
        return self._definition().parent.type == "template_declaration"

    def _take_parameters(self, text: Mapped) -> None:
        for position, ((node, start, end), kind) in enumerate(
            zip(self.parameters, self.kinds, strict=True)
        ):
            identifier = declared_identifier(node.child_by_field_name("declarator"))
            if identifier is None:
                continue
            variable = self.body.of[identifier.start_byte]
            name = variable.name
            if self._copied(node, start, end) is not None:
                text.add(f"const auto {name} = {self._given(identifier)}; (void){name};\n")
            if self.kernel is not None and kind is Kind.AGAIN:
                # At group level too, where only its type matters.
                text.add(f"{self._builtin(position)}\n")
                if variable.kind is Kind.THREAD:
                    self._keep(variable, text, f"{_S}::decayed_t<decltype({name})>")
                    text.add(
                        f"{_S}::each<true>(msl_g, msl_mask, [&](const {_S}::Lane msl_t) MSL_LANE_LOOP "
                        f"{{ {self._builtin(position)} msl_lanes_{name}[msl_t.index] = {name}; }});\n"
                    )
                continue
            if kind is Kind.THREAD:
                is_reference = variable.is_reference and self.groups.takes_reference(
                    (node, start, end)
                )
                if is_reference:
                    text.add(
                        f"const auto msl_lanes_{name} = msl_pack.template get<{position}>();\n"
                    )
                else:
                    self._copy_parameter(
                        name, f"msl_pack.template get<{position}>()[msl_t.index]", text
                    )
            elif variable.kind is Kind.THREAD:
                self._copy_parameter(name, name, text)

    def _copy_parameter(self, name: str, value: str, text: Mapped) -> None:
        text.add(
            f"{_S}::Lanes<{_S}::decayed_t<decltype({name})>> msl_lanes_{name}(msl_g); "
            f"{_S}::each<true>(msl_g, msl_mask, [&](const {_S}::Lane msl_t) MSL_LANE_LOOP "
            f"{{ msl_lanes_{name}[msl_t.index] = "
            f"static_cast<{_S}::decayed_t<decltype({name})>>({value}); }});\n"
        )

    def _builtin(self, position: int) -> str:
        """The declaration of a parameter that each thread computes for itself."""
        node, start, end = self.parameters[position]
        identifier = declared_identifier(node.child_by_field_name("declarator"))
        type_text = self.edits.apply(start, identifier.start_byte, without="fibers")[0]
        type_text = " ".join(type_text.split())
        value = self.groups.builtins[self.kernel.parameters[position].attribute]
        name = self.source.node_text(identifier)
        return f"{type_text} {name} = {_S}::builtin<{type_text}>::make({value});"

    def _some_return_early(self) -> bool:
        return any(any(self.body.parts(c) for c in conditions) for conditions in self.body.returns)

    # ---- statements ------------------------------------------------------------------------------

    def _block(self, statements: list, out: Mapped) -> None:
        """What stands in a block that is cut."""
        run: list[tuple[object, list]] = []
        for position, node in enumerate(statements):
            if self._is_group_statement(node):
                if self._reads_memory(node) or self._changes(node) or self._hides(node, run):
                    self._flush(run, out)
                self._group_statement(node, out)
            elif self._runs_whole(node):
                run.append((node, []))
            else:
                self._flush(run, out)
                more = self._cut(node, out)
                if more is not None:
                    run.append(more)
                if self._masks and self.body.leaves(node):
                    if position + 1 < len(statements):
                        self._flush(run, out)
                        out.add(f"if ({self._mask}.any()) {{\n")
                        self._block(statements[position + 1 :], out)
                        out.add("}\n")
                    break
                if node.type in ("return_statement", "break_statement", "continue_statement"):
                    break
        self._flush(run, out)

    def _is_group_statement(self, node) -> bool:
        if node.type in _STATEMENTS_OF_TYPES:
            return True
        if node.type == "declaration":
            variables = self.body.declared_by(node)
            return not variables or all(v.kind is not Kind.THREAD for v in variables)
        if node.type == "expression_statement" and node.named_children:
            return self._is_group_definition(node.named_children[0])
        return False

    def _is_group_definition(self, node) -> bool:
        if node.type == "comma_expression":
            return all(map(self._is_group_definition, node.named_children))
        if node.type not in ("assignment_expression", "update_expression"):
            return False
        target = node.child_by_field_name("left") or node.child_by_field_name("argument")
        while target.type == "field_expression":
            target = target.child_by_field_name("argument")
        variable = self.body.of.get(target.start_byte) if target.type == "identifier" else None
        return variable is not None and variable.kind is Kind.GROUP and not variable.is_of_group

    def _changes(self, node) -> bool:
        return node.type == "expression_statement"

    def _reads_memory(self, node) -> bool:
        return any(
            n.type in ("subscript_expression", "pointer_expression", "call_expression")
            or (n.type == "field_expression" and n.children[1].type == "->")
            for n in walk(node)
        )

    def _hides(self, node, run) -> bool:
        hidden = {v.name for v in self.body.declared_by(node)}
        return any(v.name in hidden for item, _ in run for v in self.body.used_in(item))

    def _group_statement(self, node, out: Mapped) -> None:
        if self.body.meets(node):
            raise NotCut("threads meet in what is the same for all")
        out.add(self._statement(node))
        out.add("\n")

    def _runs_whole(self, node) -> bool:
        """Whether each thread runs the statement as it stands."""
        if node.type in ("break_statement", "continue_statement", "return_statement"):
            return False
        if not self.body.is_cut(node):
            return True
        if self.body.must_be_cut(node):
            return False
        if node.type == "if_statement":
            if is_constexpr_if(node) or not self.body.parts(node.child_by_field_name("condition")):
                return False
            return not (self.body.is_masked(node) and self._is_cheap_condition(node))
        if node.type == "for_statement":
            return not (self._is_group_loop(node) or self._is_strided(node))
        return False

    def _is_cheap_condition(self, node) -> bool:
        return all(
            v.kind is not Kind.THREAD
            for v in self.body.used_in(node.child_by_field_name("condition"))
        )

    def _cut(self, node, out: Mapped):
        """Writes a statement that is cut; what is left of it to be run thread by thread, if anything."""
        kind = node.type
        if kind == "compound_statement":
            out.add("{\n")
            self._block(statements_of(node), out)
            out.add("}\n")
        elif kind == "expression_statement":
            return self._expression_statement(node, out)
        elif kind == "declaration":
            return node, self._lower(node, out)
        elif kind == "if_statement":
            self._if(node, out)
        elif kind in LOOPS:
            self._loop(node, out)
        elif kind == "switch_statement":
            self._switch(node, out)
        elif kind == "return_statement":
            self._return(node, out)
        elif kind in ("break_statement", "continue_statement"):
            self._leave_loop(kind, out)
        else:
            raise NotCut(f"threads meet in a {kind.replace('_', ' ')}")
        return None

    def _expression_statement(self, node, out: Mapped):
        expression = node.named_children[0]
        if expression.type == "comma_expression":
            raise NotCut("threads meet beside a comma")
        replaced = self._lower(expression, out)
        inner = without_parentheses(expression)
        if inner.type == "cast_expression":  # (void)f(x)
            inner = inner.child_by_field_name("value")
        if len(replaced) == 1 and (inner.start_byte, inner.end_byte) == replaced[0][:2]:
            return None
        return node, replaced

    # ---- what each thread runs -------------------------------------------------------------------

    def _flush(self, run: list, out: Mapped) -> None:
        if not run:
            return
        items = list(run)
        run.clear()
        start = items[0][0].start_byte
        end = max(node.end_byte for node, _ in items)
        declared = [v for node, _ in items for v in self._variables_in(node)]
        crossing = {v for v in declared if v.last_use >= end}
        waiting = list(crossing)
        while waiting:  # the types of those that are kept are needed before the loop
            variable = waiting.pop()
            for used in self.body.used_in(variable.declaration):
                if used in declared and used not in crossing:
                    crossing.add(used)
                    waiting.append(used)
        for variable in declared:
            if variable in crossing:
                self._declare_lanes(variable, out)
        body = Mapped()
        for node, replaced in items:
            mine = [v for v in self._variables_in(node) if v in crossing]
            if mine:
                self._initialise(node, mine, replaced, body)
            else:
                body.add(self._statement(node, replaced))
        used = set().union(*(self.body.used_in(node) for node, _ in items))
        used = {v for v in used if not (start <= v.identifier.start_byte < end)}
        temporaries = [text for _, replaced in items for _, _, text in replaced]
        self._each([node for node, _ in items], used, temporaries, body, out, crossing)

    def _variables_in(self, node) -> list[Variable]:
        return self.body.declared_by(node) if node.type == "declaration" else []

    def _each(
        self, nodes, used, temporaries, body: Mapped, out: Mapped, declared: Iterable[Variable] = ()
    ) -> None:
        """declared: kept variables that the body itself gives their names."""
        out.add(f"{_S}::each<{self._independent(nodes)}>(msl_g, {self._mask}, ")
        self._lambda(nodes, used, temporaries, out, declared=declared)
        out.add(body)
        out.add(" });\n")

    def _lambda(
        self,
        nodes,
        used,
        temporaries,
        out: Mapped,
        index: str = "",
        declared: Iterable[Variable] = (),
    ) -> None:
        """The beginning of a function of a thread. It has copies of what it needs, so that compilers see that nothing
        of it changes while it runs.
        """
        variables = self._in_order(used)
        declared = sorted(declared, key=lambda v: v.identifier.start_byte)
        values = [t for t in dict.fromkeys(temporaries) if t.startswith("msl_value_")]
        captures = [
            "&",
            *(["msl_objects"] if self.has_object else []),
            *(f"msl_at_{v.name} = {_S}::at(msl_lanes_{v.name})" for v in declared),
        ]
        for variable in variables:
            name = variable.name
            if variable.kind is Kind.THREAD and not variable.is_of_group:
                captures.append(f"msl_at_{name} = {_S}::at(msl_lanes_{name})")
            elif self._is_copied(variable, nodes):
                captures.append(f"{name} = {name}")
        captures += [f"msl_at_{v} = {_S}::at(msl_lanes_{v})" for v in values]
        out.add(f"[{', '.join(captures)}](const {_S}::Lane msl_t{index}) MSL_LANE_LOOP {{ ")
        self._prologue(nodes, variables, values, out)

    def _is_copied(self, variable: Variable, nodes) -> bool:
        """Whether a value of the whole group is copied for a loop: not what must stay where it is."""
        if variable.kind is not Kind.GROUP or variable.is_of_group or variable.is_array:
            return False
        if variable.is_reference and not (
            variable.is_parameter and self._is_copied_parameter(variable)
        ):
            return False
        address = re.compile(rf"(?<!&)&\s*{variable.name}\b")
        return not any(address.search(self.source.masked_text(node)) for node in nodes)

    def _is_copied_parameter(self, variable: Variable) -> bool:
        return self._copied(*self.parameters[self._position_of(variable)]) is not None

    def _independent(self, nodes) -> str:
        """Whether the iterations of a loop over the threads may be promised to be independent."""
        for node in nodes:
            for n in walk(node):
                if self.groups.is_computed_access(n, self.body):
                    return "false"
                if n.type == "call_expression" and any(
                    map(self.groups.keeps_private_memory, self.groups.calls.callees(n))
                ):
                    return "false"
        return "true"

    def _prologue(self, nodes, variables, values, out: Mapped) -> None:
        """The variables that a thread uses, under their names."""
        if self.has_object:
            out.add("auto& msl_self = msl_objects[msl_t.index]; ")
        if any(USES_MATRICES.search(self.source.masked_text(node)) for node in nodes):
            out.add("msl_g.scratch->lane = msl_t.index & 31; ")
        for name in values:
            out.add(f"auto& {name} = msl_at_{name}[msl_t.index]; ")
        for variable in variables:
            name = variable.name
            if variable.kind is Kind.THREAD and not variable.is_of_group:
                star = "*" if variable.is_reference and not variable.is_parameter else ""
                out.add(f"auto& {name} = {star}msl_at_{name}[msl_t.index]; ")
            elif variable.kind is Kind.AGAIN:
                if variable.is_parameter:
                    out.add(f"{self._builtin(self._position_of(variable))} ")
                else:
                    out.add(self._statement(variable.declaration))
                    out.add(" ")

    def _position_of(self, variable: Variable) -> int:
        return next(
            i
            for i, (node, _, _) in enumerate(self.parameters)
            if node.start_byte == variable.declaration.start_byte
        )

    def _in_order(self, used) -> list[Variable]:
        """With those that values which are computed again depend on."""
        found = set()
        waiting = list(used)
        while waiting:
            variable = waiting.pop()
            if variable in found:
                continue
            found.add(variable)
            if variable.kind is Kind.AGAIN and not variable.is_parameter:
                waiting.extend(self.body.used_in(variable.declaration) - {variable})
        return sorted(found, key=lambda v: v.identifier.start_byte)

    # ---- variables that are kept -----------------------------------------------------------------

    def _keep(self, variable: Variable, out: Mapped, type_text: str) -> None:
        out.add(f"{_S}::variable<{type_text}> msl_lanes_{variable.name}(msl_g); ")

    def _declare_lanes(self, variable: Variable, out: Mapped) -> None:
        declaration, identifier = variable.declaration, variable.identifier
        name = variable.name
        first = declaration.child_by_field_name("declarator")
        if variable.declarator.type == "structured_binding_declarator":
            raise NotCut("a structured binding that is used after threads have met")
        head = self.source.previous_code(declaration.start_byte) + 1
        base = self.edits.apply(head, first.start_byte, without="fibers")[0]
        if variable.is_reference:
            value = self._of(variable.value)
            out.add(f"{_S}::Lanes<decltype(&(")
            out.add(value)
            out.add(
                f"))> msl_lanes_{name}(msl_g); auto& {name} = *msl_lanes_{name}[0]; (void){name};\n"
            )
            return
        if re.search(r"\bauto\b", base):
            out.add(f"typedef {_S}::decayed_t<decltype(")
            out.add(self._of(variable.value))
            out.add(f")> msl_type_{name}; ")
        else:
            declarator = variable.declarator
            before = after = ""
            if declarator.type != "function_declarator":
                before = self.edits.apply(
                    declarator.start_byte, identifier.start_byte, without="fibers"
                )[0]
                after = self.edits.apply(
                    identifier.end_byte, declarator.end_byte, without="fibers"
                )[0]
            out.add(f"typedef {base} {before}msl_type_{name}{after}; ")
        self._keep(variable, out, f"msl_type_{name}")
        out.add(f"auto& {name} = msl_lanes_{name}[0]; (void){name};\n")

    def _initialise(self, node, variables, replaced, body: Mapped) -> None:
        """A declaration whose variables are kept, run by each thread."""
        plain = [v for v in variables if not v.is_reference]
        references = [v for v in variables if v.is_reference]
        if references and len(self.body.declared_by(node)) > 1:
            raise NotCut("a declaration of references and other variables")
        for variable in references:
            body.add(f"msl_at_{variable.name}[msl_t.index] = &(")
            body.add(self._of(variable.value, replaced))
            body.add(f"); auto& {variable.name} = *msl_at_{variable.name}[msl_t.index]; ")
        if not plain:
            return
        if any(v.value is not None for v in variables):
            renamed = list(replaced)
            for variable in plain:
                places = [variable.identifier.start_byte, *variable.uses]
                renamed += [
                    (at, at + len(variable.name), f"msl_init_{variable.name}")
                    for at in places
                    if node.start_byte <= at < node.end_byte
                ]
            body.add(self._statement(node, renamed))
        else:
            others = [v for v in self.body.declared_by(node) if v not in variables]
            if others:
                body.add(self._statement(node))
        for variable in plain:
            name = variable.name
            if any(v.value is not None for v in variables):
                body.add(f" {_S}::copy(msl_at_{name}[msl_t.index], msl_init_{name});")
            body.add(f" auto& {name} = msl_at_{name}[msl_t.index]; (void){name};")
            if not any(v.value is not None for v in variables):
                body.add(f" {_S}::begin({name});")

    # ---- calls in which threads meet -------------------------------------------------------------

    def _lower(self, node, out: Mapped) -> list[tuple[int, int, str]]:
        """Writes the calls in an expression in which threads meet; what is to be put in their places."""
        if not self.body.meets(node):
            return []
        kind = node.type
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
        if kind == "call_expression" and (meeting := self.groups.meets(node)):
            inside = [r for r in replaced if node.start_byte <= r[0] and r[1] <= node.end_byte]
            text = self._call(node, meeting, inside, out)
            return [(node.start_byte, node.end_byte, text)]
        return replaced

    def _value(self, node, replaced, out: Mapped, as_address: bool = False) -> str:
        """Evaluates an expression for each thread; the name of the Lanes."""
        name = self._new("lanes")
        body = Mapped("return ")
        if as_address:
            body.add("&(")
        body.add(self._of(node, replaced))
        body.add(");" if as_address else ";")
        out.add(
            f"const auto {name} = {_S}::evaluate<{self._independent([node])}>(msl_g, {self._mask}, "
        )
        self._lambda([node], self.body.used_in(node), [t for _, _, t in replaced], out)
        out.add(body)
        out.add(" });\n")
        return name

    def _chosen(self, node, out: Mapped) -> str:
        """`a ? b : c`, where threads meet in b or c."""
        condition = node.child_by_field_name("condition")
        arms = [node.child_by_field_name(arm) for arm in ("consequence", "alternative")]
        replaced = self._lower(condition, out)
        name = self._new("value")
        out.add(f"{_S}::Lanes<{_S}::decayed_t<decltype(")
        out.add(self._of(node))
        out.add(f")>> msl_lanes_{name}(msl_g); auto& {name} = msl_lanes_{name}[0]; (void){name};\n")
        yes, no = self._part(condition, replaced, out)
        for mask, arm in ((yes, arms[0]), (no, arms[1])):
            self._branch(mask, lambda out, arm=arm: self._assign(name, arm, out), out)
        return name

    def _decided(self, node, out: Mapped) -> str:
        """`a && b` and `a || b`, where threads meet in b."""
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        replaced = self._lower(left, out)
        name = self._new("value")
        out.add(
            f"{_S}::Lanes<bool> msl_lanes_{name}(msl_g); auto& {name} = msl_lanes_{name}[0]; "
            f"(void){name};\n"
        )
        yes, no = self._part(left, replaced, out)
        is_and = self.source.node_text(node.child_by_field_name("operator")) in ("&&", "and")
        others, known = (no, "false") if is_and else (yes, "true")
        out.add(
            f"{_S}::each<true>(msl_g, {others}, [&](const {_S}::Lane msl_t) MSL_LANE_LOOP "
            f"{{ msl_lanes_{name}[msl_t.index] = {known}; }});\n"
        )
        self._branch(yes if is_and else no, lambda out: self._assign(name, right, out), out)
        return name

    def _assign(self, name: str, node, out: Mapped) -> None:
        replaced = self._lower(node, out)
        body = Mapped(f"msl_lanes_{name}[msl_t.index] = ")
        body.add(self._of(node, replaced))
        body.add(";")
        self._each([node], self.body.used_in(node), [t for _, _, t in replaced], body, out)

    def _part(self, condition, replaced, out: Mapped) -> tuple[str, str]:
        """Cuts the mask in two by a condition; the names of both."""
        yes, no = self._new("yes"), self._new("no")
        out.add(f"{_S}::Mask {yes}(msl_g), {no}(msl_g); ")
        self._part_into(condition, replaced, yes, no, out)
        return yes, no

    def _part_into(self, condition, replaced, yes: str, no: str, out: Mapped) -> None:
        out.add(f"{_S}::part<{self._independent([condition])}>(msl_g, {self._mask}, {yes}, {no}, ")
        self._lambda([condition], self.body.used_in(condition), [t for _, _, t in replaced], out)
        out.add("return static_cast<bool>(")
        out.add(self._of(condition, replaced))
        out.add("); });\n")

    def _branch(self, mask: str, write, out: Mapped) -> None:
        """What the threads of a mask do by themselves."""
        self._masks.append(mask)
        out.add(f"if ({mask}.any()) {{\n")
        write(out)
        out.add("}\n")
        self._masks.pop()

    def _call(self, node, meeting: str, replaced, out: Mapped) -> str:
        if meeting == "barrier":
            if self.groups.called_name(node) == "threadgroup_barrier":
                self._reach_barrier()
            return "(void)0"
        function = node.child_by_field_name("function")
        arguments = node.child_by_field_name("arguments").named_children
        own = [f for f in self.groups.calls.callees(node) if self._may_take(f, len(arguments))]
        if meeting == "function" and not own:
            raise NotCut(f"a call of '{self.groups.called_name(node)}' that is not understood")
        kinds, packed, passed = [], [], []
        for position, argument in enumerate(arguments):
            mine = [r for r in replaced if argument.start_byte <= r[0] < argument.end_byte]
            kind, accessor, one = self._argument(node, position, argument, mine, own, out)
            kinds.append(kind)
            packed.append(accessor)
            passed.append(one)
        forms = [self.groups.form(candidate, tuple(kinds)) for candidate in own]
        self.uses += forms
        if any(form.has_barrier for form in forms):
            self._reach_barrier()
        tags = ", ".join("1" if k is Kind.THREAD else "0" for k in kinds)
        if own:  # what is not passed is the same for all
            tags_of = {len(_parameters_of(self.source, c)) for c in own}
            if len(tags_of) != 1:
                raise NotCut(f"functions '{own[0].name}' with different defaults")
            tags = ", ".join([*([tags] if tags else []), *["0"] * (tags_of.pop() - len(kinds))])
        is_object = any(f.name == "operator()" for f in own)
        objects = self._objects(function, is_object, own, replaced, out)
        callee = self._callee(function, is_object)
        returns = self._returns(self.groups.called_name(node), meeting, forms)
        name = self._new("value")
        call = ", ".join(
            [
                f"{_S}::Kinds<{tags}>()",
                "msl_g",
                self._mask,
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

    def _may_take(self, function: Function, count: int) -> bool:
        parameters = _parameters_of(self.source, function)
        required = sum(node.type != "optional_parameter_declaration" for node, _, _ in parameters)
        return required <= count <= len(parameters)

    def _reach_barrier(self) -> None:
        """All that have not returned must be here: where they might not, fibers find out whether they are."""
        self.has_barrier = True
        if self._masks not in ([], ["msl_m0"]):
            raise NotCut("a threadgroup_barrier under a condition that may differ between threads")

    def _returns(self, name: str, meeting: str, forms: list[_Form]) -> bool:
        if meeting == "simd":
            return name not in _VOID
        results = {form.result for form in forms}
        if len(results) != 1:
            raise NotCut(f"functions '{name}' of which some return nothing")
        return results.pop() is not None

    def _objects(self, function, is_object: bool, own, replaced, out: Mapped) -> list[str]:
        """The objects whose member function is called, where it is one."""
        kinds = {f.in_class and not self.groups.is_static(f) for f in own}
        if kinds != {True}:
            if True in kinds:
                raise NotCut(f"'{own[0].name}' is a member function and another one")
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
        if is_object:
            text.add("(")
            text.add(self._of(function))
            text.add(f").{name_in_group('operator()')}")
            return text
        leaf = name_node(function)
        if function.start_byte < leaf.start_byte:
            text.add(self._copy(function.start_byte, leaf.start_byte))
        text.add(name_in_group(self.source.node_text(leaf)))
        if leaf.end_byte < function.end_byte:
            text.add(self._copy(leaf.end_byte, function.end_byte))
        return text

    def _name_same(self, node, out: Mapped) -> str:
        """Evaluates an expression that is the same for the whole group; its name."""
        name = self._new("same")
        out.add(f"auto&& {name} = ")
        out.add(self._of(node))
        out.add(";\n")
        return name

    def _argument(self, call, position: int, argument, replaced, own, out: Mapped):
        """How it varies, what stands for it in the pack, and as one thread's."""
        by_reference = any(
            position < len(p := _parameters_of(self.source, f))
            and declarator_kinds(p[position][0].child_by_field_name("declarator"))[:1]
            == ["reference"]
            for f in own
        ) or (not own and self.groups.writes(call, position))
        inner = without_parentheses(argument)
        variable = self.body.of.get(inner.start_byte) if inner.type == "identifier" else None
        if not replaced and self.body.is_same(argument):
            name = self._name_same(argument, out)
            return Kind.GROUP, f"{_S}::same({name})", name
        if variable is not None and variable.kind is Kind.THREAD and not variable.is_array:
            if not variable.is_reference or variable.is_parameter:
                return Kind.THREAD, f"{_S}::at(msl_lanes_{variable.name})", variable.name
        if len(replaced) == 1 and (inner.start_byte, inner.end_byte) == replaced[0][:2]:
            name = replaced[0][2]
            return Kind.THREAD, f"{_S}::at(msl_lanes_{name})", name
        if by_reference and inner.type in (
            "identifier",
            "subscript_expression",
            "field_expression",
            "pointer_expression",
        ):
            if variable is None or variable.kind is not Kind.AGAIN:
                pointers = self._value(argument, replaced, out, as_address=True)
                return Kind.THREAD, f"{_S}::referred({pointers})", f"*{pointers}[0]"
        name = self._value(argument, replaced, out)
        return Kind.THREAD, f"{_S}::at({name})", f"{name}[0]"

    # ---- if, loops, switch -----------------------------------------------------------------------

    def _statements(self, node, out: Mapped) -> None:
        out.add("{\n")
        self._block(statements_of(node), out)
        out.add("}\n")

    def _if(self, node, out: Mapped) -> None:
        clause = node.child_by_field_name("condition")
        consequence, alternative = node.child_by_field_name("consequence"), alternative_of(node)
        if is_constexpr_if(node) or not self.body.parts(clause):
            if self.body.meets(clause):
                raise NotCut("threads meet in what is the same for all")
            out.add("if constexpr " if is_constexpr_if(node) else "if ")
            out.add(self._of(clause))
            out.add(" ")
            self._statements(consequence, out)
            if alternative is not None:
                out.add("else ")
                self._statements(alternative, out)
            return
        condition = condition_of(node)
        out.add("{ ")
        replaced = self._lower(condition, out)
        yes, no = self._part(condition, replaced, out)
        self._branch(yes, lambda out: self._block(statements_of(consequence), out), out)
        if alternative is not None:
            self._branch(no, lambda out: self._block(statements_of(alternative), out), out)
        out.add("}\n")

    def _is_group_loop(self, node) -> bool:
        """Whether all threads go round a loop equally often."""
        if node.type == "for_range_loop":
            return False
        condition = node.child_by_field_name("condition")
        if condition is not None and (self.body.meets(condition) or self.body.parts(condition)):
            return False
        initializer = node.child_by_field_name("initializer")
        if initializer is not None:
            if initializer.type != "declaration":
                return False
            if any(v.kind is Kind.THREAD for v in self.body.declared_by(initializer)):
                return False
        update = node.child_by_field_name("update")
        if update is not None and not self._is_group_definition(update):
            return False
        return not self.body.parts(node)

    def _is_strided(self, node) -> bool:
        """Whether it is `for (T i = start; i < bound; i += step)` with a bound and a step that are the same for all."""
        initializer = node.child_by_field_name("initializer")
        condition, update = (
            node.child_by_field_name("condition"),
            node.child_by_field_name("update"),
        )
        if initializer is None or condition is None or update is None:
            return False
        variables = self.body.declared_by(initializer)
        if len(variables) != 1 or variables[0].value is None or len(variables[0].definitions) > 3:
            return False
        variable = variables[0]
        type_text = self.source.masked_text(initializer.child_by_field_name("type"))
        if not _INTEGERS.match(type_text.strip()) or variable.declarator.type != "identifier":
            return False
        left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
        operator = self.source.node_text(condition.child_by_field_name("operator"))
        if self.body.of.get(left.start_byte) is not variable or left.type != "identifier":
            return False
        if operator != "<" or not self.body.is_same(right):
            return False
        step = self._step(update, variable)
        if step is None:
            return False
        body = node.child_by_field_name("body")
        return not any(
            body.start_byte <= value.start_byte < body.end_byte
            for value, _ in variable.definitions
            if value is not None
        ) and all(value is not None for value, _ in variable.definitions)

    def _step(self, update, variable: Variable) -> str | None:
        target = update.child_by_field_name("left") or update.child_by_field_name("argument")
        if target is None or self.body.of.get(target.start_byte) is not variable:
            return None
        text = self.source.node_text(update)
        if update.type == "update_expression":
            return "1" if "++" in text else None
        if update.type != "assignment_expression":
            return None
        operator = self.source.node_text(update.child_by_field_name("operator"))
        right = update.child_by_field_name("right")
        if operator != "+=" or not self.body.is_same(right):
            return None
        return self.edits.apply(right.start_byte, right.end_byte, without="fibers")[0]

    def _loop(self, node, out: Mapped) -> None:
        if node.type == "for_range_loop":
            raise NotCut("threads meet in a range-based for")
        if self._is_group_loop(node):
            self._group_loop(node, out)
        elif not self.body.must_be_cut(node) and self._is_strided(node):
            self._strided_loop(node, out)
        else:
            self._parting_loop(node, out)

    def _group_loop(self, node, out: Mapped) -> None:
        initializer, condition, update = (
            node.child_by_field_name(f) for f in ("initializer", "condition", "update")
        )
        if node.type == "for_statement":
            out.add("for (")
            out.add(self._statement(initializer) if initializer is not None else ";")
            out.add(" ")
            if condition is not None:
                out.add(self._of(condition))
            out.add("; ")
            if update is not None:
                out.add(self._of(update))
            out.add(") ")
        elif node.type == "while_statement":
            out.add("while ")
            out.add(self._of(condition))
            out.add(" ")
        else:
            out.add("do ")
        out.add("{\n")
        depth = len(self._masks)
        self._targets.append(("group", depth, depth))
        body = node.child_by_field_name("body")
        self._block(statements_of(body), out)
        self._targets.pop()
        if self._masks and any(n.type == "return_statement" for n in walk(body)):
            out.add(f"if (!{self._mask}.any()) break;\n")
        out.add("}\n")
        if node.type == "do_statement":
            out.add("while ")
            out.add(self._of(condition))
            out.add(";\n")

    def _strided_loop(self, node, out: Mapped) -> None:
        initializer = node.child_by_field_name("initializer")
        body = node.child_by_field_name("body")
        variable = self.body.declared_by(initializer)[0]
        type_text = self.edits.apply(
            initializer.child_by_field_name("type").start_byte,
            variable.declarator.start_byte,
            without="fibers",
        )[0].strip()
        bound = node.child_by_field_name("condition").child_by_field_name("right")
        step = self._step(node.child_by_field_name("update"), variable)
        start = Mapped("return ")
        if type_text != "auto":
            start.add(f"static_cast<{type_text}>(")
        start.add(self._of(variable.value))
        start.add(";" if type_text == "auto" else ");")
        independent = self._independent([body])
        out.add(f"{_S}::stride<{independent}>(msl_g, {self._mask}, ")
        self._lambda([variable.value], self.body.used_in(variable.value), [], out)
        out.add(start)
        out.add(" }, ")
        out.add(self._of(bound))
        out.add(f", {step}, ")
        used = {
            v
            for v in self.body.used_in(body)
            if not (node.start_byte <= v.identifier.start_byte < node.end_byte)
        }
        self._lambda([body], used, [], out, f", const auto {variable.name}")
        out.add(self._statement(body))
        out.add(" });\n")

    def _parting_loop(self, node, out: Mapped) -> None:
        """A loop that threads leave one by one."""
        initializer, update = (node.child_by_field_name(f) for f in ("initializer", "update"))
        body = node.child_by_field_name("body")
        condition = condition_of(node)
        if condition is not None and condition.type == "parenthesized_expression":
            condition = condition.named_children[0]
        out.add("{ ")
        if initializer is not None:
            self._block([initializer], out)
        loop = self._new("loop")
        out.add(f"{_S}::Mask {loop}(msl_g, {self._mask}); for (;;) {{\n")
        self._masks.append(loop)

        def check() -> None:
            if condition is None:
                return
            out.add("{ ")
            replaced = self._lower(condition, out)
            rest = self._new("no")
            out.add(f"{_S}::Mask {rest}(msl_g); ")
            self._part_into(condition, replaced, loop, rest, out)
            out.add("} ")
            out.add(f"if (!{loop}.any()) break;\n")

        if node.type != "do_statement":
            check()
        iteration = self._new("turn")
        out.add(f"{{ {_S}::Mask {iteration}(msl_g, {loop});\n")
        self._targets.append(("parting", len(self._masks) - 1, len(self._masks)))
        self._masks.append(iteration)
        self._block(statements_of(body), out)
        self._masks.pop()
        self._targets.pop()
        out.add("}\n")
        if self.body.leaves_at_all(body):
            out.add(f"if (!{loop}.any()) break;\n")
        if update is not None:
            self._update(update, out)
        if node.type == "do_statement":
            check()
        self._masks.pop()
        out.add("} }\n")

    def _update(self, node, out: Mapped) -> None:
        if node.type == "comma_expression":
            for child in node.named_children:
                self._update(child, out)
        elif self._is_group_definition(node):
            out.add(self._of(node))
            out.add(";\n")
        else:
            replaced = self._lower(node, out)
            body = self._of(node, replaced)
            body.add(";")
            self._each([node], self.body.used_in(node), [t for _, _, t in replaced], body, out)

    def _switch(self, node, out: Mapped) -> None:
        cases = [c for c in node.child_by_field_name("body").named_children if c.type != "comment"]
        if any(c.type != "case_statement" for c in cases):
            raise NotCut("a switch with statements before its first case")
        clause = node.child_by_field_name("condition")
        if not self.body.parts(clause) and not self.body.parts(node):
            out.add("switch ")
            out.add(self._of(clause))
            out.add(" {\n")
            self._targets.append(("group", len(self._masks), -1))
            for case in cases:
                value = case.child_by_field_name("value")
                out.add("default: {\n" if value is None else "case ")
                if value is not None:
                    out.add(self._of(value))
                    out.add(": {\n")
                self._block(case_statements(case), out)
                out.add("}\n")
            self._targets.pop()
            out.add("}\n")
            return
        condition = condition_of(node)
        replaced = self._lower(condition, out)
        out.add("{ ")
        value = self._value(condition, replaced, out)
        active, rest = self._new("active"), self._new("rest")
        out.add(
            f"{_S}::Mask {active}(msl_g, {self._mask}), {rest}(msl_g, {self._mask}); {active}.clear();\n"
        )
        labels = [c.child_by_field_name("value") for c in cases]
        for label in labels:
            if label is not None:
                out.add(f"{_S}::remove_where(msl_g, {rest}, {_S}::at({value}), ")
                out.add(self._of(label))
                out.add(");\n")
        self._targets.append(("parting", len(self._masks), -1))
        self._masks.append(active)
        for case, label in zip(cases, labels, strict=True):
            if label is None:
                out.add(f"{active}.add({rest});\n")
            else:
                around = self._masks[-2] if len(self._masks) > 1 else "msl_mask"
                out.add(f"{_S}::add_where(msl_g, {around}, {active}, {_S}::at({value}), ")
                out.add(self._of(label))
                out.add(");\n")
            out.add(f"if ({active}.any()) {{\n")
            self._block(case_statements(case), out)
            out.add("}\n")
        self._masks.pop()
        self._targets.pop()
        out.add("}\n")

    # ---- what leaves -----------------------------------------------------------------------------

    def _leave(self, outermost: int, out: Mapped) -> None:
        """The present threads leave the masks from one on."""
        mask = self._masks[-1]
        for other in self._masks[outermost:-1]:
            out.add(f"{other}.remove({mask}); ")
        out.add(f"{mask}.clear();\n")

    def _return(self, node, out: Mapped) -> None:
        values = [c for c in node.named_children if c.type != "comment"]
        if values and self.result is Kind.THREAD:
            replaced = self._lower(values[0], out)
            is_list = values[0].type == "initializer_list"
            result = f"{_S}::decayed_t<decltype(msl_result[0])>"
            body = Mapped(f"msl_result[msl_t.index] = {result}")
            body.add("" if is_list else "(")
            body.add(self._of(values[0], replaced))
            body.add(";" if is_list else ");")
            self._each(
                [values[0]], self.body.used_in(values[0]), [t for _, _, t in replaced], body, out
            )
        elif values:
            self._lower(values[0], out)
        if len(self._masks) <= 1:  # all that are left
            out.add("return msl_result;\n" if self.result is Kind.THREAD else "return;\n")
            return
        self._leave(0, out)

    def _leave_loop(self, kind: str, out: Mapped) -> None:
        is_continue = kind == "continue_statement"
        targets = [t for t in self._targets if not is_continue or t[2] >= 0]
        what, loop, turn = targets[-1]
        if what == "group":
            if len(self._masks) != loop:
                raise NotCut("threads part before they leave a loop")
            out.add("continue;\n" if is_continue else "break;\n")
        else:
            self._leave(turn if is_continue else loop, out)
