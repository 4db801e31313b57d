"""Rewrites conversions to integers, so that floating-point numbers convert as on GPUs (msl/conversion.h): casts,
initialisers, assignments and returned values. Others, as of arguments and by `+=`, are left to the compiler."""

from __future__ import annotations

import re

from ..analysis.spaces import Spaces
from ..analysis.types import Type
from ..source.tree import without_parentheses
from . import names

_INTEGER = re.compile(
    r"(?:(?:un)?signed(?: (?:char|short|int|long))?|u?(?:char|short|int|long)|u?int(?:8|16|32|64)_t"
    r"|size_t|u?intptr_t|ptrdiff_t|(?:unsigned )?(?:short|long) int)$"
)
_WHOLE = re.compile(r"(?:packed_)?(bool|u?(?:char|short|int|long))[234]?$")  # with vectors of them
_INTEGER_VECTOR = re.compile(
    r"(?:packed_)?(?:(u?(?:char|short|int|long))[234]$|vec ?< ?((?:unsigned )?\w+) ?,)"
)
_YIELDS_INTEGER = {"%", "&", "|", "^", "<<", ">>", "&&", "||", "==", "!=", "<", ">", "<=", ">="}
_LITERAL = re.compile(r"(?:0[xX][\da-fA-F]+|\d+)[uUlL]*$")
_NO_VALUE = {"initializer_list", "lambda_expression", "string_literal", "comment"}


class Conversions:
    def __init__(self, rewritten, is_bit_field):
        self.rewritten = rewritten
        self.source = rewritten.program.source
        self.edits = rewritten.edits
        self.spaces = Spaces(rewritten.calls)
        self.types = self.spaces.types
        self.is_bit_field = is_bit_field

    def run(self) -> None:
        self._functional_casts()
        self._c_casts()
        self._initialisers()
        self._assignments()
        self._returned_values()

    # ---- casts -----------------------------------------------------------------------------------

    def _functional_casts(self) -> None:
        """Rewrites `T(x)` and `static_cast<T>(x)`."""
        for call in self.source.find("(call_expression) @c"):
            function, arguments = (call.child_by_field_name(f) for f in ("function", "arguments"))
            if arguments.type != "argument_list" or call.has_error:
                continue
            named = arguments.named_children
            if len(named) != 1 or not self._may_be_floating(named[0]):
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
            if not self._may_be_floating(value):
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
        for declarator in self.source.find("(declaration (init_declarator) @d)"):
            if declarator.has_error:
                continue
            inner, value = (declarator.child_by_field_name(f) for f in ("declarator", "value"))
            if inner.type != "identifier" or value is None:
                continue
            if value.type == "argument_list":
                if len(value.named_children) != 1:
                    continue
                value = value.named_children[0]
            node = declarator.parent
            start = self.source.previous_code(node.start_byte) + 1
            type_node = node.child_by_field_name("type")
            self._convert(value, self.types.declared(start, type_node, inner, inner.end_byte).type)

    def _assignments(self) -> None:
        for node in self.source.find('(assignment_expression operator: "=") @a'):
            left, right = (node.child_by_field_name(f) for f in ("left", "right"))
            if node.has_error or not self._may_be_floating(right):
                continue
            target = self._type_of(left)
            if target is not None and (
                _INTEGER.match(target.name.removeprefix("metal::")) or self._is_of_variable(left)
            ):
                self._convert(right, target)

    def _is_of_variable(self, node) -> bool:
        """Returns true for a variable and its elements, whose type is named where the variable is. The type of
        `f<float>(x)` may be called T where f is declared, and that of `x.member` have a name of the structure's."""
        node = without_parentheses(node)
        if node.type in ("subscript_expression", "pointer_expression"):
            return self._is_of_variable(node.child_by_field_name("argument"))
        if node.type == "field_expression":  # a component of a vector, unless it is a member
            owner = node.child_by_field_name("argument")
            type_ = self.spaces.type_of(owner)
            is_vector = type_ is not None and _INTEGER_VECTOR.match(type_.name)
            return bool(is_vector) and self._is_of_variable(owner)
        return node.type == "identifier"

    def _returned_values(self) -> None:
        for node in self.source.find("(return_statement (_) @value) @r"):
            if node.type != "return_statement" or node.has_error:
                continue
            around = node.parent
            while around.type not in ("lambda_expression", "function_definition"):
                around = around.parent
                if around is None:
                    break
            if around is None or around.type == "lambda_expression":
                continue
            function = self.rewritten.calls.function_of(around)
            value = next((c for c in node.named_children if c.type != "comment"), None)
            if function is not None and value is not None:
                self._convert(value, self.types.result(function))

    def _convert(self, value, target: Type | None) -> None:
        if target is None or target.kind != "value" or not self._may_be_floating(value):
            return
        name = target.name.removeprefix("const ")
        if self._text(value).startswith((f"{name}(", f"({name})", f"static_cast<{name}>")):
            return
        if self._is_integer_name(name) and not name.startswith("typename "):
            before = f"{names.SUPPORT}::implicitly<{name}>("
            self.edits.wrap(value.start_byte, value.end_byte, before, ")")

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

    def _may_be_floating(self, node) -> bool:
        """Returns true unless an expression is certainly no floating-point number."""
        node = without_parentheses(node)
        if node.type in _NO_VALUE or self.is_bit_field(node):
            return False
        if node.type == "number_literal":
            return not _LITERAL.match(self._text(node))
        if node.type == "binary_expression":
            operator = self.source.node_text(node.child_by_field_name("operator"))
            sides = (node.child_by_field_name(side) for side in ("left", "right"))
            return operator not in _YIELDS_INTEGER and any(map(self._may_be_floating, sides))
        if node.type == "unary_expression":
            operator = self.source.node_text(node.child_by_field_name("operator"))
            argument = node.child_by_field_name("argument")
            return operator in "+-" and self._may_be_floating(argument)
        if node.type == "conditional_expression":
            arms = (node.child_by_field_name(arm) for arm in ("consequence", "alternative"))
            return any(arm is not None and self._may_be_floating(arm) for arm in arms)
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
