"""Converts the arguments of calls to integers as on GPUs (dialect/conversions.py), where the source tells which functions
of the program a call may mean and they all take an integer by value there.

A reference parameter binds to its argument and converts nothing. A function whose name the library has, too, may not be the one
that is called, and an argument that was converted would change which one is. For an object of a class that the source does not
tell, such as a functor of a template parameter, and for packed arguments, msl/rewrite.h looks at the function that is called.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ..analysis.lookup import CALL_OPERATOR, CONSTRUCTOR, Meaning
from ..analysis.program import Function, name_node
from ..analysis.spaces import arguments_of
from ..analysis.types import Type
from ..source.vocabulary import is_library_function
from . import names


class Arguments:
    def __init__(self, conversions):
        self.conversions = conversions
        self.source = conversions.source
        self.types = conversions.types
        self.calls = conversions.rewritten.calls
        self._taking_integers: dict[str, bool] = {}  # by the names of functions

    def run(self) -> None:
        ends = 0  # of the operand of decltype that began last
        for call in self.source.find("[(call_expression) (decltype)] @c"):
            if call.type == "decltype":
                ends = max(ends, call.end_byte)
            if call.start_byte < ends:
                continue  # It is not evaluated, and an overload may depend on whether it can be.
            arguments = arguments_of(call)
            if arguments is None and not call.has_error:
                self._unpack(call)
            if call.has_error or not arguments:
                continue
            has_list = any(a.type == "initializer_list" for a in arguments)
            if not has_list and not any(map(self.conversions.may_be_floating, arguments)):
                continue
            made = self.calls.lambda_called(call, self.calls.scopes_around(call))
            if made is not None:
                self._pass_to_lambda(arguments, made)
            else:
                self._pass_to_functions(arguments, call, has_list)

    def _pass_to_lambda(self, arguments: list, made) -> None:
        declarator = made.child_by_field_name("declarator")
        if declarator is not None:
            self._pass(arguments, [(self._parameters(declarator), {})])

    def _pass_to_functions(self, arguments: list, call, has_list: bool) -> None:
        called = call.child_by_field_name("function")
        name = self._name(called)
        if not has_list and not self._may_take_integers(name):
            return
        is_qualified = called.type in ("qualified_identifier", "field_expression")
        if not is_qualified and is_library_function(name):
            return
        meaning = self.calls.meaning(call)
        if self._is_object(called, meaning) and not self.calls.call_synchronises(call):
            self._pass_to_object(arguments, called)
        elif meaning.member is None and meaning.functions:
            functions = meaning.functions
            if not is_qualified and self._are_numbers(arguments):
                functions = self.calls.lookup.reached_by_name(functions, self.calls.place_of(call))
            bound = self._bound_in(call, called, functions)
            self._pass(
                arguments,
                [
                    (self._parameters(f.declarator), {**bound, **self._explicit(f, called)})
                    for f in functions
                ],
            )

    # ---- functions that the compiler looks at ----------------------------------------------------

    def _pass_to_object(self, arguments: list, called) -> None:
        """Converts the arguments of a call of an object to what its only call operator takes."""
        type_ = f"decltype(({self._text(called)}))"
        for position, argument in enumerate(arguments):
            if argument.type != "initializer_list" and self.conversions.may_be_floating(argument):
                before = f"{names.SUPPORT}::argument<{type_}, {position}>("
                self.conversions.edits.wrap(argument.start_byte, argument.end_byte, before, ")")

    def _unpack(self, call) -> None:
        """Converts packed arguments to what the only function of a name, or the only call operator of an object, takes."""
        called, list_ = (call.child_by_field_name(field) for field in ("function", "arguments"))
        if list_.type != "argument_list":
            return
        arguments = [c for c in list_.named_children if c.type != "comment"]
        if any(a.type == "initializer_list" or self.conversions.is_bit_field(a) for a in arguments):
            return
        if not self._may_take_integers(self._name(called)) or self.calls.call_synchronises(call):
            return
        meaning = self.calls.meaning(call)
        scopes = self.calls.scopes_around(call)
        is_one = called.type == "identifier" and self._is_only_function(meaning.functions)
        if (
            self._is_object(called, meaning)
            or self.calls.lambda_called(call, scopes) not in (None, called)
            or (is_one and meaning.member is None and scopes.declaration_of(called) is None)
        ):
            parenthesis = list_.children[0]
            before = f"{names.SUPPORT}::call("
            self.conversions.edits.wrap(called.start_byte, called.end_byte, before, "")
            self.conversions.edits.replace(parenthesis.start_byte, parenthesis.end_byte, ", ")

    def _is_object(self, called, meaning: Meaning) -> bool:
        """Returns true if a call is that of an object whose class is not known, and that can be named twice."""
        is_named = called.type in ("identifier", "field_expression", "call_expression")
        member = meaning.member
        if (
            not is_named
            or not self._objects_take_integers
            or member is None
            or member.name != CALL_OPERATOR
            or meaning.functions
        ):
            return False
        return not any(c in self._text(called) for c in "[{=+")

    @functools.cached_property
    def _objects_take_integers(self) -> bool:
        """True if a call operator that is no template, or a lambda, has a parameter that may be an integer. Which
        parameters a template has is not known before it is called."""
        operators = self.calls.lookup.functions.get(CALL_OPERATOR, ())
        declarators = [f.declarator for f in operators if not _is_template_itself(f)]
        for node in self.source.find("(lambda_expression) @l"):
            declarators.append(node.child_by_field_name("declarator"))
        return any(
            type_.kind == "value" and (type_.is_open or self.conversions.integer_name(type_))
            for declarator in declarators
            if declarator is not None and declarator.child_by_field_name("parameters") is not None
            for type_ in self._parameters(declarator)
            if type_.name.split(" ")[-1] != "auto"
        )

    def _is_only_function(self, functions: tuple[Function, ...]) -> bool:
        if len(functions) != 1 or functions[0].template_headers:
            return False
        function = functions[0]
        parameters = function.declarator.child_by_field_name("parameters").named_children
        return (
            not is_library_function(function.name)
            and self.calls.lookup.owner(function) is None
            and all(p.type == "parameter_declaration" for p in parameters)
        )

    def _text(self, node) -> str:
        return " ".join(self.conversions.edits.text_of(node.start_byte, node.end_byte).split())

    def _pass(self, arguments: list, functions: list[tuple[list[Type], dict[str, Type]]]) -> None:
        """functions: for each one that may be called, the types of its parameters, and its template arguments as far as the
        call tells them."""
        for index, argument in enumerate(arguments) if functions else ():
            if any(index >= len(types) for types, _ in functions):
                return
            targets = [
                None
                if types[index].kind != "value"
                else self.conversions.type_at_caller(types[index], bound)
                for types, bound in functions
            ]
            if None in targets or len({t.name for t in targets}) != 1:
                continue
            if not self.conversions.is_variable_of(argument, targets[0].name):
                self.conversions.convert(argument, targets[0])

    def _parameters(self, declarator) -> list[Type]:
        return [d.type for _, _, d in self.types.parameters(declarator)]

    def _name(self, called) -> str:
        name = called.child_by_field_name("field") or name_node(called)
        while name.child_by_field_name("name") is not None:
            name = name.child_by_field_name("name")
        return self.source.masked_text(name)

    def _are_numbers(self, arguments: list) -> bool:
        types = map(self.conversions.spaces.type_of, arguments)
        return all(
            t is not None
            and t.kind == "value"
            and not t.is_open
            and t.name not in self.types.classes
            for t in types
        )

    def _may_take_integers(self, name: str) -> bool:
        """Returns true if some function of this name has a parameter that may be an integer."""
        if name not in self._taking_integers:
            lookup = self.calls.lookup
            functions = [
                *lookup.functions.get(name, ()),
                *lookup.functions.get("operator()", ()),
                *lookup.members.get(name, {}).get(CONSTRUCTOR, ()),
            ]
            self._taking_integers[name] = any(
                type_.kind == "value"
                and (type_.is_open or self.conversions.integer_name(type_) is not None)
                for function in functions
                for type_ in self._parameters(function.declarator)
            )
        return self._taking_integers[name]

    # ---- template arguments ----------------------------------------------------------------------

    def _explicit(self, function: Function, called) -> dict[str, Type]:
        """Returns the template arguments that a call names, by the function's template parameters."""
        while called is not None and called.type in ("field_expression", "qualified_identifier"):
            called = called.child_by_field_name("field") or called.child_by_field_name("name")
        if called is None or called.type not in ("template_function", "template_method"):
            return {}
        headers = [h for h in function.template_headers if h.named_children]
        arguments = called.child_by_field_name("arguments").named_children
        return self.conversions.by_parameter(headers[-1], arguments) if headers else {}

    def _bound_in(self, call, called, functions: Iterable[Function]) -> dict[str, Type]:
        """Returns the template arguments of the class whose member a call means."""
        conversions = self.conversions
        if called.type == "field_expression":
            owner = conversions.spaces.type_of(called.child_by_field_name("argument"))
            if owner is not None and owner.kind == "pointer":
                owner = owner.target
            return {} if owner is None else conversions.bound(owner)
        owners = {self.calls.lookup.owner(f) for f in functions}
        here = conversions.spaces.this(call)
        if here is not None and owners == {here.name}:
            return self._own(here.name)
        if called.type == "template_function":  # `Class<T>(x)`
            headers = conversions.headers_of(self.source.masked_text(name_node(called)))
            arguments = called.child_by_field_name("arguments").named_children
            return conversions.by_parameter(headers[0], arguments) if headers else {}
        return {}

    def _own(self, name: str) -> dict[str, Type]:
        """Returns the template parameters of a class, which stand for themselves in it."""
        parameters = [
            self.source.masked_text(p.named_children[0])
            for header in self.conversions.headers_of(name)
            for p in header.named_children
            if p.type == "type_parameter_declaration" and p.named_children
        ]
        return {p: Type("value", name=p) for p in parameters}


def _is_template_itself(function: Function) -> bool:
    """Returns true for a template, false for a function or a member of a class template."""
    node = function.declarator
    while node.type not in ("function_definition", "declaration", "field_declaration"):
        node = node.parent
    return node.parent.type == "template_declaration"
