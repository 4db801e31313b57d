"""Types of expressions, as far as address spaces need them: on demand, from the declarations of what they name.

A space that the source does not tell (a template parameter that may stand for a pointer, a member of an unknown class)
is None.
"""

from __future__ import annotations

import functools
import re

from ..source.tree import NESTED, inner_first, may_be_deep
from .calls import CallGraph
from .lookup import CALL_OPERATOR
from .program import (
    ClassScope,
    Function,
    Program,
    declared_identifier,
    last_name,
    name_node,
    parameters_of_lambda,
    template_parameters,
)
from .scopes import Declaration
from .types import NO_POINTER, Type, types_of

CASTS = {"static_cast", "reinterpret_cast", "const_cast", "as_type"}
# Names that no program can have: one may call a type of its own component.
NUMBER = Type("value", None, None, "a number", False)
COMPONENT = Type("value", None, None, "a component", False)  # of a vector, which has no address
NULL = Type("value", None, None, "nullptr", False)
A_FUNCTION = Type("value", None, None, "a function", False)
_LITERALS = {
    "number_literal",
    "char_literal",
    "true",
    "false",
    "sizeof_expression",
    "alignof_expression",
    "lambda_expression",
    "unary_expression",
    "string_literal",
    "primitive_type",
}
_OPAQUE = {"addressof", "declval", "forward", "move", "as_type"}  # of the library
_BUILTIN_CALL = re.compile(
    r"(?:packed_)?(?:bool|u?char|u?short|u?int|u?long|half|float|bfloat)[234]?$"
)
_BETWEEN = re.compile(r"(?:\s|\bconst\b|\bvolatile\b|\bnoexcept\b)*")


def qualifier(source, function: Function) -> str | None:
    """Returns the address space after the parameters of a member function, which its object is in; None without
    one."""
    parameters = function.declarator.child_by_field_name("parameters")
    following = function.body or function.node.next_sibling
    end = following.start_byte if following is not None else function.node.end_byte
    for word in source.words_in(parameters.end_byte, end):
        if _BETWEEN.fullmatch(source.masked, parameters.end_byte, word.start):
            return word.text
    return None


class Spaces:
    """The types of a program's expressions."""

    def __init__(self, calls: CallGraph):
        self.calls = calls
        self.program = calls.program
        self.source = calls.source
        self.types = calls.program.kept(types_of)
        self._known: dict[int, Type | None] = {}
        self._variables: dict[Declaration, Type | None] = {}
        self._classes: dict[Function, ClassScope | None] = {}  # of member functions
        self._globals = self._of_the_program()
        self._enumerators = {
            self.source.masked_text(n)
            for n in self.source.find("(enumerator name: (identifier) @n)")
        }

    def type_of(self, node) -> Type | None:
        """Returns the type of an expression; its space is that of the object (an lvalue), None for a value."""
        if node is None:
            return None
        if node.id not in self._known:
            if may_be_deep(node):
                for inner in inner_first(node, NESTED):
                    if inner.id not in self._known and inner.is_named:
                        self._find(inner)
            else:
                self._find(node)
        return self._known[node.id]

    def _find(self, node) -> None:
        self._known[node.id] = None
        if node.type in _LITERALS:
            self._known[node.id] = NUMBER
        else:
            handler = getattr(self, f"_of_{node.type}", None)
            self._known[node.id] = handler(node) if handler is not None else None

    # ---- declarations ----------------------------------------------------------------------------

    def _of_the_program(self) -> dict[str, Type | None]:
        found: dict[str, Type | None] = {}
        for node, _, head in self.program.declarations:
            start = max(head, self.source.previous_code(node.start_byte) + 1)
            parent = node.parent
            if parent is not None and parent.type == "template_declaration":
                start = min(start, parent.child_by_field_name("parameters").end_byte)
            type_node = node.child_by_field_name("type")
            for declarator in node.children_by_field_name("declarator"):
                identifier = declared_identifier(declarator)
                if identifier is not None:
                    name = self.source.masked_text(identifier)
                    type_ = self.types.declared(start, type_node, declarator, node.end_byte).type
                    if type_.kind == "array" and type_.space is None:
                        type_ = _in_space(type_, "constant")
                    same = name not in found or found[name] == type_
                    found[name] = type_ if same else None
        return found

    def type_of_variable(self, declaration: Declaration) -> Type | None:
        """Returns the type of a variable, its target for a reference."""
        found = self._variable(declaration)
        return found.target if found is not None and found.kind == "reference" else found

    def _variable(self, declaration: Declaration) -> Type | None:
        if declaration not in self._variables:
            self._variables[declaration] = None
            self._variables[declaration] = self._as_local(self._declared(declaration))
        return self._variables[declaration]

    @staticmethod
    def _as_local(type_: Type | None) -> Type | None:
        """Returns the type of a local variable, which lies in thread memory unless its declaration says otherwise."""
        if type_ is None or type_.kind == "reference" or type_.space is not None:
            return type_
        return _in_space(type_, "thread")

    def _declared(self, declaration: Declaration) -> Type | None:
        node, value = declaration.node, declaration.initialiser
        if declaration.kind == "capture":
            return decayed(self.type_of(value))
        if declaration.kind not in ("parameter", "variable", "constant"):
            return None
        type_node = declaration.type_node
        first = type_node if node.type == "for_range_loop" else node
        start = self.source.previous_code(first.start_byte) + 1
        declarator = declaration.declarator
        if declarator is not None and declaration.kinds[:1] == ["function"]:
            declarator = None  # `Class object(argument);`
        end = node.end_byte if declarator is None else declarator.end_byte
        if declarator is None and declaration.declarator is not None:
            end = declaration.declarator.start_byte
        type_ = self.types.declared(start, type_node, declarator, end).type
        if "..." in self.source.masked[first.start_byte : declaration.identifier.end_byte]:
            # A pack, whose elements are of one space if they are references or pointers.
            is_known = type_.kind in ("reference", "pointer") or type_.name.startswith(NO_POINTER)
            return type_ if is_known else None
        if type_node is not None and type_node.type == "decltype" and type_.kind == "value":
            return self._decltype(type_node)
        if not _is_auto(type_) or declaration.kind != "variable":
            is_told = type_.kind in ("pointer", "reference") and _names_spaces(type_)
            return type_ if is_told or not _is_auto(type_) else None
        if node.type == "for_range_loop":
            range_ = self.type_of(value)
            actual = range_.target if range_ is not None and range_.kind == "array" else None
        else:
            if value is not None and value.type in ("initializer_list", "argument_list"):
                items = [c for c in value.named_children if c.type != "comment"]
                value = items[0] if len(items) == 1 else None
            actual = self.type_of(value)
        if type_.kind == "reference":
            return actual
        return decayed(actual)

    def _decltype(self, node) -> Type | None:
        """Returns the type of `decltype(p)` if it is a pointer or a value; None of anything else."""
        values = [c for c in node.named_children if c.type != "comment"]
        if len(values) != 1 or values[0].type not in ("identifier", "binary_expression"):
            return None
        found = decayed(self.type_of(values[0]))
        return None if found is None or found.is_open else found

    def described(self, argument) -> Type:
        """Returns the type of a type_descriptor, which may be `decltype` of an expression whose type is known."""
        type_ = self.types.described(argument).type
        node = argument.child_by_field_name("type")
        if node is None or node.type != "decltype" or type_.kind != "value":
            return type_
        values = [c for c in node.named_children if c.type != "comment"]
        if len(values) != 1 or values[0].type not in ("identifier", "binary_expression"):
            return type_
        return self.type_of(values[0]) or type_

    # ---- names -----------------------------------------------------------------------------------

    def _of_identifier(self, node) -> Type | None:
        declaration = self.calls.scopes_around(node).declaration_of(node)
        if declaration is not None:
            found = self._variable(declaration)
        else:
            name = self.source.masked_text(node)
            owner = self.this(node)
            found = None
            if owner is not None:
                found = self._field_of_this(node, owner, name)
            if found is None:
                found = self._globals.get(name)
            if found is None and name in self._enumerators:
                return NUMBER
            if found is None and owner is None and name in self.calls.lookup.functions:
                return A_FUNCTION
        return found.target if found is not None and found.kind == "reference" else found

    def _of_qualified_identifier(self, node) -> Type | None:
        name = last_name(self.source, node)
        if name in self._enumerators:
            return NUMBER
        scope = node.child_by_field_name("scope")
        if scope is not None:
            owner = self.source.masked_text(scope).split("<")[0].strip()
            if owner in self.types.classes:
                found = self.field(Type("value", "constant", None, owner), name)
                return found.target if found is not None and found.kind == "reference" else found
        return self._globals.get(name)

    def this(self, node) -> Type | None:
        """Returns the type of the object whose member function a node is in, or None."""
        function = self.calls.function_around(node)
        if function is None:
            return None
        owner = self.calls.lookup.owner(function)
        if owner is None:
            return None
        scope = self._class_of(function)
        if scope is not None:
            owner = self.types.own_name(scope)
        return Type("value", qualifier(self.source, function) or "thread", None, owner)

    def _class_of(self, function: Function) -> ClassScope | None:
        """Returns the class of a member function: of those of one name, the one whose specialisation it is."""
        if function not in self._classes:
            owner = self.calls.lookup.owner(function)
            scopes = self.types.classes.get(owner, [])
            start = function.node.start_byte
            inside = [s for s in scopes if s.specifier.start_byte <= start < s.end]
            if not inside and len(scopes) > 1:
                start = function.declarator.start_byte
                for node in self.source.find("(template_type) @t", function.declarator):
                    if self.source.masked_text(node.child_by_field_name("name")) == owner:
                        inside = self.types.classes_named(self.source.node_text(node))
                        break
            self._classes[function] = inside[-1] if inside else None
        return self._classes[function]

    def _of_this(self, node) -> Type | None:
        owner = self.this(node)
        return None if owner is None else Type("pointer", None, owner)

    def _field_of_this(self, node, owner: Type, name: str) -> Type | None:
        function = self.calls.function_around(node)
        scope = None if function is None else self._class_of(function)
        found = None if scope is None else self.types.fields_of(scope).get(name)
        return self.field(owner, name) if found is None else self._in_object(found, owner)

    @staticmethod
    def _in_object(member: Type | None, owner: Type) -> Type | None:
        if member is None or member.kind == "reference" or member.space is not None:
            return member
        return _in_space(member, owner.space)

    def field(self, owner: Type, name: str) -> Type | None:
        """Returns the type of a member of an object."""
        found = self._declared_field(owner.name, name, 0)
        return self._in_object(self._of_argument(found, owner), owner)

    def _of_argument(self, member: Type | None, owner: Type | None) -> Type | None:
        """Returns the type of a member of an object, of a type that a template argument of its class may tell."""
        if member is None or owner is None or not member.is_open or "<" not in owner.name:
            return member
        return self.types.argument(owner.name, member.name) or member

    def _declared_field(self, owner: str, name: str, depth: int) -> Type | None:
        found: set[Type | None] = set()
        for scope in self.types.classes_named(owner):
            fields = self.types.fields_of(scope)
            if name in fields:
                found.add(fields[name])
        if len(found) > 1 and all(t is not None and t.kind == "value" for t in found):
            # The specialisations differ: it is an object of some type, where its owner is.
            spaces = {t.space for t in found}
            return Type("value", spaces.pop(), None, "", True) if len(spaces) == 1 else None
        if found:
            return found.pop() if len(found) == 1 else None
        for scope in self.types.classes_named(owner) if depth < 8 else ():
            for child in scope.specifier.children:
                if child.type == "base_class_clause":
                    for base in child.named_children:
                        type_ = self._declared_field(self.types.name_of(base), name, depth + 1)
                        if type_ is not None:
                            return type_
        return None

    # ---- operators -------------------------------------------------------------------------------

    def _of_parenthesized_expression(self, node) -> Type | None:
        named = [c for c in node.named_children if c.type != "comment"]
        return self.type_of(named[0]) if len(named) == 1 else None

    def _of_pointer_expression(self, node) -> Type | None:
        inner = self.type_of(node.child_by_field_name("argument"))
        if inner is None:
            return None
        if self.source.node_text(node.child_by_field_name("operator")) == "&":
            return Type("pointer", None, inner)
        return inner.target if inner.kind in ("pointer", "array") else None

    def _of_subscript_expression(self, node) -> Type | None:
        base = self.type_of(node.child_by_field_name("argument"))
        if base is None:
            return None
        if base.kind in ("pointer", "array"):
            return base.target
        if base.kind != "value" or base.is_open:
            return None
        name = base.name.split("<")[0].strip()
        if name not in self.types.classes:
            return COMPONENT
        members = self.calls.lookup.members.get(name, {}).get("operator[]", ())
        return self._results(
            [f for f in members if qualifier(self.source, f) in (None, base.space)]
        )

    def _of_field_expression(self, node) -> Type | None:
        owner = self.type_of(node.child_by_field_name("argument"))
        field = node.child_by_field_name("field")
        if owner is None or field is None or field.type != "field_identifier":
            return None
        if self.source.node_text(node.child_by_field_name("operator")) == "->":
            if owner.kind not in ("pointer", "array"):
                return None
            owner = owner.target
        if owner.kind != "value":
            return None
        found = self.field(owner, self.source.masked_text(field))
        if found is not None:
            return found.target if found.kind == "reference" else found
        if owner.is_open or owner.name.split("<")[0].strip() in self.types.classes:
            return None
        if owner.name.startswith(NO_POINTER):  # may be of any class
            return None
        return COMPONENT

    def _of_binary_expression(self, node) -> Type | None:
        if self.source.node_text(node.child_by_field_name("operator")) not in ("+", "-"):
            return NUMBER
        left = decayed(self.type_of(node.child_by_field_name("left")))
        right = decayed(self.type_of(node.child_by_field_name("right")))
        pointers = [t for t in (left, right) if t is not None and t.kind == "pointer"]
        if len(pointers) == 1:
            return pointers[0]
        if pointers or any(t is None or t.is_open for t in (left, right)):
            return NUMBER if len(pointers) == 2 else None
        return NUMBER

    def _of_conditional_expression(self, node) -> Type | None:
        one = self.type_of(node.child_by_field_name("consequence"))
        other = self.type_of(node.child_by_field_name("alternative"))
        if one is None or other is None:
            return None
        if one == other:
            return one
        one, other = decayed(one), decayed(other)
        if NULL in (one, other):
            return other if one == NULL else one
        if one.kind == other.kind == "pointer":
            return one if chain(one) == chain(other) else None
        return NUMBER if not (one.is_open or other.is_open) else None

    def _of_comma_expression(self, node) -> Type | None:
        return self.type_of(node.named_children[-1])

    def _of_assignment_expression(self, node) -> Type | None:
        return self.type_of(node.child_by_field_name("left"))

    def _of_update_expression(self, node) -> Type | None:
        return self.type_of(node.child_by_field_name("argument"))

    def _of_null(self, _) -> Type:
        return NULL

    def _of_nullptr(self, _) -> Type:
        return NULL

    # ---- casts and calls -------------------------------------------------------------------------

    def _of_cast_expression(self, node) -> Type | None:
        return self._cast(node.child_by_field_name("type"))

    def _cast(self, described) -> Type | None:
        if described is None or described.type != "type_descriptor":
            return None
        found = self.types.described(described).type
        if found.kind == "reference":
            return found.target
        return None if found.is_open else found

    def _of_compound_literal_expression(self, node) -> Type | None:
        type_node = node.child_by_field_name("type")
        if type_node.type == "type_descriptor":
            return self._cast(type_node)
        values = node.child_by_field_name("value").named_child_count
        return self._object(type_node) or self._made(type_node, values)

    def _made(self, name, values: int) -> Type | None:
        """Returns the type of `T(a, b)` or `T{a, b}`, an object, whatever T is: a parameter or an alias of the function.
        `T(a)` may be a cast of a pointer."""
        declaration = self.calls.scopes_around(name).declaration_of(name)
        if declaration is None or declaration.kind != "type" or values < 2:
            return None
        return Type("value", None, None, self.source.masked_text(name), False)

    def _of_local_alias(self, declaration: Declaration, name) -> Type | None:
        """Returns the type of `T(a)`, where T is an alias that the function declares."""
        found = self.types.aliases.get(self.source.masked_text(name))
        if declaration.kind != "type" or found is None or found.is_open:
            return None
        return found.in_space(None) if found.kind in ("pointer", "value") else None

    def _object(self, type_node) -> Type | None:
        """Returns the type of `T(...)` or `T{...}`."""
        start = type_node.start_byte
        found = self.types.declared(start, type_node, None, type_node.end_byte).type
        return None if found.is_open else found.in_space(None)

    def _of_call_expression(self, node) -> Type | None:
        called = node.child_by_field_name("function")
        name = name_node(called)
        text = self.source.masked_text(name)
        if called.type == "template_function" and text in CASTS:
            template = called.child_by_field_name("arguments").named_children
            return self._cast(template[0]) if len(template) == 1 else None
        if called.type in ("primitive_type", "sized_type_specifier"):
            return NUMBER
        called_lambda = self._lambda_called(node)
        if called_lambda is not None:
            return self._lambda_result(called_lambda)
        candidates = self.calls.functions_called(node)
        if candidates is None:
            return None
        if candidates:
            if called.type != "field_expression" and text in self.types.classes:
                return self._object(called if called.type == "template_function" else name)
            matching = self.matching(node, candidates)
            is_object = all(f.name == CALL_OPERATOR for f in candidates)
            owner = self._object_called(called) if is_object else self._owner(called)
            found = self._results(matching, owner)
            if found is not None and found.kind == "value" and "<" in found.name:
                return self._with_deduced(node, matching, found)
            return found or self._deduced_result(node, matching)
        if called.type == "field_expression":
            owner = self.type_of(called.child_by_field_name("argument"))
            is_class = owner is None or owner.kind != "value" or owner.is_open
            is_class = is_class or owner.name.split("<")[0].strip() in self.types.classes
            return None if is_class else NUMBER
        declaration = self.calls.scopes_around(node).declaration_of(name)
        if declaration is not None:
            made = self._made(name, len(arguments_of(node) or ()))
            return made or self._of_local_alias(declaration, name)
        if _BUILTIN_CALL.match(text):
            return Type("value", None, None, text, False)
        if text in self.types.classes or text in self.types.aliases:
            return self._object(called if called.type == "template_function" else name)
        if text in _OPAQUE or text in self.calls.lookup.functions or text in self._globals:
            return None
        return NUMBER

    @functools.cached_property
    def object_calls(self) -> list:
        """The calls that may be of the call operator of an object, and of no function."""
        names = self.calls.lookup.functions
        found = []
        for call in self.source.find("(call_expression) @c"):
            meaning = self.calls.meaning(call)
            is_object = meaning.member is not None and meaning.member.name == CALL_OPERATOR
            is_object = is_object or bool(meaning.functions)
            if is_object and all(f.name == CALL_OPERATOR for f in meaning.functions):
                name = call.child_by_field_name("function")
                is_name = name.type == "identifier" and self.source.masked_text(name) in names
                if not is_name or self._is_object(name):
                    found.append(call)
        return found

    def _is_object(self, name) -> bool:
        """Returns true if a name is that of a variable, a parameter or a data member."""
        if self.calls.scopes_around(name).declaration_of(name) is not None:
            return True
        place = self.calls.place_of(name)
        return self.calls.lookup.field(place, self.source.masked_text(name)) is not None

    def _lambda_called(self, call):
        """Returns the lambda_expression that a call certainly means, of several copies of one, too; None for others."""
        scopes = self.calls.scopes_around(call)
        found = self.calls.lambda_called(call, scopes)
        name = call.child_by_field_name("function")
        if found is not None or name.type != "identifier":
            return found
        declaration = scopes.declaration_of(name)
        value = None if declaration is None else declaration.initialiser
        if value is None or value.type != "compound_literal_expression":
            return None
        given = call.child_by_field_name("arguments").named_children
        if self.source.masked_text(value.child_by_field_name("type")) != "msl_several" or not given:
            return None
        tag = self.source.masked_text(given[0]).partition("(")[0]
        for node in value.child_by_field_name("value").named_children:
            parameters = parameters_of_lambda(node) if node.type == "lambda_expression" else ()
            if parameters and self.source.masked_text(parameters[0][0]).startswith(tag):
                return node
        return None

    def _lambda_result(self, node) -> Type | None:
        """Returns the type that a lambda returns."""
        declarator = node.child_by_field_name("declarator")
        for child in () if declarator is None else declarator.named_children:
            if child.type == "trailing_return_type":
                return self._cast(child.named_children[0])
        body = node.child_by_field_name("body")
        inside = [n for n in self.source.find("(lambda_expression) @l", body)]
        values = {
            decayed(self.type_of(value))
            for value in self.source.find("(return_statement (_) @value)", body)
            if not any(n.start_byte <= value.start_byte < n.end_byte for n in inside)
        }
        found = values.pop() if len(values) == 1 else None
        return None if found is None or found.is_open else found

    def _owner(self, called) -> Type | None:
        """Returns the type of the object whose member is called."""
        if called.type != "field_expression":
            return None
        owner = self.type_of(called.child_by_field_name("argument"))
        return owner.target if owner is not None and owner.kind == "pointer" else owner

    def _deduced_result(self, call, functions: list[Function]) -> Type | None:
        """Returns the type of a call of a function template that returns one of its parameters, if that is a pointer or an
        object of a class template."""
        template = _only_template(functions)
        result = None if template is None else self.types.result(template)
        if result is None or result.kind != "value" or not result.is_open:
            return None
        found = self._deduced(call, template).get(result.name)
        if found is None or found.is_open:
            return None
        return found if found.kind == "pointer" or "<" in found.name else None

    def _with_deduced(self, call, functions: list[Function], result: Type) -> Type:
        """Returns the type of a call whose class has parameters of the function's template as arguments, `s<P>`, with what
        they stand for in the call."""
        template = _only_template(functions)
        deduced = {} if template is None else self._deduced(call, template)
        name = result.name
        for function in functions:
            for own in self.types.type_parameters(function):
                type_ = deduced.get(own)
                text = "decltype(0)" if type_ is None or type_.is_open else type_.written()
                name = re.sub(rf"\b{re.escape(own)}\b", lambda _, text=text: text, name)
        return result._replace(name=name)

    def _deduced(self, call, template: Function) -> dict[str, Type]:
        """Returns the types that a call gives a template's parameters, by template arguments, or by arguments for
        parameters of these types."""
        found: dict[str, Type] = {}
        parameters = self.types.parameters(template.declarator)
        for argument, (_, _, declared) in zip(arguments_of(call) or (), parameters, strict=False):
            type_ = declared.type.target if declared.type.kind == "reference" else declared.type
            actual = decayed(self.type_of(argument))
            if type_.kind == "value" and type_.is_open and actual is not None:
                found.setdefault(type_.name, actual)
        name = name_node(call.child_by_field_name("function"))
        if name.parent.type in ("template_function", "template_method"):
            written = name.parent.child_by_field_name("arguments").named_children
            header = template_parameters(template.template_headers[0])
            for parameter, argument in zip(header, written, strict=False):
                if parameter.identifier is not None and argument.type == "type_descriptor":
                    own = self.source.masked_text(parameter.identifier)
                    found[own] = decayed(self.described(argument))
        return found

    def _results(self, functions: list[Function], owner: Type | None = None) -> Type | None:
        found = [self._result(f, owner) for f in functions]
        if not found or None in found:
            return None
        if len({(t.kind, t.space, chain(decayed(t))) for t in found}) > 1:
            return None
        return found[0].target if found[0].kind == "reference" else found[0]

    def _result(self, function: Function, owner: Type | None) -> Type | None:
        type_ = self.types.result(function)
        if type_ is not None and type_.kind == "value":
            type_ = self._of_argument(type_, owner)
            type_ = type_ and self._in_class(type_, owner)
        if type_ is not None and _is_auto(type_) and function.body is not None:
            query = "(return_statement (_) @value)"
            values = {decayed(self.type_of(v)) for v in self.source.find(query, function.body)}
            return values.pop() if len(values) == 1 else None
        if type_ is None or type_.is_open or type_.kind == "reference":
            return type_ if type_ is not None and type_.kind == "reference" else None
        return type_.in_space(None)

    def _in_class(self, type_: Type, owner: Type | None) -> Type:
        """Returns the type of a member whose class has parameters of the class that it is a member of as arguments."""
        if owner is None or "<" not in owner.name or "<" not in type_.name:
            return type_
        scopes = self.types.classes_named(owner.name)
        if len(scopes) != 1 or "<" in scopes[0].name:
            return type_
        header = [p for h in scopes[0].template_headers for p in template_parameters(h)]
        name = type_.name
        for parameter, argument in zip(header, self.types.arguments_in(owner.name), strict=False):
            if parameter.identifier is not None and not argument.is_open:
                own = self.source.masked_text(parameter.identifier)
                text = argument.written()
                name = re.sub(rf"\b{re.escape(own)}\b", lambda _, text=text: text, name)
        return type_._replace(name=name)

    # ---- what a parameter takes ------------------------------------------------------------------

    def matching(self, call, functions: list[Function]) -> list[Function]:
        """Returns the functions that take the arguments of a call, as far as their address spaces tell."""
        arguments = arguments_of(call)
        if arguments is None:
            return functions
        return [f for f in functions if self.fit(call, arguments, f) is not NO]

    def fit(self, call, arguments: list, function: Function) -> str:
        """Returns how a function takes the arguments of a call: NO, UNKNOWN, COPY (by a reference to a copy of an object
        in another space) or YES."""
        parameters = [d.type for _, _, d in self.types.parameters(function.declarator)]
        fits = [*map(self.takes, parameters, arguments), self._takes_object(call, function)]
        return min(fits, key=_ORDER.index)

    def fit_of_pack(self, call, function: Function) -> str:
        """Returns how a function takes the arguments of a call of which one is the expansion of a pack, `f(x, rest...)`:
        as the arguments before it tell, and all that may be elements of the pack."""
        node = call.child_by_field_name("arguments")
        if node.type != "argument_list" or node.has_error:
            return UNKNOWN
        leading: list = []
        for argument in node.named_children:
            if argument.type == "parameter_pack_expansion":
                break
            leading += [argument] if argument.type != "comment" else []
        behind = [c for c in node.named_children if c.start_byte > argument.end_byte]
        count = self.calls.lookup.count(function)[0] - len(leading) - len(behind)
        element = argument.child_by_field_name("pattern")
        return self.fit(call, leading + [element] * count, function)

    def _object_called(self, callee) -> Type | None:
        """Returns the type of the object whose call operator is called."""
        if name_node(callee).type == "operator_name":
            return self._owner(callee)
        found = self.type_of(callee)
        return found.target if found is not None and found.kind == "reference" else found

    def _takes_object(self, call, function: Function) -> str:
        if self.calls.lookup.owner(function) is None or is_static(self.source, function):
            return YES
        callee = call.child_by_field_name("function")
        if function.name == CALL_OPERATOR:
            owner = self._object_called(callee)
            if owner is not None and owner.is_open:
                owner = None
        elif callee.type == "field_expression":
            owner = self.type_of(callee.child_by_field_name("argument"))
            if self.source.node_text(callee.child_by_field_name("operator")) == "->":
                owner = owner.target if owner is not None and owner.kind != "value" else None
        else:
            owner = self.this(call)
        if owner is None:
            return UNKNOWN
        scope = self._class_of(function)
        if scope is not None and "<" in owner.name:
            if scope not in self.types.classes_named(owner.name, scope):
                return NO
        wanted = qualifier(self.source, function) or "thread"
        return YES if (owner.space or "thread") == wanted else NO

    def takes(self, wanted: Type, argument) -> str:
        """Returns how a parameter takes an argument (see fit())."""
        actual = self.type_of(argument)
        if wanted.kind == "value":
            if wanted.is_open:
                return YES
            inside = nested(wanted)
            if actual is not None and actual.kind == "value":
                return self._takes_class(wanted, actual)
            if actual is not None and actual.kind in ("pointer", "array"):
                return NO if wanted.name.split("<")[0] not in self.types.classes else UNKNOWN
            return UNKNOWN if inside else YES
        if actual is None:
            return UNKNOWN
        if wanted.kind == "reference":
            return min(_bind(wanted, actual), self._takes_class(wanted, actual), key=_ORDER.index)
        if actual == NULL:
            return YES
        if actual.kind == "value":
            return UNKNOWN if actual.is_open else NO
        if self._takes_class(wanted, actual) == NO:
            return NO
        return _compared(chain(decayed(wanted)), chain(decayed(actual)), wanted, actual)

    def _takes_class(self, wanted: Type, actual: Type) -> str:
        """Returns how a parameter takes an object, as far as the address spaces in the template arguments of its class
        tell."""
        wanted, actual = _innermost(wanted), _innermost(actual)
        inside, given = nested(wanted), nested(actual)
        if inside == given:
            return YES
        if inside and given:
            return NO
        names = [t.name.split("<")[0].strip() for t in (wanted, actual)]
        if names[0] == names[1] and names[0] in self.types.classes:
            plain = self.types.arguments_in((actual if inside else wanted).name)
            if plain and not any(t.is_open or t.kind != "value" for t in plain):
                return NO
        return UNKNOWN if inside else YES


YES, COPY, UNKNOWN, NO = "yes", "copy", "unknown", "no"
_ORDER = (NO, UNKNOWN, COPY, YES)


def _only_template(functions: list[Function]) -> Function | None:
    """Returns the function template that functions are, with its specialisations; None for others."""
    templates = [f for f in functions if not f.is_specialisation]
    if len(templates) != 1 or len(templates[0].template_headers) != 1:
        return None
    return templates[0]


def _bind(wanted: Type, actual: Type) -> str:
    """Returns how a reference binds to an object."""
    need = wanted.target.space or "thread"
    if actual == COMPONENT:
        return UNKNOWN
    copies = wanted.target.is_const and need == "thread"
    if actual.space is None:  # a value, in a temporary object
        return YES if copies else NO
    if actual.space == need:
        return _compared(chain(wanted.target), chain(actual), wanted.target, actual)
    return COPY if copies else NO


def _compared(need: tuple, have: tuple, wanted: Type, actual: Type) -> str:
    if any(n != h for n, h in zip(need, have, strict=False)):
        return NO
    wanted, actual = _innermost(wanted), _innermost(actual)
    if len(need) != len(have):
        return UNKNOWN if wanted.is_open or actual.is_open else NO
    return NO if differ(wanted, actual) else YES


def differ(one: Type, other: Type) -> bool:
    """Returns true if two types are certainly builtin types, and not the same one."""
    names = [plain_name(t) or _atomic_name(t) for t in (one, other)]
    return None not in names and "void" not in names and names[0] != names[1]


def is_scalar(type_: Type) -> bool:
    """Returns true if a type is certainly a builtin scalar."""
    name = plain_name(type_)
    return name is not None and name != "void" and not name[-1].isdigit()


_SAME = {
    "unsigned": "uint",
    "unsigned int": "uint",
    "size_t": "ulong",
    "ptrdiff_t": "long",
    **{
        f"{sign}int{bits}_t": f"{sign}{name}"
        for sign in ("u", "")
        for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
    },
}
_PLAIN = re.compile(
    r"void|(?:bool|u?char|u?short|u?int|u?long|half|float|bfloat)(?:[234](?:x[234])?)?$"
)


def _atomic_name(type_: Type) -> str | None:
    """Returns the name of an atomic type, `atomic_int` for `atomic<int>`; None of any other type."""
    name = type_.name.removeprefix("metal::")
    found = re.fullmatch(r"atomic(?:_(\w+)|\s*<\s*(\w+)\s*>)", name)
    if found is None or type_.kind != "value":
        return None
    element = _SAME.get(found[1] or found[2], found[1] or found[2])
    return f"atomic_{element}" if _PLAIN.match(element) else None


def plain_name(type_: Type) -> str | None:
    """Returns the name of a builtin type, one for all names that it has; None of any other type."""
    name = type_.name.removeprefix("metal::")
    name = _SAME.get(name, name)
    return name if type_.kind == "value" and not type_.is_open and _PLAIN.match(name) else None


def chain(type_: Type | None) -> tuple[str, ...]:
    """Returns the spaces of what a pointer points to, of what that points to, and so on."""
    found = []
    while type_ is not None and type_.kind in ("pointer", "array"):
        if type_.kind == "pointer":
            found.append(type_.target.space or "thread")
        type_ = type_.target
    return tuple(found)


def decayed(type_: Type | None) -> Type | None:
    """Returns the type that `auto` deduces: by value, arrays as pointers."""
    if type_ is None:
        return None
    if type_.kind == "reference":
        type_ = type_.target
    if type_.kind == "array":
        return Type("pointer", None, type_.target)
    return type_.in_space(None)


def arguments_of(call) -> list | None:
    """Returns the arguments of a call_expression; None if their number is not known."""
    node = call.child_by_field_name("arguments")
    if node.type != "argument_list" or node.has_error:
        return None
    named = [c for c in node.named_children if c.type != "comment"]
    return None if any(c.type == "parameter_pack_expansion" for c in named) else named


def is_static(source, function: Function) -> bool:
    """Returns true if a member function has no object."""
    end = function.declarator.start_byte
    return re.search(r"\bstatic\b", source.masked[function.head : end]) is not None


def nested(type_: Type) -> tuple[str, ...]:
    """Returns the address spaces in the template arguments of a class."""
    return tuple(re.findall(r"\b(?:device|threadgroup|thread|constant)\b", type_.name))


def _innermost(type_: Type) -> Type:
    while type_.target is not None:
        type_ = type_.target
    return type_


def _is_auto(type_: Type) -> bool:
    type_ = _innermost(type_)
    return type_.kind == "value" and type_.name.split(" ")[-1] in ("auto", "decltype(auto)")


def _names_spaces(type_: Type) -> bool:
    """Returns true if a type of a pointer or a reference names the address space of each level."""
    while type_.target is not None:
        type_ = type_.target
        if type_.space is None:
            return False
    return True


def _in_space(type_: Type, space: str | None) -> Type:
    if type_.kind == "array":
        return Type("array", space, _in_space(type_.target, space))
    return type_.in_space(space)


def spaces_of(program: Program) -> Spaces:
    """Returns the types of a program's expressions, for Program.kept()."""
    return Spaces(CallGraph(program))
