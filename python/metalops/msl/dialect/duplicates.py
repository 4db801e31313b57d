"""Removes definitions that differ from an earlier one only by address space, which C++ would reject."""

from __future__ import annotations

import re

from ..analysis.program import declared_identifier, name_of, parameter_ranges


def remove_duplicates(rewritten) -> None:
    """Removes duplicates. Runs last: it compares the declarations as earlier steps have rewritten them."""
    program = rewritten.program
    keys = _Keys(program.source, rewritten.edits)
    seen: set[tuple] = set()
    for scope in program.classes:
        if "<" not in scope.name:
            continue  # only specialisations have arguments that may differ by address space
        key = (scope.path, keys.of_class(scope))
        if key in seen:
            rewritten.remove(scope.head, scope.node, scope.end)
        seen.add(key)
    for function in program.functions:
        # A declaration at namespace scope may be repeated.
        if function.body is None and not function.in_class:
            continue
        if rewritten.is_removed(function.node.start_byte):
            continue
        key = (_scope_of(program, function), keys.of_function(function))
        if key in seen:
            rewritten.remove(function.head, function.node)
        seen.add(key)


def _scope_of(program, function) -> tuple:
    """Returns the namespaces of a function, and the very class body that it is a member of."""
    if not function.in_class:
        return function.path
    inside = [
        scope.specifier.start_byte
        for scope in program.classes
        if scope.specifier.start_byte <= function.node.start_byte < scope.end
    ]
    return (*function.path, inside[-1] if inside else 0)


class _Keys:
    """Keys that identify definitions once address spaces are erased: names of parameters do not count."""

    def __init__(self, source, edits):
        self.source = source
        self.edits = edits

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
            *(self._parameter(*p, renamed) for p in parameter_ranges(parameters)),
            self._qualifiers(declarator, parameters),
        ]
        return "|".join(parts)

    def _text(self, start: int, end: int, renamed: dict[str, str]) -> str:
        tokens = re.findall(r"\w+|[^\s\w]", self.edits.text_of(start, end))
        return " ".join(renamed.get(t, t) for t in tokens)

    def _template(self, headers) -> tuple[str, dict[str, str]]:
        """Returns the template headers, with parameters named by their position, and the map to those names."""
        renamed: dict[str, str] = {}
        for header in headers:
            for node, _, _ in parameter_ranges(header):
                name = self._template_parameter(node)
                if name is not None:
                    renamed[self.source.masked_text(name)] = f"${len(renamed)}"
        texts = [self._text(h.start_byte, h.end_byte, renamed) for h in headers]
        return re.sub(r"\bclass\b", "typename", " ".join(texts)), renamed

    @staticmethod
    def _template_parameter(node):
        if node.type in ("type_parameter_declaration", "variadic_type_parameter_declaration"):
            return next((c for c in node.named_children if c.type == "type_identifier"), None)
        name = node.child_by_field_name("name")
        return name or declared_identifier(node.child_by_field_name("declarator"))

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
