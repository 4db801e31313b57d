"""Address space rules: where a pointer, a reference or a variable needs an address space, and conversions between
address spaces.

Functions are followed in the order of their statements, with the types of local variables; templates are checked as
they are written, not instance by instance.
"""

from __future__ import annotations

import re

from ..analysis.program import declared_identifier, function_declarator, has_zeros, last_name
from ..analysis.scopes import Declaration
from ..analysis.spaces import is_static, qualifier
from ..analysis.types import FUNCTION, NAMELESS, Type, Types
from ..source.tree import inner_first, may_be_deep
from ..source.vocabulary import LIBRARY_WITH_SPACES
from .checked import Checked, ancestor
from .constants import Constants
from .rules import rule

MISSING = rule("missing-address-space", "4", "A pointer or reference names its address space.")
CONVERSION = rule(
    "address-space-conversion", "4", "An address space is never converted into another."
)
CONSTANT_WRITE = rule("write-to-constant", "4.2", "The constant address space is read only.")
THREADGROUP_VARIABLE = rule(
    "threadgroup-variable",
    "4.4",
    "A threadgroup variable is declared in the body of a kernel, and not initialised but with zeros.",
)
# Apple's compiler accepts them (MLX's layer_norm.metal has one), and Metal leaves the memory as it was (WebKit writes
# zeros besides).
THREADGROUP_ZEROS = rule(
    "threadgroup-zeros",
    "4.4",
    "Zeros that initialise a threadgroup variable need not be written.",
    is_suspicion=True,
)
PROGRAM_SCOPE = rule(
    "program-scope", "4.2", "A variable at program scope is constant and has an initialiser."
)
LOCAL_SPACE = rule(
    "local-address-space", "4", "A variable in a function is in thread or threadgroup memory."
)

MISALIGNED = rule(
    "misaligned-vector",
    "2.2",
    "A pointer to vectors points to a multiple of their size; packed vectors need that of an element.",
    is_suspicion=True,
)

_VECTOR = re.compile(r"(?:metal::)?(?:u?(?:char|short|int|long)|bool|half|bfloat|float)[234]$")
_CASTS = {"static_cast", "reinterpret_cast", "const_cast"}
_TYPE_BEHIND = re.compile(r"\s*(?:(?:const|volatile)\s+)*(\w+)\s*(?:const\s*)?[*&]")
_ARTICLES = "device, constant, threadgroup or thread"
# Expressions whose type is found from those of their operands.
_OF_OPERANDS = {
    "assignment_expression",
    "binary_expression",
    "conditional_expression",
    "field_expression",
    "parenthesized_expression",
    "pointer_expression",
    "subscript_expression",
    "update_expression",
}


def check(checked: Checked) -> None:
    """Reports violations of the rules of this group."""
    types = Types(checked.source, checked.program)
    declarations = _Declarations(checked, types)
    declarations.run()
    functions: dict[str, list] = {}
    for function in checked.program.functions:
        functions.setdefault(function.name, []).append(function)
    for function in checked.program.functions:
        if function.body is not None and checked.wants(function.body.start_byte):
            _Body(checked, types, functions, declarations.globals, function).run()


class _Declarations:
    """Rules about single declarations, in any scope."""

    def __init__(self, checked: Checked, types: Types):
        self.checked = checked
        self.source = checked.source
        self.types = types
        self.globals: dict[str, Type | None] = {}
        self.kernels = {_definition(f).start_byte for f in checked.program.functions if f.stage}
        self.spaced: dict[int, set[str]] = {}  # names with an address space, by function or class

    def run(self) -> None:
        self._instantiations()
        for function in self.checked.program.functions:
            self._function(function)
        for node, _, head in self.checked.program.declarations:
            self._program_scope(node, head)
        for node in self.source.find("[(declaration) (field_declaration) (for_range_loop)] @d"):
            if self.checked.wants(node.start_byte):
                self._levels(node)
        for node in self.source.find("(field_declaration) @f"):
            self._field(node)
        self._threadgroup_variables()

    def _function(self, function) -> None:
        if not self.checked.wants(function.node.start_byte) or function.stage not in (
            None,
            "kernel",
        ):
            return
        for node, _, declared in self.types.parameters(function.declarator):
            self._report_missing(declared, node, "parameter")
            self._parameter(node, declared.type)
        start = max(self.source.previous_code(function.node.start_byte) + 1, function.head)
        if function.template_headers:
            start = function.template_headers[-1].end_byte
        outer = _definition(function)
        declarator = outer.child_by_field_name("declarator")
        type_node = outer.child_by_field_name("type")
        if type_node is None or declarator is None or declarator.type == "function_declarator":
            return
        self._report_missing(
            self.types.declared(start, type_node, declarator, function.declarator.start_byte),
            declarator,
            "result",
        )

    def _parameter(self, node, type_: Type) -> None:
        identifier = declared_identifier(node.child_by_field_name("declarator"))
        name = self.checked.text(identifier) if identifier is not None else "without a name"
        if type_.kind == "value" and type_.space in ("device", "constant", "threadgroup"):
            self.checked.report(
                LOCAL_SPACE,
                node,
                f"the parameter {name} is a value and cannot be in {type_.space} memory; "
                f"leave {type_.space} out, or write {type_.written()}&",
            )

    def _levels(self, node) -> None:
        type_node = node.child_by_field_name("type")
        start = self.source.previous_code(node.start_byte) + 1
        for declarator in node.children_by_field_name("declarator"):
            if function_declarator(declarator) is not None:
                continue
            what = "member" if node.type == "field_declaration" else "variable"
            self._report_missing(
                self.types.declared(start, type_node, declarator, node.end_byte), declarator, what
            )

    def _report_missing(self, declared, place, what: str) -> None:
        for node, level in declared.levels:
            target = level.target
            if target.space is not None or target.name == FUNCTION.name:
                continue
            if target.is_open and not self._is_plain(node, target.name):
                continue
            while target.kind == "array":
                target = target.target
            if target.kind == "pointer":
                continue  # a pointer without a space is itself in thread memory
            identifier = declared_identifier(place.child_by_field_name("declarator") or place)
            name = self.checked.text(identifier) if identifier is not None else ""
            subject = f"{what} {name}".strip()
            instead = f"thread {target.written()}{'*' if level.kind == 'pointer' else '&'}"
            self.checked.report(
                MISSING,
                place,
                f"the {level.kind} type of the {subject} has no address space; write {_ARTICLES} "
                "before it, "
                f"such as {instead}",
            )
            return

    def _is_plain(self, node, name: str) -> bool:
        """Returns true if a template parameter stands for a type without an address space: in a kernel, and where
        `device T*` or the like is written in the same function or class. Elsewhere T may stand for `device float`."""
        if not self.types.is_template_parameter(name):
            return False
        outer = function = None
        while node is not None:
            if node.type in ("function_definition", "struct_specifier", "class_specifier"):
                outer = node
                function = function or node
            node = node.parent
        if outer is None:
            return False
        if function.start_byte in self.kernels:
            return True
        if outer.start_byte not in self.spaced:
            words = self.source.words_in(outer.start_byte, outer.end_byte)
            matches = (
                _TYPE_BEHIND.match(self.source.masked, w.end) for w in words if w.text != "thread"
            )
            self.spaced[outer.start_byte] = {m[1] for m in matches if m}
        return name in self.spaced[outer.start_byte]

    def _instantiations(self) -> None:
        """Checks explicit instantiations, which repeat the parameters of their template."""
        for node, _, _ in self.checked.program.instantiations:
            called = function_declarator(node.child_by_field_name("declarator"))
            if called is None or not self.checked.wants(node.start_byte):
                continue
            for parameter, _, declared in self.types.parameters(called):
                self._report_missing(declared, parameter, "parameter")

    # ---- variables -------------------------------------------------------------------------------

    def _variables(self, node, start: int):
        type_node = node.child_by_field_name("type")
        for declarator in node.children_by_field_name("declarator"):
            if function_declarator(declarator) is not None:
                continue
            identifier = declared_identifier(declarator)
            if identifier is not None:
                yield (
                    identifier,
                    declarator,
                    self.types.declared(start, type_node, declarator, node.end_byte).type,
                )

    def _program_scope(self, node, head: int) -> None:
        start = max(head, self.source.previous_code(node.start_byte) + 1)
        parent = node.parent
        if parent is not None and parent.type == "template_declaration":
            start = min(start, parent.child_by_field_name("parameters").end_byte)
        for identifier, declarator, type_ in self._variables(node, start):
            name = self.checked.text(identifier)
            if not name or ancestor(identifier, "qualified_identifier") is not None:
                continue
            self.globals[name] = None if name in self.globals else type_
            if type_.kind == "reference" or type_.name in (
                "sampler",
                "metal::sampler",
                "os_log",
                "metal::os_log",
            ):
                continue
            if type_.name.split("<")[0].strip() in (
                "visible_function_table",
                "texture2d",
                FUNCTION.name,
            ):
                continue
            if type_.space == "threadgroup":
                continue
            attributes = self.source.attributes_in(start, node.end_byte)
            if any(
                a.name in ("function_constant", "buffer", "texture", "sampler") for a in attributes
            ):
                continue
            words = self.source.masked[start : node.end_byte].split("=")[0].split()
            if type_.space != "constant":
                self.checked.report(
                    PROGRAM_SCOPE,
                    identifier,
                    f"the variable {name} at program scope is not in the constant address space; "
                    f"write constant before its type",
                )
            elif "extern" not in words and _initialised(declarator) is None:
                self.checked.report(
                    PROGRAM_SCOPE,
                    identifier,
                    f"the constant {name} has no initialiser; give it a value, or make it a "
                    "[[function_constant(n)]]",
                )

    def _field(self, node) -> None:
        """Checks data members, which are never in threadgroup memory by themselves."""
        start = self.source.previous_code(node.start_byte) + 1
        for identifier, _, type_ in self._variables(node, start):
            if type_.kind in ("value", "array") and type_.space == "threadgroup":
                self.checked.report(
                    THREADGROUP_VARIABLE,
                    identifier,
                    f"the member {self.checked.text(identifier)} cannot be declared threadgroup; "
                    "declare a threadgroup variable of this class in the kernel",
                )

    def _threadgroup_variables(self) -> None:
        kernels = {
            f.body.start_byte
            for f in self.checked.program.functions
            if f.stage and f.body is not None
        }
        for node in self.source.find("(declaration) @d"):
            start = self.source.previous_code(node.start_byte) + 1
            if not self.checked.wants(node.start_byte):
                continue
            body = node.parent
            while body is not None and body.start_byte not in kernels | {-1}:
                body = body.parent
            for identifier, declarator, type_ in self._variables(node, start):
                if type_.kind not in ("value", "array") or type_.space != "threadgroup":
                    continue
                name = self.checked.text(identifier)
                if body is None or body.type not in ("compound_statement",):
                    self.checked.report(
                        THREADGROUP_VARIABLE,
                        identifier,
                        f"the threadgroup variable {name} is not in the body of a kernel; declare "
                        "it there and pass "
                        "a threadgroup pointer on",
                    )
                elif (initialised := _initialised(declarator)) is not None:
                    if has_zeros(self.source, initialised):
                        found = (
                            THREADGROUP_ZEROS,
                            f"the zeros of the threadgroup variable {name} need not be written",
                        )
                    else:
                        found = (
                            THREADGROUP_VARIABLE,
                            f"the threadgroup variable {name} cannot have an initialiser, which no "
                            "thread would run",
                        )
                    self.checked.report(
                        found[0],
                        identifier,
                        f"{found[1]}; let one thread write it, then call threadgroup_barrier",
                    )


def _definition(function):
    """Returns the node of a function without its template headers."""
    node = function.node
    while node.type == "template_declaration":
        node = node.named_children[-1]
    return node


def _initialised(declarator):
    """Returns the node whose value initialises a variable, or None."""
    if declarator.type == "init_declarator":
        return declarator
    parent = declarator.parent
    has_value = parent is not None and parent.child_by_field_name("value") is not None
    return parent if has_value else None


class _Body:
    """Follows one function body."""

    def __init__(self, checked: Checked, types: Types, functions, globals_, function):
        self.checked = checked
        self.source = checked.source
        self.types = types
        self.functions = functions
        self.function = function
        self.globals: dict[str, Type | None] = globals_
        self.scopes = checked.calls.scopes_around(function.body)
        self.declared = {d.identifier.start_byte: d for d in self.scopes.declarations}
        self.variables: dict[Declaration, Type | None] = {}
        self.known: dict[int, Type | None] = {}
        self.returns: list[Type | None] = [types.result(function)]
        self.class_name = self._class_name()

    def _class_name(self) -> str | None:
        """Returns the class that the function is a member of, or None."""
        if self.function.in_class:
            return self.function.path[-1].removeprefix("class ")
        name = self.function.declarator.child_by_field_name("declarator")
        if name is None or name.type != "qualified_identifier":
            return None
        scope = name.child_by_field_name("scope")
        return self.source.masked_text(scope) if scope is not None else None

    def run(self) -> None:
        for node, _, declared in self.types.parameters(self.function.declarator):
            self._declare(
                declared_identifier(node.child_by_field_name("declarator")), declared.type
            )
        self._visit(self.function.body)

    # ---- scopes ----------------------------------------------------------------------------------

    def _declare(self, identifier, type_: Type | None) -> None:
        if identifier is not None and identifier.start_byte in self.declared:
            self.variables[self.declared[identifier.start_byte]] = self._as_local(type_)

    @staticmethod
    def _as_local(type_: Type | None) -> Type | None:
        """Returns the type of a local variable, which lies in thread memory unless its declaration says otherwise."""
        if type_ is None or type_.kind == "reference" or type_.space is not None:
            return type_
        return _array_in(type_, "thread")

    def _lookup(self, node) -> Type | None:
        declaration = self.scopes.declaration_of(node)
        if declaration is not None:
            return self.variables.get(declaration)
        name = self.source.masked_text(node)
        if self.class_name is not None:
            field = self.types.field(self.class_name, name)
            if field is not None:
                return field
        return self.globals.get(name)

    # ---- statements ------------------------------------------------------------------------------

    def _visit(self, node) -> None:
        """Visits a tree of any depth: `_visit_X` takes nodes of kind X in place of what is below them, `_leave_X` after
        it."""
        waiting = [(node, None)]
        while waiting:
            node, leave = waiting.pop()
            if leave is not None:
                leave(node)
                continue
            visit = getattr(self, f"_visit_{node.type}", None)
            if visit is not None:
                visit(node)
                continue
            leave = getattr(self, f"_leave_{node.type}", None)
            if leave is not None:
                waiting.append((node, leave))
            waiting += [(c, None) for c in reversed(node.named_children) if c.type != "ERROR"]

    def _visit_struct_specifier(self, node) -> None:
        pass  # members of local classes are visited as functions

    _visit_class_specifier = _visit_union_specifier = _visit_struct_specifier

    def _visit_lambda_expression(self, node) -> None:
        self.returns.append(None)
        declarator = node.child_by_field_name("declarator")
        if declarator is not None and declarator.child_by_field_name("parameters") is not None:
            for parameter, _, declared in self.types.parameters(declarator):
                self._declare(
                    declared_identifier(parameter.child_by_field_name("declarator")), declared.type
                )
        self._visit(node.child_by_field_name("body"))
        self.returns.pop()

    def _visit_for_range_loop(self, node) -> None:
        start = self.source.previous_code(node.child_by_field_name("type").start_byte) + 1
        declarator = node.child_by_field_name("declarator")
        declared = self.types.declared(
            start, node.child_by_field_name("type"), declarator, declarator.end_byte
        )
        self._visit(node.child_by_field_name("right"))
        self._declare(
            declared_identifier(declarator), None if declared.type.is_open else declared.type
        )
        self._visit(node.child_by_field_name("body"))

    def _visit_declaration(self, node) -> None:
        type_node = node.child_by_field_name("type")
        start = self.source.previous_code(node.start_byte) + 1
        for declarator in node.children_by_field_name("declarator"):
            value = (
                declarator.child_by_field_name("value")
                if declarator.type == "init_declarator"
                else None
            )
            if value is None and node.child_by_field_name("value") is not None:
                value = node.child_by_field_name("value")
            inner = (
                declarator.child_by_field_name("declarator")
                if declarator.type == "init_declarator"
                else declarator
            )
            if inner.type == "structured_binding_declarator":
                for name in inner.named_children:
                    self._declare(name, None)
            if function_declarator(inner) is not None:
                self._declare(
                    declared_identifier(inner), None
                )  # `Class object(argument);` parses as a function
                continue
            declared = self.types.declared(start, type_node, inner, node.end_byte).type
            if value is not None:
                self._visit(value)
                declared = self._initialise(declared, value, inner)
            self._check_local(declared, inner)
            self._declare(declared_identifier(inner), declared)

    def _check_local(self, type_: Type | None, declarator) -> None:
        if (
            type_ is None
            or type_.kind not in ("value", "array")
            or type_.space not in ("device", "constant")
        ):
            return
        identifier = declared_identifier(declarator)
        if identifier is not None:
            name = self.checked.text(identifier)
            self.checked.report(
                LOCAL_SPACE,
                identifier,
                f"the variable {name} in a function cannot be in {type_.space} memory; leave "
                f"{type_.space} out"
                + (", or move it to program scope" if type_.space == "constant" else ""),
            )

    def _initialise(self, declared: Type, value, declarator) -> Type | None:
        """Checks an initialiser; returns the variable's type, deduced for auto."""
        if value.type in ("initializer_list", "argument_list"):
            items = [c for c in value.named_children if c.type != "comment"]
            if declared.kind not in ("pointer", "reference") or len(items) != 1:
                return None if _is_auto(declared) else declared
            value = items[0]
        actual = self._type(value)
        if declared.kind == "value" and declared.name in ("auto", "auto ", "decltype(auto)"):
            return self._decayed(actual)
        if declared.kind == "pointer" and _is_auto(declared.target):
            decayed = self._decayed(actual)
            if declared.target.space is None:
                return decayed
        if (
            declared.kind == "reference"
            and _is_auto(declared.target)
            and declared.target.space is None
        ):
            return actual
        name = (
            self.checked.text(declared_identifier(declarator))
            if declared_identifier(declarator)
            else ""
        )
        self._flow(actual, declared, value, f"{name} is a {declared.written()}")
        return declared

    def _leave_assignment_expression(self, node) -> None:
        left = self._type(node.child_by_field_name("left"))
        right = node.child_by_field_name("right")
        self._check_write(left, node)
        if (
            left is not None
            and left.kind == "pointer"
            and self.source.node_text(node.child_by_field_name("operator")) == "="
        ):
            name = self.checked.text(node.child_by_field_name("left"))
            self._flow(self._type(right), left, right, f"{name} is a {left.written()}")

    def _leave_update_expression(self, node) -> None:
        self._check_write(self._type(node.child_by_field_name("argument")), node)

    def _check_write(self, target: Type | None, node) -> None:
        if target is not None and target.kind != "reference" and target.space == "constant":
            written = node.child_by_field_name("left") or node.child_by_field_name("argument")
            self.checked.report(
                CONSTANT_WRITE,
                node,
                f"{self.checked.text(written)} is in the constant address space, which is read "
                "only; "
                "pass the buffer as device, or write to a copy",
            )

    def _leave_return_statement(self, node) -> None:
        wanted = self.returns[-1]
        values = [c for c in node.named_children if c.type != "comment"]
        if wanted is not None and values and wanted.kind in ("pointer", "reference"):
            self._flow(
                self._type(values[0]),
                wanted,
                values[0],
                f"{self.function.name} returns a {wanted.written()}",
            )

    # ---- conversions -----------------------------------------------------------------------------

    def _flow(self, actual: Type | None, wanted: Type, place, what: str) -> None:
        spaces = _mismatch(actual, wanted)
        if spaces is not None:
            have = spaces[0]
            self.checked.report(
                CONVERSION,
                place,
                f"{self.checked.text(place)} is in {have} memory, but {what}; no cast leads from "
                "one address space to "
                f"another: declare it {have}, or copy the data",
            )

    def _leave_cast_expression(self, node) -> None:
        self._cast(node.child_by_field_name("type"), node.child_by_field_name("value"), node)

    def _cast(self, described, value, place) -> None:
        if described is None or value is None or described.type != "type_descriptor":
            return
        wanted = self.types.described(described).type
        actual = self._type(value)
        target = wanted.target
        if (
            wanted.kind == "pointer"
            and target.kind == "value"
            and target.space is None
            and not target.is_open
        ):
            wanted = Type(
                "pointer", None, target.in_space("thread")
            )  # a pointer type without an address space
        spaces = _mismatch(actual, wanted, is_cast=True)
        if spaces is not None:
            self.checked.report(
                CONVERSION,
                place,
                f"{self.checked.text(value)} is in {spaces[0]} memory and cannot be cast to "
                f"{wanted.written()}; "
                "an address space is never converted: keep it, or copy the data",
            )
        if wanted.kind == "pointer" and _VECTOR.match(target.name):
            self._vectors(value, target.name, place)

    def _vectors(self, value, vector: str, place) -> None:
        """Reports a cast to a pointer to vectors at `p + n` or `&p[n]`, if p points to elements and n is a number that
        does not go to the beginning of a vector: p itself is taken to be aligned."""
        while value.type == "parenthesized_expression" and value.named_child_count == 1:
            value = value.named_children[0]
        if value.type == "binary_expression" and self.checked.text(value.children[1]) == "+":
            pointer, offset = (value.child_by_field_name(side) for side in ("left", "right"))
        elif value.type == "pointer_expression" and value.children[0].type == "&":
            element = value.child_by_field_name("argument")
            if element.type != "subscript_expression":
                return
            pointer = element.child_by_field_name("argument")
            indices = element.child_by_field_name("indices").named_children
            offset = indices[0] if len(indices) == 1 else None
        else:
            return
        type_ = self._type(pointer)
        if offset is None or offset.type != "number_literal" or type_ is None:
            return
        if type_.kind not in ("pointer", "array") or type_.target.kind != "value":
            return
        constants = Constants(self.checked, self.types)
        size, needed = constants.size_of(type_.target.name), constants.size_of(vector)
        number = constants.value(self.checked.text(offset))
        if None not in (size, needed, number) and number * size % needed:
            self.checked.report(
                MISALIGNED,
                place,
                f"{self.checked.text(value)} is {number * size} bytes behind {self.checked.text(pointer)}, and a {vector} "
                f"is at a multiple of {needed} bytes; cast to packed_{vector.removeprefix('metal::')}, or move the data",
            )

    def _leave_call_expression(self, node) -> None:
        called = node.child_by_field_name("function")
        arguments = (
            [c for c in node.child_by_field_name("arguments").named_children if c.type != "comment"]
            if node.child_by_field_name("arguments").type == "argument_list"
            else []
        )
        if (
            called.type == "template_function"
            and self.source.masked_text(called.child_by_field_name("name")) in _CASTS
        ):
            template = called.child_by_field_name("arguments").named_children
            if len(template) == 1 and len(arguments) == 1:
                self._cast(template[0], arguments[0], node)
            return
        self._check_call(node, called, arguments)

    def _check_call(self, node, called, arguments) -> None:
        candidates = self._candidates(called)
        if not candidates:
            return
        if called.type == "field_expression" and not self._takes_object(called, candidates):
            return
        problems = []
        for candidate in candidates:
            problem = self._problem(candidate, arguments)
            if problem is None:
                return
            problems.append(problem)
        if len(problems) > 1 and self.function.template_headers and self.function.stage is None:
            return  # may never be instantiated with these arguments
        problems = [p for p in problems if p is not _ARITY]
        if not problems:
            return
        argument, have, wanted, name = problems[0]
        if len(problems) > 1:
            name = last_name(self.source, called) or self.checked.text(called)
            what = f"no overload of {name} takes it"
        else:
            what = f"{self.checked.text(called)} takes {name} as {wanted.written()}"
        self.checked.report(
            CONVERSION,
            argument,
            f"{self.checked.text(argument)} is in {have} memory, but {what}; write an overload for "
            f"{have}, "
            "or copy the data",
        )

    def _candidates(self, called) -> list:
        """Returns the functions of the program that a call may mean; none if it may mean another one, too."""
        if called.type == "identifier":
            name = self.source.masked_text(called)
            if self.scopes.declaration_of(called) is not None:
                return []
            is_known = name not in self.types.classes and name not in LIBRARY_WITH_SPACES
            return self._free(name) if is_known else []
        if called.type == "template_function":
            return self._free(self.source.masked_text(called.child_by_field_name("name")))
        if called.type == "qualified_identifier":
            text = self.source.masked_text(called)
            if text.startswith("metal::") and "::" not in text[7:]:
                return []
            return self._free(last_name(self.source, called))
        if called.type == "field_expression":
            return self._methods(called)
        return []

    def _free(self, name: str) -> list:
        found = self.functions.get(name, [])
        return [] if name in self.types.classes or name in self.types.aliases else found

    def _methods(self, called) -> list:
        field = called.child_by_field_name("field")
        if field is None or field.type not in ("field_identifier", "template_method"):
            return []
        owner = self._type(called.child_by_field_name("argument"))
        if owner is not None and owner.kind == "pointer":
            owner = owner.target
        if owner is not None and owner.kind == "reference":
            owner = owner.target
        if owner is None or owner.kind != "value" or owner.is_open:
            return []
        bare = owner.name.split("<")[0].strip()
        scopes = self.types.classes.get(bare, [])
        if len(scopes) != 1 or any(
            c.type == "base_class_clause" for c in scopes[0].specifier.children
        ):
            return []
        name = self.source.masked_text(
            field if field.type == "field_identifier" else field.child_by_field_name("name")
        )
        return [
            f
            for f in self.functions.get(name, [])
            if f.in_class and f.path[-1] == f"class {scopes[0].name}"
        ]

    def _takes_object(self, called, candidates) -> bool:
        """Returns true if a method may take its object; reports it otherwise."""
        owner = self._type(called.child_by_field_name("argument"))
        if owner.kind in ("pointer", "reference"):
            owner = owner.target
        spaces = {
            "any" if is_static(self.source, f) else qualifier(self.source, f) or "thread"
            for f in candidates
        }
        if owner.space is None or spaces & {"any", owner.space}:
            return True
        name = self.checked.text(called.child_by_field_name("field"))
        self.checked.report(
            CONVERSION,
            called,
            f"{self.checked.text(called.child_by_field_name('argument'))} is in {owner.space} memory, and {name} takes "
            f"objects in {' or '.join(sorted(spaces))} memory; write an overload with {owner.space} after its "
            "parameters, or copy the object",
        )
        return False

    def _problem(self, function, arguments):
        """Returns None if a call may mean this function, else why not: _ARITY or (argument, its space, parameter type,
        parameter name)."""
        parameters = self.types.parameters(function.declarator)
        if any(p[0].type == "variadic_parameter_declaration" for p in parameters):
            return None
        if any(
            c.type in ("variadic_parameter", "...")
            for c in function.declarator.child_by_field_name("parameters").children
        ):
            return None
        required = sum(1 for p in parameters if p[0].type == "parameter_declaration")
        if (
            len(parameters) == 1
            and parameters[0][2].type.name == "void"
            and parameters[0][2].type.kind == "value"
        ):
            required, parameters = 0, []
        if not required <= len(arguments) <= len(parameters):
            return _ARITY
        for argument, (node, _, declared) in zip(arguments, parameters, strict=False):
            spaces = _mismatch(self._type(argument), declared.type)
            if spaces is not None:
                identifier = declared_identifier(node.child_by_field_name("declarator"))
                name = self.checked.text(identifier) if identifier is not None else "it"
                return argument, spaces[0], declared.type, name
        return None

    # ---- types of expressions --------------------------------------------------------------------

    def _type(self, node) -> Type | None:
        """Returns the type of an expression; its space is that of the object (lvalue), None for a value."""
        if node is None:
            return None
        if node.id not in self.known:
            nodes = inner_first(node, _OF_OPERANDS) if may_be_deep(node) else [node]
            for inner in nodes:
                if inner.id not in self.known:
                    handler = getattr(self, f"_type_{inner.type}", None)
                    self.known[inner.id] = handler(inner) if handler is not None else None
        return self.known[node.id]

    @staticmethod
    def _decayed(type_: Type | None) -> Type | None:
        """Returns the type that `auto` deduces: by value, arrays as pointers."""
        if type_ is None:
            return None
        if type_.kind == "reference":
            type_ = type_.target
        if type_.kind == "array":
            return Type("pointer", None, type_.target)
        return type_.in_space(None)

    def _type_identifier(self, node) -> Type | None:
        found = self._lookup(node)
        return found.target if found is not None and found.kind == "reference" else found

    def _type_parenthesized_expression(self, node) -> Type | None:
        named = [c for c in node.named_children if c.type != "comment"]
        return self._type(named[0]) if len(named) == 1 else None

    def _type_pointer_expression(self, node) -> Type | None:
        inner = self._type(node.child_by_field_name("argument"))
        if inner is None:
            return None
        if self.source.node_text(node.child_by_field_name("operator")) == "&":
            return Type("pointer", None, inner)
        if inner.kind == "pointer":
            return inner.target
        return inner.target if inner.kind == "array" else None

    def _type_subscript_expression(self, node) -> Type | None:
        base = self._type(node.child_by_field_name("argument"))
        if base is None:
            return None
        if base.kind == "pointer":
            return base.target
        if base.kind == "array":
            return base.target
        if (
            base.kind == "value"
            and not base.is_open
            and base.name.split("<")[0] not in self.types.classes
        ):
            return Type("value", base.space, None, "an element", False)
        return None

    def _type_field_expression(self, node) -> Type | None:
        owner = self._type(node.child_by_field_name("argument"))
        field = node.child_by_field_name("field")
        if owner is None or field is None or field.type != "field_identifier":
            return None
        if self.source.node_text(node.child_by_field_name("operator")) == "->":
            if owner.kind != "pointer":
                return None
            owner = owner.target
        if owner.kind != "value":
            return None
        member = self.source.masked_text(field)
        is_nameless = owner.name == NAMELESS
        found = (
            self.types.field_of_nameless(member)
            if is_nameless
            else self.types.field(owner.name, member)
        )
        if found is not None:
            if found.kind == "reference":
                return found.target
            if found.space is not None:
                return found
            return _array_in(found, owner.space)
        if is_nameless or owner.is_open or owner.name.split("<")[0].strip() in self.types.classes:
            return None
        return Type("value", owner.space, None, "a component", False)

    def _type_binary_expression(self, node) -> Type | None:
        operator = self.source.node_text(node.child_by_field_name("operator"))
        if operator not in ("+", "-"):
            return None
        left = self._decayed(self._type(node.child_by_field_name("left")))
        right = self._decayed(self._type(node.child_by_field_name("right")))
        pointers = [t for t in (left, right) if t is not None and t.kind == "pointer"]
        return pointers[0] if len(pointers) == 1 else None

    def _type_conditional_expression(self, node) -> Type | None:
        one = self._type(node.child_by_field_name("consequence"))
        other = self._type(node.child_by_field_name("alternative"))
        one, other = self._decayed(one), self._decayed(other)
        if one is not None and other is not None and one.kind == other.kind == "pointer":
            return one if one.target.space == other.target.space else None
        return None

    def _type_cast_expression(self, node) -> Type | None:
        return self._cast_type(node.child_by_field_name("type"))

    def _cast_type(self, described) -> Type | None:
        if described is None or described.type != "type_descriptor":
            return None
        found = self.types.described(described).type
        if found.kind == "reference":
            return found.target
        return None if found.is_open else found

    def _type_call_expression(self, node) -> Type | None:
        called = node.child_by_field_name("function")
        if called.type == "template_function":
            name = self.source.masked_text(called.child_by_field_name("name"))
            template = called.child_by_field_name("arguments").named_children
            if name in _CASTS:
                return self._cast_type(template[0]) if len(template) == 1 else None
        return None

    def _type_assignment_expression(self, node) -> Type | None:
        return self._type(node.child_by_field_name("left"))

    def _type_update_expression(self, node) -> Type | None:
        return self._type(node.child_by_field_name("argument"))


_ARITY = object()


def _is_auto(type_: Type) -> bool:
    return type_.kind == "value" and type_.name.split(" ")[-1] in ("auto", "decltype(auto)")


def _array_in(type_: Type, space: str | None) -> Type:
    if type_.kind == "array":
        return Type("array", space, _array_in(type_.target, space))
    return type_.in_space(space)


def _mismatch(actual: Type | None, wanted: Type, is_cast: bool = False) -> tuple[str, str] | None:
    """Returns (given address space, wanted address space) if the one does not convert to the other, else None."""
    if actual is None:
        return None
    if wanted.kind == "pointer":
        if actual.kind not in ("pointer", "array"):
            return None
        have, need = actual.target.space, wanted.target.space
    elif wanted.kind == "array":  # a parameter: a pointer, to thread memory if no space is named
        if actual.kind not in ("pointer", "array"):
            return None
        have, need = actual.target.space, wanted.space or "thread"
    elif wanted.kind == "reference":
        if wanted.target.is_const and wanted.target.space in (None, "thread") and not is_cast:
            return None  # binds to a copy
        have, need = actual.space, wanted.target.space
    else:
        return None
    if have is None or need is None or have == need:
        return None
    return have, need
