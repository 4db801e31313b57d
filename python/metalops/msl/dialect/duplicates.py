"""Removes definitions that differ from an earlier one only by address space, which C++ would reject.

Only one with the same body can go: where the bodies differ, the address space decides what a program means. Functions
of this kind have names of their own already (overloads.py); what is left is an error.
"""

from __future__ import annotations

import functools
import re

from ..analysis.program import (
    ProgramError,
    declared_identifier,
    name_of,
    parameter_ranges,
    template_parameters,
)
from .address_spaces import AddressSpaces
from .edits import Edits

_ERASED = re.compile(r"\b(?:device|threadgroup|thread)\b|^#.*$", re.MULTILINE)
_SPECIFIERS = {"const", "constexpr", "friend", "inline", "static"}
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[\w.]+|[^\s\w]')


def remove_duplicates(rewritten) -> None:
    """Removes duplicates. Runs last: it compares the declarations as earlier steps have rewritten them.

    Raises ProgramError for definitions that differ by address space, and in their bodies.
    """
    program = rewritten.program
    keys = Keys(program.source, rewritten.edits)
    seen: dict[tuple, object] = {}
    for scope in program.classes:
        if "<" not in scope.name:
            continue  # only specialisations have arguments that may differ by address space
        key = (scope.path, keys.of_class(scope))
        if key in seen:
            if keys.body_of_class(scope) != keys.body_of_class(seen[key]):
                _refuse(
                    f"specialisations of {scope.name.split('<')[0].strip()}",
                    *(keys.name_of_class(s) for s in (seen[key], scope)),
                    *(s.specifier.start_byte for s in (seen[key], scope)),
                )
            rewritten.remove(scope.head, scope.node, scope.end)
        seen.setdefault(key, scope)
    for function in program.functions:
        # A declaration at namespace scope may be repeated.
        if function.body is None and not function.in_class:
            continue
        if rewritten.is_removed(function.node.start_byte):
            continue
        key = (scope_of(program, function), keys.of_function(function))
        if key in seen:
            if not keys.mean_the_same(seen[key], function):
                _refuse(
                    f"overloads of {function.name}",
                    *(keys.signature(f) for f in (seen[key], function)),
                    *(f.declarator.start_byte for f in (seen[key], function)),
                )
            removed = function
            if keys.forwards(seen[key]):
                removed, seen[key] = seen[key], function
            rewritten.remove(removed.head, removed.node)
        seen.setdefault(key, function)


def _refuse(what: str, first: str, second: str, first_at: int, second_at: int) -> None:
    raise ProgramError(
        f"{what} that differ only by address space, with different bodies, are not supported: "
        f"{first} and {second}",
        second_at,
        first_at,
    )


def scope_of(program, function) -> tuple:
    """Returns the namespaces of a function, and the very class body that it is a member of."""
    if not function.in_class:
        return function.path
    inside = [
        scope.specifier.start_byte
        for scope in program.classes
        if scope.specifier.start_byte <= function.node.start_byte < scope.end
    ]
    return (*function.path, inside[-1] if inside else 0)


class Keys:
    """Keys that identify definitions once address spaces are erased: names of parameters do not count."""

    def __init__(self, source, edits):
        self.source = source
        self.edits = edits

    @classmethod
    def of_erased(cls, program) -> Keys:
        """Returns the keys of a program that nothing has been rewritten of but its address spaces."""
        edits = Edits(program.source.text)
        AddressSpaces(program, edits).run()
        for item in program.source.attribute_lists:
            edits.blank(item.start, item.end)
        keys = cls(program.source, edits)
        # Overloads are compared in pairs, and these edits are final: each function is read once.
        for name in ("of_function", "parameters_of_function", "body_of_function"):
            setattr(keys, name, functools.cache(getattr(keys, name)))
        return keys

    def of_class(self, scope) -> str:
        template, renamed = self._template(scope.template_headers)
        name = scope.specifier.child_by_field_name("name")
        return f"{template}|{self._text(name.start_byte, name.end_byte, renamed)}"

    def of_function(self, function) -> str:
        template, renamed = self._template(function.template_headers)
        declarator = function.declarator
        parameters = declarator.child_by_field_name("parameters")
        name = name_of(declarator)
        parts = [
            template,
            self._returned(function, renamed),
            self._text(name.start_byte, name.end_byte, renamed),
            *self.parameters_of_function(function),
            self._qualifiers(declarator, parameters),
        ]
        return "|".join(parts)

    def parameters_of_function(self, function) -> list[str]:
        """Returns the types of a function's parameters, with the parameters of its template named by their position."""
        _, renamed = self._template(function.template_headers)
        parameters = function.declarator.child_by_field_name("parameters")
        return [self._parameter(*p, renamed) for p in parameter_ranges(parameters)]

    def body_of_class(self, scope) -> list[str]:
        """Returns the tokens of a class without its name, by which definitions with one key are compared."""
        _, renamed = self._template(scope.template_headers)
        name = scope.specifier.child_by_field_name("name")
        return self._tokens(name.end_byte, scope.specifier.end_byte, renamed)

    def body_of_function(self, function) -> list[str]:
        """Returns the tokens of a function's result and of what follows its parameters, by which definitions with one key
        are compared."""
        _, renamed = self._template(function.template_headers)
        parameters = function.declarator.child_by_field_name("parameters")
        for number, (node, _, _) in enumerate(parameter_ranges(parameters)):
            identifier = declared_identifier(node.child_by_field_name("declarator"))
            if identifier is not None:
                renamed[self.source.masked_text(identifier)] = f"#{number}"
        end = function.node.end_byte if function.body is None else function.body.end_byte
        tokens = self._tokens(parameters.end_byte, end, renamed)
        if tokens[:1] == ["const"]:
            del tokens[0]  # part of the key
        return [*self._result(function, renamed), *tokens]

    def mean_the_same(self, one, other) -> bool:
        """Returns true if two functions with one key do the same: their bodies are equal, or one of them calls the other
        for a copy of its object."""
        bodies = [self.body_of_function(f) for f in (one, other)]
        return bodies[0] == bodies[1] or any(map(self.forwards, (one, other)))

    def forwards(self, function) -> bool:
        """Returns true if all that a const member function of a class `C` does is to call its namesake for `C(*this)`, a
        copy of its object, which lies in thread memory."""
        if function.body is None or not function.in_class or function.template_headers:
            return False
        declarator = function.declarator
        parameters = declarator.child_by_field_name("parameters")
        if not self._qualifiers(declarator, parameters):
            return False
        owner = re.escape(function.path[-1].removeprefix("class ").split("<")[0].strip())
        count = len(list(parameter_ranges(parameters)))
        arguments = [f"#{n}" for n in range(count)]
        copy = rf"{owner} (?:\( \* this \)|\{{ \* this \}})"
        name = function.name.removeprefix("operator").strip()
        if name == function.name:
            called = rf"{copy} \. {re.escape(name)} \( {' , '.join(arguments)} \)".replace(
                "(  ", "( "
            )
        elif count == 1 and re.fullmatch(r"\W+", name) and name not in ("()", "[]"):
            called = rf"{copy} {' '.join(map(re.escape, name))} {arguments[0]}"
        elif count == 0 and re.fullmatch(r"\W+", name):
            called = rf"{' '.join(map(re.escape, name))} {copy}"
        else:
            return False
        body = " ".join(self.body_of_function(function))
        return re.search(rf"{{ return {re.sub(r' +', ' ', called)} ; }}$", body) is not None

    def _result(self, function, renamed: dict[str, str]) -> list[str]:
        headers = function.template_headers
        start = max([function.head, function.node.start_byte, *(h.end_byte for h in headers)])
        tokens = self._tokens(start, function.declarator.start_byte, renamed)
        return [t for t in tokens if t not in _SPECIFIERS]

    def name_of_class(self, scope) -> str:
        """Returns the name of a specialisation as the user wrote it."""
        return _in_one_line(self.source.node_text(scope.specifier.child_by_field_name("name")))

    def signature(self, function) -> str:
        """Returns the name and the parameters of a function as the user wrote them."""
        parameters = function.declarator.child_by_field_name("parameters")
        end = parameters.end_byte
        if function.in_class:
            following = function.body or function.node.next_sibling
            behind = following.start_byte if following is not None else function.node.end_byte
            words = self.source.words_in(end, behind)
            end = words[0].end if words else end
        return _in_one_line(function.name + self.source.text[parameters.start_byte : end])

    def _tokens(self, start: int, end: int, renamed: dict[str, str]) -> list[str]:
        """Returns the tokens of the source with address spaces and line markers erased."""
        text = _ERASED.sub("", self.source.text[start:end])
        tokens = ("const" if t == "constant" else t for t in _TOKEN.findall(text))
        found: list[str] = []
        for token in tokens:
            if token != "const" or found[-1:] != ["const"]:
                found.append(renamed.get(token, token))
        return found

    def _text(self, start: int, end: int, renamed: dict[str, str]) -> str:
        tokens = re.findall(r"\w+|[^\s\w]", self.edits.text_of(start, end))
        return " ".join(renamed.get(t, t) for t in tokens)

    def _template(self, headers) -> tuple[str, dict[str, str]]:
        """Returns the template headers, with parameters named by their position, and the map to those names."""
        renamed: dict[str, str] = {}
        for header in headers:
            for parameter in template_parameters(header):
                if parameter.identifier is not None:
                    renamed[self.source.masked_text(parameter.identifier)] = f"${len(renamed)}"
        texts = [self._text(h.start_byte, h.end_byte, renamed) for h in headers]
        return re.sub(r"\bclass\b", "typename", " ".join(texts)), renamed

    def _parameter(self, node, start: int, end: int, renamed: dict[str, str]) -> str:
        default = node.child_by_field_name("default_value")
        if default is not None:
            end = default.start_byte
        identifier = declared_identifier(node.child_by_field_name("declarator"))
        if identifier is None:
            return self._text(start, end, renamed).rstrip("= ")
        before = self._text(start, identifier.start_byte, renamed)
        return f"{before} {self._text(identifier.end_byte, end, renamed)}".rstrip("= ")

    def _returned(self, function, renamed: dict[str, str]) -> str:
        """Returns the return type of a function template, which is part of its signature."""
        if not function.template_headers:
            return ""
        start = max(function.node.start_byte, function.template_headers[-1].end_byte)
        text = self._text(start, function.declarator.start_byte, renamed)
        return re.sub(r"\b(?:inline|static|constexpr)\b ?", "", text)

    def _qualifiers(self, declarator, parameters) -> str:
        end = declarator.end_byte
        text = self._text(parameters.end_byte, end, {})
        return "const" if re.match(r"(?:\w+ )*const\b", text) else ""


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
