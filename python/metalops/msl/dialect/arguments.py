"""Converts the arguments of calls to integers as on GPUs (dialect/conversions.py), where the source tells which functions
of the program a call may mean and they all take an integer by value there.

A reference parameter binds to its argument and converts nothing. A function whose name the library has, too, may not be the one
that is called, and an argument that was converted would change which one is.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis.lookup import CONSTRUCTOR
from ..analysis.program import Function, name_node
from ..analysis.spaces import arguments_of
from ..analysis.types import Type
from ..source.vocabulary import is_library_function


class Arguments:
    def __init__(self, conversions):
        self.conversions = conversions
        self.source = conversions.source
        self.types = conversions.types
        self.calls = conversions.rewritten.calls
        self._taking_integers: dict[str, bool] = {}  # by the names of functions

    def run(self) -> None:
        for call in self.source.find("(call_expression) @c"):
            arguments = arguments_of(call)
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
        if meaning.member is None and meaning.functions:
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
