"""Rewrites conversions to integers, so that floating-point numbers convert as on GPUs (msl/conversion.h): casts, and
wherever C++ converts implicitly: initialisers, assignments, returned values, and arguments (dialect/arguments.py)."""

from __future__ import annotations

import re

from ..analysis.lookup import CONSTRUCTOR
from ..analysis.program import Function
from ..analysis.spaces import spaces_of
from ..analysis.types import Type
from ..source.tree import inner_first, without_parentheses
from . import names
from .arguments import Arguments

_INTEGER = re.compile(
    r"(?:(?:un)?signed(?: (?:char|short|int|long))?|u?(?:char|short|int|long)|u?int(?:8|16|32|64)_t"
    r"|size_t|u?intptr_t|ptrdiff_t|(?:unsigned )?(?:short|long) int)$"
)
_WHOLE = re.compile(r"(?:packed_)?(bool|u?(?:char|short|int|long))[234]?$")  # with vectors of them
_INTEGER_VECTOR = re.compile(
    r"(?:packed_)?(?:(u?(?:char|short|int|long))[234]$|vec ?< ?((?:unsigned )?\w+) ?,)"
)
_YIELDS_INTEGER = {"%", "&", "|", "^", "<<", ">>", "&&", "||", "==", "!=", "<", ">", "<=", ">="}
_OF_OPERANDS = {
    "binary_expression",
    "conditional_expression",
    "parenthesized_expression",
    "unary_expression",
}
_LITERAL = re.compile(r"(?:0[xX][\da-fA-F]+|\d+)[uUlL]*$")
_NO_VALUE = {
    "initializer_list",
    "lambda_expression",
    "string_literal",
    "comment",
    "parameter_pack_expansion",
}
_ARRAY = re.compile(r"(?:metal ?:: ?)?array ?<(.*),[^,]*>$")
_ARGUMENT = re.compile(r"(?:typename |const )*[\w:]+(?: \w+)*$")  # a template argument to repeat
_COMPOUND = {"+=": "add", "-=": "subtract", "*=": "multiply", "/=": "divide"}


class Conversions:
    def __init__(self, rewritten, is_bit_field, divisions: set[int]):
        """divisions: where the assignments `x /= y` begin that are rewritten already."""
        self.rewritten = rewritten
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.spaces = rewritten.program.kept(spaces_of)
        self.types = self.spaces.types
        self.is_bit_field = is_bit_field
        self.divisions = divisions
        self._floating: dict[int, bool] = {}  # what may_be_floating() returned

    def run(self) -> None:
        self._functional_casts()
        self._c_casts()
        self._initialisers()
        self._members()
        self._assignments()
        self._compound_assignments()
        Arguments(self).run()
        self._returned_values()

    # ---- casts -----------------------------------------------------------------------------------

    def _functional_casts(self) -> None:
        """Rewrites `T(x)` and `static_cast<T>(x)`."""
        for call in self.source.find("(call_expression) @c"):
            function, arguments = (call.child_by_field_name(f) for f in ("function", "arguments"))
            if arguments.type != "argument_list" or call.has_error:
                continue
            named = arguments.named_children
            if len(named) != 1 or not self.may_be_floating(named[0]):
                continue
            if function.type == "template_function":
                name = function.child_by_field_name("name")
                target = function.child_by_field_name("arguments").named_children
                if self.source.masked_text(name) != "static_cast" or len(target) != 1:
                    continue
                if target[0].type == "type_descriptor" and self._may_be_integer(target[0]):
                    self.edits.replace(name.start_byte, name.end_byte, f"{names.SUPPORT}::cast")
            elif self._names_integer(function):
                self.edits.wrap(call.start_byte, call.end_byte, f"{names.SUPPORT}::c_cast<", "")
                self.edits.append(function.end_byte, ">")

    def _c_casts(self) -> None:
        """Rewrites `(T)x`."""
        for cast in self.source.find("(cast_expression) @c"):
            target, value = (cast.child_by_field_name(f) for f in ("type", "value"))
            if cast.has_error or not self._may_be_integer(target):
                continue
            if not self.may_be_floating(value):
                continue
            closing = next(c for c in cast.children if c.type == ")")
            start = cast.start_byte
            self.edits.replace(start, start + 1, f"{names.SUPPORT}::c_cast<")
            self.edits.replace(closing.start_byte, closing.end_byte, ">(")
            self.edits.wrap(value.start_byte, cast.end_byte, "", ")")

    def _names_integer(self, function) -> bool:
        """Returns true if a call of this name may be a cast to an integer type."""
        if function.type in ("primitive_type", "sized_type_specifier"):
            return bool(_INTEGER.match(self._text(function)))
        if function.type != "identifier":
            return False
        declaration = self.rewritten.calls.scopes_around(function).declaration_of(function)
        if declaration is not None and declaration.kind != "type":
            return False
        name = self._text(function)
        if declaration is None and name in self.rewritten.calls.lookup.functions:
            return False
        return self._is_integer_name(name)

    def _may_be_integer(self, described) -> bool:
        """Returns true if the type of a type_descriptor may be an integer type."""
        type_ = self.types.described(described).type
        return type_.kind == "value" and self._is_integer_name(type_.name)

    def _is_integer_name(self, name: str) -> bool:
        name = name.removeprefix("metal::").removeprefix("const ")
        if _INTEGER.match(name):
            return True
        if self.types.is_template_parameter(name) or name.startswith("typename "):
            return True
        if name not in self.types.aliases:
            return False
        alias = self.types.aliases[name]
        if alias is None:
            return True
        return alias.kind == "value" and alias.name != name and self._is_integer_name(alias.name)

    # ---- implicit conversions --------------------------------------------------------------------

    def _initialisers(self) -> None:
        for node in self.source.find("(declaration) @d"):
            if node.has_error:
                continue
            type_node = node.child_by_field_name("type")
            start = self.source.previous_code(node.start_byte) + 1
            for declarator in node.children_by_field_name("declarator"):
                value = node.child_by_field_name("value")  # of a condition
                if declarator.type == "init_declarator":
                    value = declarator.child_by_field_name("value")
                    declarator = declarator.child_by_field_name("declarator")
                elif declarator.type == "function_declarator":
                    self._vexing(node, type_node, declarator)
                    continue
                if value is None or declarator.type == "function_declarator":
                    continue
                declared = self.types.declared(start, type_node, declarator, declarator.end_byte)
                if value.type == "argument_list":
                    self._construct(value, declared.type)
                else:
                    self.convert(value, declared.type)

    def _vexing(self, node, type_node, declarator) -> None:
        """Converts the variables of `T object(x, y);`, which the parser takes for the declaration of a function."""
        parameters = declarator.child_by_field_name("parameters").named_children
        arguments = [p.child_by_field_name("type") for p in parameters]
        if node.parent.type != "compound_statement" or not all(
            p.type == "parameter_declaration" and t.type == "type_identifier" and p.text == t.text
            for p, t in zip(parameters, arguments, strict=True)
        ):
            return
        scopes = self.rewritten.calls.scopes_around(node)
        declarations = [scopes.declaration_of(a) for a in arguments]
        if any(d is None or d.kind == "type" for d in declarations):
            return
        start = self.source.previous_code(node.start_byte) + 1
        name = declarator.child_by_field_name("declarator")
        target = self.types.declared(start, type_node, None, name.start_byte).type
        if len(arguments) == 1 and self.integer_name(target):
            self.convert(arguments[0], target)
        elif target.kind == "value":
            self._pass(arguments, self._constructors(target, len(arguments)), self.bound(target))

    def _construct(self, arguments, target: Type) -> None:
        """Converts the arguments of `T object(x, y)`."""
        values = [c for c in arguments.named_children if c.type != "comment"]
        if any(v.type == "parameter_pack_expansion" for v in values):
            return
        if len(values) == 1 and self.integer_name(target):
            self.convert(values[0], target)
        elif target.kind == "value":
            self._pass(values, self._constructors(target, len(values)), self.bound(target))

    def _members(self) -> None:
        """Converts the default values of data members and of parameters, what constructors give to members, and the
        values of `T{x, y}`."""
        for node in self.source.find("(field_declaration default_value: (_)) @d"):
            start = self.source.previous_code(node.start_byte) + 1
            declarator = node.child_by_field_name("declarator")
            type_node = node.child_by_field_name("type")
            declared = self.types.declared(start, type_node, declarator, declarator.end_byte)
            self.convert(node.child_by_field_name("default_value"), declared.type)
        for node in self.source.find("(optional_parameter_declaration) @p"):
            declarator, value = (
                node.child_by_field_name(f) for f in ("declarator", "default_value")
            )
            if value is None:
                continue
            end = declarator.end_byte if declarator is not None else value.start_byte
            start = self.source.previous_code(node.start_byte) + 1
            type_node = node.child_by_field_name("type")
            self.convert(value, self.types.declared(start, type_node, declarator, end).type)
        for node in self.source.find("(field_initializer (field_identifier) @name) @i"):
            if node.type != "field_initializer":
                continue
            owner = self.spaces.this(node)
            name, given = node.named_children[0], node.named_children[-1]
            target = None if owner is None else self.spaces.field(owner, self._text(name))
            if target is None or given.type not in ("argument_list", "initializer_list"):
                continue
            if given.type == "argument_list":
                self._construct(given, target)
            else:
                self.convert(given, target)
        for node in self.source.find("(compound_literal_expression) @c"):
            type_node, value = (node.child_by_field_name(f) for f in ("type", "value"))
            if type_node.type == "type_descriptor":
                self.convert(value, self.types.described(type_node).type)
            else:
                start, end = type_node.start_byte, type_node.end_byte
                self.convert(value, self.types.declared(start, type_node, None, end).type)

    def _assignments(self) -> None:
        for node in self.source.find('(assignment_expression operator: "=") @a'):
            left, right = (node.child_by_field_name(f) for f in ("left", "right"))
            is_list = right.type == "initializer_list"
            if node.has_error or not (is_list or self.may_be_floating(right)):
                continue
            target = self._type_of(left)
            if is_list:
                self.convert(right, target)
            elif target is not None and (
                _INTEGER.match(target.name.removeprefix("metal::")) or self._is_of_variable(left)
            ):
                self.convert(right, target)

    def _compound_assignments(self) -> None:
        """Rewrites `i += x`."""
        for node in self.source.find("(assignment_expression) @a"):
            left, right = (node.child_by_field_name(f) for f in ("left", "right"))
            operator = node.child_by_field_name("operator")
            name = _COMPOUND.get(self.source.node_text(operator))
            if name is None or node.has_error or right.type == "initializer_list":
                continue
            if node.start_byte in self.divisions or self.is_bit_field(left):
                continue
            if self._may_be_integer_object(left) and self.may_be_floating(right):
                before = f"{names.SUPPORT}::assign_{name}("
                self.edits.wrap(node.start_byte, node.end_byte, before, ")")
                self.edits.replace(operator.start_byte, operator.end_byte, ",")

    def _may_be_integer_object(self, node) -> bool:
        type_ = self._type_of(node)
        if type_ is None or type_.is_open:
            return True
        return type_.kind == "value" and bool(_INTEGER.match(type_.name.removeprefix("metal::")))

    def _is_of_variable(self, node) -> bool:
        """Returns true for a variable and its elements, whose type is named where the variable is. The type of
        `f<float>(x)` may be called T where f is declared, and that of `x.member` have a name of the structure's."""
        node = without_parentheses(node)
        if node.type in ("subscript_expression", "pointer_expression"):
            whole = node.child_by_field_name("argument")
            return not self._is_object(whole) and self._is_of_variable(whole)
        if node.type == "field_expression":  # a component of a vector, unless it is a member
            owner = node.child_by_field_name("argument")
            type_ = self.spaces.type_of(owner)
            is_vector = type_ is not None and _INTEGER_VECTOR.match(type_.name)
            return bool(is_vector) and self._is_of_variable(owner)
        return node.type == "identifier"

    def is_variable_of(self, node, name: str) -> bool:
        """Returns true for a variable, or an element of one, that is declared with a type of this name."""
        type_ = self._type_of(node)
        is_value = type_ is not None and type_.kind == "value" and type_.name == name
        return is_value and self._is_of_variable(node)

    def _is_object(self, node) -> bool:
        """Returns true for an object of a class, whose operator names the type of its elements."""
        type_ = self.spaces.type_of(node)
        name = type_.name.split("<")[0].strip() if type_ is not None else ""
        return type_ is not None and type_.kind == "value" and name in self.types.classes

    def _pass(self, arguments, functions: list[Function], bound: dict[str, Type]) -> None:
        """Converts the arguments that are integers for all of the constructors that may be meant."""
        kinds = [[d.type for _, _, d in self.types.parameters(f.declarator)] for f in functions]
        for index, argument in enumerate(arguments):
            if (
                argument.type == "parameter_pack_expansion"
                or not kinds
                or any(index >= len(types) for types in kinds)
            ):
                return
            targets = [self.type_at_caller(types[index], bound) for types in kinds]
            if None not in targets and len({t.name for t in targets}) == 1:
                self.convert(argument, targets[0])

    def type_at_caller(self, type_: Type, bound: dict[str, Type]) -> Type | None:
        """Returns the type of a parameter or member as the caller may name it; None if it does not tell."""
        type_ = _by_value(type_)
        if type_.kind == "array":
            inner = self.type_at_caller(type_.target, bound)
            return None if inner is None else Type("array", None, inner)
        if type_.kind != "value":
            return None
        name = type_.name.removeprefix("const ").removeprefix("metal::")
        if name in bound:
            return bound[name]
        if _INTEGER.match(name):
            return type_
        bare = name.split("<")[0].strip()
        is_class = bare in self.types.classes and not self.types.is_template_parameter(bare)
        return type_ if is_class else None

    def by_parameter(self, header, arguments: list) -> dict[str, Type]:
        """Returns template arguments that are types to be named at the caller, by the parameters of a template."""
        found = {}
        parameters = [c for c in header.named_children if c.type != "comment"]
        arguments = [c for c in arguments if c.type != "comment"]
        for parameter, argument in zip(parameters, arguments, strict=False):
            if "variadic" in parameter.type:
                break
            is_type = argument.type == "type_descriptor" and _ARGUMENT.match(self._text(argument))
            if (
                parameter.type == "type_parameter_declaration"
                and parameter.named_children
                and is_type
            ):
                type_ = self.types.described(argument).type
                name = type_.name if _INTEGER.match(type_.name) else self._text(argument)
                found[self._text(parameter.named_children[0])] = Type("value", name=name)
        return found

    def headers_of(self, name: str) -> list:
        scopes = self.types.classes.get(name, ())
        return scopes[0].template_headers[-1:] if len(scopes) == 1 else []

    def bound(self, owner: Type) -> dict[str, Type]:
        """Returns the template arguments of an object's class, by its template parameters."""
        if owner.kind != "value" or not owner.name.endswith(">"):
            return {}
        name, _, rest = owner.name.partition("<")
        arguments = [a.strip() for a in rest[:-1].split(",")]
        headers = self.headers_of(name.strip())
        if not headers or "<" in rest or "(" in rest:
            return {}
        parameters = [c for c in headers[0].named_children if c.type != "comment"]
        return {
            self._text(p.named_children[0]): Type("value", name=a)
            for p, a in zip(parameters, arguments, strict=False)
            if p.type == "type_parameter_declaration" and p.named_children and _ARGUMENT.match(a)
        }

    def _constructors(self, target: Type, count: int) -> list[Function]:
        lookup = self.rewritten.calls.lookup
        name = target.name.split("<")[0].strip()
        return lookup.taking(lookup.members.get(name, {}).get(CONSTRUCTOR, ()), (count, count))

    # ---- values ----------------------------------------------------------------------------------

    def _returned_values(self) -> None:
        for node in self.source.find("(return_statement) @r"):
            if node.has_error:
                continue
            around = node.parent
            while around is not None and around.type not in (
                "lambda_expression",
                "function_definition",
            ):
                around = around.parent
            value = next((c for c in node.named_children if c.type != "comment"), None)
            if around is not None and value is not None:
                self.convert(value, self._result(around))

    def _result(self, node) -> Type | None:
        """Returns the type that a function or lambda returns, if it names one."""
        declarator = node.child_by_field_name("declarator")
        if declarator is None:
            return None
        for child in declarator.children:
            if child.type == "trailing_return_type":
                described = [c for c in child.named_children if c.type == "type_descriptor"]
                return self.types.described(described[0]).type if described else None
        if declarator.type == "operator_cast":
            type_node = declarator.child_by_field_name("type")
            inner = declarator.child_by_field_name("declarator")
            start = type_node.start_byte
            is_plain = inner is not None and inner.type == "abstract_function_declarator"
            if not is_plain:
                return None
            return self.types.declared(start, type_node, None, inner.start_byte).type
        function = self.rewritten.calls.function_of(node)
        return None if function is None else self.types.result(function)

    def convert(self, value, target: Type | None) -> None:
        target = None if target is None else _by_value(target)
        if value.type == "initializer_list":
            if target is not None:
                self._convert_list(value, target)
            return
        name = self.integer_name(target)
        if name is None or not self.may_be_floating(value):
            return
        if self._text(value).startswith((f"{name}(", f"({name})", f"static_cast<{name}>")):
            return
        before = f"{names.SUPPORT}::implicitly<{name}>("
        self.edits.wrap(value.start_byte, value.end_byte, before, ")")

    def integer_name(self, target: Type | None) -> str | None:
        """Returns the name of a type that may be an integer type; None for other types."""
        if target is None or target.kind != "value":
            return None
        name = target.name.removeprefix("const ")
        is_plain = self._is_integer_name(name) and not name.startswith("typename ")
        return name if is_plain else None

    def _convert_list(self, list_, target: Type) -> None:
        """Converts the values in braces that initialise an object."""
        values = [c for c in list_.named_children if c.type != "comment"]
        array = _ARRAY.match(target.name) if target.kind == "value" else None
        if array:
            target = Type("array", None, Type("value", name=" ".join(array.group(1).split())))
        if target.kind == "array":
            if len(values) == 1 and values[0].type == "initializer_list" and array:
                return self._convert_list(values[0], target)
            for value in values:
                if value.type == "initializer_pair":
                    value = value.child_by_field_name("value")
                if value.type != "initializer_list" and not self.integer_name(target.target):
                    return None  # its braces are left out
                self.convert(value, target.target)
            return None
        if target.kind != "value":
            return None
        if self.integer_name(target) is not None:
            if len(values) == 1:
                self.convert(values[0], target)
            return None
        name = target.name.split("<")[0].strip()
        constructors = self.rewritten.calls.lookup.members.get(name, {}).get(CONSTRUCTOR)
        if constructors:
            return self._pass(values, self._constructors(target, len(values)), self.bound(target))
        scopes = self.types.classes.get(name, ())
        if len(scopes) != 1 or self.rewritten.calls.lookup.has_bases(name):
            return None
        members = scopes[0].specifier.child_by_field_name("body").named_children
        for member in members:
            if member.type == "field_declaration" and (
                member.child_by_field_name("declarator") is None
                or any(c.type == "storage_class_specifier" for c in member.children)
            ):
                return None  # a nameless member, or one of the class
        fields = self.types.fields_of(scopes[0])
        bound = self.bound(target)
        for value, field in zip(values, fields, strict=False):
            if value.type == "parameter_pack_expansion":
                return None
            if value.type == "initializer_pair":
                designator, value = value.named_children[0], value.child_by_field_name("value")
                if designator.type != "field_designator":
                    return None
                field = self._text(designator.named_children[0])
            given = (
                self.type_at_caller(fields[field], bound) if fields.get(field) is not None else None
            )
            is_scalar = fields.get(field) is not None and fields[field].kind == "value"
            is_scalar = is_scalar and fields[field].name.split("<")[0] not in self.types.classes
            if value.type != "initializer_list" and not is_scalar:
                return None  # its braces are left out, or it is a whole object
            if given is not None:
                self.convert(value, given)
        return None

    # ---- types of expressions --------------------------------------------------------------------

    def _type_of(self, node) -> Type | None:
        """Returns the type of an expression, of a vector's component, too, if it can be read off."""
        node = without_parentheses(node)
        if node.type in ("field_expression", "subscript_expression"):
            owner = self.spaces.type_of(node.child_by_field_name("argument"))
            if owner is not None and owner.kind == "value":
                vector = _INTEGER_VECTOR.match(owner.name.removeprefix("metal::"))
                is_one = node.type == "subscript_expression" or (
                    len(self._text(node.child_by_field_name("field"))) == 1
                )
                if vector:
                    return (
                        Type("value", name=vector.group(1) or vector.group(2)) if is_one else None
                    )
        return self.spaces.type_of(node)

    def may_be_floating(self, node) -> bool:
        """Returns true unless an expression is certainly no floating-point number."""
        if node.id not in self._floating:
            for inner in inner_first(node, _OF_OPERANDS):
                if inner.id not in self._floating:
                    self._floating[inner.id] = self._is_floating(inner)
        return self._floating[node.id]

    def _is_floating(self, node) -> bool:
        node = without_parentheses(node)
        if node.type in _NO_VALUE or self.is_bit_field(node):
            return False
        if node.type == "number_literal":
            return not _LITERAL.match(self._text(node))
        if node.type == "binary_expression":
            operator = self.source.node_text(node.child_by_field_name("operator"))
            sides = (node.child_by_field_name(side) for side in ("left", "right"))
            return operator not in _YIELDS_INTEGER and any(map(self.may_be_floating, sides))
        if node.type == "unary_expression":
            operator = self.source.node_text(node.child_by_field_name("operator"))
            argument = node.child_by_field_name("argument")
            return operator in "+-" and self.may_be_floating(argument)
        if node.type == "conditional_expression":
            arms = (node.child_by_field_name(arm) for arm in ("consequence", "alternative"))
            return any(arm is not None and self.may_be_floating(arm) for arm in arms)
        if node.type in (
            "true",
            "false",
            "char_literal",
            "sizeof_expression",
            "pointer_expression",
        ):
            return node.type == "pointer_expression" and self._type_may_float(node)
        if node.type == "call_expression":
            function = node.child_by_field_name("function")
            if function.type in ("primitive_type", "sized_type_specifier", "identifier"):
                if _WHOLE.match(self._text(function)) or _INTEGER.match(self._text(function)):
                    return False
        return self._type_may_float(node)

    def _type_may_float(self, node) -> bool:
        type_ = self._type_of(node)
        if type_ is None or type_.is_open:
            return True
        if type_.kind in ("pointer", "array"):
            return False
        name = type_.name.removeprefix("metal::")
        return not (_INTEGER.match(name) or _WHOLE.match(name))

    def _text(self, node) -> str:
        return " ".join(self.source.masked_text(node).split())


def _by_value(type_: Type) -> Type:
    """Returns the type of the object that initialises a constant reference; other types as they are."""
    is_constant = type_.kind == "reference" and type_.target.is_const
    return type_.target if is_constant else type_
