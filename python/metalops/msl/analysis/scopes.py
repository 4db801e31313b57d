"""Scope resolution within a function: the parameter or local variable that each name means, and the names that are not
local.

Built from the syntax tree, one function at a time and on demand. Names of namespaces and classes are resolved in
calls.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ..source.parse import Source
from .program import declarator_kinds, declared_identifier, function_declarator

_QUERY = """
[(identifier) (type_identifier) (namespace_identifier)] @use
[(compound_statement) (for_statement) (if_statement) (while_statement) (switch_statement)
 (for_range_loop) (lambda_expression) (function_definition) (template_declaration)] @scope
[(declaration) (for_range_loop) (parameter_declaration) (optional_parameter_declaration)
 (variadic_parameter_declaration) (type_parameter_declaration)
 (optional_type_parameter_declaration) (variadic_type_parameter_declaration)
 (alias_declaration) (type_definition) (lambda_capture_initializer)] @declares
"""
_PARAMETERS = {
    "parameter_declaration",
    "optional_parameter_declaration",
    "variadic_parameter_declaration",
}
_TYPE_PARAMETERS = {
    "type_parameter_declaration",
    "optional_type_parameter_declaration",
    "variadic_type_parameter_declaration",
}
_TRANSPARENT = {"parenthesized_expression", "field_expression", "subscript_expression"}


class Declaration:
    """A parameter, variable, template parameter or alias of a function.

    kind: "parameter", "variable", "binding" (of a structured binding), "capture" (with an initialiser), "type" (an
    alias or a type template parameter) or "constant" (a non-type template parameter). node: the declaration,
    parameter_declaration, for_range_loop, ... identifier: the node that declares the name. type_node: the type as
    written, without qualifiers; None if there is none. initialiser: an expression, an argument_list, an
    initializer_list, the parameter_list as which `T v(a, b);` is parsed, or the range of a for_range_loop; None without
    one. scope: the node where it is visible, from the offset `visible_from` on. uses: the identifiers that mean it, in
    order.
    """

    __slots__ = (
        "declarator",
        "identifier",
        "initialiser",
        "kind",
        "name",
        "node",
        "scope",
        "source",
        "type_node",
        "uses",
        "visible_from",
    )

    def __init__(self, source, name, kind, node, identifier, declarator=None, initialiser=None):
        self.source = source
        self.name = name
        self.kind = kind
        self.node = node
        self.identifier = identifier
        self.declarator = declarator
        self.initialiser = initialiser
        self.type_node = node.child_by_field_name("type")
        self.scope = None
        self.visible_from = identifier.end_byte
        self.uses: list = []

    @property
    def type(self) -> str:
        """The base type as written, with address space and qualifiers and without declarators."""
        first = self.node
        if first.type == "for_range_loop":
            first = first.named_children[0]
        start = self.source.previous_code(first.start_byte) + 1
        end = self.identifier if self.declarator is None else self.declarator
        return " ".join(self.source.text[start : end.start_byte].split())

    @property
    def kinds(self) -> list[str]:
        """The kinds that the declarator adds to the base type, from the name outwards: pointer, reference, array,
        function."""
        return declarator_kinds(self.declarator)

    @property
    def is_array(self) -> bool:
        return self.kinds[:1] == ["array"]

    @property
    def is_pointer(self) -> bool:
        return self.kinds[:1] == ["pointer"]

    @property
    def is_reference(self) -> bool:
        return "reference" in self.kinds

    @property
    def is_const(self) -> bool:
        """True if the base type is const; for a pointer or reference this is the pointee."""
        return bool({"const", "constexpr"} & set(self.type.split()))

    @property
    def address_spaces(self) -> set[str]:
        """The address space words before the name."""
        start = self.source.previous_code(self.node.start_byte) + 1
        return {w.text for w in self.source.words_in(start, self.identifier.start_byte)}

    @property
    def lambda_expression(self):
        """The lambda that the variable is initialised with, or None."""
        value = self.initialiser
        return value if value is not None and value.type == "lambda_expression" else None

    @property
    def definitions(self) -> list:
        """Assignments and updates of the variable or of a part of it: the nodes of the expressions."""
        found = []
        for use in self.uses:
            node, parent = _whole(use)
            if parent.type == "update_expression" or (
                parent.type == "assignment_expression"
                and parent.child_by_field_name("left") == node
            ):
                found.append(parent)
        return found

    @property
    def is_address_taken(self) -> bool:
        """True if a pointer or a non-const reference to the variable or a part of it is made in its function. Calls
        that take a reference are not counted (see CallGraph.takes_reference)."""
        for use in self.uses:
            node, parent = _whole(use)
            if parent.type == "pointer_expression" and parent.children[0].type == "&":
                return True
            if parent.type == "init_declarator":
                reference = parent.child_by_field_name("declarator").type == "reference_declarator"
                if reference and parent.child_by_field_name("value") == node:
                    words = self.source.masked_text(parent.parent).partition("=")[0].split()
                    if "const" not in words:
                        return True
            if parent.type == "for_range_loop":
                if parent.child_by_field_name("declarator").type == "reference_declarator":
                    return True
        return False


def _whole(use):
    """Returns the largest lvalue that begins with a name (`x`, `x.y`, `x[i]`, in parentheses or not), and its parent
    node."""
    node, parent = use, use.parent
    while parent.type in _TRANSPARENT:
        if parent.type != "parenthesized_expression" and (
            parent.child_by_field_name("argument") != node
        ):
            break
        node, parent = parent, parent.parent
    return node, parent


class FunctionScopes:
    """The scopes of one function (or of a class, or of a variable of a namespace).

    declarations: in order of position. meanings: what names mean, by the offset of the name. free: the nodes of names
    that the function does not declare: identifiers, names of types and, before `::`, of classes and namespaces.
    """

    def __init__(self, source: Source, node):
        self.source = source
        self.node = node
        self.declarations: list[Declaration] = []
        self.meanings: dict[int, Declaration] = {}
        self.free: list = []
        self._resolve()

    def declaration_of(self, name) -> Declaration | None:
        """Returns the declaration that the node of a name means, or None if the function does not declare it."""
        return self.meanings.get(name.start_byte)

    @functools.cached_property
    def lambdas(self) -> list:
        return list(self.source.find("(lambda_expression) @l", self.node))

    def _resolve(self) -> None:
        captures = self.source.captures(_QUERY, self.node)
        order = {"scope": 0, "declares": 1, "use": 2}
        events = [
            (n.start_byte, -n.end_byte, order[what], what, n)
            for what, nodes in captures.items()
            for n in nodes
        ]
        events.sort(key=lambda e: e[:3])
        coming: dict[int, Declaration] = {}  # by the offset of the identifier
        names: dict[str, list[Declaration]] = {}
        scopes: list[tuple[int, object, list[str]]] = []  # (end, node, names declared there)
        self._outer_parameters(names)
        scopes.append((self.node.end_byte, self.node, []))
        masked = self.source.masked
        for start, end, _, what, node in events:
            while start >= scopes[-1][0] and len(scopes) > 1:
                for name in scopes.pop()[2]:
                    names[name].pop()
            if what == "scope":
                scopes.append((-end, node, []))
            elif what == "declares":
                for declaration in self._declared(node):
                    coming[declaration.identifier.start_byte] = declaration
            else:
                name = masked[start:-end]
                declaration = coming.pop(start, None)
                if declaration is not None:
                    declaration.scope = scopes[-1][1]
                    self.declarations.append(declaration)
                    names.setdefault(name, []).append(declaration)
                    scopes[-1][2].append(name)
                    continue
                # A qualified name is none of a function's variables, in whose value it may be.
                is_qualified = masked.startswith("::", start - 2)
                for declaration in () if is_qualified else reversed(names.get(name, ())):
                    if declaration.visible_from <= start:
                        declaration.uses.append(node)
                        self.meanings[start] = declaration
                        break
                else:
                    self.free.append(node)

    def _outer_parameters(self, names: dict[str, list[Declaration]]) -> None:
        """Adds the template parameters of the classes around a member function."""
        node = self.node.parent
        while node is not None:
            if node.type == "template_declaration":
                for parameter in node.child_by_field_name("parameters").named_children:
                    for declaration in self._declared(parameter):
                        names.setdefault(declaration.name, []).insert(0, declaration)
            node = node.parent

    def _declared(self, node) -> Iterator[Declaration]:
        kind = node.type
        if kind == "declaration":
            for declarator in node.children_by_field_name("declarator"):
                yield from self._variables(node, declarator)
        elif kind in _PARAMETERS:
            if _is_parameter(node):
                is_template = node.parent.type == "template_parameter_list"
                default = node.child_by_field_name("default_value")
                declarator = node.child_by_field_name("declarator")
                identifier = declared_identifier(declarator)
                if identifier is not None:
                    what = "constant" if is_template else "parameter"
                    yield self._declaration(what, node, identifier, declarator, default)
        elif kind in _TYPE_PARAMETERS:
            named = node.child_by_field_name("name") or (node.named_children or [None])[-1]
            if named is not None and named.type == "type_identifier":
                yield self._declaration("type", node, named)
        elif kind == "for_range_loop":
            declarator = node.child_by_field_name("declarator")
            right = node.child_by_field_name("right")
            for declaration in self._variables(node, declarator, right):
                declaration.visible_from = node.child_by_field_name("body").start_byte
                yield declaration
        elif kind == "alias_declaration":
            yield self._declaration("type", node, node.child_by_field_name("name"))
        elif kind == "type_definition":
            for declarator in node.children_by_field_name("declarator"):
                while declarator is not None and declarator.type != "type_identifier":
                    declarator = declarator.child_by_field_name("declarator")
                if declarator is not None:
                    yield self._declaration("type", node, declarator)
        elif kind == "lambda_capture_initializer":
            name = node.child_by_field_name("left")
            value = node.child_by_field_name("right")
            if name is not None:
                declaration = self._declaration("capture", node, name, None, value)
                declaration.visible_from = node.end_byte
                yield declaration

    def _variables(self, node, declarator, value=None) -> Iterator[Declaration]:
        value = value or node.child_by_field_name("value")
        if declarator.type == "init_declarator":
            value = declarator.child_by_field_name("value")
            declarator = declarator.child_by_field_name("declarator")
        inner = declarator
        while inner.type == "reference_declarator":
            inner = inner.named_children[-1]
        if inner.type == "structured_binding_declarator":
            for identifier in inner.named_children:
                yield self._declaration("binding", node, identifier, declarator, value)
            return
        identifier = declared_identifier(declarator)
        if identifier is None:
            return
        function = function_declarator(declarator)
        if function is not None:
            if _is_outermost(node):
                return  # a function is declared, at namespace or class scope
            value = function.child_by_field_name("parameters")
        yield self._declaration("variable", node, identifier, declarator, value)

    def _declaration(self, kind, node, identifier, declarator=None, value=None) -> Declaration:
        name = self.source.masked_text(identifier)
        return Declaration(self.source, name, kind, node, identifier, declarator, value)


def _is_parameter(node) -> bool:
    """Returns true if a parameter_declaration belongs to the function, to a lambda or to a template, and not to the
    type of something else."""
    parent = node.parent.parent
    if node.parent.type == "template_parameter_list":
        return parent.type in ("template_declaration", "lambda_expression")
    while parent is not None and (
        parent.type.endswith("_declarator")
        or parent.type in ("operator_cast", "qualified_identifier")
    ):
        parent = parent.parent
    return parent is not None and (
        parent.type in ("function_definition", "lambda_expression")
        or (parent.type in ("declaration", "field_declaration") and _is_outermost(parent))
    )


def _is_outermost(declaration) -> bool:
    parent = declaration.parent
    while parent is not None and parent.type == "template_declaration":
        parent = parent.parent
    return parent is None or parent.type in (
        "translation_unit",
        "declaration_list",
        "field_declaration_list",
        "linkage_specification",
    )
